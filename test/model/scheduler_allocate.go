// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package model

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"
)

// cpuOf is what a pod requests, in millicores.
func cpuOf(pod *corev1.Pod) int64 {
	var n int64
	for i := range pod.Spec.Containers {
		n += pod.Spec.Containers[i].Resources.Requests.Cpu().MilliValue()
	}
	return n
}

func (s *scheduler) fits(pod *corev1.Pod, n *corev1.Node) bool {
	if !nodeReady(n) || n.Spec.Unschedulable {
		return false
	}
	left := n.Status.Allocatable.Cpu().MilliValue() - cpuOf(pod)
	for _, other := range s.cache.objects[pods] {
		p := other.(*corev1.Pod)
		if p.Spec.NodeName == n.Name && !over(p) {
			left -= cpuOf(p)
		}
	}
	for _, b := range s.bindings {
		if b.node == n.Name {
			left -= b.cpu
		}
	}
	return left >= 0
}

// allocate asks the allocator about one node.
func (s *scheduler) allocate(n *corev1.Node, unallocated []*resourceapi.ResourceClaim) ([]resourceapi.AllocationResult, error) {
	if len(unallocated) == 0 {
		return nil, nil
	}
	state := structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	take := func(a *resourceapi.AllocationResult) {
		if a != nil {
			for _, r := range a.Devices.Results {
				state.AllocatedDevices.Insert(structured.MakeDeviceID(r.Driver, r.Pool, r.Device))
			}
		}
	}
	for _, c := range s.cache.objects[claims] {
		take(c.(*resourceapi.ResourceClaim).Status.Allocation)
	}
	for _, b := range s.bindings {
		for i := range b.results {
			take(&b.results[i])
		}
	}
	ctx := context.Background()
	allocator, err := structured.NewAllocator(ctx, schedulerFeatures, state, classLister{&s.cache.objects}, s.slices(), s.cel)
	if err != nil {
		return nil, fmt.Errorf("set up the allocator: %w", err)
	}
	return allocator.Allocate(ctx, n, unallocated)
}

// slices are the slices with the taints of the rules, as far as the tracker knows them.
func (s *scheduler) slices() []*resourceapi.ResourceSlice {
	var out []*resourceapi.ResourceSlice
	names := slices.Sorted(maps.Keys(s.tracker))
	for _, slice := range list[*resourceapi.ResourceSlice](&s.cache.objects) {
		var patched *resourceapi.ResourceSlice
		for _, name := range names {
			rule := s.tracker[name]
			if *rule.Spec.DeviceSelector.Pool != slice.Spec.Pool.Name {
				continue
			}
			if patched == nil {
				patched = slice.DeepCopy()
			}
			for i := range patched.Spec.Devices {
				if d := rule.Spec.DeviceSelector.Device; d == nil || *d == patched.Spec.Devices[i].Name {
					patched.Spec.Devices[i].Taints = append(patched.Spec.Devices[i].Taints, rule.Spec.Taint)
				}
			}
		}
		if patched == nil {
			patched = slice
		}
		out = append(out, patched)
	}
	return out
}

type classLister struct{ objects *objects }

func (l classLister) List() ([]*resourceapi.DeviceClass, error) {
	return list[*resourceapi.DeviceClass](l.objects), nil
}

func (l classLister) Get(name string) (*resourceapi.DeviceClass, error) {
	if class := get[*resourceapi.DeviceClass](l.objects, key{Name: name}); class != nil {
		return class, nil
	}
	return nil, errNotFound
}
