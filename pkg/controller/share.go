// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"sync"

	resourceapi "k8s.io/api/resource/v1"
)

// sharer lets devices share what they have in common with the device before them: the names of their attributes, and the
// values of most. Decoded, each of thousands of GPUs has its own copy of them. It is safe for concurrent use.
type sharer struct {
	mu   sync.Mutex
	last *resourceapi.Device
}

func (s *sharer) share(slice *resourceapi.ResourceSlice) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range slice.Spec.Devices {
		d := &slice.Spec.Devices[i]
		if s.last != nil {
			d.Attributes = sharing(d.Attributes, s.last.Attributes, sharedAttribute)
			d.Capacity = sharing(d.Capacity, s.last.Capacity, func(now, _ resourceapi.DeviceCapacity) resourceapi.DeviceCapacity { return now })
		}
		s.last = d
	}
}

// sharing is a map with the names of another one where they are equal, and what shared makes of the values.
func sharing[V any](now, before map[resourceapi.QualifiedName]V, shared func(now, before V) V) map[resourceapi.QualifiedName]V {
	if len(now) == 0 {
		return now
	}
	m := make(map[resourceapi.QualifiedName]V, len(now))
	for name, old := range before {
		if value, ok := now[name]; ok {
			m[name] = shared(value, old)
		}
	}
	for name, value := range now {
		if _, ok := m[name]; !ok {
			m[name] = value
		}
	}
	return m
}

func sharedAttribute(now, before resourceapi.DeviceAttribute) resourceapi.DeviceAttribute {
	now.IntValue = sharedValue(now.IntValue, before.IntValue)
	now.BoolValue = sharedValue(now.BoolValue, before.BoolValue)
	now.StringValue = sharedValue(now.StringValue, before.StringValue)
	now.VersionValue = sharedValue(now.VersionValue, before.VersionValue)
	return now
}

func sharedValue[T comparable](now, before *T) *T {
	if now != nil && before != nil && *now == *before {
		return before
	}
	return now
}
