// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package resourcemodel

import (
	"cmp"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/switchyard-dev/switchyard/pkg/device"
)

// DevicesPerSlice is how many devices a slice holds at most, whether or not any has taints.
const DevicesPerSlice = resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures

// DriverResources returns the pool of the node, which has the node's name. The package comment says in
// which order its devices are and how they are cut into slices.
func DriverResources(nodeName string, inv device.Inventory) resourceslice.DriverResources {
	var pool resourceslice.Pool
	var inOrder []device.GPU
	for _, batch := range batches(inv.GPUs) {
		batch := ordered(batch)
		inOrder = append(inOrder, batch...)
		for chunk := range slices.Chunk(batch, DevicesPerSlice) {
			devices := make([]resourceapi.Device, 0, len(chunk))
			for _, gpu := range chunk {
				devices = append(devices, resourceapi.Device{
					Name:                     gpu.Name(),
					Attributes:               Attributes(gpu, inv),
					Capacity:                 capacities(gpu),
					ConsumesCounters:         wholeConsumes(gpu),
					Taints:                   Taints(gpu),
					AllowMultipleAllocations: allowMultipleAllocations(gpu),
				})
			}
			pool.Slices = append(pool.Slices, resourceslice.Slice{Devices: devices})
		}
	}
	pool.Slices = append(pool.Slices, partitionSlices(inOrder, inv)...)
	return resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{nodeName: pool}}
}

// batches returns the GPUs by batch, in order.
func batches(gpus []device.GPU) [][]device.GPU {
	sorted := slices.Clone(gpus)
	slices.SortStableFunc(sorted, func(a, b device.GPU) int { return cmp.Compare(a.Batch, b.Batch) })
	var result [][]device.GPU
	for i, gpu := range sorted {
		if i == 0 || gpu.Batch != sorted[i-1].Batch {
			result = append(result, nil)
		}
		result[len(result)-1] = append(result[len(result)-1], gpu)
	}
	return result
}

// ordered sorts GPUs as the package comment says.
func ordered(gpus []device.GPU) []device.GPU {
	domain := func(gpu device.GPU) string { return cmp.Or(gpu.NVSwitchDomain, gpu.LastDomain) }
	rank := map[string]int{"": 0}
	for _, gpu := range gpus {
		if _, ranked := rank[domain(gpu)]; !ranked {
			rank[domain(gpu)] = len(rank)
		}
	}
	numa := func(gpu device.GPU) int {
		if gpu.NUMANode == nil {
			return -1
		}
		return *gpu.NUMANode
	}
	sorted := slices.Clone(gpus)
	slices.SortStableFunc(sorted, func(a, b device.GPU) int {
		return cmp.Or(cmp.Compare(rank[domain(a)], rank[domain(b)]), cmp.Compare(numa(a), numa(b)))
	})
	return sorted
}
