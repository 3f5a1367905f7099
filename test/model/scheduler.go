// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package model

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// schedulerFeatures are what kube-scheduler 1.37 enables by default.
var schedulerFeatures = structured.Features{
	AdminAccess: true, ConsumableCapacity: true, DeviceBindingAndStatus: true,
	DeviceTaints: true, PartitionableDevices: true, PrioritizedList: true,
}

// finalizer is what kube-scheduler puts on a claim before it allocates it.
const finalizer = resourceapi.Finalizer

// scheduler is kube-scheduler: it decides with the real allocator on what its caches show, and what it
// decided is written later. Its tracker applies DeviceTaintRules to slices, and may miss an event.
type scheduler struct {
	w      *world
	cache  *cache
	active []key
	// waiting are pods that were found unschedulable.
	waiting map[key]bool
	cycling bool
	// bindings are what was decided and is not written yet, by the pod's UID.
	bindings map[types.UID]*binding
	// tracker has the rules as they were last applied to the slices; untracked counts those that are not
	// up to date.
	tracker map[string]*resourceapi.DeviceTaintRule
	cel     *cel.Cache
}

func newScheduler(w *world) *scheduler {
	s := &scheduler{
		w: w, waiting: map[key]bool{}, bindings: map[types.UID]*binding{},
		tracker: map[string]*resourceapi.DeviceTaintRule{}, cel: cel.NewCache(10, cel.Features{EnableConsumableCapacity: true}),
	}
	s.cache = newCache(w, s.seen)
	s.cache.start()
	return s
}

// restart forgets everything that was decided and not written.
func (w *world) restartScheduler() {
	old := w.scheduler
	old.cache.stop()
	for _, b := range old.bindings {
		b.dead = true
	}
	w.scheduler = newScheduler(w)
}

func (s *scheduler) seen(ch change) {
	switch o := ch.object().(type) {
	case *corev1.Pod:
		before, _ := ch.before.(*corev1.Pod)
		switch {
		case ch.after == nil || over(o):
			delete(s.waiting, ch.key)
			s.wake()
		case before == nil || !equality.Semantic.DeepEqual(before.Status.ResourceClaimStatuses, o.Status.ResourceClaimStatuses) ||
			len(before.Spec.SchedulingGates) != len(o.Spec.SchedulingGates):
			s.activate(ch.key)
		}
	case *resourceapi.ResourceClaim:
		before, _ := ch.before.(*resourceapi.ResourceClaim)
		if owner := metav1.GetControllerOfNoCopy(o); owner != nil && before == nil {
			s.activate(key{Namespace: o.Namespace, Name: owner.Name})
		}
		if ch.after == nil || before != nil && before.Status.Allocation != nil && o.Status.Allocation == nil {
			s.wake()
		}
	case *corev1.Node, *resourceapi.DeviceClass:
		s.wake()
	case *resourceapi.ResourceSlice:
		s.track(o.Spec.Pool.Name)
		s.wake()
	case *resourceapi.DeviceTaintRule:
		if s.w.chance(missedEvents) {
			s.w.logf("kube-scheduler: its tracker misses a change of rule %s", o.Name)
		} else if ch.after == nil {
			delete(s.tracker, o.Name)
		} else {
			s.tracker[o.Name] = o
		}
		s.wake()
	}
}

// missedEvents is how often the tracker misses an event of a rule.
const missedEvents = 0.03

// track applies all rules to a slice that was written.
func (s *scheduler) track(pool string) {
	for name, rule := range s.tracker {
		if *rule.Spec.DeviceSelector.Pool == pool {
			delete(s.tracker, name)
		}
	}
	for _, rule := range list[*resourceapi.DeviceTaintRule](&s.cache.objects) {
		if *rule.Spec.DeviceSelector.Pool == pool {
			s.tracker[rule.Name] = rule
		}
	}
}

// inSync says whether the tracker shows the rules as they are stored.
func (s *scheduler) inSync() bool { return maps.Equal(s.tracker, s.rulesStored()) }

func (s *scheduler) rulesStored() map[string]*resourceapi.DeviceTaintRule {
	out := map[string]*resourceapi.DeviceTaintRule{}
	for _, rule := range list[*resourceapi.DeviceTaintRule](&s.w.api.objects) {
		out[rule.Name] = rule
	}
	return out
}

func (s *scheduler) activate(pod key) {
	if !slices.Contains(s.active, pod) {
		s.active = append(s.active, pod)
	}
	s.kick()
}

// wake has pods that were unschedulable looked at again, after their backoff.
func (s *scheduler) wake() {
	for _, pod := range sortedKeys(s.waiting) {
		delete(s.waiting, pod)
		s.w.after(s.w.between(0, 3*time.Second), func() {
			if !s.cache.dead {
				s.activate(pod)
			}
		})
	}
}

