// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"cmp"
	"slices"
	"unique"

	corev1 "k8s.io/api/core/v1"
)

// resourceName is the name of a resource: equal ones are the same pointer, so that names are compared without reading
// them.
type resourceName = unique.Handle[corev1.ResourceName]

// stock is what a node has of a resource, and what its pods request of it. Those of a node lie side by side, as a search
// reads them of each node: in maps they would be in ten lines of memory.
type stock struct {
	name        resourceName
	allocatable int64
	requested   int64 // by the pods bound to it that are not over, pods themselves included
}

// stocks are those of a node by name, without any that are zero.
type stocks []stock

// of is what there is of a resource.
func (s stocks) of(name resourceName) stock {
	for i := range s {
		if s[i].name == name {
			return s[i]
		}
	}
	return stock{name: name}
}

// setAllocatable replaces what the node has.
func (s *stocks) setAllocatable(all amounts) {
	for _, known := range slices.Clone(*s) {
		s.add(known.name.Value(), -known.allocatable, 0)
	}
	for name, value := range all {
		s.add(name, value, 0)
	}
}

// request adds what a pod requests; with sign -1 it takes that away.
func (s *stocks) request(requests amounts, sign int64) {
	for name, value := range requests {
		s.add(name, 0, sign*value)
	}
}

func (s *stocks) add(name corev1.ResourceName, allocatable, requested int64) {
	at, known := slices.BinarySearchFunc(*s, name, func(s stock, name corev1.ResourceName) int { return cmp.Compare(s.name.Value(), name) })
	if !known {
		*s = slices.Insert(*s, at, stock{name: unique.Make(name)})
	}
	changed := &(*s)[at]
	changed.allocatable += allocatable
	changed.requested += requested
	if changed.allocatable == 0 && changed.requested == 0 {
		*s = slices.Delete(*s, at, at+1)
	}
}
