// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"github.com/switchyard-dev/switchyard/pkg/simulator/profile"
)

// gpuInstance is the handle of a GPU instance, made like library. It stays valid while there is an
// instance of that ID.
type gpuInstance struct {
	*gpuInstanceCalls
	gpuInstanceRest
}

type gpuInstanceRest struct{ mock.GpuInstance }

// gpuInstanceCalls are the simulated functions of a GPU instance: every exported method of it is one.
type gpuInstanceCalls struct {
	gpu  *gpuCalls
	id   uint32
	self *gpuInstance
}

var _ nvml.GpuInstance = (*gpuInstance)(nil)

func newGPUInstance(g *gpuCalls, id uint32) *gpuInstance {
	gi := &gpuInstance{gpuInstanceCalls: &gpuInstanceCalls{gpu: g, id: id}}
	gi.self = gi
	fillUnset(&gi.GpuInstance, "nvmlGpuInstance", g.lib.node.reportUnsimulated)
	return gi
}

// enter is what every function of a GPU instance does first.
func (i *gpuInstanceCalls) enter(function string) (GPUInstance, profile.MIGProfile, nvml.Return) {
	snap, ret := i.gpu.lib.enter("nvmlGpuInstance" + function)
	if ret != nvml.SUCCESS {
		return GPUInstance{}, profile.MIGProfile{}, ret
	}
	if !snap.onBus(i.gpu.position) {
		return GPUInstance{}, profile.MIGProfile{}, nvml.ERROR_GPU_IS_LOST
	}
	gi := snap.GPUs[i.gpu.position].MIG.instance(i.id)
	if gi == nil {
		return GPUInstance{}, profile.MIGProfile{}, nvml.ERROR_NOT_FOUND
	}
	p, _ := snap.Profile.Product.MIG.ByID(gi.ProfileID)
	return *gi, p, nvml.SUCCESS
}

// GetInfo is nvmlGpuInstanceGetInfo.
func (i *gpuInstanceCalls) GetInfo() (nvml.GpuInstanceInfo, nvml.Return) {
	gi, _, ret := i.enter("GetInfo")
	if ret != nvml.SUCCESS {
		return nvml.GpuInstanceInfo{}, ret
	}
	return nvml.GpuInstanceInfo{
		Device:    i.gpu.self,
		Id:        gi.ID,
		ProfileId: gi.ProfileID,
		Placement: nvml.GpuInstancePlacement{Start: gi.Start, Size: gi.Size},
	}, nvml.SUCCESS
}

// Destroy is nvmlGpuInstanceDestroy.
func (i *gpuInstanceCalls) Destroy() nvml.Return {
	if _, _, ret := i.enter("Destroy"); ret != nvml.SUCCESS {
		return ret
	}
	return i.gpu.changePartitions(func(s *State) nvml.Return { return s.destroyInstance(i.gpu.position, i.id) })
}

// computeSlices are the numbers of slices of compute instances by NVML_COMPUTE_INSTANCE_PROFILE_*.
var computeSlices = []int{1, 2, 3, 4, 7, 8, 6}

// offersCompute says whether GPU instances of a profile may have compute instances of so many slices.
func offersCompute(p profile.MIGProfile, count int) bool {
	switch {
	case count == p.Slices:
		return true
	case p.Slices == 7:
		return count < 5
	default:
		return count < p.Slices && count < 3
	}
}

// fullCompute is the compute instance profile that takes all of a GPU instance.
func fullCompute(p profile.MIGProfile) (number int, ok bool) {
	number = slices.Index(computeSlices, p.Slices)
	return number, number >= 0
}

// GetComputeInstanceProfileInfo is nvmlGpuInstanceGetComputeInstanceProfileInfo.
func (i *gpuInstanceCalls) GetComputeInstanceProfileInfo(number, engine int) (nvml.ComputeInstanceProfileInfo, nvml.Return) {
	_, p, ret := i.enter("GetComputeInstanceProfileInfo")
	switch {
	case ret != nvml.SUCCESS:
		return nvml.ComputeInstanceProfileInfo{}, ret
	case number < 0 || number >= nvml.COMPUTE_INSTANCE_PROFILE_COUNT || engine != nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED:
		return nvml.ComputeInstanceProfileInfo{}, nvml.ERROR_INVALID_ARGUMENT
	case number >= len(computeSlices) || !offersCompute(p, computeSlices[number]):
		return nvml.ComputeInstanceProfileInfo{}, nvml.ERROR_NOT_SUPPORTED
	}
	count := computeSlices[number]
	return nvml.ComputeInstanceProfileInfo{
		Id:                    uint32(number),
		SliceCount:            uint32(count),
		InstanceCount:         uint32(p.Slices / count),
		MultiprocessorCount:   uint32(p.Multiprocessors * count / p.Slices),
		SharedCopyEngineCount: uint32(p.Copy),
		SharedDecoderCount:    uint32(p.Decoders),
		SharedEncoderCount:    uint32(p.Encoders),
		SharedJpegCount:       uint32(p.JPEG),
		SharedOfaCount:        uint32(p.OFA),
	}, nvml.SUCCESS
}

// compute is what functions do first that are about a kind of compute instance.
func (i *gpuInstanceCalls) compute(function string, info *nvml.ComputeInstanceProfileInfo) (gi GPUInstance, p profile.MIGProfile, count int, ret nvml.Return) {
	gi, p, ret = i.enter(function)
	switch {
	case ret != nvml.SUCCESS:
		return gi, p, 0, ret
	case info == nil:
		return gi, p, 0, nvml.ERROR_INVALID_ARGUMENT
	case int(info.Id) >= len(computeSlices) || !offersCompute(p, computeSlices[info.Id]):
		return gi, p, 0, nvml.ERROR_NOT_SUPPORTED
	default:
		return gi, p, computeSlices[info.Id], nvml.SUCCESS
	}
}

