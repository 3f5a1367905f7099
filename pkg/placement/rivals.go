// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"cmp"
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// Rivals lists the pods that kube-scheduler may be giving one of the devices right now, by namespace
// and name: pods without a node whose claim or extended resource could match a device, and of which
// the scheduler has not said that they are unschedulable. Claims of the gang except are left out.
//
// A pod is no rival before its claims exist, while it has scheduling gates, or when it is ending. A
// selector that fails counts as one that matches.
func (c *Cluster) Rivals(devices []DeviceID, except types.UID) []PodWithDevices {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	var wanted []*device
	for _, id := range devices {
		if d := c.devices[id]; d != nil {
			wanted = append(wanted, d)
		}
	}
	var rivals []PodWithDevices
	for key, p := range c.unbound {
		if len(p.object.Spec.SchedulingGates) > 0 || p.object.DeletionTimestamp != nil || unschedulable(p.object) {
			continue
		}
		if c.mayTake(p.object, wanted, except) {
			rivals = append(rivals, PodWithDevices{Pod: key, UID: p.object.UID, Created: p.object.CreationTimestamp.Time})
		}
	}
	slices.SortFunc(rivals, func(a, b PodWithDevices) int {
		return cmp.Or(cmp.Compare(a.Pod.Namespace, b.Pod.Namespace), cmp.Compare(a.Pod.Name, b.Pod.Name))
	})
	return rivals
}

func unschedulable(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(condition corev1.PodCondition) bool {
		return condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse && condition.Reason == corev1.PodReasonUnschedulable
	})
}

func (c *Cluster) mayTake(pod *corev1.Pod, devices []*device, except types.UID) bool {
	for name := range podRequests(pod) {
		class := c.classOfResource(name)
		if class != nil && c.matchesAny(class, nil, devices) {
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
		held := c.claims[types.NamespacedName{Namespace: pod.Namespace, Name: name}]
		if held == nil {
			return false
		}
		if held.object.Status.Allocation == nil && held.object.Labels[v1alpha1.GangLabel] != string(except) {
			matches = matches || c.claimMatches(held.object, devices)
		}
	}
	return matches
}

func (c *Cluster) claimMatches(claim *resourceapi.ResourceClaim, devices []*device) bool {
	for _, request := range claim.Spec.Devices.Requests {
		if exactly := request.Exactly; exactly != nil {
			class := c.classes[exactly.DeviceClassName]
			if class != nil && !ptr.Deref(exactly.AdminAccess, false) && c.matchesAny(class, exactly.Selectors, devices) {
				return true
			}
		}
		for _, sub := range request.FirstAvailable {
			if class := c.classes[sub.DeviceClassName]; class != nil && c.matchesAny(class, sub.Selectors, devices) {
				return true
			}
		}
	}
	return false
}

// matchesAny evaluates on the devices only: the claims of others are not worth a view.
func (c *Cluster) matchesAny(class *resourceapi.DeviceClass, selectors []resourceapi.DeviceSelector, devices []*device) bool {
	for _, d := range devices {
		matches, err := c.evaluate(context.Background(), slices.Concat(class.Spec.Selectors, selectors), d, "")
		if matches || err != nil {
			return true
		}
	}
	return false
}
