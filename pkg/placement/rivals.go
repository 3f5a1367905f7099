// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"cmp"
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// Rivals lists the pods without a node that kube-scheduler may be giving one of the devices right now, by
// namespace and name: a claim or extended resource of theirs could match a device. Decided says of which
// of them the scheduler has said that they are unschedulable, and meant it: since one of the devices
// became free it must have had the time to think again. Claims of the gang except are left out.
//
// A pod is no rival before its claims exist, while it has scheduling gates, or when it is ending. A
// selector that fails counts as one that matches, and so do all when they are too many or too expensive
// to evaluate.
func (c *Cluster) Rivals(devices []DeviceID, except types.UID) []PodWithDevices {
	return c.rivals(context.Background(), devices, except)
}

// rivals evaluates the selectors without the lock: those of others may take long. The answer is as of when the
// lock was held.
func (c *Cluster) rivals(ctx context.Context, devices []DeviceID, except types.UID) []PodWithDevices {
	look := c.rivalry(devices, except)
	var rivals []PodWithDevices
	for _, candidate := range look.candidates {
		if slices.ContainsFunc(candidate.wants, func(w want) bool { return look.matchesAny(ctx, w) }) {
			rivals = append(rivals, candidate.PodWithDevices)
		}
	}
	return rivals
}

// rivalsCost is what one call of Rivals may spend on selectors of others, in CEL's units: a million
// takes about 0.1 s.
const rivalsCost = 2_000_000

// staleFor is how long a pod that is unschedulable may take to be decided on again after a device
// became free: at most 10 s in the scheduler's backoff, 10 s in its allocator, and until it is written.
const staleFor = 30 * time.Second

// rivalry is one call of Rivals: all that it looks at. The objects in it never change.
type rivalry struct {
	cel        *cel.Cache
	devices    []*device
	candidates []candidate     // by namespace and name
	known      map[string]bool // whether a device matches, by class and selectors
	classes    map[string]bool // whose selectors were compiled
	left       uint64          // cost
}

// candidate is a pod that is a rival if a device matches something that it wants.
type candidate struct {
	PodWithDevices

	wants []want
}

// want is what a request of a pod says of devices.
type want struct {
	class     *resourceapi.DeviceClass
	selectors []resourceapi.DeviceSelector
}

func (c *Cluster) rivalry(devices []DeviceID, except types.UID) *rivalry {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	look := &rivalry{cel: c.cel, known: map[string]bool{}, classes: map[string]bool{}, left: rivalsCost}
	var freed time.Time // when the last of the devices became free
	for _, id := range devices {
		if d := c.devices[id]; d != nil {
			look.devices = append(look.devices, d)
			if d.use.freed.After(freed) {
				freed = d.use.freed
			}
		}
	}
	for key, p := range c.unbound {
		if len(p.object.Spec.SchedulingGates) > 0 || p.object.DeletionTimestamp != nil {
			continue
		}
		if wants := c.wants(p, except); len(wants) > 0 {
			look.candidates = append(look.candidates, candidate{
				PodWithDevices{Pod: key, UID: p.object.UID, Created: p.object.CreationTimestamp.Time, Decided: c.decided(p.object, freed)}, wants,
			})
		}
	}
	slices.SortFunc(look.candidates, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.Pod.Namespace, b.Pod.Namespace), cmp.Compare(a.Pod.Name, b.Pod.Name))
	})
	return look
}

// decided is when kube-scheduler said that the pod is unschedulable; zero when it did not or may be
// about to change its mind. The scheduler keeps the time at which it said so first, in whole seconds.
func (c *Cluster) decided(pod *corev1.Pod, freed time.Time) time.Time {
	for _, condition := range pod.Status.Conditions {
		if condition.Type != corev1.PodScheduled || condition.Status != corev1.ConditionFalse || condition.Reason != corev1.PodReasonUnschedulable {
			continue
		}
		said := condition.LastTransitionTime.Time
		if said.Before(freed) && c.clock.Since(freed) < staleFor {
			return time.Time{}
		}
		return said
	}
	return time.Time{}
}

// wants lists what the extended resources and the claims of a pod could match. The claims count once all of them are
// there.
func (c *Cluster) wants(p *pod, except types.UID) []want {
	var wants []want
	for _, name := range p.extended {
		if class := c.classOfResource(name); class != nil {
			wants = append(wants, want{class: class})
		}
	}
	var ofClaims []want
	for _, ref := range p.object.Spec.ResourceClaims {
		name, needed := claimName(p.object, ref)
		if !needed {
			continue
		}
		held := c.claims[types.NamespacedName{Namespace: p.object.Namespace, Name: name}]
		if held == nil {
			return wants
		}
		if held.object.Status.Allocation == nil && held.object.Labels[v1alpha1.GangLabel] != string(except) {
			ofClaims = append(ofClaims, c.wantsOf(held.object)...)
		}
	}
	return append(wants, ofClaims...)
}

// claimName is the name of a pod's claim, empty as long as it is not made, and whether the pod needs one.
func claimName(pod *corev1.Pod, ref corev1.PodResourceClaim) (name string, needed bool) {
	if ref.ResourceClaimName != nil {
		return *ref.ResourceClaimName, true
	}
	for _, status := range pod.Status.ResourceClaimStatuses {
		if status.Name == ref.Name {
			return ptr.Deref(status.ResourceClaimName, ""), status.ResourceClaimName != nil
		}
	}
	return "", true
}

func (c *Cluster) wantsOf(claim *resourceapi.ResourceClaim) []want {
	var wants []want
	add := func(class string, selectors []resourceapi.DeviceSelector) {
		if class := c.classes[class]; class != nil {
			wants = append(wants, want{class, selectors})
		}
	}
	for _, request := range claim.Spec.Devices.Requests {
		if exactly := request.Exactly; exactly != nil && !ptr.Deref(exactly.AdminAccess, false) {
			add(exactly.DeviceClassName, exactly.Selectors)
		}
		for _, sub := range request.FirstAvailable {
			add(sub.DeviceClassName, sub.Selectors)
		}
	}
	return wants
}

// matchesAny evaluates on the devices only: the claims of others are not worth a view.
func (r *rivalry) matchesAny(ctx context.Context, w want) bool {
	key := w.class.Name + "\x00" + textOf(w.selectors)
	if matches, ok := r.known[key]; ok {
		return matches
	}
	r.left -= min(r.costToCompile(w), r.left)
	r.known[key] = r.evaluate(ctx, slices.Concat(w.class.Spec.Selectors, w.selectors))
	return r.known[key]
}

// costToCompile is that of what evaluate is asked next: an expression that is new is expensive, however little it costs to
// evaluate.
func (r *rivalry) costToCompile(w want) uint64 {
	cost := costToCompile(w.selectors)
	if !r.classes[w.class.Name] {
		cost += costToCompile(w.class.Spec.Selectors)
		r.classes[w.class.Name] = true
	}
	return cost
}

func (r *rivalry) evaluate(ctx context.Context, selectors []resourceapi.DeviceSelector) bool {
	for _, d := range r.devices {
		if r.left == 0 {
			return true
		}
		matches, cost, err := evaluate(ctx, r.cel, selectors, d, "")
		r.left -= min(cost, r.left)
		if matches || err != nil {
			return true
		}
	}
	return false
}
