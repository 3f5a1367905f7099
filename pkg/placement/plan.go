// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

const (
	// oracleTime bounds how long the allocator may take for one gang. Feasible claims take it well
	// below a millisecond per node; only feasible plans are put to it.
	oracleTime = 5 * time.Second
	// oracleTries is how many nodes on which the allocator disagrees are left out before the gang is
	// refused.
	oracleTries = 3
)

// Plan decides for all gangs that wait, one after the other in total order: higher priority, older,
// lower UID. A gang gets devices that no gang before it got or waits for: one that has no place keeps
// its next best place for itself, so that smaller gangs do not starve it. The decisions are in that
// order.
//
// A context that ends makes the remaining decisions refusals.
func (c *Cluster) Plan(ctx context.Context, gangs []Gang) []Decision {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	p := planner{Cluster: c, spent: map[string]map[corev1.ResourceName]int64{}}
	defer p.reset()
	for key, r := range c.gangs {
		p.keepRoom(key, r, 1)
	}
	decisions := make([]Decision, 0, len(gangs))
	for _, g := range order(gangs) {
		decisions = append(decisions, p.decide(ctx, g))
	}
	return decisions
}

// planner is one call of Plan.
type planner struct {
	*Cluster
	spent   map[string]map[corev1.ResourceName]int64 // quota by namespace
	marked  []*device
	claimed []*node
}

func (p *planner) reset() {
	for _, d := range p.marked {
		d.earmarked, d.planned = nil, false
	}
	for _, n := range p.claimed {
		n.planned = nil
	}
}

func (p *planner) decide(ctx context.Context, g Gang) Decision {
	refuse := func(r *Refusal) Decision { return Decision{Gang: g.Claim.UID, Refusal: r} }
	if ctx.Err() != nil {
		return refuse(interrupted(ctx))
	}
	r, refusal := p.newRequest(ctx, g)
	if refusal != nil {
		return refuse(refusal)
	}
	key := types.NamespacedName{Namespace: g.Claim.Namespace, Name: g.Claim.Name}
	if own := p.gangs[key]; own != nil { // What it has kept is its own.
		p.keepRoom(key, own, -1)
		defer p.keepRoom(key, own, 1)
	}
	quota := quotaNeeds(r.class, int64(r.members), int64(r.members*r.perMember))
	if message := p.quotaRefusal(r.claim.Namespace, quota, p.spent[r.claim.Namespace]); message != "" {
		return refuse(&Refusal{Reason: ReasonQuotaExceeded, Message: message})
	}
	var disagreement error
	for _, s := range r.scopes() {
		if r.scattered(s) {
			continue
		}
		avoid := map[*node]bool{}
		for range oracleTries {
			a := p.attempt(r, s)
			a.avoid = avoid
			found := a.place()
			if found.members < r.members {
				break
			}
			plan := a.plan(found)
			spec := ClaimSpec(r.claim, plan)
			if err := checkSelector(plan, spec); err != nil {
				return refuse(&Refusal{Reason: ReasonNotSupported, Message: fmt.Sprintf(
					"the gang is too large for one selector of its devices, which %v: split it", err)})
			}
			node, err := p.ask(ctx, plan, spec)
			if err == nil {
				p.commit(r, found, quota)
				return Decision{Gang: r.uid, Plan: plan}
			}
			disagreement = err
			if node == nil || ctx.Err() != nil {
				break
			}
			avoid[node] = true
		}
	}
	if ctx.Err() != nil {
		return refuse(interrupted(ctx))
	}
	if disagreement != nil {
		return refuse(&Refusal{Reason: ReasonOracleDisagrees, Message: disagreement.Error()})
	}
	return refuse(p.refusal(r))
}

func interrupted(ctx context.Context) *Refusal {
	return &Refusal{Reason: ReasonInterrupted, Message: fmt.Sprintf("planning was interrupted: %v", context.Cause(ctx))}
}

func (p *planner) attempt(r *request, s scope) *attempt {
	return &attempt{Cluster: p.Cluster, request: r, member: s.member, gang: s.gang}
}

// commit takes what a plan takes from the gangs behind it.
func (p *planner) commit(r *request, found outcome, quota map[corev1.ResourceName]int64) {
	for d := range found.devices {
		d.planned = true
		p.marked = append(p.marked, d)
	}
	for _, ch := range found.choices {
		p.take(ch.site.node, r.needs, ch.members)
	}
	if p.spent[r.claim.Namespace] == nil {
		p.spent[r.claim.Namespace] = map[corev1.ResourceName]int64{}
	}
	for name, value := range quota {
		p.spent[r.claim.Namespace][name] += value
	}
}

// take counts pods that will run on a node.
func (p *planner) take(n *node, needs needs, pods int) {
	if n.planned == nil {
		n.planned = amounts{}
		p.claimed = append(p.claimed, n)
	}
	for _, need := range needs.requests {
		n.planned[need.name] += need.value * int64(pods)
	}
}

// plan writes down what was found.
func (a *attempt) plan(found outcome) *v1alpha1.GangPlan {
	plan := &v1alpha1.GangPlan{
		Members:     int32(found.members),
		MemberScope: a.member,
		GangScope:   a.gang,
		Placements:  a.placements(found),
	}
	return plan
}
