// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"cmp"
	"slices"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/switchyard-dev/switchyard/pkg/device"
	"github.com/switchyard-dev/switchyard/pkg/mig"
)

// partitioning reads how a GPU in MIG mode can be partitioned, and how it is; nil if NVML does not tell. All of it
// or nothing: half of the profiles would be half of the devices, for as long as the GPU is in trouble.
func (q *query) partitioning() *device.MIG {
	const profileInfo, placements, instances = "nvmlDeviceGetGpuInstanceProfileInfo", "nvmlDeviceGetGpuInstancePossiblePlacements_v2", "nvmlDeviceGetGpuInstances"
	if !q.asking(profileInfo) || !q.has(placements) || !q.has(instances) {
		return nil
	}
	result := &device.MIG{}
	complete := true
	// answered is that of query, for calls that may say that there is no such thing and nothing else.
	answered := func(call string, ret gonvml.Return, none ...gonvml.Return) bool {
		ok := q.answered(call, ret)
		if !ok && !slices.Contains(none, ret) {
			complete = false
			q.unhealthy(device.ReasonNotAnswering, call, ret)
		}
		return ok
	}
	for number := range gonvml.GPU_INSTANCE_PROFILE_COUNT {
		info, ret := q.gpu.handle.GetGpuInstanceProfileInfo(number)
		if !answered(profileInfo, ret, gonvml.ERROR_NOT_SUPPORTED, gonvml.ERROR_INVALID_ARGUMENT) {
			continue // most GPUs have a few of the profiles that there are
		}
		if info.InstanceCount == 0 {
			continue // go-nvml refuses to look for instances of such a profile
		}
		possible, ret := q.gpu.handle.GetGpuInstancePossiblePlacements(&info)
		if !answered(placements, ret, gonvml.ERROR_NOT_SUPPORTED, gonvml.ERROR_INVALID_ARGUMENT) || len(possible) == 0 {
			continue
		}
		result.Profiles = append(result.Profiles, migProfile(number, info, possible, q.gpu.MemoryBytes))
		existing, ret := q.gpu.handle.GetGpuInstances(&info)
		if !answered(instances, ret, gonvml.ERROR_NOT_SUPPORTED, gonvml.ERROR_NO_PERMISSION) {
			continue
		}
		for _, gi := range existing {
			// One that is being destroyed may be gone.
			if instance, ret := readInstance(q.gpu.handle, gi); answered("nvmlGpuInstanceGetInfo", ret, gonvml.ERROR_NOT_FOUND, gonvml.ERROR_INVALID_ARGUMENT, gonvml.ERROR_NOT_SUPPORTED) {
				result.Instances = append(result.Instances, instance)
			}
		}
	}
	if !complete || len(result.Profiles) == 0 {
		return nil
	}
	slices.SortFunc(result.Profiles, func(a, b mig.Profile) int { return cmp.Compare(a.ID, b.ID) })
	slices.SortFunc(result.Instances, func(a, b mig.Instance) int { return cmp.Compare(a.ID, b.ID) })
	return result
}

// migProfile translates a profile; number is that of NVML_GPU_INSTANCE_PROFILE_*.
func migProfile(number int, info gonvml.GpuInstanceProfileInfo, possible []gonvml.GpuInstancePlacement, gpuMemory uint64) mig.Profile {
	const mebibyte = 1 << 20
	p := mig.Profile{
		ID:              int(info.Id),
		Slices:          int(info.SliceCount),
		MemoryBytes:     info.MemorySizeMB * mebibyte,
		Multiprocessors: int(info.MultiprocessorCount),
		Engines: mig.Engines{
			Copy:     int(info.CopyEngineCount),
			Decoders: int(info.DecoderCount),
			Encoders: int(info.EncoderCount),
			JPEG:     int(info.JpegCount),
			OFA:      int(info.OfaCount),
		},
		MaxInstances: int(info.InstanceCount),
	}
	p.Name = mig.Name(number, p.Slices, p.MemoryBytes, gpuMemory)
	for _, place := range possible {
		p.Placements = append(p.Placements, mig.Placement{Start: int(place.Start), Size: int(place.Size)})
	}
	slices.SortFunc(p.Placements, func(a, b mig.Placement) int { return cmp.Compare(a.Start, b.Start) })
	return p
}

// readInstance reads a GPU instance and its compute instances.
func readInstance(gpu gonvml.Device, gi gonvml.GpuInstance) (mig.Instance, gonvml.Return) {
	info, ret := gi.GetInfo()
	if ret != gonvml.SUCCESS {
		return mig.Instance{}, ret
	}
	instance := mig.Instance{
		ID:        int(info.Id),
		ProfileID: int(info.ProfileId),
		Placement: mig.Placement{Start: int(info.Placement.Start), Size: int(info.Placement.Size)},
	}
	for number := range gonvml.COMPUTE_INSTANCE_PROFILE_COUNT {
		profile, ret := gi.GetComputeInstanceProfileInfo(number, gonvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
		if ret != gonvml.SUCCESS || profile.InstanceCount == 0 {
			continue // few profiles exist for each kind of GPU instance
		}
		existing, ret := gi.GetComputeInstances(&profile)
		if ret != gonvml.SUCCESS {
			return mig.Instance{}, ret
		}
		for _, ci := range existing {
			info, ret := ci.GetInfo()
			if ret != gonvml.SUCCESS {
				return mig.Instance{}, ret
			}
			instance.Compute = append(instance.Compute, mig.ComputeInstance{
				ID:     int(info.Id),
				Slices: int(profile.SliceCount),
				UUID:   migUUID(gpu, instance.ID, int(info.Id)),
			})
		}
	}
	slices.SortFunc(instance.Compute, func(a, b mig.ComputeInstance) int { return cmp.Compare(a.ID, b.ID) })
	return instance, gonvml.SUCCESS
}

// migUUID finds the UUID of a MIG device; "" if NVML does not list it (yet).
func migUUID(gpu gonvml.Device, instance, compute int) string {
	count, ret := gpu.GetMaxMigDeviceCount()
	if ret != gonvml.SUCCESS {
		return ""
	}
	for index := range count {
		handle, ret := gpu.GetMigDeviceHandleByIndex(index)
		if ret != gonvml.SUCCESS {
			continue
		}
		gi, ret := handle.GetGpuInstanceId()
		if ret != gonvml.SUCCESS || gi != instance {
			continue
		}
		if ci, ret := handle.GetComputeInstanceId(); ret != gonvml.SUCCESS || ci != compute {
			continue
		}
		uuid, _ := handle.GetUUID()
		return uuid
	}
	return ""
}
