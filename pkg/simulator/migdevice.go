// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"github.com/switchyard-dev/switchyard/pkg/simulator/profile"
)

// migDevice is the handle of a MIG device, which is a compute instance; made like library.
type migDevice struct {
	*migDeviceCalls
	migDeviceRest
}

type migDeviceRest struct{ mock.Device }

// migDeviceCalls are the simulated functions of a MIG device: every exported method of it is one.
type migDeviceCalls struct {
	gpu               *gpuCalls
	instance, compute uint32
}

var _ nvml.Device = (*migDevice)(nil)

// migKey names a MIG device of a node.
type migKey struct {
	position          int
	instance, compute uint32
}

// migDevice returns the handle of a MIG device; it is the same value every time, since making one takes
// long.
func (l *libraryCalls) migDevice(position int, instance, compute uint32) *migDevice {
	parent := l.device(position)
	l.mu.Lock()
	defer l.mu.Unlock()
	key := migKey{position, instance, compute}
	if known := l.migDevices[key]; known != nil {
		return known
	}
	d := &migDevice{migDeviceCalls: &migDeviceCalls{gpu: parent.gpuCalls, instance: instance, compute: compute}}
	fillUnset(&d.Device, "nvmlDevice", l.node.reportUnsimulated)
	if l.migDevices == nil {
		l.migDevices = map[migKey]*migDevice{}
	}
	l.migDevices[key] = d
	return d
}

// enter is what every function of a MIG device does first.
func (d *migDeviceCalls) enter(function string) (*snapshot, GPUInstance, ComputeInstance, nvml.Return) {
	snap, ret := d.gpu.cached(function)
	if ret != nvml.SUCCESS {
		return snap, GPUInstance{}, ComputeInstance{}, ret
	}
	gi := snap.GPUs[d.gpu.position].MIG.instance(d.instance)
	ci := gi.compute(d.compute)
	if ci == nil {
		return snap, GPUInstance{}, ComputeInstance{}, nvml.ERROR_NOT_FOUND
	}
	return snap, *gi, *ci, nvml.SUCCESS
}

func (d *migDeviceCalls) profile(snap *snapshot, gi GPUInstance) profile.MIGProfile {
	p, _ := snap.Profile.Product.MIG.ByID(gi.ProfileID)
	return p
}

// IsMigDeviceHandle is nvmlDeviceIsMigDeviceHandle.
func (d *migDeviceCalls) IsMigDeviceHandle() (bool, nvml.Return) {
	_, _, _, ret := d.enter("IsMigDeviceHandle")
	return ret == nvml.SUCCESS, ret
}

// GetUUID is nvmlDeviceGetUUID.
func (d *migDeviceCalls) GetUUID() (string, nvml.Return) {
	_, _, ci, ret := d.enter("GetUUID")
	return ci.UUID, ret
}

// GetName is nvmlDeviceGetName.
func (d *migDeviceCalls) GetName() (string, nvml.Return) {
	snap, gi, _, ret := d.enter("GetName")
	if ret != nvml.SUCCESS {
		return "", ret
	}
	return fmt.Sprintf("%s MIG %s", snap.Profile.Product.Name, d.profile(snap, gi).Name), nvml.SUCCESS
}

// GetIndex is nvmlDeviceGetIndex: that among the MIG devices of the GPU.
func (d *migDeviceCalls) GetIndex() (int, nvml.Return) {
	snap, _, own, ret := d.enter("GetIndex")
	if ret != nvml.SUCCESS {
		return 0, ret
	}
	index := 0
	for _, ci := range snap.GPUs[d.gpu.position].MIG.devices() {
		if ci.UUID == own.UUID {
			break
		}
		index++
	}
	return index, nvml.SUCCESS
}

// GetGpuInstanceId is nvmlDeviceGetGpuInstanceId.
func (d *migDeviceCalls) GetGpuInstanceId() (int, nvml.Return) { //nolint:revive // NVML's name
	_, gi, _, ret := d.enter("GetGpuInstanceId")
	return int(gi.ID), ret
}

// GetComputeInstanceId is nvmlDeviceGetComputeInstanceId.
func (d *migDeviceCalls) GetComputeInstanceId() (int, nvml.Return) { //nolint:revive // NVML's name
	_, _, ci, ret := d.enter("GetComputeInstanceId")
	return int(ci.ID), ret
}

// GetDeviceHandleFromMigDeviceHandle is nvmlDeviceGetDeviceHandleFromMigDeviceHandle.
func (d *migDeviceCalls) GetDeviceHandleFromMigDeviceHandle() (nvml.Device, nvml.Return) {
	if _, _, _, ret := d.enter("GetDeviceHandleFromMigDeviceHandle"); ret != nvml.SUCCESS {
		return nil, ret
	}
	return d.gpu.self, nvml.SUCCESS
}

// GetAttributes is nvmlDeviceGetAttributes_v2.
func (d *migDeviceCalls) GetAttributes() (nvml.DeviceAttributes, nvml.Return) {
	snap, gi, ci, ret := d.enter("GetAttributes")
	if ret != nvml.SUCCESS {
		return nvml.DeviceAttributes{}, ret
	}
	p := d.profile(snap, gi)
	return nvml.DeviceAttributes{
		MultiprocessorCount:       uint32(p.Multiprocessors * int(ci.Slices) / p.Slices),
		SharedCopyEngineCount:     uint32(p.Copy),
		SharedDecoderCount:        uint32(p.Decoders),
		SharedEncoderCount:        uint32(p.Encoders),
		SharedJpegCount:           uint32(p.JPEG),
		SharedOfaCount:            uint32(p.OFA),
		GpuInstanceSliceCount:     uint32(p.Slices),
		ComputeInstanceSliceCount: ci.Slices,
		MemorySizeMB:              p.MemoryMiB,
	}, nvml.SUCCESS
}

// GetMemoryInfo is nvmlDeviceGetMemoryInfo.
func (d *migDeviceCalls) GetMemoryInfo() (nvml.Memory, nvml.Return) {
	snap, gi, _, ret := d.enter("GetMemoryInfo")
	if ret != nvml.SUCCESS {
		return nvml.Memory{}, ret
	}
	total := d.profile(snap, gi).MemoryMiB * mebibyte
	return nvml.Memory{Total: total, Free: total}, nvml.SUCCESS
}
