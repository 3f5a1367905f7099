// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// GPUConfig configures whole GPUs. It is the opaque parameter of driver gpu.switchyard.dev in a
// ResourceClaim or a DeviceClass.
//
// +kubebuilder:object:root=true
type GPUConfig struct {
	metav1.TypeMeta `json:",inline"`

	// Sharing says how the containers of the claim share a GPU. Without it they use the GPU as the
	// driver finds it: no setting of the GPU is touched.
	// +optional
	Sharing *Sharing `json:"sharing,omitempty"`
}

// MIGConfig configures MIG partitions. It is the opaque parameter of driver gpu.switchyard.dev in a
// ResourceClaim or a DeviceClass.
//
// +kubebuilder:object:root=true
type MIGConfig struct {
	metav1.TypeMeta `json:",inline"`

	// Sharing says how the containers of the claim share a partition. Of its settings, timeSlicing
	// is for whole GPUs only: a partition has no time slice of its own to set.
	// +optional
	Sharing *Sharing `json:"sharing,omitempty"`
}

// Sharing is one strategy and its settings; settings of another strategy are refused.
type Sharing struct {
	// Strategy is TimeSlicing or MPS. Required: there is no strategy that suits everyone.
	Strategy SharingStrategy `json:"strategy"`

	// TimeSlicing holds the settings of strategy TimeSlicing.
	// +optional
	TimeSlicing *TimeSlicingConfig `json:"timeSlicing,omitempty"`

	// MPS holds the settings of strategy MPS.
	// +optional
	MPS *MPSConfig `json:"mps,omitempty"`
}

// SharingStrategy names a way for several processes to share one device.
//
// +kubebuilder:validation:Enum=TimeSlicing;MPS
type SharingStrategy string

const (
	// TimeSlicingStrategy lets processes take turns: no isolation of memory, none of faults.
	TimeSlicingStrategy SharingStrategy = "TimeSlicing"
	// MPSStrategy lets processes run at the same time through a Multi-Process Service daemon.
	MPSStrategy SharingStrategy = "MPS"
)

// TimeSlicingConfig are the settings of strategy TimeSlicing.
type TimeSlicingConfig struct {
	// Interval is how long a process keeps the GPU before the next one gets it, as one of the
	// driver's four steps (nvidia-smi compute-policy --set-timeslice). Without it the GPU's time slice
	// is not touched, which also suits GPUs that have none to set.
	// +optional
	Interval TimeSliceInterval `json:"interval,omitempty"`
}

// TimeSliceInterval is a step of the driver's time slice. The driver does not publish the
// milliseconds behind a step.
//
// +kubebuilder:validation:Enum=Default;Short;Medium;Long
type TimeSliceInterval string

const (
	// DefaultTimeSlice is the driver's own choice (--set-timeslice=0).
	DefaultTimeSlice TimeSliceInterval = "Default"
	// ShortTimeSlice is --set-timeslice=1.
	ShortTimeSlice TimeSliceInterval = "Short"
	// MediumTimeSlice is --set-timeslice=2.
	MediumTimeSlice TimeSliceInterval = "Medium"
	// LongTimeSlice is --set-timeslice=3.
	LongTimeSlice TimeSliceInterval = "Long"
)

// MPSConfig are the settings of strategy MPS: limits of one client process. What is left out stays
// as the MPS daemon has it, unlimited.
type MPSConfig struct {
	// ActiveThreadPercentage is the share of the device's multiprocessors that one client may use,
	// in percent, 1 to 100 (set_default_active_thread_percentage of nvidia-cuda-mps-control).
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	ActiveThreadPercentage *int32 `json:"activeThreadPercentage,omitempty"`

	// PinnedDeviceMemoryLimit is the device memory that one client may allocate on each device, in
	// bytes, a whole number of mebibytes, for example 10Gi (set_default_device_pinned_mem_limit of
	// nvidia-cuda-mps-control).
	// +optional
	PinnedDeviceMemoryLimit *resource.Quantity `json:"pinnedDeviceMemoryLimit,omitempty"`

	// PerDevicePinnedMemoryLimit replaces PinnedDeviceMemoryLimit for single devices. A key is the place of a
	// GPU among those that the claim has on the node, from "0" and in the order of the claim's allocation, or
	// the UUID of a GPU. For whole GPUs only: MPS serves one MIG partition.
	// +optional
	// +kubebuilder:validation:MaxProperties=32
	PerDevicePinnedMemoryLimit map[string]resource.Quantity `json:"perDevicePinnedMemoryLimit,omitempty"`
}
