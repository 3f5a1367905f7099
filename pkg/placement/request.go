// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// request is a gang as the planner sees it.
type request struct {
	claim       *v1alpha1.GangClaim
	uid         types.UID
	members     int
	perMember   int
	class       *resourceapi.DeviceClass
	view        *view
	selectors   string // as text
	tolerations []resourceapi.DeviceToleration
	needs       needs
	only        map[DeviceID]bool // nil: all
	avoid       map[*node]bool    // as long as there is a place without
	// node and domain are those of members that have their place already.
	node, domain string
	// scattered says that these are at several nodes or in several domains, or that it is not known of one where it is.
	scatteredNodes, scatteredDomains bool
}

// order is the total order in which gangs are planned: priority, age, UID.
func order(gangs []Gang) []Gang {
	return slices.SortedFunc(slices.Values(gangs), func(a, b Gang) int {
		return cmp.Or(
			-cmp.Compare(a.Priority, b.Priority),
			a.Claim.CreationTimestamp.Compare(b.Claim.CreationTimestamp.Time),
			cmp.Compare(a.Claim.UID, b.Claim.UID),
		)
	})
}

// newRequest reads the gang, or says why it cannot be planned whatever is free.
func (c *Cluster) newRequest(g Gang, v *view) (*request, *Refusal) {
	spec := g.Claim.Spec
	r := &request{
		claim:       g.Claim,
		uid:         g.Claim.UID,
		members:     len(g.Pods),
		perMember:   int(spec.DevicesPerMember),
		tolerations: slices.Concat(spec.Tolerations, []resourceapi.DeviceToleration{ownFence(g.Claim.UID)}),
		needs:       c.needsOf(g.Pods),
		selectors:   textOf(spec.Selectors),
	}
	r.needs.company = c.companyOf(g.Pods)
	c.spreadOf(g.Pods, &r.needs.company)
	ties, refusal := c.tiesOf(g.Pods, r.needs.kinds)
	if refusal != nil {
		return nil, refusal
	}
	c.tie(ties, &r.needs)
	if len(g.Pods) == 0 {
		r.members = int(spec.Members)
	}
	if r.members < 1 || r.perMember < 1 {
		return nil, &Refusal{Reason: ReasonNotSupported, Message: fmt.Sprintf(
			"spec.members is %d and spec.devicesPerMember %d: both must be at least 1", spec.Members, spec.DevicesPerMember)}
	}
	if g.Only != nil {
		r.only = map[DeviceID]bool{}
		for _, id := range g.Only {
			r.only[id] = true
		}
	}
	for _, name := range g.Avoid {
		if n := c.nodes[name]; n != nil {
			if r.avoid == nil {
				r.avoid = map[*node]bool{}
			}
			r.avoid[n] = true
		}
	}
	for i, id := range g.Placed {
		node, domain := c.whereabouts(id)
		r.scatteredNodes = r.scatteredNodes || node == "" || i > 0 && node != r.node
		r.scatteredDomains = r.scatteredDomains || domain == "" || i > 0 && domain != r.domain
		r.node, r.domain = node, domain
	}
	r.class, r.view = v.class, v
	return r, nil
}

// evaluated returns the view of the gang's class and selectors when it was evaluated on all devices, or
// says why it cannot be. It returns nil and no refusal when devices came in the meantime: try again.
func (p *planner) evaluated(ctx context.Context, claim *v1alpha1.GangClaim) (*view, *Refusal) {
	p.mutex.Lock()
	class := p.classes[claim.Spec.DeviceClassName]
	if class == nil {
		p.mutex.Unlock()
		return nil, &Refusal{Reason: ReasonNoSuchClass, Message: fmt.Sprintf(
			"spec.deviceClassName: there is no DeviceClass %s", claim.Spec.DeviceClassName)}
	}
	v := p.view(class, claim.Spec.Selectors)
	missing := p.missing(v)
	p.mutex.Unlock()
	fails := func(err *selectorError) *Refusal {
		refusal := &Refusal{Reason: ReasonSelectorFails, Message: fmt.Sprintf("%v: kube-scheduler would not schedule the pods", err)}
		if err.device != nil {
			refusal.Message += ". Read attributes that may be absent with optional access, as in .?name.orValue(\"\")"
		}
		return refusal
	}
	for _, each := range []*view{v.ofClass(), v} {
		if err := p.compile(each, &p.cost); err != nil {
			return nil, fails(err)
		}
	}
	p.evaluate(ctx, v, missing, &p.cost)
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if what := v.tooExpensive(); what != "" {
		return nil, &Refusal{Reason: ReasonSelectorTooExpensive, Message: fmt.Sprintf(
			"%s cost more than %d to evaluate on all devices (1000000 is about 0.1 s of CEL): compare attributes directly, without loops and regular expressions", what, viewCost)}
	}
	if len(p.missing(v)) > 0 {
		switch {
		case ctx.Err() != nil:
			return nil, interrupted(ctx)
		case p.cost == 0:
			return nil, &Refusal{Reason: ReasonInterrupted, Message: "the selectors are not evaluated on all devices yet: other gangs with new selectors came first. Planning goes on"}
		}
		return nil, nil
	}
	if err := p.failure(v); err != nil {
		return nil, fails(err)
	}
	return v, nil
}

func (c *Cluster) whereabouts(id DeviceID) (node, domain string) {
	if p := c.pools[poolKey{id.Driver, id.Pool}]; p != nil {
		node = p.node
	}
	if d := c.devices[id]; d != nil && d.domain != nil {
		domain = d.domain.name
	}
	return node, domain
}

// repeatedMessage names the devices that share an id.
func (c *Cluster) repeatedMessage(v *view) string {
	var same []*device
	for _, p := range c.sortedPools() {
		for _, s := range p.current {
			m := v.matches[s]
			for i, d := range s.devices {
				if m != nil && m.class[i] && v.repeated[d.attrID] && (len(same) == 0 || same[0].attrID == d.attrID) {
					same = append(same, d)
				}
			}
		}
	}
	if len(same) < 2 {
		return "two devices of the class have the same attribute id"
	}
	return fmt.Sprintf("device %s of pool %s and device %s of pool %s have the same attribute id %q, and a plan could not tell them apart: take one of them out of the DeviceClass %s, or remove the node that does not have it any more",
		same[0].id.Device, same[0].id.Pool, same[1].id.Device, same[1].id.Pool, same[0].attrID, v.class.Name)
}

// scope is what devices have to share.
type scope struct {
	member v1alpha1.MemberScope
	gang   v1alpha1.GangScope
}

// scopes lists what to try, best first: with mode Preferred the gang's scope is given up first, then
// the members'.
func (r *request) scopes() []scope {
	asked := scope{
		member: cmp.Or(r.claim.Spec.Topology.Member, v1alpha1.MemberNVSwitchDomain),
		gang:   cmp.Or(r.claim.Spec.Topology.Gang, v1alpha1.GangAny),
	}
	if r.claim.Spec.Topology.Mode != v1alpha1.TopologyPreferred {
		return []scope{asked}
	}
	return slices.Compact([]scope{
		asked,
		{asked.member, v1alpha1.GangAny},
		{v1alpha1.MemberNode, v1alpha1.GangAny},
	})
}

// scattered reports whether members that have their place already are not in the scope.
func (r *request) scattered(s scope) bool {
	return s.gang == v1alpha1.GangNode && r.scatteredNodes || s.gang == v1alpha1.GangNVSwitchDomain && r.scatteredDomains
}