func (s *scheduler) kick() {
	if s.cycling || len(s.active) == 0 {
		return
	}
	s.cycling = true
	pause := s.w.between(time.Millisecond, 4*time.Millisecond)
	if s.w.chance(0.02) {
		pause = s.w.between(10*time.Millisecond, time.Second)
	}
	s.w.after(pause, func() {
		s.cycling = false
		if s.cache.dead || len(s.active) == 0 {
			return
		}
		next := s.active[0]
		s.active = s.active[1:]
		s.attempt(next)
		s.kick()
	})
}

// claimsOf returns the claims of a pod, or false when the pod is held because one is missing.
func claimsOf(o *objects, pod *corev1.Pod) ([]*resourceapi.ResourceClaim, bool) {
	var out []*resourceapi.ResourceClaim
	for _, ref := range pod.Spec.ResourceClaims {
		at := slices.IndexFunc(pod.Status.ResourceClaimStatuses, func(s corev1.PodResourceClaimStatus) bool { return s.Name == ref.Name })
		if at < 0 {
			return nil, false
		}
		c := get[*resourceapi.ResourceClaim](o, key{Namespace: pod.Namespace, Name: *pod.Status.ResourceClaimStatuses[at].ResourceClaimName})
		if c == nil || !metav1.IsControlledBy(c, pod) {
			return nil, false
		}
		out = append(out, c)
	}
	return out, true
}

// attempt is a scheduling cycle.
func (s *scheduler) attempt(name key) {
	pod := get[*corev1.Pod](&s.cache.objects, name)
	if pod == nil || pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil || over(pod) || len(pod.Spec.SchedulingGates) > 0 || s.bindings[pod.UID] != nil {
		return
	}
	podClaims, ok := claimsOf(&s.cache.objects, pod)
	if !ok {
		return // held before the queue
	}
	var unallocated []*resourceapi.ResourceClaim
	node := ""
	for _, c := range podClaims {
		switch {
		case c.DeletionTimestamp != nil:
			s.unschedulable(pod, "resourceclaim is being deleted")
			return
		case c.Status.Allocation == nil:
			unallocated = append(unallocated, c)
		default:
			node = c.Status.Allocation.Devices.Results[0].Pool
		}
	}
	b := &binding{pod: name, podUID: pod.UID, cpu: cpuOf(pod), decided: s.w.now}
	type choice struct {
		node    string
		results []resourceapi.AllocationResult
	}
	var choices []choice
	for _, n := range list[*corev1.Node](&s.cache.objects) {
		if node != "" && node != n.Name || !s.fits(pod, n) {
			continue
		}
		results, err := s.allocate(n, unallocated)
		if err != nil {
			s.w.checker.aborted(unallocated, err)
			s.unschedulable(pod, err.Error())
			return
		}
		if len(results) == len(unallocated) {
			choices = append(choices, choice{n.Name, results})
		}
	}
	s.w.checker.attempted(podClaims)
	chosen, ok := pick(s.w, choices)
	if !ok {
		s.unschedulable(pod, "cannot allocate all claims")
		return
	}
	b.node, b.results = chosen.node, chosen.results
	for _, c := range unallocated {
		b.claims = append(b.claims, c.UID)
		b.names = append(b.names, keyOf(c))
	}
	s.bindings[pod.UID] = b
	s.w.logf("kube-scheduler: pod %s to %s, decided%s", name.Name, b.node, describe(b.results))
	s.w.checker.decided(s, unallocated, b)
	s.w.after(s.late(), func() { s.reserve(b, podClaims) })
}

func describe(results []resourceapi.AllocationResult) string {
	out := ""
	for _, r := range results {
		for _, d := range r.Devices.Results {
			out += " " + d.Device
		}
	}
	return out
}

// late is how long a decision takes to be written: up to 62 ms when the scheduler is idle, up to 4.2 s behind
// a burst of pods.
func (s *scheduler) late() time.Duration {
	switch {
	case s.w.chance(0.05):
		return s.w.between(time.Second, 4200*time.Millisecond)
	case s.w.chance(0.15):
		return s.w.between(60*time.Millisecond, time.Second)
	default:
		return s.w.between(time.Millisecond, 60*time.Millisecond)
	}
}

func (s *scheduler) unschedulable(pod *corev1.Pod, why string) {
	name := keyOf(pod)
	s.waiting[name] = true
	s.w.after(s.w.writeTime(), func() {
		if s.cache.dead {
			return
		}
		live := get[*corev1.Pod](&s.w.api.objects, name)
		if live == nil || live.UID != pod.UID || live.Spec.NodeName != "" || podUnschedulable(live) {
			return
		}
		s.w.logf("kube-scheduler: pod %s is unschedulable: %s", name.Name, why)
		_, _ = update(s.w.api, name, preconditions{}, func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{
				Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
				Message: why, LastTransitionTime: metav1.NewTime(s.w.now),
			}}
		})
	})
}

func podUnschedulable(pod *corev1.Pod) bool {
	return len(pod.Status.Conditions) > 0 && pod.Status.Conditions[0].Reason == corev1.PodReasonUnschedulable
}

// gangOf is the gang that a claim was made for; "" for none.
func gangOf(o metav1.Object) types.UID { return types.UID(o.GetLabels()[v1alpha1.GangLabel]) }
