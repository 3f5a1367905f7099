// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/switchyard-dev/switchyard/pkg/simulator/profile"
)

// IsMigDeviceHandle is nvmlDeviceIsMigDeviceHandle.
func (g *gpuCalls) IsMigDeviceHandle() (bool, nvml.Return) {
	_, ret := g.cached("IsMigDeviceHandle")
	return false, ret
}

// GetMigMode is nvmlDeviceGetMigMode.
func (g *gpuCalls) GetMigMode() (current, pending int, ret nvml.Return) {
	snap, ret := g.cached("GetMigMode")
	if ret != nvml.SUCCESS {
		return 0, 0, ret
	}
	mig := snap.GPUs[g.position].MIG
	if mig == nil {
		return 0, 0, nvml.ERROR_NOT_SUPPORTED
	}
	if mig.Enabled {
		return nvml.DEVICE_MIG_ENABLE, nvml.DEVICE_MIG_ENABLE, nvml.SUCCESS
	}
	return nvml.DEVICE_MIG_DISABLE, nvml.DEVICE_MIG_DISABLE, nvml.SUCCESS
}

// GetMaxMigDeviceCount is nvmlDeviceGetMaxMigDeviceCount.
func (g *gpuCalls) GetMaxMigDeviceCount() (int, nvml.Return) {
	snap, ret := g.cached("GetMaxMigDeviceCount")
	if ret != nvml.SUCCESS || snap.Profile.Product.MIG == nil {
		return 0, ret
	}
	return snap.Profile.Product.MIG.MaxInstances, nvml.SUCCESS
}

// GetMigDeviceHandleByIndex is nvmlDeviceGetMigDeviceHandleByIndex: MIG devices are numbered by GPU
// instance, then by compute instance.
func (g *gpuCalls) GetMigDeviceHandleByIndex(index int) (nvml.Device, nvml.Return) {
	snap, ret := g.cached("GetMigDeviceHandleByIndex")
	switch {
	case ret != nvml.SUCCESS:
		return nil, ret
	case snap.Profile.Product.MIG == nil || index < 0 || index >= snap.Profile.Product.MIG.MaxInstances:
		return nil, nvml.ERROR_INVALID_ARGUMENT
	}
	at := 0
	for gi, ci := range snap.GPUs[g.position].MIG.devices() {
		if at == index {
			return g.lib.migDevice(g.position, gi.ID, ci.ID), nvml.SUCCESS
		}
		at++
	}
	return nil, nvml.ERROR_NOT_FOUND
}

// devices yields the MIG devices: the compute instances.
func (m *MIGState) devices() func(yield func(GPUInstance, ComputeInstance) bool) {
	return func(yield func(GPUInstance, ComputeInstance) bool) {
		if m == nil {
			return
		}
		for _, gi := range m.Instances {
			for _, ci := range gi.Compute {
				if !yield(gi, ci) {
					return
				}
			}
		}
	}
}

// partitioned is what functions do first that need MIG mode.
func (g *gpuCalls) partitioned(function string) (*snapshot, *profile.MIG, nvml.Return) {
	snap, ret := g.probing(function)
	if ret == nvml.SUCCESS && !snap.migEnabled(g.position) {
		ret = nvml.ERROR_NOT_SUPPORTED
	}
	if ret != nvml.SUCCESS {
		return snap, nil, ret
	}
	return snap, snap.Profile.Product.MIG, nvml.SUCCESS
}

// GetGpuInstanceProfileInfo is nvmlDeviceGetGpuInstanceProfileInfo. It takes NVML's number of a profile,
// and tells the driver's, whether or not the GPU is in MIG mode.
func (g *gpuCalls) GetGpuInstanceProfileInfo(number int) (nvml.GpuInstanceProfileInfo, nvml.Return) {
	snap, ret := g.probing("GetGpuInstanceProfileInfo")
	if ret != nvml.SUCCESS {
		return nvml.GpuInstanceProfileInfo{}, ret
	}
	board := snap.Profile.Product.MIG
	if board == nil {
		return nvml.GpuInstanceProfileInfo{}, nvml.ERROR_NOT_SUPPORTED
	}
	if number < 0 || number >= nvml.GPU_INSTANCE_PROFILE_COUNT {
		return nvml.GpuInstanceProfileInfo{}, nvml.ERROR_INVALID_ARGUMENT
	}
	p, ok := board.OfKind(number)
	if !ok {
		return nvml.GpuInstanceProfileInfo{}, nvml.ERROR_NOT_SUPPORTED
	}
	return nvml.GpuInstanceProfileInfo{
		Id:                  p.ID,
		SliceCount:          uint32(p.Slices),
		InstanceCount:       uint32(p.Max),
		MultiprocessorCount: uint32(p.Multiprocessors),
		CopyEngineCount:     uint32(p.Copy),
		DecoderCount:        uint32(p.Decoders),
		EncoderCount:        uint32(p.Encoders),
		JpegCount:           uint32(p.JPEG),
		OfaCount:            uint32(p.OFA),
		MemorySizeMB:        p.MemoryMiB,
	}, nvml.SUCCESS
}