// GetComputeInstanceRemainingCapacity is nvmlGpuInstanceGetComputeInstanceRemainingCapacity.
func (i *gpuInstanceCalls) GetComputeInstanceRemainingCapacity(info *nvml.ComputeInstanceProfileInfo) (int, nvml.Return) {
	gi, p, count, ret := i.compute("GetComputeInstanceRemainingCapacity", info)
	if ret != nvml.SUCCESS {
		return 0, ret
	}
	fit := 0
	gi.Compute = slices.Clone(gi.Compute)
	for {
		start, ok := freeSlices(&gi, uint32(p.Slices), uint32(count))
		if !ok {
			return fit, nvml.SUCCESS
		}
		gi.Compute = append(gi.Compute, ComputeInstance{Start: start, Slices: uint32(count)})
		fit++
	}
}

// GetComputeInstancePossiblePlacements is nvmlGpuInstanceGetComputeInstancePossiblePlacements.
func (i *gpuInstanceCalls) GetComputeInstancePossiblePlacements(info *nvml.ComputeInstanceProfileInfo) ([]nvml.ComputeInstancePlacement, nvml.Return) {
	_, p, count, ret := i.compute("GetComputeInstancePossiblePlacements", info)
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	var placements []nvml.ComputeInstancePlacement
	for start := 0; start+count <= p.Slices; start += count {
		placements = append(placements, nvml.ComputeInstancePlacement{Start: uint32(start), Size: uint32(count)})
	}
	return placements, nvml.SUCCESS
}

// GetComputeInstances is nvmlGpuInstanceGetComputeInstances.
func (i *gpuInstanceCalls) GetComputeInstances(info *nvml.ComputeInstanceProfileInfo) ([]nvml.ComputeInstance, nvml.Return) {
	gi, _, _, ret := i.compute("GetComputeInstances", info)
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	var found []nvml.ComputeInstance
	for _, ci := range gi.Compute {
		if ci.ProfileID == info.Id {
			found = append(found, newComputeInstance(i, ci.ID))
		}
	}
	return found, nvml.SUCCESS
}

// GetComputeInstanceById is nvmlGpuInstanceGetComputeInstanceById.
func (i *gpuInstanceCalls) GetComputeInstanceById(id int) (nvml.ComputeInstance, nvml.Return) { //nolint:revive // NVML's name
	gi, _, ret := i.enter("GetComputeInstanceById")
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	if id < 0 || gi.compute(uint32(id)) == nil {
		return nil, nvml.ERROR_NOT_FOUND
	}
	return newComputeInstance(i, uint32(id)), nvml.SUCCESS
}

// CreateComputeInstance is nvmlGpuInstanceCreateComputeInstance.
func (i *gpuInstanceCalls) CreateComputeInstance(info *nvml.ComputeInstanceProfileInfo) (nvml.ComputeInstance, nvml.Return) {
	_, _, count, ret := i.compute("CreateComputeInstance", info)
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	var made ComputeInstance
	ret = i.gpu.changePartitions(func(s *State) (ret nvml.Return) {
		made, ret = s.createCompute(i.gpu.position, i.id, info.Id, uint32(count))
		return ret
	})
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	return newComputeInstance(i, made.ID), nvml.SUCCESS
}

// computeInstance is the handle of a compute instance, made like library.
type computeInstance struct {
	*computeInstanceCalls
	computeInstanceRest
}

type computeInstanceRest struct{ mock.ComputeInstance }

// computeInstanceCalls are the simulated functions of a compute instance: every exported method of it
// is one.
type computeInstanceCalls struct {
	instance *gpuInstanceCalls
	id       uint32
}

var _ nvml.ComputeInstance = (*computeInstance)(nil)

func newComputeInstance(i *gpuInstanceCalls, id uint32) *computeInstance {
	ci := &computeInstance{computeInstanceCalls: &computeInstanceCalls{instance: i, id: id}}
	fillUnset(&ci.ComputeInstance, "nvmlComputeInstance", i.gpu.lib.node.reportUnsimulated)
	return ci
}

// GetInfo is nvmlComputeInstanceGetInfo.
func (c *computeInstanceCalls) GetInfo() (nvml.ComputeInstanceInfo, nvml.Return) {
	snap, ret := c.instance.gpu.lib.enter("nvmlComputeInstanceGetInfo")
	if ret != nvml.SUCCESS {
		return nvml.ComputeInstanceInfo{}, ret
	}
	ci := snap.GPUs[c.instance.gpu.position].MIG.instance(c.instance.id).compute(c.id)
	if ci == nil {
		return nvml.ComputeInstanceInfo{}, nvml.ERROR_NOT_FOUND
	}
	return nvml.ComputeInstanceInfo{
		Device:      c.instance.gpu.self,
		GpuInstance: c.instance.self,
		Id:          ci.ID,
		ProfileId:   ci.ProfileID,
		Placement:   nvml.ComputeInstancePlacement{Start: ci.Start, Size: ci.Slices},
	}, nvml.SUCCESS
}

// Destroy is nvmlComputeInstanceDestroy.
func (c *computeInstanceCalls) Destroy() nvml.Return {
	if _, ret := c.instance.gpu.lib.enter("nvmlComputeInstanceDestroy"); ret != nvml.SUCCESS {
		return ret
	}
	return c.instance.gpu.changePartitions(func(s *State) nvml.Return {
		return s.destroyCompute(c.instance.gpu.position, c.instance.id, c.id)
	})
}
