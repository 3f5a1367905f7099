// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/uuid"

	"github.com/switchyard-dev/switchyard/pkg/simulator/profile"
)

// onBus says whether a GPU's links can be up at all.
func (s *snapshot) onBus(gpu int) bool {
	return s.GPUs[gpu].Health != HealthLost && s.GPUs[gpu].Health != HealthRemoved
}

// linkUp says whether a link of a GPU is up: connected, not taken down at either end, and with nobody
// lost.
func (s *snapshot) linkUp(gpu, link int) bool {
	end := s.links[gpu][link]
	if end.Kind == profile.EndNone || !s.onBus(gpu) || slices.Contains(s.GPUs[gpu].LinksDown, link) {
		return false
	}
	return end.Kind != profile.EndGPU || s.onBus(end.GPU) && !slices.Contains(s.GPUs[end.GPU].LinksDown, end.Link)
}

// peers says whether the driver lets two GPUs talk over NVLink: they share a link or a switch that is up,
// neither is in MIG mode, and the fabric, where there is one, is complete and the same.
func (s *snapshot) peers(a, b int) bool {
	if a == b || s.links == nil || s.migEnabled(a) || s.migEnabled(b) || !s.fabricReady(a, b) {
		return false
	}
	switches := map[int]bool{}
	for link, end := range s.links[a] {
		if !s.linkUp(a, link) {
			continue
		}
		if end.Kind == profile.EndGPU && end.GPU == b {
			return true
		}
		if end.Kind == profile.EndSwitch {
			switches[end.Switch] = true
		}
	}
	for link, end := range s.links[b] {
		if end.Kind == profile.EndSwitch && switches[end.Switch] && s.linkUp(b, link) {
			return true
		}
	}
	return false
}

func (s *snapshot) migEnabled(gpu int) bool {
	return s.GPUs[gpu].MIG != nil && s.GPUs[gpu].MIG.Enabled
}

func (s *snapshot) fabricReady(a, b int) bool {
	first, second := s.fabricOf(a), s.fabricOf(b)
	if first == nil || second == nil || first.State == profile.FabricNotSupported {
		return true
	}
	return first.State == profile.FabricCompleted && *first == *second && first.Status == 0
}

// link checks a link's number.
func (g *gpuCalls) link(function string, link int) (*snapshot, nvml.Return) {
	snap, ret := g.probing(function)
	switch {
	case ret != nvml.SUCCESS:
		return snap, ret
	case snap.links == nil:
		return snap, nvml.ERROR_NOT_SUPPORTED
	case link < 0 || link >= len(snap.links[g.position]):
		return snap, nvml.ERROR_INVALID_ARGUMENT
	default:
		return snap, nvml.SUCCESS
	}
}

// activeLink is link for functions that say nothing of a link that is down.
func (g *gpuCalls) activeLink(function string, link int) (*snapshot, nvml.Return) {
	snap, ret := g.link(function, link)
	if ret == nvml.SUCCESS && !snap.linkUp(g.position, link) {
		ret = nvml.ERROR_NOT_SUPPORTED
	}
	return snap, ret
}

// GetNvLinkState is nvmlDeviceGetNvLinkState. Boards without NVLink return ERROR_NOT_SUPPORTED, numbers
// that the board does not have ERROR_INVALID_ARGUMENT.
func (g *gpuCalls) GetNvLinkState(link int) (nvml.EnableState, nvml.Return) {
	snap, ret := g.link("GetNvLinkState", link)
	if ret != nvml.SUCCESS || !snap.linkUp(g.position, link) {
		return nvml.FEATURE_DISABLED, ret
	}
	return nvml.FEATURE_ENABLED, nvml.SUCCESS
}

// GetNvLinkVersion is nvmlDeviceGetNvLinkVersion.
func (g *gpuCalls) GetNvLinkVersion(link int) (uint32, nvml.Return) {
	snap, ret := g.link("GetNvLinkVersion", link)
	if ret != nvml.SUCCESS {
		return 0, ret
	}
	return uint32(snap.Profile.NVLink.Version), nvml.SUCCESS
}

// GetNvLinkCapability is nvmlDeviceGetNvLinkCapability: peer-to-peer access and atomics, and the link is
// valid; no SLI.
func (g *gpuCalls) GetNvLinkCapability(link int, capability nvml.NvLinkCapability) (uint32, nvml.Return) {
	if _, ret := g.link("GetNvLinkCapability", link); ret != nvml.SUCCESS {
		return 0, ret
	}
	switch capability {
	case nvml.NVLINK_CAP_P2P_SUPPORTED, nvml.NVLINK_CAP_SYSMEM_ACCESS, nvml.NVLINK_CAP_P2P_ATOMICS, nvml.NVLINK_CAP_SYSMEM_ATOMICS, nvml.NVLINK_CAP_VALID:
		return 1, nvml.SUCCESS
	case nvml.NVLINK_CAP_SLI_BRIDGE:
		return 0, nvml.SUCCESS
	default:
		return 0, nvml.ERROR_INVALID_ARGUMENT
	}
}

// GetNvLinkRemoteDeviceType is nvmlDeviceGetNvLinkRemoteDeviceType.
func (g *gpuCalls) GetNvLinkRemoteDeviceType(link int) (nvml.IntNvLinkDeviceType, nvml.Return) {
	snap, ret := g.activeLink("GetNvLinkRemoteDeviceType", link)
	switch {
	case ret != nvml.SUCCESS:
		return nvml.NVLINK_DEVICE_TYPE_UNKNOWN, ret
	case snap.Profile.NVLink.Remotes == profile.RemotesHidden:
		return nvml.NVLINK_DEVICE_TYPE_UNKNOWN, nvml.SUCCESS
	case snap.links[g.position][link].Kind == profile.EndGPU:
		return nvml.NVLINK_DEVICE_TYPE_GPU, nvml.SUCCESS
	default:
		return nvml.NVLINK_DEVICE_TYPE_SWITCH, nvml.SUCCESS
	}
}

