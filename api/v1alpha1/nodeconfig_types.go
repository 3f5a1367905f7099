// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NodeConfig is what the node plugin should do with the GPUs of a node. It is a file that the plugin reads
// when it starts (--config), not an object of the API server. A flag that is given goes before the file.
//
// +kubebuilder:object:root=true
type NodeConfig struct {
	metav1.TypeMeta `json:",inline"`

	// MIG says which GPUs may be partitioned.
	// +optional
	MIG *NodeMIG `json:"mig,omitempty"`

	// Shares say which GPUs several claims may have at the same time, and how many. A GPU gets the first entry
	// that names it.
	// +optional
	Shares []NodeShares `json:"shares,omitempty"`

	// Sharing holds the defaults of claims that share a GPU among their own containers.
	// +optional
	Sharing *NodeSharing `json:"sharing,omitempty"`

	// Health says what follows when a GPU is sick.
	// +optional
	Health *NodeHealth `json:"health,omitempty"`

	// DiscoveryInterval is the time between two looks at the hardware, 1s or more. Default: 10s.
	// +optional
	DiscoveryInterval *metav1.Duration `json:"discoveryInterval,omitempty"`

	// ReconcileInterval is the time between two comparisons of what is prepared with what the API server says,
	// 1s or more. Default: 1m.
	// +optional
	ReconcileInterval *metav1.Duration `json:"reconcileInterval,omitempty"`

	// OrphanGrace is how long a claim that the kubelet has not unprepared must be gone from the API server
	// before its GPUs are given back. Default: 2m.
	// +optional
	OrphanGrace *metav1.Duration `json:"orphanGrace,omitempty"`

	// DeviceWait is how long a claim's preparation waits for a GPU that another claim still has on this node,
	// 0 to 40s. Default: 10s.
	// +optional
	DeviceWait *metav1.Duration `json:"deviceWait,omitempty"`

	// SteeringInterval has the plugin publish how many GPUs of each NVSwitch domain and of the node are free, which
	// steers pods with one GPU to where they break the least, and is the least time between two writes of it: 1s or
	// more, or 0s for off. It takes the rights in deployments/manifests/steering. Default: 0s.
	// +optional
	SteeringInterval *metav1.Duration `json:"steeringInterval,omitempty"`
}

// NodeMIG says which GPUs may be partitioned.
type NodeMIG struct {
	// GPUs that may be partitioned, of those whose MIG mode is on: "all", "none", or indexes and UUIDs separated
	// by commas. Default: all that shares do not name.
	// +optional
	GPUs string `json:"gpus,omitempty"`
}

// NodeShares says that several claims may have one GPU at the same time.
type NodeShares struct {
	// GPUs that are shared: "all", or indexes and UUIDs separated by commas. An index shifts when another GPU is
	// lost, a UUID does not. A GPU in MIG mode is not shared.
	GPUs string `json:"gpus"`

	// Strategy is how the claims share a GPU: MPS, which holds each claim to the memory and the
	// multiprocessors that it asked for, or TimeSlicing, which only counts them.
	Strategy SharingStrategy `json:"strategy"`

	// MaxClaims is how many claims may have a share of one GPU: 2 to 48 with MPS, which has no more clients, 2 to
	// 128 with TimeSlicing. A claim that does not say how much it needs gets this part of the GPU.
	MaxClaims int32 `json:"maxClaims"`

	// MemoryStep is the least memory of a share, and what its memory is a multiple of: whole mebibytes.
	// Default: 1Gi.
	// +optional
	MemoryStep *resource.Quantity `json:"memoryStep,omitempty"`
}

// NodeSharing holds the defaults of claims that share a GPU among their own containers.
type NodeSharing struct {
	// DefaultTimeSlice is the interval of claims of whole GPUs whose configuration has strategy TimeSlicing and no
	// interval. Without it the time slice of their GPUs is not touched.
	// +optional
	DefaultTimeSlice TimeSliceInterval `json:"defaultTimeSlice,omitempty"`
}

// NodeHealth says what follows when a GPU is sick.
type NodeHealth struct {
	// Effect is the effect of the taint of a GPU with which nothing can go on: NoSchedule, which leaves its pods
	// alone, or NoExecute, which has Kubernetes delete them. Default: NoSchedule.
	// +optional
	Effect string `json:"effect,omitempty"`

	// XIDs are the effects of single XIDs in place of their defaults, by the number of the XID: Ignore, None
	// (shown, keeps nobody away), NoSchedule or NoExecute.
	// +optional
	XIDs map[string]string `json:"xids,omitempty"`
}
