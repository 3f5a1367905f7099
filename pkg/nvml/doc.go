// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package nvml discovers the GPUs of this node: it asks NVML and sysfs and returns a
// [device.Inventory] with NVSwitch domains.
//
// Beside the simulator, and pkg/cdi which hands the interface on to nvcdi, it is the only importer of
// go-nvml. It may import pkg/device, pkg/health and pkg/topology, never client-go. It promises that
//
//   - a missing, broken, mismatched or hanging NVML is an error of type [*UnavailableError] and never
//     a crash or a hang, and that a later [Library.Discover] starts anew;
//   - one bad GPU never costs the others: what is known of it is returned with its Health, or it is
//     left out, which makes device.Merge report it as lost;
//   - equal hardware in equal state gives an equal inventory.
//
// # NVML calls
//
// An implementation of go-nvml's Interface that is passed in [Options] (a simulator) has to answer
// these, with the methods of the same name:
//
//	Init, Shutdown, Extensions().LookupSymbol
//	SystemGetDriverVersion
//	SystemGetCudaDriverVersion_v2, else SystemGetCudaDriverVersion
//	DeviceGetCount, DeviceGetHandleByIndex
//
// and of each device
//
//	essential: GetUUID, GetPciInfo (BusId is read, else Domain, Bus, Device), GetName, GetMemoryInfo
//	optional:  GetMinorNumber, GetBrand, GetArchitecture, GetCudaComputeCapability,
//	           GetNumGpuCores, GetMigMode,
//	           GetNvLinkState for links 0 to NVLINK_MAX_LINKS-1, and for active ones
//	           GetNvLinkRemoteDeviceType and GetNvLinkRemotePciInfo,
//	           GetGpuFabricInfo,
//	           GetP2PStatus(peer, P2P_CAPS_INDEX_NVLINK)
//
// For the health of the GPUs ([Library.ReadHealth], [Library.WatchHealth]), all of them optional:
//
//	GetFieldValues (NVML_FI_DEV_GET_GPU_RECOVERY_ACTION), GetTotalEccErrors, GetRemappedRows
//	EventSetCreate, EventSetWait, EventSetFree, and of each device GetSupportedEventTypes, RegisterEvents
//
// and of a device in MIG mode that may be partitioned
//
//	GetGpuInstanceProfileInfo, GetGpuInstancePossiblePlacements, GetGpuInstances,
//	CreateGpuInstanceWithPlacement, GetMaxMigDeviceCount, GetMigDeviceHandleByIndex; of a GPU instance
//	GetInfo, Destroy, GetComputeInstanceProfileInfo, GetComputeInstances, CreateComputeInstance; of a
//	compute instance GetInfo, Destroy; of a MIG device GetGpuInstanceId, GetComputeInstanceId, GetUUID
//
// nvmlDeviceSetMigMode is never called.
//
// An optional call may return any error, most naturally ERROR_NOT_SUPPORTED; what it would have told
// is then missing. An essential call that fails, or any call that returns ERROR_GPU_IS_LOST or
// ERROR_RESET_REQUIRED, makes the GPU unhealthy. GetMemoryInfo is the probe: it reaches the hardware,
// while names and addresses are answered from a cache.
//
// NVML symbols are bound lazily, and calling one that the installed library lacks ends the process.
// So every optional call is made only if LookupSymbol finds its C name, such as
// "nvmlDeviceGetP2PStatus". nvmlDeviceGetGpuFabricInfoV is called only on a library that this package
// opened itself: its Go wrapper cannot be implemented outside go-nvml.
//
// # Which GPUs are connected
//
// A GPU that joined a multi-node fabric is in the domain of that fabric and clique: the fabric manager
// put there the GPUs that reach each other. Any other two GPUs are connected at NVLink speed if
//
//   - they are linked directly: active links on both sides name the other's PCI address; one side
//     suffices where the other hides where its links end. Or
//   - they share an NVSwitch: active links on both sides name the same switch. Or
//   - the driver says so, P2P_STATUS_OK, and the links do not tell, on both sides: they end at
//     switches, which may know further switches; they hide where they end (bus ids of only F, as in
//     virtual machines); or NVML answers for no link at all;
//
// and in no case if the driver denies it: P2P status DISABLED_BY_REGKEY, NOT_SUPPORTED or one of the
// other definite ones, which is how a fabric manager's partitions and failed access links show; or if
// the GPUs are in different cliques of the board's fabric. An error and P2P_STATUS_UNKNOWN say nothing
// either way. Sets of GPUs follow from the pairs as in package topology.
//
// A GPU keeps its domain while some of its links are down, as long as the driver keeps the peers
// connected: it is still an order of magnitude faster than PCIe, and the attribute nvlinks shows the
// loss. A GPU whose links are all down has none. One in MIG mode, which rules out peer-to-peer access, is
// not counted; the domain that it sits in, as its links tell, is there for its partitions.
//
// Fabric states (nvmlDeviceGetGpuFabricInfo):
//
//	not supported, or state NOT_SUPPORTED      node-local
//	completed, cluster UUID zero               node-local; cliques still separate
//	completed, cluster UUID, status SUCCESS    domain "<clusterUUID>.<cliqueId>"
//	completed, any other status                no domain, and Health.Message says why; not unhealthy:
//	                                           nothing is known against using the GPU alone
//	not started, in progress                   no domain yet, and Inventory.Settling is set
package nvml
