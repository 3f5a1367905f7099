// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package model

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/gang"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// gather is what pkg/controller's observer does.
func (c *controller) gather(g *v1alpha1.GangClaim) gang.Observation {
	if c.w.fault == noSiblings {
		g = forgetSiblings(g)
	}
	o := gang.Observation{Now: c.w.now, Claim: g, Template: get[*resourceapi.ResourceClaimTemplate](&c.cache.objects, keyOf(g))}
	mine := map[types.UID]bool{}
	for _, pod := range list[*corev1.Pod](&c.cache.objects) {
		if pod.Namespace == g.Namespace && slices.ContainsFunc(pod.Spec.ResourceClaims, func(r corev1.PodResourceClaim) bool {
			return ptr.Deref(r.ResourceClaimTemplateName, "") == g.Name
		}) {
			o.Pods = append(o.Pods, pod)
			mine[pod.UID] = true
		}
	}
	for _, claim := range list[*resourceapi.ResourceClaim](&c.cache.objects) {
		owner := metav1.GetControllerOfNoCopy(claim)
		if gangOf(claim) == g.UID || owner != nil && mine[owner.UID] {
			o.Claims = append(o.Claims, claim)
		}
	}
	for _, rule := range list[*resourceapi.DeviceTaintRule](&c.cache.objects) {
		if gangOf(rule) == g.UID {
			o.Rules = append(o.Rules, rule)
		}
	}
	if g.Status.Plan != nil {
		c.gatherDevices(&o, g.Status.Plan)
	}
	return o
}

func (c *controller) gatherDevices(o *gang.Observation, plan *v1alpha1.GangPlan) {
	devices := placement.ReservedDevices(plan)
	quiescing := plan.Step == v1alpha1.StepQuiescing && c.w.fault != noQuiesce
	if quiescing { // Before the holders: a claim that is allocated in between must be in one of them.
		o.Rivals = c.cluster.Rivals(devices, o.Claim.UID)
	}
	o.Holders = map[placement.DeviceID]gang.Holder{}
	for id, h := range c.cluster.Holders(devices) {
		o.Holders[id] = gang.Holder{Claim: types.NamespacedName{Namespace: h.Namespace, Name: h.Name}, UID: h.UID, Gang: h.Gang}
	}
	o.Devices = c.problems(o, plan)
	if gang.ReadsMoves(plan) {
		c.gatherMoves(o, plan)
	}
	recheck := func() {
		if len(plan.Moves) > 0 {
			o.MovesBlocked = c.maker.Recheck(c.cluster, placement.Gang{Claim: o.Claim, Priority: o.Priority})
		}
	}
	if plan.Step == v1alpha1.StepEvicting {
		if !slices.ContainsFunc(plan.Moves, func(m v1alpha1.GangMove) bool { return m.EvictedAt != nil }) {
			recheck()
		}
		if len(gang.Unreleased(*o)) > 0 {
			return
		}
	} else if !quiescing || len(gang.Undecided(*o)) > 0 && o.Now.Sub(plan.StepSince.Time) < gang.QuiesceFor {
		return
	}
	if quiescing {
		recheck()
	}
	o.Holders = map[placement.DeviceID]gang.Holder{}
	for _, claim := range list[*resourceapi.ResourceClaim](&c.w.api.objects) { // live
		if claim.Status.Allocation == nil {
			continue
		}
		for _, r := range claim.Status.Allocation.Devices.Results {
			id := placement.DeviceID{Driver: r.Driver, Pool: r.Pool, Device: r.Device}
			if slices.Contains(devices, id) && !ptr.Deref(r.AdminAccess, false) {
				o.Holders[id] = gang.Holder{Claim: keyOf(claim), UID: claim.UID, Gang: types.UID(claim.Labels[v1alpha1.GangLabel])}
			}
		}
	}
}

// problems says which planned devices cannot be used as planned any more.
func (c *controller) problems(o *gang.Observation, plan *v1alpha1.GangPlan) map[placement.DeviceID]gang.DeviceProblem {
	states := c.cluster.DeviceStates(o.Claim, placement.PlannedDevices(plan))
	noClass := get[*resourceapi.DeviceClass](&c.cache.objects, key{Name: o.Claim.Spec.DeviceClassName}) == nil
	nodes := map[string]*corev1.Node{}
	for _, p := range plan.Placements {
		nodes[p.Node] = get[*corev1.Node](&c.cache.objects, key{Name: p.Node})
	}
	unusable := placement.UnusableNodes(plan, nodes, o.Pods)
	found := map[placement.DeviceID]gang.DeviceProblem{}
	for _, p := range plan.Placements {
		for _, d := range p.Devices {
			id := placement.DeviceID{Driver: v1alpha1.DriverName, Pool: p.Pool, Device: d.Name}
			problem := gang.Problem(o.Claim, p, d, states[id], noClass, unusable[p.Node])
			if problem != "" && (problem != gang.DevicePartitioned || c.w.fault != noSiblings) {
				found[id] = problem
			}
		}
	}
	return found
}
