// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

const mebibyte = 1 << 20

// GetName is nvmlDeviceGetName.
func (g *gpuCalls) GetName() (string, nvml.Return) {
	snap, ret := g.cached("GetName")
	if ret != nvml.SUCCESS {
		return "", ret
	}
	return snap.Profile.Product.Name, nvml.SUCCESS
}

var brands = map[string]nvml.BrandType{
	"GeForce":    nvml.BRAND_GEFORCE,
	"GeForceRTX": nvml.BRAND_GEFORCE_RTX,
	"NVIDIA":     nvml.BRAND_NVIDIA,
	"Tesla":      nvml.BRAND_TESLA,
}

// GetBrand is nvmlDeviceGetBrand.
func (g *gpuCalls) GetBrand() (nvml.BrandType, nvml.Return) {
	snap, ret := g.cached("GetBrand")
	if ret != nvml.SUCCESS {
		return nvml.BRAND_UNKNOWN, ret
	}
	return brands[snap.Profile.Product.Brand], nvml.SUCCESS
}

var architectures = map[string]nvml.DeviceArchitecture{
	"Ada Lovelace": nvml.DEVICE_ARCH_ADA,
	"Ampere":       nvml.DEVICE_ARCH_AMPERE,
	"Blackwell":    nvml.DEVICE_ARCH_BLACKWELL,
	"Hopper":       nvml.DEVICE_ARCH_HOPPER,
	"Turing":       nvml.DEVICE_ARCH_TURING,
	"Volta":        nvml.DEVICE_ARCH_VOLTA,
}

// GetArchitecture is nvmlDeviceGetArchitecture.
func (g *gpuCalls) GetArchitecture() (nvml.DeviceArchitecture, nvml.Return) {
	snap, ret := g.cached("GetArchitecture")
	if ret != nvml.SUCCESS {
		return nvml.DEVICE_ARCH_UNKNOWN, ret
	}
	return architectures[snap.Profile.Product.Architecture], nvml.SUCCESS
}

// GetCudaComputeCapability is nvmlDeviceGetCudaComputeCapability.
func (g *gpuCalls) GetCudaComputeCapability() (major, minor int, ret nvml.Return) {
	snap, ret := g.cached("GetCudaComputeCapability")
	if ret != nvml.SUCCESS {
		return 0, 0, ret
	}
	first, second, _ := strings.Cut(snap.Profile.Product.ComputeCapability, ".")
	// Validation of the profile saw to the form.
	major, _ = strconv.Atoi(first)
	minor, _ = strconv.Atoi(second)
	return major, minor, nvml.SUCCESS
}

// GetNumGpuCores is nvmlDeviceGetNumGpuCores.
func (g *gpuCalls) GetNumGpuCores() (int, nvml.Return) {
	snap, ret := g.cached("GetNumGpuCores")
	if ret != nvml.SUCCESS {
		return 0, ret
	}
	return snap.Profile.Product.Multiprocessors * snap.Profile.Product.CoresPerMultiprocessor, nvml.SUCCESS
}

// GetMemoryInfo is nvmlDeviceGetMemoryInfo, which counts what the driver keeps as used.
func (g *gpuCalls) GetMemoryInfo() (nvml.Memory, nvml.Return) {
	snap, ret := g.probing("GetMemoryInfo")
	if ret != nvml.SUCCESS {
		return nvml.Memory{}, ret
	}
	p := snap.Profile.Product
	return nvml.Memory{
		Total: p.MemoryMiB * mebibyte,
		Used:  p.ReservedMiB * mebibyte,
		Free:  (p.MemoryMiB - p.ReservedMiB) * mebibyte,
	}, nvml.SUCCESS
}

// GetMemoryInfo_v2 is nvmlDeviceGetMemoryInfo_v2.
func (g *gpuCalls) GetMemoryInfo_v2() (nvml.Memory_v2, nvml.Return) { //nolint:revive // NVML's name
	snap, ret := g.probing("GetMemoryInfo_v2")
	if ret != nvml.SUCCESS {
		return nvml.Memory_v2{}, ret
	}
	p := snap.Profile.Product
	return nvml.Memory_v2{
		Total:    p.MemoryMiB * mebibyte,
		Reserved: p.ReservedMiB * mebibyte,
		Free:     (p.MemoryMiB - p.ReservedMiB) * mebibyte,
	}, nvml.SUCCESS
}

// GetBAR1MemoryInfo is nvmlDeviceGetBAR1MemoryInfo.
func (g *gpuCalls) GetBAR1MemoryInfo() (nvml.BAR1Memory, nvml.Return) {
	snap, ret := g.probing("GetBAR1MemoryInfo")
	if ret != nvml.SUCCESS {
		return nvml.BAR1Memory{}, ret
	}
	total := snap.Profile.Product.BAR1MiB * mebibyte
	return nvml.BAR1Memory{Bar1Total: total, Bar1Free: total}, nvml.SUCCESS
}

// GetPowerManagementLimit is nvmlDeviceGetPowerManagementLimit, in milliwatts.
func (g *gpuCalls) GetPowerManagementLimit() (uint32, nvml.Return) {
	snap, ret := g.probing("GetPowerManagementLimit")
	if ret != nvml.SUCCESS {
		return 0, ret
	}
	return uint32(snap.Profile.Product.PowerLimitWatts) * 1000, nvml.SUCCESS
}

// GetNumaNodeId is nvmlDeviceGetNumaNodeId: the node of the GPU's own memory, which is not that of its
// PCI device.
func (g *gpuCalls) GetNumaNodeId() (int, nvml.Return) { //nolint:revive // NVML's name
	snap, ret := g.cached("GetNumaNodeId")
	if ret != nvml.SUCCESS {
		return 0, ret
	}
	if node := snap.Profile.GPUs[g.position].MemoryNUMANode; node != nil {
		return *node, nvml.SUCCESS
	}
	return 0, nvml.ERROR_NOT_SUPPORTED
}

var addressingModes = map[string]nvml.DeviceAddressingModeType{
	"ATS":  nvml.DEVICE_ADDRESSING_MODE_ATS,
	"HMM":  nvml.DEVICE_ADDRESSING_MODE_HMM,
	"None": nvml.DEVICE_ADDRESSING_MODE_NONE,
}

// GetAddressingMode is nvmlDeviceGetAddressingMode.
func (g *gpuCalls) GetAddressingMode() (nvml.DeviceAddressingMode, nvml.Return) {
	snap, ret := g.cached("GetAddressingMode")
	if ret != nvml.SUCCESS {
		return nvml.DeviceAddressingMode{}, ret
	}
	mode, ok := addressingModes[snap.Profile.Product.AddressingMode]
	if !ok {
		return nvml.DeviceAddressingMode{}, nvml.ERROR_NOT_SUPPORTED
	}
	return nvml.DeviceAddressingMode{Value: uint32(mode)}, nvml.SUCCESS
}

// GetPersistenceMode is nvmlDeviceGetPersistenceMode.
func (g *gpuCalls) GetPersistenceMode() (nvml.EnableState, nvml.Return) {
	_, ret := g.cached("GetPersistenceMode")
	return nvml.FEATURE_ENABLED, ret
}

// GetComputeRunningProcesses is nvmlDeviceGetComputeRunningProcesses: nobody computes here.
func (g *gpuCalls) GetComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	_, ret := g.probing("GetComputeRunningProcesses")
	return nil, ret
}
