// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"context"
	"fmt"
	"maps"
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

// lookAgain is how often a gang is planned anew because what it is planned on changed in the meantime.
const lookAgain = 3

// Plan decides for all gangs that wait, one after the other in total order: higher priority, older,
// lower UID. A gang gets devices that no gang before it got or waits for: one that has no place keeps
// its next best place for itself, so that smaller gangs do not starve it. The decisions are in that
// order.
//
// The cluster may change meanwhile: each gang is planned on what is there when its turn comes. A context
// that ends makes the remaining decisions refusals. Refusals with ReasonInterrupted ask for another call.
func (c *Cluster) Plan(ctx context.Context, gangs []Gang) []Decision {
	return c.PlanWithRoom(ctx, gangs, nil)
}

// PlanWithRoom does the same, and asks the maker for room for gangs that have no place.
func (c *Cluster) PlanWithRoom(ctx context.Context, gangs []Gang, maker RoomMaker) []Decision {
	c.planning.Lock()
	defer c.planning.Unlock()
	p := planner{
		Cluster: c,
		maker:   maker,
		cost:    planCost,
		refused: map[string][]refused{},
	}
	p.begin(len(gangs))
	defer p.end()
	decisions := make([]Decision, 0, len(gangs))
	for _, g := range order(gangs) {
		decisions = append(decisions, p.decide(ctx, g))
	}
	return decisions
}

// planner is one call of Plan.
type planner struct {
	*Cluster
	maker   RoomMaker
	cost    uint64                                   // left for selectors
	spent   map[string]map[corev1.ResourceName]int64 // quota by namespace, of claims that are not there yet
	marked  []DeviceID
	refused map[string][]refused // by what was asked for
	// movedFor is the gang for which this call moves pods, if it does.
	movedFor string
	// borrowed are the workspaces of the gang's attempts.
	borrowed []*workspace
	// patient is how many devices are kept for gangs that have waited for long.
	patient int
}

func (p *planner) begin(gangs int) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.viewLimit = min(max(2*gangs, minViews), maxViews)
	p.shrinkViews()
	p.planStart = p.viewUses
	p.spent = map[string]map[corev1.ResourceName]int64{}
	for key, r := range p.gangs {
		p.keepRoom(key, r, 1)
	}
}

func (p *planner) end() {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	for _, id := range p.marked {
		u := p.use(id)
		u.earmark(nil)
		u.plan(false)
		p.forget(id)
	}
	clear(p.promised)
}

func (p *planner) decide(ctx context.Context, g Gang) Decision {
	for range lookAgain {
		if ctx.Err() != nil {
			return Decision{Gang: g.Claim.UID, Refusal: interrupted(ctx)}
		}
		v, refusal := p.evaluated(ctx, g.Claim)
		if refusal != nil {
			return Decision{Gang: g.Claim.UID, Refusal: refusal}
		}
		if v == nil {
			continue
		}
		if plan, refusal, room := p.planOn(ctx, g, v); plan != nil || refusal != nil {
			return Decision{Gang: g.Claim.UID, Plan: plan, Refusal: refusal, Room: room}
		}
	}
	return Decision{Gang: g.Claim.UID, Refusal: &Refusal{Reason: ReasonInterrupted, Message: "the devices change faster than the gang is planned. Planning goes on"}}
}

// planOn plans the gang on the devices of a view. It returns nothing when they changed while the
// allocator was asked. The lock is held but for that.
func (p *planner) planOn(ctx context.Context, g Gang, v *view) (*v1alpha1.GangPlan, *Refusal, *v1alpha1.GangDefragmentation) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	defer p.giveBack()
	r, refusal := p.newRequest(g, v)
	if refusal != nil {
		return nil, refusal, nil
	}
	key := types.NamespacedName{Namespace: g.Claim.Namespace, Name: g.Claim.Name}
	own := p.gangs[key]
	if own != nil { // What it has kept is its own.
		p.keepRoom(key, own, -1)
		defer p.keepRoom(key, own, 1)
	}
	quota := quotaNeeds(r.class, int64(r.members), int64(r.members*r.perMember))
	if message := p.quotaRefusal(r.claim.Namespace, quota, p.spent[r.claim.Namespace]); message != "" {
		return nil, &Refusal{Reason: ReasonQuotaExceeded, Message: message}, nil
	}
	// Neither wish takes the other with it. More may be possible than the limits say, so they go first: where that was an
	// error, kube-scheduler shows it, and the nodes of that plan are avoided, too.
	limits, avoid := r.needs.limits, r.avoid
	if limits != nil && avoid != nil {
		if plan, _, refusal := p.search(ctx, r, quota); refusal == nil {
			return plan, nil, nil
		}
	}
	if avoid != nil {
		r.needs.limits = nil
		if plan, _, refusal := p.search(ctx, r, quota); refusal == nil {
			return plan, nil, nil
		}
	}
	r.needs.limits, r.avoid = limits, nil
	if limits != nil {
		if plan, _, refusal := p.search(ctx, r, quota); refusal == nil {
			return plan, nil, nil
		}
	}
	r.needs.limits = nil
	common := own == nil && g.Only == nil && g.Placed == nil
	if common {
		if refusal := p.refusedBefore(r); refusal != nil {
			if p.soughtBefore(r) {
				return nil, refusal, nil
			}
			return p.orRoom(ctx, g, r, refusal, quota)
		}
	}
	plan, most, refusal := p.search(ctx, r, quota)
	if refusal == nil {
		return plan, nil, nil
	}
	if refusal != noPlace {
		return nil, refusal, nil
	}
	refusal = p.refusal(r, most)
	if !common {
		return nil, refusal, nil
	}
	return p.orRoom(ctx, g, r, refusal, quota)
}

