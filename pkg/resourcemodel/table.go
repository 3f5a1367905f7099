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
	// Type is "string", "int", "version" or "quantity".
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
	{AttributeNVLinks, "int", true, "Active NVLinks of the GPU; 0 without NVLink."},
	{AttributePCIBusID, "string", false, "PCI address, for example `0000:53:00.0`."},
	{AttributePCIeRoot, "string", false, "PCIe root complex, for example `pci0000:50`; equal for devices below the same one, also of other drivers."},
	{AttributeNUMANode, "int", false, "NUMA node of the PCI device; absent where the kernel knows none."},
}

var capacityTable = []Field{
	{CapacityMemory, "quantity", false, "Framebuffer memory in bytes."},
	{CapacityMultiprocessors, "quantity", false, "Streaming multiprocessors."},
}

// AttributeTable documents all attributes, in the order in which people should read them.
func AttributeTable() []Field { return slices.Clone(attributeTable) }

// CapacityTable documents all capacities.
func CapacityTable() []Field { return slices.Clone(capacityTable) }
