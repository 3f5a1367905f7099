// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package model

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
)

// binding is a decision of the scheduler.
type binding struct {
	pod     key
	podUID  types.UID
	cpu     int64
	node    string
	claims  []types.UID
	names   []key
	results []resourceapi.AllocationResult
	decided time.Time
	dead    bool
}

// reserve writes the allocations: first the finalizer, then the status. It looks at the claims anew, and
// gives up when one is not what was decided on.
func (s *scheduler) reserve(b *binding, podClaims []*resourceapi.ResourceClaim) {
	if b.dead {
		return
	}
	for i, name := range b.names {
		if !s.usable(name, b.claims[i]) {
			s.giveUp(b, "a claim is gone")
			return
		}
		s.mine(update(s.w.api, name, preconditions{}, func(c *resourceapi.ResourceClaim) {
			if !slices.Contains(c.Finalizers, finalizer) {
				c.Finalizers = append(c.Finalizers, finalizer)
			}
		}))
	}
	s.w.after(s.w.writeTime(), func() {
		if b.dead {
			return
		}
		for i, name := range b.names {
			if !s.usable(name, b.claims[i]) {
				s.giveUp(b, "a claim is gone")
				return
			}
			s.mine(update(s.w.api, name, preconditions{}, func(c *resourceapi.ResourceClaim) {
				c.Status.Allocation = b.results[i].DeepCopy()
			}))
		}
		for _, c := range podClaims {
			s.mine(update(s.w.api, keyOf(c), preconditions{uid: c.UID}, func(c *resourceapi.ResourceClaim) {
				if len(c.Status.ReservedFor) == 0 && c.Status.Allocation != nil {
					c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: b.pod.Name, UID: b.podUID}}
				}
			}))
		}
		s.w.logf("kube-scheduler: pod %s has its claims allocated on %s", b.pod.Name, b.node)
		wait := s.w.writeTime()
		fails := false
		if s.w.chance(0.02) { // a volume
			wait, fails = s.w.between(time.Second, 30*time.Second), s.w.chance(0.5)
		}
		s.w.after(wait, func() { s.bind(b, fails) })
	})
}

// usable says whether a claim can still be allocated.
func (s *scheduler) usable(name key, uid types.UID) bool {
	c := get[*resourceapi.ResourceClaim](&s.w.api.objects, name)
	return c != nil && c.UID == uid && c.DeletionTimestamp == nil && c.Status.Allocation == nil
}

// mine has the cache show what was written.
func (s *scheduler) mine(c *resourceapi.ResourceClaim, err error) {
	if err == nil {
		s.cache.reach(claims, s.w.api.version)
	}
	_ = c
}

func (s *scheduler) bind(b *binding, fails bool) {
	if b.dead {
		return
	}
	pod := get[*corev1.Pod](&s.w.api.objects, b.pod)
	if fails || pod == nil || pod.UID != b.podUID || pod.DeletionTimestamp != nil {
		s.giveUp(b, "it cannot be bound")
		return
	}
	_, _ = update(s.w.api, b.pod, preconditions{}, func(p *corev1.Pod) {
		p.Spec.NodeName = b.node
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}}
	})
	s.cache.reach(pods, s.w.api.version)
	delete(s.bindings, b.podUID)
	s.w.logf("kube-scheduler: pod %s is bound to %s", b.pod.Name, b.node)
}

// giveUp takes the reservation back; the claim controller takes the allocation.
func (s *scheduler) giveUp(b *binding, why string) {
	s.w.logf("kube-scheduler: pod %s is not bound: %s", b.pod.Name, why)
	delete(s.bindings, b.podUID)
	for _, c := range list[*resourceapi.ResourceClaim](&s.w.api.objects) {
		if len(c.Status.ReservedFor) > 0 && c.Status.ReservedFor[0].UID == b.podUID {
			s.mine(update(s.w.api, keyOf(c), preconditions{}, func(c *resourceapi.ResourceClaim) { c.Status.ReservedFor = nil }))
		}
	}
	s.activate(b.pod)
	s.wake()
}

// holds says which devices decisions that are not written yet take, and for which pod.
func (s *scheduler) holds(yield func(b *binding, d resourceapi.DeviceRequestAllocationResult)) {
	for _, uid := range slices.Sorted(maps.Keys(s.bindings)) {
		for _, r := range s.bindings[uid].results {
			for _, d := range r.Devices.Results {
				yield(s.bindings[uid], d)
			}
		}
	}
}