// profileOf is the profile that a caller means.
func (g *gpuCalls) profileOf(function string, info *nvml.GpuInstanceProfileInfo) (*snapshot, profile.MIGProfile, nvml.Return) {
	snap, board, ret := g.partitioned(function)
	if ret != nvml.SUCCESS {
		return snap, profile.MIGProfile{}, ret
	}
	if info == nil {
		return snap, profile.MIGProfile{}, nvml.ERROR_INVALID_ARGUMENT
	}
	p, ok := board.ByID(info.Id)
	if !ok {
		return snap, p, nvml.ERROR_NOT_SUPPORTED
	}
	return snap, p, nvml.SUCCESS
}

// GetGpuInstancePossiblePlacements is nvmlDeviceGetGpuInstancePossiblePlacements_v2: those on an empty
// GPU.
func (g *gpuCalls) GetGpuInstancePossiblePlacements(info *nvml.GpuInstanceProfileInfo) ([]nvml.GpuInstancePlacement, nvml.Return) {
	_, p, ret := g.profileOf("GetGpuInstancePossiblePlacements", info)
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	placements := make([]nvml.GpuInstancePlacement, len(p.Starts))
	for i, start := range p.Starts {
		placements[i] = nvml.GpuInstancePlacement{Start: start, Size: p.Size}
	}
	return placements, nvml.SUCCESS
}

// GetGpuInstanceRemainingCapacity is nvmlDeviceGetGpuInstanceRemainingCapacity: how many more instances
// of a profile can be made.
func (g *gpuCalls) GetGpuInstanceRemainingCapacity(info *nvml.GpuInstanceProfileInfo) (int, nvml.Return) {
	snap, p, ret := g.profileOf("GetGpuInstanceRemainingCapacity", info)
	if ret != nvml.SUCCESS {
		return 0, ret
	}
	have := append([]GPUInstance(nil), snap.GPUs[g.position].MIG.Instances...)
	count := 0
	for _, start := range p.Starts {
		if refuseInstance(snap.Profile.Product.MIG, have, p, start) == nvml.SUCCESS {
			have = append(have, GPUInstance{ProfileID: p.ID, Start: start, Size: p.Size})
			count++
		}
	}
	return count, nvml.SUCCESS
}

// GetGpuInstances is nvmlDeviceGetGpuInstances.
func (g *gpuCalls) GetGpuInstances(info *nvml.GpuInstanceProfileInfo) ([]nvml.GpuInstance, nvml.Return) {
	snap, p, ret := g.profileOf("GetGpuInstances", info)
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	var found []nvml.GpuInstance
	for _, gi := range snap.GPUs[g.position].MIG.Instances {
		if gi.ProfileID == p.ID {
			found = append(found, newGPUInstance(g, gi.ID))
		}
	}
	return found, nvml.SUCCESS
}

// GetGpuInstanceById is nvmlDeviceGetGpuInstanceById.
func (g *gpuCalls) GetGpuInstanceById(id int) (nvml.GpuInstance, nvml.Return) { //nolint:revive // NVML's name
	snap, _, ret := g.partitioned("GetGpuInstanceById")
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	if id < 0 || snap.GPUs[g.position].MIG.instance(uint32(id)) == nil {
		return nil, nvml.ERROR_NOT_FOUND
	}
	return newGPUInstance(g, uint32(id)), nvml.SUCCESS
}

// CreateGpuInstance is nvmlDeviceCreateGpuInstance. Like the driver, it takes the last place that is
// free.
func (g *gpuCalls) CreateGpuInstance(info *nvml.GpuInstanceProfileInfo) (nvml.GpuInstance, nvml.Return) {
	snap, p, ret := g.profileOf("CreateGpuInstance", info)
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	for _, start := range slices.Backward(p.Starts) {
		if refuseInstance(snap.Profile.Product.MIG, snap.GPUs[g.position].MIG.Instances, p, start) == nvml.SUCCESS {
			return g.create(snap, p, start)
		}
	}
	return nil, nvml.ERROR_INSUFFICIENT_RESOURCES
}

// CreateGpuInstanceWithPlacement is nvmlDeviceCreateGpuInstanceWithPlacement.
func (g *gpuCalls) CreateGpuInstanceWithPlacement(info *nvml.GpuInstanceProfileInfo, placement *nvml.GpuInstancePlacement) (nvml.GpuInstance, nvml.Return) {
	snap, p, ret := g.profileOf("CreateGpuInstanceWithPlacement", info)
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	if placement == nil || placement.Size != p.Size {
		return nil, nvml.ERROR_INVALID_ARGUMENT
	}
	return g.create(snap, p, placement.Start)
}

func (g *gpuCalls) create(snap *snapshot, p profile.MIGProfile, start uint32) (nvml.GpuInstance, nvml.Return) {
	mig := snap.GPUs[g.position].MIG
	if len(mig.FailNext) == 0 {
		// What is refused without a write need not wait for the lock.
		if ret := refuseInstance(snap.Profile.Product.MIG, mig.Instances, p, start); ret != nvml.SUCCESS {
			return nil, ret
		}
	}
	var made GPUInstance
	ret := g.changePartitions(func(s *State) (ret nvml.Return) {
		made, ret = s.createInstance(g.position, p, start)
		return ret
	})
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	return newGPUInstance(g, made.ID), nvml.SUCCESS
}
