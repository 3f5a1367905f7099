// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"fmt"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// simulated are the C names of the simulated functions, without version, sorted. They are written out
// because a program that lists methods by reflection has all methods of all types linked in: 20 MiB.
var simulated = []string{
	"nvmlComputeInstanceDestroy",
	"nvmlComputeInstanceGetInfo",
	"nvmlDeviceCreateGpuInstance",
	"nvmlDeviceCreateGpuInstanceWithPlacement",
	"nvmlDeviceGetAddressingMode",
	"nvmlDeviceGetArchitecture",
	"nvmlDeviceGetAttributes",
	"nvmlDeviceGetBAR1MemoryInfo",
	"nvmlDeviceGetBoardPartNumber",
	"nvmlDeviceGetBrand",
	"nvmlDeviceGetComputeInstanceId",
	"nvmlDeviceGetComputeMode",
	"nvmlDeviceGetComputeRunningProcesses",
	"nvmlDeviceGetCount",
	"nvmlDeviceGetCudaComputeCapability",
	"nvmlDeviceGetDeviceHandleFromMigDeviceHandle",
	"nvmlDeviceGetFieldValues",
	"nvmlDeviceGetGpuFabricInfo",
	"nvmlDeviceGetGpuInstanceById",
	"nvmlDeviceGetGpuInstanceId",
	"nvmlDeviceGetGpuInstancePossiblePlacements",
	"nvmlDeviceGetGpuInstanceProfileInfo",
	"nvmlDeviceGetGpuInstanceRemainingCapacity",
	"nvmlDeviceGetGpuInstances",
	"nvmlDeviceGetHandleByIndex",
	"nvmlDeviceGetHandleByPciBusId",
	"nvmlDeviceGetHandleBySerial",
	"nvmlDeviceGetHandleByUUID",
	"nvmlDeviceGetIndex",
	"nvmlDeviceGetMaxMigDeviceCount",
	"nvmlDeviceGetMaxPcieLinkGeneration",
	"nvmlDeviceGetMaxPcieLinkWidth",
	"nvmlDeviceGetMemoryInfo",
	"nvmlDeviceGetMigDeviceHandleByIndex",
	"nvmlDeviceGetMigMode",
	"nvmlDeviceGetMinorNumber",
	"nvmlDeviceGetModuleId",
	"nvmlDeviceGetName",
	"nvmlDeviceGetNumGpuCores",
	"nvmlDeviceGetNumaNodeId",
	"nvmlDeviceGetNvLinkCapability",
	"nvmlDeviceGetNvLinkRemoteDeviceType",
	"nvmlDeviceGetNvLinkRemotePciInfo",
	"nvmlDeviceGetNvLinkState",
	"nvmlDeviceGetNvLinkVersion",
	"nvmlDeviceGetP2PStatus",
	"nvmlDeviceGetPciInfo",
	"nvmlDeviceGetPersistenceMode",
	"nvmlDeviceGetPowerManagementLimit",
	"nvmlDeviceGetRemappedRows",
	"nvmlDeviceGetSerial",
	"nvmlDeviceGetSupportedEventTypes",
	"nvmlDeviceGetTopologyCommonAncestor",
	"nvmlDeviceGetTopologyNearestGpus",
	"nvmlDeviceGetTotalEccErrors",
	"nvmlDeviceGetUUID",
	"nvmlDeviceIsMigDeviceHandle",
	"nvmlDeviceRegisterEvents",
	"nvmlDeviceSetComputeMode",
	"nvmlErrorString",
	"nvmlEventSetCreate",
	"nvmlEventSetFree",
	"nvmlEventSetWait",
	"nvmlGpuInstanceCreateComputeInstance",
	"nvmlGpuInstanceDestroy",
	"nvmlGpuInstanceGetComputeInstanceById",
	"nvmlGpuInstanceGetComputeInstancePossiblePlacements",
	"nvmlGpuInstanceGetComputeInstanceProfileInfo",
	"nvmlGpuInstanceGetComputeInstanceRemainingCapacity",
	"nvmlGpuInstanceGetComputeInstances",
	"nvmlGpuInstanceGetInfo",
	"nvmlInit",
	"nvmlInitWithFlags",
	"nvmlShutdown",
	"nvmlSystemGetCudaDriverVersion",
	"nvmlSystemGetDriverVersion",
	"nvmlSystemGetNVMLVersion",
}

// Extensions gives access to LookupSymbol. It is a feature of go-nvml, not a call of NVML.
func (l *libraryCalls) Extensions() nvml.ExtendedInterface { return symbols{} }

// symbols answers which C functions the simulated library has.
type symbols struct{}

// LookupSymbol finds the C function of a given name, in any version.
func (symbols) LookupSymbol(name string) error {
	if _, found := slices.BinarySearch(simulated, withoutVersion(name)); !found {
		return fmt.Errorf("symbol %q is not simulated", name)
	}
	return nil
}

// withoutVersion cuts the "_v2" off the name of a C function.
func withoutVersion(name string) string {
	at := strings.LastIndex(name, "_v")
	if at < 0 || at+2 == len(name) || strings.Trim(name[at+2:], "0123456789") != "" {
		return name
	}
	return name[:at]
}
