// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/gang"
)

// check looks for states that must not be, and for those that must not last.
func (c *checker) check() {
	if c.checked != c.w.api.version || c.states == nil {
		c.checked = c.w.api.version
		c.states = c.lasting()
		for state := range c.since {
			if _, still := c.states[state]; !still {
				delete(c.since, state)
			}
		}
	}
	for state, limit := range c.states {
		since, ok := c.since[state]
		if !ok {
			since = c.w.now
			c.since[state] = since
		}
		if since.Before(c.disturbed) {
			since = c.disturbed
		}
		if c.w.now.Sub(since) > limit && !c.w.leader.dead {
			c.w.fail("for %s: %s", c.w.now.Sub(since).Round(time.Millisecond), state)
		}
	}
}

// lasting are the states that must not last, and how long they may.
func (c *checker) lasting() map[string]time.Duration {
	out := map[string]time.Duration{}
	o := &c.w.api.objects
	gangs := map[types.UID]*v1alpha1.GangClaim{}
	planned := map[device]string{}
	for _, g := range list[*v1alpha1.GangClaim](o) {
		gangs[g.UID] = g
		p := g.Status.Plan
		if p == nil || p.Step == v1alpha1.StepTakingBack || p.Step == v1alpha1.StepUnfencing {
			continue
		}
		for d := range c.plans[p.Hash].devices {
			if other, twice := planned[d]; twice {
				// Two controllers may do that; their fences keep both off.
				limit := time.Duration(0)
				if c.recently(20 * time.Second) {
					limit = takenBackWithin
				}
				out[fmt.Sprintf("device %s of %s is planned for gangs %s and %s", d.name, d.pool, other, g.Name)] = limit
			}
			planned[d] = g.Name
		}
	}
	for _, t := range list[*resourceapi.ResourceClaimTemplate](o) {
		if ofGang(t) {
			c.template(out, t, gangs[gangOf(t)])
		}
	}
	for _, r := range list[*resourceapi.DeviceTaintRule](o) {
		if !ofGang(r) {
			continue
		}
		g := gangs[gangOf(r)]
		if g == nil || g.Status.Plan == nil || g.Status.Plan.Step == v1alpha1.StepTakingBack || g.Status.Plan.Step == v1alpha1.StepUnfencing {
			limit := sweptWithin
			switch {
			case c.claimsLeft(gangOf(r)):
				limit = time.Minute // nodes that are lost keep pods
			case g == nil:
				limit += sweepInterval // it may be made a moment after the GangClaim is gone
			}
			out["rule "+r.Name+" has no plan"] = limit
		}
	}
	for _, claim := range list[*resourceapi.ResourceClaim](o) {
		c.unverified(out, claim)
	}
	return out
}

// claimsLeft says whether claims of a gang are being taken back, or cannot be.
func (c *checker) claimsLeft(gang types.UID) bool {
	return slices.ContainsFunc(list[*resourceapi.ResourceClaim](&c.w.api.objects), func(o *resourceapi.ResourceClaim) bool {
		return gangOf(o) == gang && !isReady(o.Labels, o.Annotations)
	})
}

// template is there for a plan that is being released, until all members have their claims.
func (c *checker) template(out map[string]time.Duration, t *resourceapi.ResourceClaimTemplate, g *v1alpha1.GangClaim) {
	hash := t.Labels[v1alpha1.PlanLabel]
	if g == nil || g.Status.Plan == nil || g.Status.Plan.Hash != hash || g.Status.Plan.Step != v1alpha1.StepReleasing {
		limit := templateWithin
		if g == nil {
			limit = sweptWithin + sweepInterval
		}
		out[fmt.Sprintf("template %s of plan %s exists without a plan", t.Name, hash)] = limit
		return
	}
	have := 0
	for _, claim := range list[*resourceapi.ResourceClaim](&c.w.api.objects) {
		if claim.Labels[v1alpha1.PlanLabel] == hash && claim.DeletionTimestamp == nil {
			have++
		}
	}
	if have >= c.plans[hash].members {
		out[fmt.Sprintf("template %s of plan %s exists while all members have claims", t.Name, hash)] = templateWithin
	}
}

// unverified claims of a gang are verified or taken back by a deadline. Bare pods keep their place.
func (c *checker) unverified(out map[string]time.Duration, claim *resourceapi.ResourceClaim) {
	if !ofGang(claim) || isReady(claim.Labels, claim.Annotations) {
		return
	}
	pod := c.podOf(claim)
	if pod == nil {
		return // on its way
	}
	if claim.Status.Allocation != nil && metav1.GetControllerOfNoCopy(pod) == nil {
		return
	}
	members := 0
	if h := c.plans[claim.Labels[v1alpha1.PlanLabel]]; h != nil {
		members = h.members
	}
	limit := gang.VerifyBase + time.Duration(members)*gang.VerifyPerMember + takenBackWithin
	word := "not allocated"
	if claim.Status.Allocation != nil {
		word = "allocated"
	}
	out[fmt.Sprintf("claim %s is %s and not verified", claim.Name, word)] = limit
}

// podOf is the pod that a claim was made for, nil when it is over or on its way.
func (c *checker) podOf(claim *resourceapi.ResourceClaim) *corev1.Pod {
	owner := metav1.GetControllerOfNoCopy(claim)
	pod := get[*corev1.Pod](&c.w.api.objects, key{Namespace: claim.Namespace, Name: owner.Name})
	if pod == nil || pod.UID != owner.UID || over(pod) || pod.DeletionTimestamp != nil {
		return nil
	}
	return pod
}

// older says whether all claims that a decision is about still exist, and existed at a time.
func (c *checker) older(b *binding, than time.Time) bool {
	for i, name := range b.names {
		o := get[*resourceapi.ResourceClaim](&c.w.api.objects, name)
		if o == nil || o.UID != b.claims[i] || o.DeletionTimestamp != nil || c.born[o.UID].After(than) {
			return false
		}
	}
	return true
}
