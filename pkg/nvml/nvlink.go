// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
)

// links is what NVML tells of one GPU's NVLinks.
type links struct {
	// active and down count the links that exist; those NVML does not answer for are in neither.
	active, down int
	// gpus and switches count active links by the PCI address of the other end.
	gpus, switches map[string]int
	// hidden counts active links that do not tell where they end.
	hidden int
	// toSwitch counts active links that end at some switch, hidden or not.
	toSwitch int
}

// allDown reports whether links exist and none is active.
func (l links) allDown() bool { return l.down > 0 && l.active == 0 }

// throughUnknown reports whether a peer may be reached in a way that the links do not tell: through a
// switch that knows further switches, through ends that are hidden, or where NVML answers for no link.
func (l links) throughUnknown() bool {
	return l.hidden > 0 || l.toSwitch > 0 || l.active == 0 && l.down == 0
}

// links reads the GPU's NVLinks (nvmlDeviceGetNvLinkState and the two calls for the remote end). A link
// that NVML does not know or does not answer for is skipped: numbers may have gaps.
func (q *query) links() links {
	result := links{gpus: map[string]int{}, switches: map[string]int{}}
	if !q.asking("nvmlDeviceGetNvLinkState") {
		return result
	}
	for link := range gonvml.NVLINK_MAX_LINKS {
		state, ret := q.gpu.handle.GetNvLinkState(link)
		switch {
		case !q.answered("nvmlDeviceGetNvLinkState", ret):
			if !q.gpu.Health.Healthy() {
				return result
			}
		case state != gonvml.FEATURE_ENABLED:
			result.down++
		default:
			result.active++
			q.remote(link, &result)
		}
	}
	return result
}

// remote adds the other end of an active link.
func (q *query) remote(link int, result *links) {
	kind := gonvml.NVLINK_DEVICE_TYPE_UNKNOWN
	if q.asking("nvmlDeviceGetNvLinkRemoteDeviceType") {
		if answer, ret := q.gpu.handle.GetNvLinkRemoteDeviceType(link); q.answered("nvmlDeviceGetNvLinkRemoteDeviceType", ret) {
			kind = answer
		}
	}
	address := ""
	if q.asking("nvmlDeviceGetNvLinkRemotePciInfo_v2") {
		if info, ret := q.gpu.handle.GetNvLinkRemotePciInfo(link); q.answered("nvmlDeviceGetNvLinkRemotePciInfo_v2", ret) {
			address = pciAddress(info)
		}
	}
	switch {
	case kind == gonvml.NVLINK_DEVICE_TYPE_IBMNPU:
		// to the CPU of a POWER machine, never to a GPU
	case kind == gonvml.NVLINK_DEVICE_TYPE_SWITCH && address != "":
		result.toSwitch++
		result.switches[address]++
	case kind == gonvml.NVLINK_DEVICE_TYPE_SWITCH:
		result.toSwitch++
		result.hidden++
	case address != "":
		// Where the type is unknown, the address tells whether it is a GPU of this node.
		result.gpus[address]++
		if kind != gonvml.NVLINK_DEVICE_TYPE_GPU {
			result.hidden++
		}
	default:
		result.hidden++
	}
}
