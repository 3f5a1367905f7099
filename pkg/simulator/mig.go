// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package simulator

import "github.com/NVIDIA/go-nvml/pkg/nvml"

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

// GetMigDeviceHandleByIndex is nvmlDeviceGetMigDeviceHandleByIndex: there are no MIG devices yet.
func (g *gpuCalls) GetMigDeviceHandleByIndex(index int) (nvml.Device, nvml.Return) {
	snap, ret := g.cached("GetMigDeviceHandleByIndex")
	switch {
	case ret != nvml.SUCCESS:
		return nil, ret
	case snap.Profile.Product.MIG == nil || index < 0 || index >= snap.Profile.Product.MIG.MaxInstances:
		return nil, nvml.ERROR_INVALID_ARGUMENT
	default:
		return nil, nvml.ERROR_NOT_FOUND
	}
}