// orRoom refuses a gang, or gives it a place that moves make.
func (p *planner) orRoom(ctx context.Context, g Gang, r *request, refusal *Refusal, quota map[corev1.ResourceName]int64) (*v1alpha1.GangPlan, *Refusal, *v1alpha1.GangDefragmentation) {
	plan, room := p.askForRoom(ctx, g, r, refusal, quota)
	if plan != nil {
		return plan, nil, room
	}
	p.remember(r, refusal)
	return nil, refusal, room
}

// noPlace stands for a refusal that is still to be explained.
var noPlace = &Refusal{}

// search looks for a place in each scope and asks the allocator about it. With noPlace it returns the most that has a
// place in the last scope.
func (p *planner) search(ctx context.Context, r *request, quota map[corev1.ResourceName]int64) (*v1alpha1.GangPlan, outcome, *Refusal) {
	var disagreement error
	var most outcome
	for _, s := range r.scopes() {
		if r.scattered(s) {
			continue
		}
		avoid := maps.Clone(r.avoid)
		if avoid == nil {
			avoid = map[*node]bool{}
		}
		for range oracleTries {
			a := p.attempt(r, s)
			a.avoid = avoid
			found := a.place()
			if found.members < r.members {
				most = found
				break
			}
			plan := a.plan(found)
			spec := ClaimSpec(r.claim, plan)
			if err := checkSelector(plan, spec); err != nil {
				return nil, most, &Refusal{Reason: ReasonNotSupported, Message: fmt.Sprintf(
					"the gang is too large for one selector of its devices, which %v: split it", err)}
			}
			asked := p.questions(r.view, plan, spec)
			p.mutex.Unlock()
			name, err := asked.ask(ctx)
			p.mutex.Lock()
			if !p.holds(r, found) {
				return nil, most, nil
			}
			if err == nil {
				p.commit(r, found, quota)
				return plan, most, nil
			}
			disagreement = err
			if p.nodes[name] == nil || ctx.Err() != nil {
				break
			}
			avoid[p.nodes[name]] = true
		}
	}
	switch {
	case ctx.Err() != nil:
		return nil, most, interrupted(ctx)
	case disagreement != nil:
		return nil, most, &Refusal{Reason: ReasonOracleDisagrees, Message: disagreement.Error()}
	default:
		return nil, most, noPlace
	}
}

// holds reports whether what was found is still there and free.
func (p *planner) holds(r *request, found outcome) bool {
	left := map[*pool]counters{}
	for d := range found.devices {
		tainted, _ := d.tainted(r.tolerations)
		pool := p.pools[poolKey{d.id.Driver, d.id.Pool}]
		if pool == nil || !pool.complete || p.devices[d.id] != d || tainted || d.use.taken(r.uid) {
			return false
		}
		if len(d.api.ConsumesCounters) == 0 {
			continue
		}
		if left[pool] == nil {
			left[pool] = pool.countersLeft(func(u *use) bool { return u.taken(r.uid) })
		}
		if !left[pool].take(d) {
			return false
		}
	}
	return true
}

func interrupted(ctx context.Context) *Refusal {
	return &Refusal{Reason: ReasonInterrupted, Message: fmt.Sprintf("planning was interrupted: %v", context.Cause(ctx))}
}

func (p *planner) attempt(r *request, s scope) *attempt {
	return &attempt{Cluster: p.Cluster, request: r, member: s.member, gang: s.gang, workspace: p.borrow()}
}

// commit takes what a plan takes from the gangs behind it.
func (p *planner) commit(r *request, found outcome, quota map[corev1.ResourceName]int64) {
	for d := range found.devices {
		d.use.plan(true)
		p.marked = append(p.marked, d.id)
	}
	for _, ch := range found.choices {
		p.take(ch.site.node, r.needs, ch.members)
	}
	p.spend(r.claim.Namespace, quota)
}

// spend counts what claims that do not exist yet will take of the quotas of a namespace.
func (p *planner) spend(namespace string, quota map[corev1.ResourceName]int64) {
	if p.spent[namespace] == nil {
		p.spent[namespace] = map[corev1.ResourceName]int64{}
	}
	for name, value := range quota {
		p.spent[namespace][name] += value
	}
}

// take counts pods that will run on a node.
func (p *planner) take(n *node, needs needs, pods int) {
	if p.promised[n.name] == nil {
		p.promised[n.name] = amounts{}
	}
	for _, need := range needs.requests {
		p.promised[n.name][need.name.Value()] += need.value * int64(pods)
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
