// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
)

// gpu is the handle of a GPU, made like library: its own methods hide the mock's.
type gpu struct {
	*gpuCalls
	gpuRest
}

type gpuRest struct{ mock.Device }

// gpuCalls are the simulated functions of a GPU: every exported method of it is one.
type gpuCalls struct {
	lib *libraryCalls
	// position is the GPU's place in the profile. NVML's index is another thing.
	position int
	self     *gpu
}

var _ nvml.Device = (*gpu)(nil)

func newGPU(lib *libraryCalls, position int) *gpu {
	g := &gpu{gpuCalls: &gpuCalls{lib: lib, position: position}}
	g.self = g
	fillUnset(&g.Device, "nvmlDevice", lib.node.reportUnsimulated)
	return g
}

// cached is what functions do first that the driver answers from its cache.
func (g *gpuCalls) cached(function string) (*snapshot, nvml.Return) {
	snap, ret := g.lib.enter("nvmlDevice" + function)
	if ret != nvml.SUCCESS {
		return snap, ret
	}
	switch snap.GPUs[g.position].Health {
	case HealthLost, HealthRemoved:
		return snap, nvml.ERROR_GPU_IS_LOST
	default:
		return snap, nvml.SUCCESS
	}
}

// probing is what functions do first that reach the hardware.
func (g *gpuCalls) probing(function string) (*snapshot, nvml.Return) {
	snap, ret := g.cached(function)
	if ret == nvml.SUCCESS && snap.GPUs[g.position].Health == HealthResetRequired {
		ret = nvml.ERROR_RESET_REQUIRED
	}
	return snap, ret
}

// GetUUID is nvmlDeviceGetUUID.
func (g *gpuCalls) GetUUID() (string, nvml.Return) {
	snap, ret := g.cached("GetUUID")
	if ret != nvml.SUCCESS {
		return "", ret
	}
	return snap.GPUs[g.position].UUID, nvml.SUCCESS
}

// GetSerial is nvmlDeviceGetSerial.
func (g *gpuCalls) GetSerial() (string, nvml.Return) {
	snap, ret := g.cached("GetSerial")
	if ret != nvml.SUCCESS {
		return "", ret
	}
	return snap.GPUs[g.position].Serial, nvml.SUCCESS
}

// GetIndex is nvmlDeviceGetIndex: the place among the GPUs that are counted.
func (g *gpuCalls) GetIndex() (int, nvml.Return) {
	snap, ret := g.cached("GetIndex")
	if ret != nvml.SUCCESS {
		return 0, ret
	}
	for index, position := range snap.visible {
		if position == g.position {
			return index, nvml.SUCCESS
		}
	}
	return 0, nvml.ERROR_GPU_IS_LOST
}

// GetMinorNumber is nvmlDeviceGetMinorNumber.
func (g *gpuCalls) GetMinorNumber() (int, nvml.Return) {
	snap, ret := g.cached("GetMinorNumber")
	if ret != nvml.SUCCESS {
		return 0, ret
	}
	return snap.GPUs[g.position].Minor, nvml.SUCCESS
}

// GetBoardPartNumber is nvmlDeviceGetBoardPartNumber.
func (g *gpuCalls) GetBoardPartNumber() (string, nvml.Return) {
	snap, ret := g.cached("GetBoardPartNumber")
	if ret != nvml.SUCCESS {
		return "", ret
	}
	if snap.Profile.Product.BoardPartNumber == "" {
		return "", nvml.ERROR_NOT_SUPPORTED
	}
	return snap.Profile.Product.BoardPartNumber, nvml.SUCCESS
}

// GetModuleId is nvmlDeviceGetModuleId.
func (g *gpuCalls) GetModuleId() (int, nvml.Return) { //nolint:revive // NVML's name
	snap, ret := g.cached("GetModuleId")
	if ret != nvml.SUCCESS {
		return 0, ret
	}
	if id := snap.Profile.GPUs[g.position].ModuleID; id != 0 {
		return id, nvml.SUCCESS
	}
	return 0, nvml.ERROR_NOT_SUPPORTED
}

// other returns the GPU of another handle, which has to be of the same node.
func (g *gpuCalls) other(device nvml.Device) (*gpu, bool) {
	other, ok := device.(*gpu)
	return other, ok && other != nil && other.lib == g.lib
}
