// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/checkpoint"
	"github.com/switchyard-dev/switchyard/pkg/device"
	"github.com/switchyard-dev/switchyard/pkg/resourcemodel"
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

// limitShares puts what a claim may use of GPUs that are shared by MPS into its record. The shares that it has of one GPU are
// one: a container that uses several has the variables of the last.
func limitShares(record *checkpoint.Record, seen *snapshot) error {
	var first *checkpoint.Device
	for i := range record.Devices {
		dev := &record.Devices[i]
		known, _ := seen.find(dev.Name)
		if dev.ShareID == "" || dev.AdminAccess || known.gpu.Shares == nil || known.gpu.Shares.Strategy != device.StrategyMPS {
			continue
		}
		memory, err := consumed(*record, dev.Name, resourcemodel.CapacityMemory)
		if err != nil {
			return err
		}
		multiprocessors, err := consumed(*record, dev.Name, resourcemodel.CapacityMultiprocessors)
		if err != nil {
			return err
		}
		dev.MPSDaemon = dev.Name
		dev.MPSActiveThreadPercentage, dev.MPSPinnedMemoryBytes = known.gpu.ActiveThreadPercentage(multiprocessors), memory>>20<<20
		if dev.MPSActiveThreadPercentage == 0 || dev.MPSPinnedMemoryBytes == 0 {
			return newError(kindInvalidAllocation, "request %s: the share of device %s has %d multiprocessors and %d bytes of memory, and MPS limits take one percent of the GPU's %d and a mebibyte: ask for more, or delete the claim to have it allocated again",
				dev.Request, dev.Name, multiprocessors, memory, known.gpu.Multiprocessors)
		}
		first = dev
	}
	if first == nil {
		return nil
	}
	for _, other := range record.Devices {
		if !other.AdminAccess && other.MPSDaemon != first.MPSDaemon {
			return newError(kindInvalidAllocation, "request %s: a share of device %s is used through the MPS daemon of the GPU, which shows programs nothing else, and the claim has device %s for request %s: use a claim for each, and for more of one GPU a larger share",
				first.Request, first.Name, other.Name, other.Request)
		}
	}
	return nil
}

// consumed is how much of a capacity of a GPU all shares in a record have.
func consumed(record checkpoint.Record, gpu string, capacity resourceapi.QualifiedName) (int64, error) {
	var sum int64
	for _, dev := range record.Devices {
		if dev.Name != gpu || dev.AdminAccess {
			continue
		}
		quantity, err := resource.ParseQuantity(dev.ConsumedCapacity[string(capacity)])
		if err != nil {
			return 0, newError(kindInvalidAllocation, "request %s: the allocation does not say how much %s the share of device %s has: delete the claim to have it allocated again",
				dev.Request, capacity, dev.Name)
		}
		sum += quantity.Value()
	}
	return sum, nil
}

// shareLimits are the variables that hold a container to what its claim has of a GPU; none for what is no share. A program
// sees one device through the daemon of a shared GPU, so its memory is that of device 0.
func shareLimits(dev checkpoint.Device) []string {
	if dev.ShareID == "" {
		return nil
	}
	return []string{
		fmt.Sprintf("%s=%d", mpsThreadsEnv, dev.MPSActiveThreadPercentage),
		fmt.Sprintf("%s=0=%dM", mpsMemoryEnv, dev.MPSPinnedMemoryBytes>>20),
	}
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
