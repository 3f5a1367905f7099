// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package resourcemodel

import (
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/switchyard-dev/switchyard/pkg/device"
)

// TypeShare is the value of AttributeType for a GPU that several claims may have at the same time.
const TypeShare = "share"

const (
	// AttributeSharing is how the claims share a GPU: "MPS" or "TimeSlicing".
	AttributeSharing resourceapi.QualifiedName = "sharing"
	// CapacityShares is how many claims may have a share of a GPU; each consumes one.
	CapacityShares resourceapi.QualifiedName = "shares"
)

// allowMultipleAllocations is nil for a GPU that a claim has alone: false would be a change of every slice.
func allowMultipleAllocations(gpu device.GPU) *bool {
	if gpu.Shares == nil {
		return nil
	}
	return new(true)
}

// shareCapacities returns what the shares of a GPU consume. There is no share of less than one step of memory and
// one multiprocessor, with MPS one percent of them, so each claim is held to something.
func shareCapacities(gpu device.GPU) map[resourceapi.QualifiedName]resourceapi.DeviceCapacity {
	s := *gpu.Shares
	step := int64(s.MemoryStep)
	return map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
		CapacityMemory:          consumable(int64(gpu.MemoryBytes), int64(s.DefaultMemory(gpu)), step, step, resource.BinarySI),
		CapacityMultiprocessors: consumable(int64(gpu.Multiprocessors), int64(s.DefaultMultiprocessors(gpu)), int64(s.MinMultiprocessors(gpu)), 1, resource.DecimalSI),
		CapacityShares: {
			Value: *resource.NewQuantity(int64(s.MaxClaims), resource.DecimalSI),
			RequestPolicy: &resourceapi.CapacityRequestPolicy{
				Default:     resource.NewQuantity(1, resource.DecimalSI),
				ValidValues: []resource.Quantity{*resource.NewQuantity(1, resource.DecimalSI)},
			},
		},
	}
}

// consumable is a capacity of which claims consume whole steps, from least on. The API wants the most that one may
// consume to be a whole number of steps as well.
func consumable(value, byDefault, least, step int64, format resource.Format) resourceapi.DeviceCapacity {
	return resourceapi.DeviceCapacity{
		Value: *resource.NewQuantity(value, format),
		RequestPolicy: &resourceapi.CapacityRequestPolicy{
			Default: resource.NewQuantity(byDefault, format),
			ValidRange: &resourceapi.CapacityRequestPolicyRange{
				Min:  resource.NewQuantity(least, format),
				Max:  resource.NewQuantity(value/step*step, format),
				Step: resource.NewQuantity(step, format),
			},
		},
	}
}
