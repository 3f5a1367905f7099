// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package resourcemodel

import (
	"slices"

	resourceapi "k8s.io/api/resource/v1"
)

// Field documents one attribute or capacity.
type Field struct {
	// Name is the published name. Without a domain, it is in that of the driver.
	Name resourceapi.QualifiedName
	// Type is "string", "int", "bool", "version" or "quantity".
	Type string
	// Always says that every GPU has it.
	Always bool
	// Meaning is a sentence for the reference documentation.
	Meaning string
}

var attributeTable = []Field{
	{AttributeType, "string", true, "Kind of device: `gpu`."},
	{AttributeID, "string", true, "Short stable identity: 8 base32 characters of a hash of the UUID."},
	{AttributeUUID, "string", true, "UUID of the GPU, as `nvidia-smi -L` prints it."},
	{AttributeIndex, "int", true, "Index in NVML and `nvidia-smi`; it shifts when another GPU is lost."},
	{AttributeMinor, "int", false, "N of `/dev/nvidiaN`; absent where NVML has none, as on WSL."},
	{AttributeProductName, "string", false, "Product name, for example `NVIDIA H100 80GB HBM3`; at most 64 bytes."},
	{AttributeBrand, "string", false, "Brand, for example `Nvidia`, `Tesla` or `GeForce`."},
	{AttributeArchitecture, "string", false, "Architecture, for example `Ampere`, `Hopper` or `Blackwell`."},
	{AttributeCUDAComputeCapability, "version", false, "CUDA compute capability, for example `9.0.0`."},
	{AttributeDriverVersion, "version", false, "Version of the kernel driver without leading zeros: driver 580.105.08 is `580.105.8`."},
	{AttributeCUDADriverVersion, "version", false, "Highest CUDA version that the driver supports, for example `13.0.0`."},
	{AttributeNVSwitchDomain, "string", false, "NVSwitch domain: GPUs with equal values talk at NVLink speed. `<node>.<n>`, or `<clusterUUID>.<cliqueId>` for a fabric that spans nodes; absent without NVLink peers."},
	{AttributeNVSwitchDomainSize, "int", false, "GPUs of the domain on this node."},
	{AttributeLastNVSwitchDomain, "string", false, "NVSwitch domain that the GPU was in until it was lost or its NVLinks went down; absent while it is in one."},
	{AttributeNVLinks, "int", true, "Active NVLinks of the GPU; 0 without NVLink."},
	{AttributeNVLinksPerPeer, "int", false, "Active NVLinks to each other GPU of the domain on this node, as `nvidia-smi topo -m` counts them; absent where they differ or are not known."},
	{AttributePCIBusID, "string", false, "PCI address, for example `0000:53:00.0`."},
	{AttributePCIeRoot, "string", false, "PCIe root complex, for example `pci0000:50`; equal for devices below the same one, also of other drivers."},
	{AttributeNUMANode, "int", false, "NUMA node of the PCI device; absent where the kernel knows none."},
}

var capacityTable = []Field{
	{CapacityMemory, "quantity", false, "Framebuffer memory in bytes."},
	{CapacityMultiprocessors, "quantity", false, "Streaming multiprocessors."},
}

var steeringAttributeTable = []Field{
	{AttributeNVSwitchDomainFree, "int", false, "Free GPUs of the GPU's domain on this node, itself among them; absent without a domain."},
	{AttributeNodeWhole, "bool", true, "Whether all GPUs of the node are free."},
}

// partitionAttributeTable has what is different from a GPU's.
var partitionAttributeTable = []Field{
	{AttributeType, "string", true, "Kind of device: `mig`."},
	{AttributeID, "string", true, "Short stable identity: 8 base32 characters of a hash of the GPU's UUID, the profile and the placement."},
	{AttributeParentUUID, "string", true, "UUID of the GPU: equal for all partitions of one GPU."},
	{AttributeProfile, "string", true, "MIG profile, for example `1g.10gb` or `1g.10gb+me`."},
	{AttributePlacementStart, "int", true, "First memory slice of the GPU that the partition takes."},
	{AttributePlacementSize, "int", true, "Memory slices that it takes."},
	{AttributeNVSwitchDomain, "string", false, "NVSwitch domain that the GPU sits in. Partitions talk to no other GPU over NVLink: it says where they are."},
}

var partitionCapacityTable = []Field{
	{CapacityMemory, "quantity", true, "Memory in bytes; less than the name of the profile says: a `1g.18gb` has 16 GiB."},
	{CapacityMultiprocessors, "quantity", true, "Streaming multiprocessors."},
	{CapacityCopyEngines, "quantity", true, "Copy engines."},
	{CapacityDecoders, "quantity", true, "Video decoders (NVDEC)."},
	{CapacityEncoders, "quantity", true, "Video encoders (NVENC)."},
	{CapacityJPEGEngines, "quantity", true, "JPEG decoders."},
	{CapacityOFAEngines, "quantity", true, "Optical flow accelerators."},
}

// shareAttributeTable has what is different from a GPU's.
var shareAttributeTable = []Field{
	{AttributeType, "string", true, "Kind of device: `share`."},
	{AttributeSharing, "string", true, "How its claims share the GPU: `MPS` holds each to what it asked for, `TimeSlicing` only counts it."},
}

var shareCapacityTable = []Field{
	{CapacityMemory, "quantity", true, "Memory in bytes. A request is rounded up to whole steps; without one a claim gets an equal part."},
	{CapacityMultiprocessors, "quantity", true, "Streaming multiprocessors. Without a request a claim gets an equal part. With `MPS` the least is one percent, rounded up."},
	{CapacityShares, "quantity", true, "How many claims may have a share. Each takes one; it cannot be asked for more."},
}

// ShareAttributeTable documents the attributes of a GPU that is published for several claims and that differ from
// those of one that is not. It has all others, too.
func ShareAttributeTable() []Field { return slices.Clone(shareAttributeTable) }

// ShareCapacityTable documents all capacities of such a GPU.
func ShareCapacityTable() []Field { return slices.Clone(shareCapacityTable) }

// PartitionAttributeTable documents the attributes of MIG partitions that differ from those of GPUs. They
// have all others, too, but for AttributeUUID, AttributeIndex, AttributeMinor, AttributeNVLinks,
// AttributeNVLinksPerPeer, AttributeNVSwitchDomainSize and AttributeLastNVSwitchDomain.
func PartitionAttributeTable() []Field { return slices.Clone(partitionAttributeTable) }

// PartitionCapacityTable documents all capacities of MIG partitions.
func PartitionCapacityTable() []Field { return slices.Clone(partitionCapacityTable) }

// AttributeTable documents all attributes of GPUs, in the order in which people should read them.
func AttributeTable() []Field { return slices.Clone(attributeTable) }

// SteeringAttributeTable documents the attributes of GPUs that are published where steering is on.
func SteeringAttributeTable() []Field { return slices.Clone(steeringAttributeTable) }

// CapacityTable documents all capacities of GPUs.
func CapacityTable() []Field { return slices.Clone(capacityTable) }
