// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"github.com/switchyard-dev/switchyard/pkg/simulator/profile"
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

const mebibyte = 1 << 20

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

// GetComputeMode is nvmlDeviceGetComputeMode.
func (g *gpuCalls) GetComputeMode() (nvml.ComputeMode, nvml.Return) {
	_, ret := g.probing("GetComputeMode")
	return nvml.COMPUTEMODE_DEFAULT, ret
}

// GetComputeRunningProcesses is nvmlDeviceGetComputeRunningProcesses: nobody computes here.
func (g *gpuCalls) GetComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	_, ret := g.probing("GetComputeRunningProcesses")
	return nil, ret
}

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

// other returns the GPU of another handle, which has to be of the same node.
func (g *gpuCalls) other(device nvml.Device) (*gpu, bool) {
	other, ok := device.(*gpu)
	return other, ok && other != nil && other.lib == g.lib
}

var topologyLevels = map[profile.Distance]nvml.GpuTopologyLevel{
	profile.DistanceSelf: nvml.TOPOLOGY_INTERNAL,
	profile.DistancePIX:  nvml.TOPOLOGY_SINGLE,
	profile.DistancePXB:  nvml.TOPOLOGY_MULTIPLE,
	profile.DistancePHB:  nvml.TOPOLOGY_HOSTBRIDGE,
	profile.DistanceNODE: nvml.TOPOLOGY_NODE,
	profile.DistanceSYS:  nvml.TOPOLOGY_SYSTEM,
}

// GetTopologyCommonAncestor is nvmlDeviceGetTopologyCommonAncestor.
func (g *gpuCalls) GetTopologyCommonAncestor(device nvml.Device) (nvml.GpuTopologyLevel, nvml.Return) {
	snap, ret := g.cached("GetTopologyCommonAncestor")
	if ret != nvml.SUCCESS {
		return 0, ret
	}
	other, ok := g.other(device)
	if !ok {
		return 0, nvml.ERROR_INVALID_ARGUMENT
	}
	return topologyLevels[snap.Profile.Distance(g.position, other.position)], nvml.SUCCESS
}

// GetTopologyNearestGpus is nvmlDeviceGetTopologyNearestGpus: the other GPUs at that level.
func (g *gpuCalls) GetTopologyNearestGpus(level nvml.GpuTopologyLevel) ([]nvml.Device, nvml.Return) {
	snap, ret := g.cached("GetTopologyNearestGpus")
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	var devices []nvml.Device
	for _, position := range snap.visible {
		if position != g.position && topologyLevels[snap.Profile.Distance(g.position, position)] == level {
			devices = append(devices, g.lib.device(position))
		}
	}
	return devices, nvml.SUCCESS
}

// GetPciInfo is nvmlDeviceGetPciInfo_v3.
func (g *gpuCalls) GetPciInfo() (nvml.PciInfo, nvml.Return) {
	snap, ret := g.cached("GetPciInfo")
	if ret != nvml.SUCCESS {
		return nvml.PciInfo{}, ret
	}
	info := pciInfo(snap.Profile.GPUs[g.position].BusID)
	info.PciDeviceId = uint32(snap.Profile.Product.PCIDeviceID)
	info.PciSubSystemId = uint32(snap.Profile.Product.PCISubsystemID)
	return info, nvml.SUCCESS
}

// pciInfo fills in an address that is spelled as in sysfs.
func pciInfo(busID string) nvml.PciInfo {
	var info nvml.PciInfo
	var function uint32
	// Validation of the profile saw to the form.
	_, _ = fmt.Sscanf(busID, "%x:%x:%x.%x", &info.Domain, &info.Bus, &info.Device, &function)
	// Upper case, with the domain in eight digits, and in four in the old field.
	copyText(info.BusId[:], fmt.Sprintf("%08X:%02X:%02X.%X", info.Domain, info.Bus, info.Device, function))
	copyText(info.BusIdLegacy[:], fmt.Sprintf("%04X:%02X:%02X.%X", info.Domain, info.Bus, info.Device, function))
	return info
}

// opaquePCIInfo is the address of something that the driver does not show.
func opaquePCIInfo() nvml.PciInfo {
	info := nvml.PciInfo{Domain: 0xFFFFFFFF, Bus: 0xFF, Device: 0xFF}
	copyText(info.BusId[:], "FFFFFFFF:FFFF:FF.F")
	copyText(info.BusIdLegacy[:], "FFFF:FFFF:FF.F")
	return info
}

func copyText[T int8 | uint8](to []T, text string) {
	for i := range min(len(text), len(to)-1) {
		to[i] = T(text[i])
	}
}

// GetMaxPcieLinkGeneration is nvmlDeviceGetMaxPcieLinkGeneration.
func (g *gpuCalls) GetMaxPcieLinkGeneration() (int, nvml.Return) {
	snap, ret := g.cached("GetMaxPcieLinkGeneration")
	if ret != nvml.SUCCESS {
		return 0, ret
	}
	return snap.Profile.Product.PCIe.Generation, nvml.SUCCESS
}

// GetMaxPcieLinkWidth is nvmlDeviceGetMaxPcieLinkWidth.
func (g *gpuCalls) GetMaxPcieLinkWidth() (int, nvml.Return) {
	snap, ret := g.cached("GetMaxPcieLinkWidth")
	if ret != nvml.SUCCESS {
		return 0, ret
	}
	return snap.Profile.Product.PCIe.Width, nvml.SUCCESS
}
