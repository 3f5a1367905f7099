// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package profile describes the hardware of a simulated GPU node: its boards, how PCIe and NVLink join
// them, and which driver it runs. A profile is a YAML file that a person can read and write; the
// profiles of well-known machines are embedded.
//
// The package holds values and pure functions; only Load reads a file. It promises that a profile that
// validates can be turned into a node, and that equal profiles give equal nodes.
package profile

// Profile is one kind of node.
type Profile struct {
	// Name is a DNS label, for example "hgx-h100".
	Name string `json:"name"`
	// Description is one line for people.
	Description string `json:"description,omitempty"`
	// Sources says where the numbers come from, one source an entry.
	Sources []string `json:"sources,omitempty"`
	// Assumptions says what no source was found for, one assumption an entry.
	Assumptions []string `json:"assumptions,omitempty"`

	Driver  Driver  `json:"driver"`
	Product Product `json:"product"`
	// GPUs are the boards in NVML's index order, which is the order of their PCI addresses.
	GPUs []GPU `json:"gpus"`
	// NVLink is nil for boards without NVLink.
	NVLink *NVLink `json:"nvlink,omitempty"`
	// Fabric is nil for boards that cannot join a GPU fabric (before Hopper).
	Fabric *Fabric `json:"fabric,omitempty"`
}

// Driver is the installed driver.
type Driver struct {
	// Version is the kernel driver's version, for example "580.105.08".
	Version string `json:"version"`
	// CUDAVersion is the highest CUDA version the driver supports, for example "13.0".
	CUDAVersion string `json:"cudaVersion"`
}

// Product is the board that all GPUs of the node are.
type Product struct {
	// Name is what nvmlDeviceGetName returns, for example "NVIDIA H100 80GB HBM3".
	Name string `json:"name"`
	// Brand is "NVIDIA", "Tesla", "GeForce" or "GeForceRTX".
	Brand string `json:"brand"`
	// Architecture is NVIDIA's name of the chip family, for example "Hopper".
	Architecture string `json:"architecture"`
	// ComputeCapability is CUDA's major.minor.
	ComputeCapability string `json:"computeCapability"`
	// MemoryMiB is the whole framebuffer, ReservedMiB what the driver keeps of it, BAR1MiB the aperture.
	MemoryMiB   uint64 `json:"memoryMiB"`
	ReservedMiB uint64 `json:"reservedMiB,omitempty"`
	BAR1MiB     uint64 `json:"bar1MiB,omitempty"`
	// Multiprocessors is the number of streaming multiprocessors, CoresPerMultiprocessor the number of
	// CUDA cores in each.
	Multiprocessors        int `json:"multiprocessors"`
	CoresPerMultiprocessor int `json:"coresPerMultiprocessor"`
	// PCIDeviceID and PCISubsystemID are NVML's combined ids, device in the high half and vendor in
	// the low: "0x233010DE".
	PCIDeviceID    HexID `json:"pciDeviceID"`
	PCISubsystemID HexID `json:"pciSubsystemID,omitempty"`
	// BoardPartNumber is for example "692-2G520-0200-000"; empty where NVML tells none.
	BoardPartNumber string `json:"boardPartNumber,omitempty"`
	PowerLimitWatts int    `json:"powerLimitWatts,omitempty"`
	PCIe            PCIe   `json:"pcie"`
	// AddressingMode is "HMM", "ATS", "None", or empty where NVML does not support the question.
	AddressingMode string `json:"addressingMode,omitempty"`
	// MIG is nil for boards that cannot be partitioned.
	MIG *MIG `json:"mig,omitempty"`
}

// PCIe is the widest PCIe link of the board.
type PCIe struct {
	Generation int `json:"generation"`
	Width      int `json:"width"`
}

// GPU is where one board sits.
type GPU struct {
	// BusID is the PCI address, lower case with a domain of four digits: "0000:53:00.0".
	BusID string `json:"busID"`
	// PCIeRoot is the root complex, for example "pci0000:48".
	PCIeRoot string `json:"pcieRoot"`
	// Bridges are the PCI bridges between the root complex and the GPU, nearest to the root first.
	// Two GPUs with the same last bridge are PIX to each other, with any other bridge in common PXB,
	// with only the root in common PHB.
	Bridges []string `json:"bridges,omitempty"`
	// NUMANode is the node of the PCI device; absent where the kernel says -1.
	NUMANode *int `json:"numaNode,omitempty"`
	// MemoryNUMANode is the node of the GPU's own memory, on Grace boards only.
	MemoryNUMANode *int `json:"memoryNUMANode,omitempty"`
	// CPUs is the list of near CPUs, for example "0-31,64-95"; for display only.
	CPUs string `json:"cpus,omitempty"`
	// ModuleID is the socket on the baseboard, from 1; 0 where NVML tells none. It is not the index.
	ModuleID int `json:"moduleID,omitempty"`
}

// NVLink is how NVLinks join the GPUs. A GPU's links are numbered in the order of this list: the
// switches first, then the peers, each in the order given here.
type NVLink struct {
	// Version is the NVLink generation, for example 4.
	Version int `json:"version"`
	// LinksPerGPU is how many links a GPU has, connected or not.
	LinksPerGPU int `json:"linksPerGPU"`
	// MBPerSecond is the speed of one link in each direction, in 10^6 bytes a second.
	MBPerSecond int `json:"mbPerSecond,omitempty"`
	// Remotes says what NVML tells about the far end of a link: "visible" (the default), "opaque" (its
	// PCI address is all F, as on NVL72 trays and in virtual machines), or "hidden" (opaque, and the
	// device type is unknown as well).
	Remotes  Remotes  `json:"remotes,omitempty"`
	Switches []Switch `json:"switches,omitempty"`
	Peers    []Peer   `json:"peers,omitempty"`
}

// Remotes says what NVML tells about the far end of NVLinks.
type Remotes string

// What NVML tells about the far end of NVLinks.
const (
	RemotesVisible Remotes = "visible"
	RemotesOpaque  Remotes = "opaque"
	RemotesHidden  Remotes = "hidden"
)

// Switch is one NVSwitch.
type Switch struct {
	// BusID is its PCI address; for opaque remotes any unused one, it only tells switches apart.
	BusID string `json:"busID"`
	// GPUs are the indexes of the GPUs it joins.
	GPUs []int `json:"gpus"`
	// Links is the number of links from each of these GPUs.
	Links int `json:"links"`
}

// Peer is a bundle of links straight from one GPU to another.
type Peer struct {
	// GPUs are the two indexes, the smaller first.
	GPUs [2]int `json:"gpus"`
	// Links is the number of links in the bundle.
	Links int `json:"links"`
}

// Fabric is what nvmlDeviceGetGpuFabricInfo says once the node is up.
type Fabric struct {
	State FabricState `json:"state"`
	// ClusterUUID names the NVLink fabric over several nodes; all zeros on a single HGX board.
	ClusterUUID string `json:"clusterUUID"`
	CliqueID    uint32 `json:"cliqueID"`
}

// FabricState is the state of a GPU's registration with its fabric.
type FabricState string

// The states of nvmlGpuFabricState_t.
const (
	FabricNotSupported FabricState = "NotSupported"
	FabricNotStarted   FabricState = "NotStarted"
	FabricInProgress   FabricState = "InProgress"
	FabricCompleted    FabricState = "Completed"
)

// FabricStates are all states, in NVML's order.
func FabricStates() []FabricState {
	return []FabricState{FabricNotSupported, FabricNotStarted, FabricInProgress, FabricCompleted}
}
