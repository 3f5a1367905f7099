// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// checkShare refuses a share of a GPU that is not shared, and one whose claim wants to say how it is: that is for the
// node configuration, since the GPU is not this claim's alone.
func checkShare(claim *resourceapi.ResourceClaim, result resourceapi.DeviceRequestAllocationResult, seen *snapshot) error {
	if result.ShareID == nil || ptr.Deref(result.AdminAccess, false) {
		return nil
	}
	known, ok := seen.find(result.Device)
	if !ok {
		return nil // refused as a device that is not known
	}
	if known.gpu.Shares == nil {
		return newError(kindInvalidAllocation, "request %s: device %s is allocated as a share, but is not shared on this node: delete the pod and the claim; the GPU is shared again when the node configuration says so and all its claims are gone",
			result.Request, result.Device)
	}
	for _, candidate := range resourceclaim.ConfigForResult(claim.Status.Allocation.Devices.Config, result) {
		if candidate.Opaque.Driver != v1alpha1.DriverName {
			continue
		}
		if config, err := v1alpha1.Decode(candidate.Opaque.Parameters.Raw); err == nil && config.SharingConfig() != nil {
			return newError(kindInvalidConfig, "%s: sharing: must not be set for a share of a GPU, which the node configuration shares with strategy %s: remove it",
				describeConfig(candidate, result), known.gpu.Shares.Strategy)
		}
	}
	return nil
}

// setDefaultTimeSlice gives whole GPUs that are shared by time-slicing the node's interval, where their claim says none.
func (d *Driver) setDefaultTimeSlice(configs []v1alpha1.Config) {
	for _, config := range configs {
		gpu, ok := config.(*v1alpha1.GPUConfig)
		if !ok || d.config.DefaultTimeSlice == "" || gpu.Sharing == nil || gpu.Sharing.Strategy != v1alpha1.TimeSlicingStrategy {
			continue
		}
		if gpu.Sharing.TimeSlicing == nil {
			gpu.Sharing.TimeSlicing = &v1alpha1.TimeSlicingConfig{}
		}
		if gpu.Sharing.TimeSlicing.Interval == "" {
			gpu.Sharing.TimeSlicing.Interval = d.config.DefaultTimeSlice
		}
	}
}
