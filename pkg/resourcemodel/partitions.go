// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package resourcemodel

import (
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/device"
	"github.com/switchyard-dev/switchyard/pkg/mig"
)

// TypeMIG is the value of AttributeType for a MIG partition.
const TypeMIG = "mig"

// Attributes that only MIG partitions have.
const (
	AttributeParentUUID     resourceapi.QualifiedName = "parentUUID"
	AttributeProfile        resourceapi.QualifiedName = "profile"
	AttributePlacementStart resourceapi.QualifiedName = "placementStart"
	AttributePlacementSize  resourceapi.QualifiedName = "placementSize"
)

// Capacities that only MIG partitions have.
const (
	CapacityCopyEngines resourceapi.QualifiedName = "copyEngines"
	CapacityDecoders    resourceapi.QualifiedName = "decoders"
	CapacityEncoders    resourceapi.QualifiedName = "encoders"
	CapacityJPEGEngines resourceapi.QualifiedName = "jpegEngines"
	CapacityOFAEngines  resourceapi.QualifiedName = "ofaEngines"
)

const (
	// TaintMIGUnavailable is the key of the taint of the partitions of a GPU that offers none now: its MIG
	// mode is off, or the node does not let it be partitioned any more.
	TaintMIGUnavailable = v1alpha1.DriverName + "/mig-unavailable"
	// TaintMIGOccupied is the key of the taint of a partition that cannot be made since partitions that
	// this driver has not made are in its place.
	TaintMIGOccupied = v1alpha1.DriverName + "/mig-occupied"
)

// PartitionAttributes is Attributes for a MIG partition. It has no UUID before it is made, and no links.
func PartitionAttributes(p device.Partition, inv device.Inventory) map[resourceapi.QualifiedName]resourceapi.DeviceAttribute {
	return partitionAttributes(p, Attributes(p.GPU, inv))
}

// partitionAttributes turns the attributes of a GPU into those of a partition of it.
func partitionAttributes(p device.Partition, ofParent map[resourceapi.QualifiedName]resourceapi.DeviceAttribute) map[resourceapi.QualifiedName]resourceapi.DeviceAttribute {
	a := attributes(maps.Clone(ofParent))
	for _, ofGPU := range []resourceapi.QualifiedName{AttributeUUID, AttributeIndex, AttributeMinor, AttributeNVLinks, AttributeNVLinksPerPeer, AttributeNVSwitchDomainSize, AttributeLastNVSwitchDomain, AttributeSharing} {
		delete(a, ofGPU)
	}
	a.text(AttributeType, TypeMIG)
	a.identifier(AttributeID, p.ID())
	a.identifier(AttributeParentUUID, p.GPU.UUID)
	a.identifier(AttributeProfile, p.Profile.Name)
	a.number(AttributePlacementStart, p.Placement.Start)
	a.number(AttributePlacementSize, p.Placement.Size)
	a.identifier(AttributeNVSwitchDomain, p.GPU.NVSwitchDomain)
	return a
}

// partitionCapacities returns what a partition has; engines of which it has none are there with 0, so
// that CEL can compare them.
func partitionCapacities(p mig.Profile) map[resourceapi.QualifiedName]resourceapi.DeviceCapacity {
	c := map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
		CapacityMemory: {Value: *resource.NewQuantity(int64(p.MemoryBytes), resource.BinarySI)},
	}
	for name, count := range map[resourceapi.QualifiedName]int{
		CapacityMultiprocessors: p.Multiprocessors,
		CapacityCopyEngines:     p.Engines.Copy,
		CapacityDecoders:        p.Engines.Decoders,
		CapacityEncoders:        p.Engines.Encoders,
		CapacityJPEGEngines:     p.Engines.JPEG,
		CapacityOFAEngines:      p.Engines.OFA,
	} {
		c[name] = resourceapi.DeviceCapacity{Value: *resource.NewQuantity(int64(count), resource.DecimalSI)}
	}
	return c
}

// PartitionTaints returns the taints of a MIG partition, none for one that can be handed out.
func PartitionTaints(p device.Partition) []resourceapi.DeviceTaint {
	taints := HealthTaints(p.GPU.Health)
	switch {
	case !p.GPU.OffersPartitions():
		taints = append(taints, resourceapi.DeviceTaint{Key: TaintMIGUnavailable, Effect: resourceapi.DeviceTaintEffectNoSchedule})
	case p.Occupied():
		taints = append(taints, resourceapi.DeviceTaint{Key: TaintMIGOccupied, Effect: resourceapi.DeviceTaintEffectNoSchedule})
	}
	return taints
}

// counters translates counts; the API knows no number but quantities.
func counters(counts mig.Counts) map[string]resourceapi.Counter {
	result := make(map[string]resourceapi.Counter, len(counts))
	for name, count := range counts {
		result[name] = resourceapi.Counter{Value: *resource.NewQuantity(int64(count), resource.DecimalSI)}
	}
	return result
}

// consumes says what a device takes of its GPU's counters.
func consumes(gpu device.GPU, counts mig.Counts) []resourceapi.DeviceCounterConsumption {
	return []resourceapi.DeviceCounterConsumption{{CounterSet: gpu.Name(), Counters: counters(counts)}}
}

// wholeConsumes is what a GPU takes of its own counters: everything, so that it and its partitions
// exclude each other. A GPU without partitions has no counters.
func wholeConsumes(gpu device.GPU) []resourceapi.DeviceCounterConsumption {
	if len(gpu.Partitions()) == 0 {
		return nil
	}
	return consumes(gpu, mig.NewBudget(gpu.MIG.Profiles).Total())
}

// partitionSlices returns the slices that GPUs with partitions need beside their own: counter sets, which
// share a slice with no device, and slices of partitions, of one GPU each.
func partitionSlices(gpus []device.GPU, inv device.Inventory) []resourceslice.Slice {
	var sets []resourceapi.CounterSet
	var partitions []resourceslice.Slice
	for _, gpu := range gpus {
		places := gpu.Partitions()
		if len(places) == 0 {
			continue
		}
		budget, ofParent := mig.NewBudget(gpu.MIG.Profiles), Attributes(gpu, inv)
		sets = append(sets, resourceapi.CounterSet{Name: gpu.Name(), Counters: counters(budget.Total())})
		for chunk := range slices.Chunk(places, DevicesPerSlice) {
			devices := make([]resourceapi.Device, 0, len(chunk))
			for _, p := range chunk {
				devices = append(devices, resourceapi.Device{
					Name:             p.Name(),
					Attributes:       partitionAttributes(p, ofParent),
					Capacity:         partitionCapacities(p.Profile),
					ConsumesCounters: consumes(gpu, budget.Of(p.Partition)),
					Taints:           PartitionTaints(p),
				})
			}
			partitions = append(partitions, resourceslice.Slice{Devices: devices})
		}
	}
	var result []resourceslice.Slice
	for chunk := range slices.Chunk(sets, resourceapi.ResourceSliceMaxCounterSets) {
		result = append(result, resourceslice.Slice{SharedCounters: chunk})
	}
	return append(result, partitions...)
}
