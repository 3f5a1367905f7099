// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package device is the model of one node's GPUs: what discovery fills in, what the resource model
// publishes and what preparing a claim looks up.
//
// It holds plain values and pure functions only. It may import api, pkg/mig and the standard library
// (never os), and it promises that equal hardware gives equal values in equal order.
package device

// Inventory is one node's GPUs as they were last seen. Discovery sorts them by Index; Merge keeps the
// order in which they were first seen, and a GPU that is lost keeps the index it had.
type Inventory struct {
	// NodeName is the node whose domains are called "<node>.<n>".
	NodeName string `json:"nodeName,omitempty"`
	// DriverVersion is the kernel driver's version as NVML spells it, for example "580.105.08"
	// (nvmlSystemGetDriverVersion).
	DriverVersion string `json:"driverVersion"`
	// CUDADriverVersion is the highest CUDA version the driver supports as major.minor, for example
	// "13.0" (nvmlSystemGetCudaDriverVersion_v2, or without _v2 where
	// libcuda is not installed).
	CUDADriverVersion string `json:"cudaDriverVersion"`
	GPUs              []GPU  `json:"gpus"`

	// Settling says that a GPU is still joining the NVLink fabric (nvmlDeviceGetGpuFabricInfo: not
	// started or in progress), so that its domain is yet to come: look again soon.
	Settling bool `json:"-"`
	// Unidentified tells, in a line each, why GPUs that NVML counts are not in GPUs: they do not even
	// tell their UUID.
	Unidentified []string `json:"-"`
	// Unanswered counts those of Unidentified that did not say that they are lost or need a reset. Each may
	// be a GPU that was known: that one is not listed says less then.
	Unanswered int `json:"-"`
}

// GPU is one physical GPU.
type GPU struct {
	// UUID identifies the hardware for life, for example "GPU-4404041a-04cf-1ccf-9e70-f139a9b1e23c"
	// (nvmlDeviceGetUUID). Name and ID derive from it and from nothing else.
	UUID string `json:"uuid"`
	// Index is NVML's index. It shifts when another GPU is lost: never an identity.
	Index int `json:"index"`
	// Minor is N of /dev/nvidiaN; nil where NVML has none (WSL).
	Minor *int `json:"minor,omitempty"`

	ProductName  string `json:"productName"`
	Brand        string `json:"brand"`
	Architecture string `json:"architecture"`
	// ComputeCapability is CUDA's major.minor, for example "9.0".
	ComputeCapability string `json:"computeCapability"`

	// PCIBusID is lower case with a domain of four digits, for example "0000:53:00.0", as sysfs and
	// resource.kubernetes.io/pciBusID spell it.
	PCIBusID string `json:"pciBusID"`
	// PCIeRoot is the root complex, for example "pci0000:50"; empty where sysfs does not tell.
	PCIeRoot string `json:"pcieRoot,omitempty"`
	// NUMANode is the node of the PCI device; nil where the kernel says -1 or nothing.
	NUMANode *int `json:"numaNode,omitempty"`

	// MemoryBytes is the whole framebuffer (nvmlDeviceGetMemoryInfo: total); 0 where NVML does not
	// tell, as on boards that share the system's memory.
	MemoryBytes uint64 `json:"memoryBytes"`
	// Multiprocessors is the number of streaming multiprocessors; 0 where NVML does not tell.
	Multiprocessors int `json:"multiprocessors"`

	// NVLinks is the number of active links (nvmlDeviceGetNvLinkState).
	NVLinks int `json:"nvlinks"`
	// MaxNVLinks is the most active links that the GPU had on this boot; never publish it.
	MaxNVLinks int `json:"maxNVLinks,omitempty"`
	// MIGEnabled says that the GPU is in MIG mode and cannot be used whole.
	MIGEnabled bool `json:"migEnabled,omitempty"`
	// MIG is how the GPU can be partitioned; nil for one that never was in MIG mode, or that this node
	// does not let be partitioned.
	MIG *MIG `json:"mig,omitempty"`

	// Shares says that the GPU is published for several claims at the same time; nil for one that a claim has
	// alone. Discovery does not know: it is set on what is published.
	Shares *Shares `json:"-"`
	// Reconfiguring says that the GPU is to be published in another form, with other Shares or without, and waits
	// until nobody holds it.
	Reconfiguring bool `json:"-"`

	// NVSwitchDomain is the published domain ID, at most 64 characters; empty for a GPU without one.
	// Equal domains mean that the GPUs talk at NVLink speed; but one in MIG mode, which sits in the domain,
	// talks to nobody and is not counted.
	NVSwitchDomain string `json:"nvswitchDomain,omitempty"`
	// NVSwitchDomainSize is the number of GPUs of the domain on this node; 0 without a domain.
	NVSwitchDomainSize int `json:"nvswitchDomainSize,omitempty"`
	// NVLinksPerPeer is the number of active links between the GPU and each other GPU of its domain on this
	// node, counted as nvidia-smi topo -m does: through NVSwitches all links of the GPU count for every peer.
	// 0 where the peers differ, where the links do not tell, and without a peer.
	NVLinksPerPeer int `json:"nvlinksPerPeer,omitempty"`
	// LastDomain is the latest domain the GPU was in, and its own one while it is in one. It keeps the
	// place of a lost GPU among its neighbours; never publish it.
	LastDomain string `json:"lastDomain,omitempty"`
	// Batch counts, from 0, which discovery of this boot found the GPU first, of those that found new
	// ones. GPUs of one batch share slices with nobody else, so that no slice ever gains a device.
	Batch int `json:"batch,omitempty"`

	Health Health `json:"health"`
}

// Health says whether a GPU may be handed out. The zero value is healthy.
type Health struct {
	// Reason is a stable CamelCase word such as ReasonLost; empty when healthy.
	Reason string `json:"reason,omitempty"`
	// Message tells a person what was seen. A healthy GPU may carry one too, such as why it has no
	// domain.
	Message string `json:"message,omitempty"`
	// Evict says that the pods that hold the unhealthy GPU should go, too: its taint has effect NoExecute.
	Evict bool `json:"evict,omitempty"`
	// Degraded is a stable CamelCase word for a GPU that may be handed out and is not as it should be; empty
	// where there is nothing to say. A GPU may be unhealthy for one reason and degraded for another.
	Degraded string `json:"degraded,omitempty"`
}

const (
	// ReasonLost is the reason of a GPU that was seen on this boot and does not answer any more: it
	// fell off the bus (NVML_ERROR_GPU_IS_LOST), or NVML no longer lists it.
	ReasonLost = "Lost"
	// ReasonNotAnswering is the reason of a GPU that fails a call which every working GPU answers, with an
	// error that does not tell what is wrong, such as NVML_ERROR_UNKNOWN or NVML_ERROR_TIMEOUT.
	ReasonNotAnswering = "NotAnswering"
	// ReasonNVMLUnavailable is the reason of all GPUs of a node whose NVML cannot be used: nothing is known
	// against any of them.
	ReasonNVMLUnavailable = "NVMLUnavailable"
	// ReasonResetRequired is the reason of a GPU that has to be reset before it can be used again
	// (NVML_ERROR_RESET_REQUIRED).
	ReasonResetRequired = "ResetRequired"
)

// Healthy reports whether nothing is known against the GPU.
func (h Health) Healthy() bool { return h.Reason == "" }