// GetNvLinkRemotePciInfo is nvmlDeviceGetNvLinkRemotePciInfo_v2.
func (g *gpuCalls) GetNvLinkRemotePciInfo(link int) (nvml.PciInfo, nvml.Return) {
	snap, ret := g.activeLink("GetNvLinkRemotePciInfo", link)
	if ret != nvml.SUCCESS {
		return nvml.PciInfo{}, ret
	}
	if remotes := snap.Profile.NVLink.Remotes; remotes == profile.RemotesOpaque || remotes == profile.RemotesHidden {
		return opaquePCIInfo(), nvml.SUCCESS
	}
	end := snap.links[g.position][link]
	if end.Kind == profile.EndGPU {
		info := pciInfo(snap.Profile.GPUs[end.GPU].BusID)
		info.PciDeviceId = uint32(snap.Profile.Product.PCIDeviceID)
		return info, nvml.SUCCESS
	}
	return pciInfo(snap.Profile.NVLink.Switches[end.Switch].BusID), nvml.SUCCESS
}

// GetP2PStatus is nvmlDeviceGetP2PStatus. Over NVLink it follows the links; over PCIe all GPUs of the
// node reach each other.
func (g *gpuCalls) GetP2PStatus(device nvml.Device, capability nvml.GpuP2PCapsIndex) (nvml.GpuP2PStatus, nvml.Return) {
	snap, ret := g.probing("GetP2PStatus")
	if ret != nvml.SUCCESS {
		return nvml.P2P_STATUS_UNKNOWN, ret
	}
	other, ok := g.other(device)
	if !ok {
		return nvml.P2P_STATUS_UNKNOWN, nvml.ERROR_INVALID_ARGUMENT
	}
	if !snap.onBus(other.position) {
		return nvml.P2P_STATUS_UNKNOWN, nvml.ERROR_GPU_IS_LOST
	}
	switch capability {
	case nvml.P2P_CAPS_INDEX_NVLINK, nvml.P2P_CAPS_INDEX_ATOMICS:
		if snap.peers(g.position, other.position) {
			return nvml.P2P_STATUS_OK, nvml.SUCCESS
		}
		return nvml.P2P_STATUS_NOT_SUPPORTED, nvml.SUCCESS
	case nvml.P2P_CAPS_INDEX_READ, nvml.P2P_CAPS_INDEX_WRITE, nvml.P2P_CAPS_INDEX_PCI:
		return nvml.P2P_STATUS_OK, nvml.SUCCESS
	default:
		return nvml.P2P_STATUS_UNKNOWN, nvml.ERROR_INVALID_ARGUMENT
	}
}

var fabricStates = map[profile.FabricState]uint8{
	profile.FabricNotSupported: nvml.GPU_FABRIC_STATE_NOT_SUPPORTED,
	profile.FabricNotStarted:   nvml.GPU_FABRIC_STATE_NOT_STARTED,
	profile.FabricInProgress:   nvml.GPU_FABRIC_STATE_IN_PROGRESS,
	profile.FabricCompleted:    nvml.GPU_FABRIC_STATE_COMPLETED,
}

// GetGpuFabricInfo is nvmlDeviceGetGpuFabricInfo. Cluster and clique are told once the state is Completed.
func (g *gpuCalls) GetGpuFabricInfo() (nvml.GpuFabricInfo, nvml.Return) {
	snap, ret := g.probing("GetGpuFabricInfo")
	if ret != nvml.SUCCESS {
		return nvml.GpuFabricInfo{}, ret
	}
	fabric := snap.fabricOf(g.position)
	if fabric == nil {
		return nvml.GpuFabricInfo{}, nvml.ERROR_NOT_SUPPORTED
	}
	info := nvml.GpuFabricInfo{State: fabricStates[fabric.State]}
	if fabric.State == profile.FabricCompleted {
		// Validation saw to the form.
		info.ClusterUuid, _ = uuid.Parse(fabric.ClusterUUID)
		info.CliqueId = fabric.CliqueID
		info.Status = fabric.Status
	}
	return info, nvml.SUCCESS
}

// GetGpuFabricInfo_v4 is nvmlDeviceGetGpuFabricInfo_v4.
func (g *gpuCalls) GetGpuFabricInfo_v4() (nvml.GpuFabricInfo_v4, nvml.Return) { //nolint:revive // NVML's name
	old, ret := g.GetGpuFabricInfo()
	if ret != nvml.SUCCESS {
		return nvml.GpuFabricInfo_v4{}, ret
	}
	info := nvml.GpuFabricInfo_v4{ClusterUuid: old.ClusterUuid, Status: old.Status, State: old.State}
	if old.State == nvml.GPU_FABRIC_STATE_COMPLETED {
		info.NumCliques = 1
		info.Cliques[0].Id = old.CliqueId
	}
	return info, nvml.SUCCESS
}

// linksToward counts the links of a GPU that are up and lead to another, directly or over a switch that
// the other is on.
func (s *snapshot) linksToward(a, b int) int {
	count := 0
	for link, end := range s.links[a] {
		if !s.linkUp(a, link) {
			continue
		}
		if end.Kind == profile.EndGPU && end.GPU == b ||
			end.Kind == profile.EndSwitch && slices.Contains(s.Profile.NVLink.Switches[end.Switch].GPUs, b) {
			count++
		}
	}
	return count
}
