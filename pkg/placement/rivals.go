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
	c.mutex.Lock()
	defer c.mutex.Unlock()
	look := rivalry{Cluster: c, except: except, known: map[string]bool{}, left: rivalsCost}
	for _, id := range devices {
		if d := c.devices[id]; d != nil {
			look.devices = append(look.devices, d)
			if d.use.freed.After(look.freed) {
				look.freed = d.use.freed
			}
		}
	}
	var rivals []PodWithDevices
	for key, p := range c.unbound {
		if len(p.object.Spec.SchedulingGates) > 0 || p.object.DeletionTimestamp != nil || !look.mayTake(p.object) {
			continue
		}
		rivals = append(rivals, PodWithDevices{Pod: key, UID: p.object.UID, Created: p.object.CreationTimestamp.Time, Decided: look.decided(p.object)})
	}
	slices.SortFunc(rivals, func(a, b PodWithDevices) int {
		return cmp.Or(cmp.Compare(a.Pod.Namespace, b.Pod.Namespace), cmp.Compare(a.Pod.Name, b.Pod.Name))
	})
	return rivals
}

// rivalsCost is what one call of Rivals may spend on selectors of others, in CEL's units: a million
// takes about 0.1 s.
const rivalsCost = 2_000_000

// staleFor is how long a pod that is unschedulable may take to be decided on again after a device
// became free: at most 10 s in the scheduler's backoff, 10 s in its allocator, and until it is written.
const staleFor = 30 * time.Second

// rivalry is one call of Rivals.
type rivalry struct {
	*Cluster
	devices []*device
	except  types.UID
	freed   time.Time       // when the last of the devices became free
	known   map[string]bool // whether a device matches, by class and selectors
	left    uint64          // cost
}

// decided is when kube-scheduler said that the pod is unschedulable; zero when it did not or may be
// about to change its mind. The scheduler keeps the time at which it said so first, in whole seconds.
func (r *rivalry) decided(pod *corev1.Pod) time.Time {
	for _, condition := range pod.Status.Conditions {
		if condition.Type != corev1.PodScheduled || condition.Status != corev1.ConditionFalse || condition.Reason != corev1.PodReasonUnschedulable {
			continue
		}
		said := condition.LastTransitionTime.Time
		if said.Before(r.freed) && r.clock.Since(r.freed) < staleFor {
			return time.Time{}
		}
		return said
	}
	return time.Time{}
}

func (r *rivalry) mayTake(pod *corev1.Pod) bool {
	for name := range podRequests(pod) {
		class := r.classOfResource(name)
		if class != nil && r.matchesAny(class, nil) {
			return true
		}
	}
	matches := false
	for _, ref := range pod.Spec.ResourceClaims {
		name := ptr.Deref(ref.ResourceClaimName, "")
		if name == "" {
			for _, status := range pod.Status.ResourceClaimStatuses {
				if status.Name == ref.Name {
					if status.ResourceClaimName == nil {
						name = "-" // Made without need of a claim.
						break
					}
					name = *status.ResourceClaimName
				}
			}
		}
		if name == "-" {
			continue
		}
		held := r.claims[types.NamespacedName{Namespace: pod.Namespace, Name: name}]
		if held == nil {
			return false
		}
		if held.object.Status.Allocation == nil && held.object.Labels[v1alpha1.GangLabel] != string(r.except) {
			matches = matches || r.claimMatches(held.object)
		}
	}
	return matches
}

func (r *rivalry) claimMatches(claim *resourceapi.ResourceClaim) bool {
	for _, request := range claim.Spec.Devices.Requests {
		if exactly := request.Exactly; exactly != nil {
			class := r.classes[exactly.DeviceClassName]
			if class != nil && !ptr.Deref(exactly.AdminAccess, false) && r.matchesAny(class, exactly.Selectors) {
				return true
			}
		}
		for _, sub := range request.FirstAvailable {
			if class := r.classes[sub.DeviceClassName]; class != nil && r.matchesAny(class, sub.Selectors) {
				return true
			}
		}
	}
	return false
}

// matchesAny evaluates on the devices only: the claims of others are not worth a view.
func (r *rivalry) matchesAny(class *resourceapi.DeviceClass, selectors []resourceapi.DeviceSelector) bool {
	key := class.Name + "\x00" + textOf(selectors)
	if matches, ok := r.known[key]; ok {
		return matches
	}
	all := slices.Concat(class.Spec.Selectors, selectors)
	for _, d := range r.devices {
		matches, cost, err := evaluate(context.Background(), r.cel, all, d, "")
		r.left -= min(cost, r.left)
		if matches || err != nil || r.left == 0 {
			r.known[key] = true
			return true
		}
	}
	r.known[key] = false
	return false
}
