// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"fmt"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/switchyard-dev/switchyard/pkg/device"
)

// fabricState is what a GPU's registration with the NVLink fabric means for its domain.
type fabricState int

const (
	// fabricNone: no fabric, or one that this software does not know: the links decide.
	fabricNone fabricState = iota
	// fabricLocal: registered with the fabric of this board alone. Only GPUs of one clique connect.
	fabricLocal
	// fabricJoined: registered with a fabric that spans nodes.
	fabricJoined
	// fabricSettling: registering, or waiting for the fabric manager.
	fabricSettling
	// fabricFailed: registration ended with an error.
	fabricFailed
)

// fabric is one GPU's registration.
type fabric struct {
	state fabricState
	// domain is the fabric-wide domain ID in state fabricJoined.
	domain string
	// clique separates GPUs in state fabricLocal.
	clique uint32
	// message says why in state fabricFailed, and what is degraded in others.
	message string
}

// fabric reads the GPU's registration (nvmlDeviceGetGpuFabricInfoV, else nvmlDeviceGetGpuFabricInfo).
func (q *query) fabric() fabric {
	const versioned, plain = "nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetGpuFabricInfo"
	if q.versionedFabricInfo && q.asking(versioned) {
		if info, ret := q.gpu.handle.GetGpuFabricInfoV().V2(); q.answered(versioned, ret) {
			return interpretFabric(info)
		}
	}
	if q.asking(plain) {
		if info, ret := q.gpu.handle.GetGpuFabricInfo(); q.answered(plain, ret) {
			return interpretFabric(gonvml.GpuFabricInfo_v2{
				ClusterUuid: info.ClusterUuid, Status: info.Status, CliqueId: info.CliqueId, State: info.State,
			})
		}
	}
	return fabric{}
}

// interpretFabric applies the table of the package comment.
func interpretFabric(info gonvml.GpuFabricInfo_v2) fabric {
	switch info.State {
	case gonvml.GPU_FABRIC_STATE_NOT_SUPPORTED:
		return fabric{}
	case gonvml.GPU_FABRIC_STATE_NOT_STARTED, gonvml.GPU_FABRIC_STATE_IN_PROGRESS:
		return fabric{state: fabricSettling}
	case gonvml.GPU_FABRIC_STATE_COMPLETED:
		// below
	default:
		return fabric{state: fabricFailed, message: fmt.Sprintf("NVLink fabric is in the unknown state %d", info.State)}
	}
	if status := gonvml.Return(info.Status); status != gonvml.SUCCESS {
		return fabric{state: fabricFailed, message: "registration with the NVLink fabric failed: " + status.Error()}
	}
	message := degraded(info.HealthMask)
	if info.ClusterUuid == ([16]uint8{}) {
		return fabric{state: fabricLocal, clique: info.CliqueId, message: message}
	}
	return fabric{state: fabricJoined, domain: device.FabricDomain(info.ClusterUuid, info.CliqueId), message: message}
}

// degraded tells from the health mask whether the GPU's NVLink bandwidth is reduced.
func degraded(healthMask uint32) string {
	bandwidth := healthMask >> gonvml.GPU_FABRIC_HEALTH_MASK_SHIFT_DEGRADED_BW & gonvml.GPU_FABRIC_HEALTH_MASK_WIDTH_DEGRADED_BW
	if bandwidth == gonvml.GPU_FABRIC_HEALTH_MASK_DEGRADED_BW_TRUE {
		return "NVLink fabric runs at degraded bandwidth"
	}
	return ""
}
