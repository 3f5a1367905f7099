// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package resourcemodel

import (
	"fmt"
	"strings"
	"unicode/utf8"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/dynamic-resource-allocation/deviceattribute"

	"github.com/switchyard-dev/switchyard/pkg/device"
)

// Attributes of a GPU. Those without a domain are in that of the driver:
// device.attributes["gpu.switchyard.dev"].type. What is not known is absent, never a sentinel.
const (
	AttributeType                  resourceapi.QualifiedName = "type"
	AttributeID                    resourceapi.QualifiedName = "id"
	AttributeUUID                  resourceapi.QualifiedName = "uuid"
	AttributeIndex                 resourceapi.QualifiedName = "index"
	AttributeMinor                 resourceapi.QualifiedName = "minor"
	AttributeProductName           resourceapi.QualifiedName = "productName"
	AttributeBrand                 resourceapi.QualifiedName = "brand"
	AttributeArchitecture          resourceapi.QualifiedName = "architecture"
	AttributeCUDAComputeCapability resourceapi.QualifiedName = "cudaComputeCapability"
	AttributeDriverVersion         resourceapi.QualifiedName = "driverVersion"
	AttributeCUDADriverVersion     resourceapi.QualifiedName = "cudaDriverVersion"
	AttributeNVSwitchDomain        resourceapi.QualifiedName = "nvswitchDomain"
	AttributeNVSwitchDomainSize    resourceapi.QualifiedName = "nvswitchDomainSize"
	AttributeLastNVSwitchDomain    resourceapi.QualifiedName = "lastNVSwitchDomain"
	AttributeNVLinks               resourceapi.QualifiedName = "nvlinks"
	AttributeNVLinksPerPeer        resourceapi.QualifiedName = "nvlinksPerPeer"
	AttributePCIBusID                                        = deviceattribute.StandardDeviceAttributePCIBusID
	AttributePCIeRoot                                        = deviceattribute.StandardDeviceAttributePCIeRoot
	AttributeNUMANode                                        = deviceattribute.StandardDeviceAttributeNUMANode
)

// TypeGPU is the value of AttributeType for a whole GPU.
const TypeGPU = "gpu"

// Capacities of a GPU.
const (
	CapacityMemory          resourceapi.QualifiedName = "memory"
	CapacityMultiprocessors resourceapi.QualifiedName = "multiprocessors"
)

// Attributes returns what is published of a GPU of the inventory, and what a container learns of it
// through its device metadata (KEP-5304).
func Attributes(gpu device.GPU, inv device.Inventory) map[resourceapi.QualifiedName]resourceapi.DeviceAttribute {
	a := attributes{}
	a.text(AttributeType, TypeGPU)
	if gpu.Shares != nil {
		a.text(AttributeType, TypeShare)
		a.text(AttributeSharing, gpu.Shares.Strategy)
	}
	a.identifier(AttributeID, gpu.ID())
	a.identifier(AttributeUUID, gpu.UUID)
	a.number(AttributeIndex, gpu.Index)
	if gpu.Minor != nil {
		a.number(AttributeMinor, *gpu.Minor)
	}
	a.text(AttributeProductName, gpu.ProductName)
	a.text(AttributeBrand, gpu.Brand)
	a.text(AttributeArchitecture, gpu.Architecture)
	a.version(AttributeCUDAComputeCapability, gpu.ComputeCapability)
	a.version(AttributeDriverVersion, inv.DriverVersion)
	a.version(AttributeCUDADriverVersion, inv.CUDADriverVersion)
	if gpu.NVSwitchDomain != "" && !gpu.MIGEnabled { // in MIG mode it talks to no other
		a.identifier(AttributeNVSwitchDomain, gpu.NVSwitchDomain)
		a.number(AttributeNVSwitchDomainSize, gpu.NVSwitchDomainSize)
		if gpu.NVLinksPerPeer > 0 {
			a.number(AttributeNVLinksPerPeer, gpu.NVLinksPerPeer)
		}
	}
	if gpu.NVSwitchDomain == "" && gpu.LastDomain != "" {
		a.identifier(AttributeLastNVSwitchDomain, gpu.LastDomain)
	}
	a.number(AttributeNVLinks, gpu.NVLinks)
	a.identifier(AttributePCIeRoot, gpu.PCIeRoot)
	// The helpers refuse what the standard does not allow, such as a PCI domain of five digits.
	if standard, err := deviceattribute.GetPCIBusIDAttribute(gpu.PCIBusID); err == nil {
		a[standard.Name] = standard.Value
	}
	if gpu.NUMANode != nil {
		if standard, err := deviceattribute.GetNUMANodeAttribute(*gpu.NUMANode, deviceattribute.ScalarAttribute); err == nil {
			a[standard.Name] = standard.Value
		}
	}
	return a
}

// capacities returns what a GPU has. What is not known is absent.
func capacities(gpu device.GPU) map[resourceapi.QualifiedName]resourceapi.DeviceCapacity {
	if gpu.Shares != nil {
		return shareCapacities(gpu)
	}
	c := map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{}
	if gpu.MemoryBytes > 0 {
		c[CapacityMemory] = resourceapi.DeviceCapacity{Value: *resource.NewQuantity(int64(gpu.MemoryBytes), resource.BinarySI)}
	}
	if gpu.Multiprocessors > 0 {
		c[CapacityMultiprocessors] = resourceapi.DeviceCapacity{Value: *resource.NewQuantity(int64(gpu.Multiprocessors), resource.DecimalSI)}
	}
	return c
}

type attributes map[resourceapi.QualifiedName]resourceapi.DeviceAttribute

func (a attributes) number(name resourceapi.QualifiedName, value int) {
	a[name] = resourceapi.DeviceAttribute{IntValue: new(int64(value))}
}

// text adds a string for people, cut to what the API allows, unless it is empty.
func (a attributes) text(name resourceapi.QualifiedName, value string) {
	value = strings.TrimSpace(strings.ToValidUTF8(value, ""))
	if len(value) > resourceapi.DeviceAttributeMaxValueLength {
		end := resourceapi.DeviceAttributeMaxValueLength
		for !utf8.RuneStart(value[end]) {
			end--
		}
		value = strings.TrimSpace(value[:end])
	}
	a.identifier(name, value)
}

// identifier adds a string that means something only as a whole: one that is empty or too long is left
// out, since two that are cut may be equal.
func (a attributes) identifier(name resourceapi.QualifiedName, value string) {
	if value != "" && len(value) <= resourceapi.DeviceAttributeMaxValueLength {
		a[name] = resourceapi.DeviceAttribute{StringValue: &value}
	}
}

// version adds a version as semver 2.0.0 has it: three numbers without leading zeros, so "580.105.08"
// is 580.105.8 and "13.0" is 13.0.0. Anything behind the third number is dropped, and what makes no
// version is left out.
func (a attributes) version(name resourceapi.QualifiedName, value string) {
	parsed, err := utilversion.ParseGeneric(value)
	if err != nil {
		return
	}
	text := fmt.Sprintf("%d.%d.%d", parsed.Major(), parsed.Minor(), parsed.Patch())
	a[name] = resourceapi.DeviceAttribute{VersionValue: &text}
}
