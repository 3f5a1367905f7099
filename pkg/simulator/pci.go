// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/switchyard-dev/switchyard/pkg/simulator/profile"
)

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
