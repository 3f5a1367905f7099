// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// A libnvidia-ml.so.1 for a node without GPUs: it answers the calls of package nvml for GPUS GPUs that
// are bridged in pairs by LINKS NVLinks each, and says NVML_ERROR_NOT_SUPPORTED to all others, which
// nvmlstub.go adds. The header is go-nvml's.

#define NVML_NO_UNVERSIONED_FUNC_DEFS 1
#include <nvml.h>
#include <stdio.h>
#include <string.h>

#ifndef GPUS
#define GPUS 2
#endif
#ifndef INIT_RETURN
#define INIT_RETURN NVML_SUCCESS
#endif
#ifndef DRIVER_VERSION
#define DRIVER_VERSION "580.105.08"
#endif
#ifndef FABRIC_STATE
#define FABRIC_STATE NVML_GPU_FABRIC_STATE_NOT_SUPPORTED
#endif
#define LINKS 4

// In go-nvml's header nvmlDevice_t is a struct that holds this pointer, which C passes alike.
struct nvmlDevice_st { unsigned int index; };

static struct nvmlDevice_st devices[GPUS + 1];
static int initialised;

#define CHECK_INIT() do { if (!initialised) return NVML_ERROR_UNINITIALIZED; } while (0)

static nvmlReturn_t text(char *to, unsigned int length, const char *from) {
    if (strlen(from) + 1 > length) return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(to, from);
    return NVML_SUCCESS;
}

static void address(unsigned int index, nvmlPciInfo_t *pci) {
    memset(pci, 0, sizeof *pci);
    // As on GB300, the PCI domain is not 0, and it is all that GPUs differ in.
    pci->domain = 0x8 + index;
    pci->bus = 0x6;
    pci->pciDeviceId = 0x31C210DE;
    snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:%02X.0", pci->domain, pci->bus, pci->device);
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", pci->domain, pci->bus, pci->device);
}

#ifdef UNLOADABLE
extern void defined_nowhere(void);
void (*nvmlStubUnloadable)(void) = defined_nowhere;
#endif

// The partner of a bridged pair, or GPUS for one that has none.
static unsigned int partner(unsigned int index) {
    unsigned int other = index ^ 1;
    return other < GPUS ? other : GPUS;
}

nvmlReturn_t nvmlInit_v2(void) {
    if (INIT_RETURN == NVML_SUCCESS) initialised++;
    return INIT_RETURN;
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags) { (void)flags; return nvmlInit_v2(); }

nvmlReturn_t nvmlShutdown(void) {
    CHECK_INIT();
    initialised--;
    return NVML_SUCCESS;
}

const char *nvmlErrorString(nvmlReturn_t result) {
    switch (result) {
    case NVML_SUCCESS: return "Success";
    case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
    case NVML_ERROR_LIB_RM_VERSION_MISMATCH: return "Driver/library version mismatch";
    case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
    default: return "Stub Error";
    }
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length) {
    CHECK_INIT();
    return text(version, length, DRIVER_VERSION);
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length) {
    return text(version, length, "13." DRIVER_VERSION);
}

// libcuda is not there, as in a container that sees the driver under another root.
nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) { (void)version; return NVML_ERROR_LIBRARY_NOT_FOUND; }

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) {
    *version = 13000;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
    CHECK_INIT();
    *count = GPUS;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    CHECK_INIT();
    if (index >= GPUS) return NVML_ERROR_INVALID_ARGUMENT;
    devices[index].index = index;
    device->handle = &devices[index];
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index) {
    *index = device.handle->index;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length) {
    char buffer[64];
    snprintf(buffer, sizeof buffer, "GPU-57ab0000-0000-4000-8000-%012u", device.handle->index);
    return text(uuid, length, buffer);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    CHECK_INIT();
    for (unsigned int i = 0; i < GPUS; i++) {
        char other[64];
        devices[i].index = i;
        nvmlDeviceGetUUID((nvmlDevice_t){&devices[i]}, other, sizeof other);
        if (strcmp(uuid, other) == 0) {
            device->handle = &devices[i];
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length) {
    (void)device;
    return text(name, length, "NVIDIA Stub 80GB");
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    address(device.handle->index, pci);
    return NVML_SUCCESS;
}

// Real libraries answer this, whether or not the GPU has MIG.
nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is) {
    (void)device;
    *is = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minor) {
    *minor = device.handle->index;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    (void)device;
    memset(memory, 0, sizeof *memory);
    memory->total = 80ULL << 30;
    memory->free = memory->total;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t device, nvmlBrandType_t *brand) {
    (void)device;
    *brand = NVML_BRAND_NVIDIA;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, nvmlDeviceArchitecture_t *arch) {
    (void)device;
    *arch = NVML_DEVICE_ARCH_HOPPER;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
    (void)device;
    *major = 9;
    *minor = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNumGpuCores(nvmlDevice_t device, unsigned int *cores) {
    (void)device;
    *cores = 16896;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, nvmlEnableState_t *state) {
    if (link >= LINKS) return NVML_ERROR_INVALID_ARGUMENT;
    *state = partner(device.handle->index) < GPUS ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int link, nvmlIntNvLinkDeviceType_t *type) {
    (void)device;
    (void)link;
    *type = NVML_NVLINK_DEVICE_TYPE_GPU;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci) {
    if (link >= LINKS || partner(device.handle->index) >= GPUS) return NVML_ERROR_INVALID_ARGUMENT;
    address(partner(device.handle->index), pci);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t a, nvmlDevice_t b, nvmlGpuP2PCapsIndex_t caps, nvmlGpuP2PStatus_t *status) {
    (void)caps;
    *status = partner(a.handle->index) == b.handle->index ? NVML_P2P_STATUS_OK : NVML_P2P_STATUS_NOT_SUPPORTED;
    return NVML_SUCCESS;
}

// Bytes 3 and 15 of the cluster UUID are 1: 00000001-0000-0000-0000-000000000001.
static void cluster(unsigned char *uuid) {
    memset(uuid, 0, NVML_GPU_FABRIC_UUID_LEN);
    uuid[3] = uuid[15] = 1;
}

nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *info) {
    (void)device;
    memset(info, 0, sizeof *info);
    cluster(info->clusterUuid);
    info->cliqueId = 7;
    info->state = FABRIC_STATE;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfoV_t *info) {
    (void)device;
    if (info->version != nvmlGpuFabricInfo_v2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlGpuFabricInfo_v2_t *v2 = (nvmlGpuFabricInfo_v2_t *)info;
    cluster(v2->clusterUuid);
    v2->cliqueId = 32766;
    v2->status = NVML_SUCCESS;
    v2->state = FABRIC_STATE;
    v2->healthMask = 0;
    return NVML_SUCCESS;
}
