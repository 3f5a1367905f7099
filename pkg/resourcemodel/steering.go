// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package resourcemodel

import (
	"maps"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

// Attributes that steer pods with one GPU to where they break the least. They are published only where the
// plugin's steering is on, since each change of them writes a ResourceSlice.
const (
	// AttributeNVSwitchDomainFree is how many GPUs of the GPU's domain are free on this node, the GPU itself
	// among them.
	AttributeNVSwitchDomainFree resourceapi.QualifiedName = "nvswitchDomainFree"
	// AttributeNodeWhole says that all GPUs of the node are free.
	AttributeNodeWhole resourceapi.QualifiedName = "nodeWhole"
)

// WithFree returns a copy of the resources that says of each whole GPU how many of its domain are free, and whether all of
// the node are: neither in use, by name, nor tainted so that new pods stay away. A GPU without a domain has no number
// for it. What is not changed is shared with the resources given.
func WithFree(resources resourceslice.DriverResources, inUse map[string]bool) resourceslice.DriverResources {
	out := resourceslice.DriverResources{Pools: make(map[string]resourceslice.Pool, len(resources.Pools))}
	for name, pool := range resources.Pools {
		out.Pools[name] = poolWithFree(pool, inUse)
	}
	return out
}

func poolWithFree(pool resourceslice.Pool, inUse map[string]bool) resourceslice.Pool {
	inDomain, whole := map[string]int{}, true
	for _, s := range pool.Slices {
		for _, d := range s.Devices {
			switch {
			case !isGPU(d):
			case inUse[d.Name] || keepsAway(d.Taints):
				whole = false
			default:
				inDomain[domainOf(d)]++
			}
		}
	}
	slices := make([]resourceslice.Slice, len(pool.Slices))
	for i, s := range pool.Slices {
		slices[i] = s
		slices[i].Devices = make([]resourceapi.Device, len(s.Devices))
		for j, d := range s.Devices {
			if isGPU(d) {
				d.Attributes = withFree(d, inDomain[domainOf(d)], whole)
			}
			slices[i].Devices[j] = d
		}
	}
	pool.Slices = slices
	return pool
}

func withFree(d resourceapi.Device, inDomain int, nodeWhole bool) map[resourceapi.QualifiedName]resourceapi.DeviceAttribute {
	a := make(attributes, len(d.Attributes)+2)
	maps.Copy(a, d.Attributes)
	if domainOf(d) != "" {
		a.number(AttributeNVSwitchDomainFree, inDomain)
	}
	a[AttributeNodeWhole] = resourceapi.DeviceAttribute{BoolValue: &nodeWhole}
	return a
}

func isGPU(d resourceapi.Device) bool {
	kind := d.Attributes[AttributeType].StringValue
	return kind != nil && *kind == TypeGPU
}

func domainOf(d resourceapi.Device) string {
	if domain := d.Attributes[AttributeNVSwitchDomain].StringValue; domain != nil {
		return *domain
	}
	return ""
}

// keepsAway says whether a pod without tolerations is kept off a device.
func keepsAway(taints []resourceapi.DeviceTaint) bool {
	for _, t := range taints {
		if t.Effect != resourceapi.DeviceTaintEffectNone {
			return true
		}
	}
	return false
}
