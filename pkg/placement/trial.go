// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// Obstacle is why a trial failed.
type Obstacle struct {
	// Victim is the resident that has no place elsewhere; nil when the gang itself has none, for example
	// because kube-scheduler's allocator disagrees. Another call of Cheapest avoids that place by itself, unless
	// the obstacle is final.
	Victim *Resident
	// Final says that no other place would serve the gang.
	Final bool
	// Why is for people.
	Why string
	// Interrupted says that nothing was found out: the context ended or the cluster changed meanwhile.
	Interrupted bool
}

// Try finds out whether the gang fits once the victims of a trial have left, and where each of them would find
// a place with the gang in its own: both by kube-scheduler's allocator. When it does, the trial is complete, and
// the plan is returned, without moves. A victim of which mayLose, where not nil, says so may go without: its
// destination has no node then.
func (r *Room) Try(ctx context.Context, t *Trial, mayLose func(Resident) bool) (*v1alpha1.GangPlan, *Obstacle) {
	p := r.planner
	for _, v := range t.Victims {
		if obstacle := r.evaluate(ctx, v); obstacle != nil {
			return nil, obstacle
		}
	}
	plan, asked, obstacle := r.suppose(t, mayLose)
	if obstacle != nil {
		return nil, obstacle
	}
	if name, err := asked.gang.ask(ctx); err != nil {
		p.mutex.Lock()
		defer p.mutex.Unlock()
		if n := p.nodes[name]; n != nil {
			r.avoid[n] = true
		}
		return nil, &Obstacle{Why: err.Error(), Interrupted: ctx.Err() != nil}
	}
	for _, at := range asked.victims {
		if obstacle := at.ask(ctx, t); obstacle != nil {
			return nil, obstacle
		}
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if !r.holds(t) {
		return nil, &Obstacle{Why: "the devices changed while moves were looked for", Interrupted: true}
	}
	r.kept = t
	return plan, nil
}

// Drop forgets what the last successful Try found: neither the place nor the destinations are kept for the gang.
func (r *Room) Drop() { r.kept = nil }

// alternative is one way in which a claim can be given a device.
type alternative struct {
	view        *view
	tolerations []resourceapi.DeviceToleration
}

// requestsOf lists the requests of a claim of one device: one, or those of a prioritized list. It returns nil for
// a claim that asks for anything else.
func requestsOf(claim *resourceapi.ResourceClaim) []resourceapi.DeviceSubRequest {
	if len(claim.Spec.Devices.Requests) != 1 {
		return nil
	}
	request := claim.Spec.Devices.Requests[0]
	list := request.FirstAvailable
	if exactly := request.Exactly; exactly != nil {
		list = []resourceapi.DeviceSubRequest{{
			DeviceClassName: exactly.DeviceClassName, Selectors: exactly.Selectors, AllocationMode: exactly.AllocationMode,
			Count: exactly.Count, Tolerations: exactly.Tolerations, Capacity: exactly.Capacity,
		}}
	}
	return slices.DeleteFunc(slices.Clone(list), func(s resourceapi.DeviceSubRequest) bool {
		return s.AllocationMode == resourceapi.DeviceAllocationModeAll || s.Count > 1
	})
}

// evaluate evaluates the selectors of a victim's claim.
func (r *Room) evaluate(ctx context.Context, v Resident) *Obstacle {
	p := r.planner
	for _, request := range requestsOf(v.Claim) {
		p.mutex.Lock()
		class := p.classes[request.DeviceClassName]
		if class == nil {
			p.mutex.Unlock()
			continue
		}
		selected := p.view(class, request.Selectors)
		missing := p.missing(selected)
		p.mutex.Unlock()
		for _, each := range []*view{selected.ofClass(), selected} {
			if err := p.compile(each, &p.cost); err != nil {
				return &Obstacle{Victim: &v, Why: err.Error()}
			}
		}
		p.evaluate(ctx, selected, missing, &p.cost)
	}
	if ctx.Err() != nil {
		return &Obstacle{Why: "planning was interrupted", Interrupted: true}
	}
	return nil
}

// supposition is what the allocator is asked about a trial: copies.
type supposition struct {
	gang    *questions
	victims []*destination
}

// suppose changes the cluster as the trial says, copies what the allocator looks at, and changes it back.
func (r *Room) suppose(t *Trial, mayLose func(Resident) bool) (*v1alpha1.GangPlan, *supposition, *Obstacle) {
	p := r.planner
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if !p.stillThere(t) {
		return nil, nil, &Obstacle{Why: "pods changed while moves were looked for", Interrupted: true}
	}
	change := change{Cluster: p.Cluster}
	defer change.undo()
	for _, v := range t.Victims {
		change.leave(v)
	}
	plan := t.attempt.plan(t.found)
	spec := ClaimSpec(r.request.claim, plan)
	if err := checkSelector(plan, spec); err != nil {
		return nil, nil, &Obstacle{Final: true, Why: fmt.Sprintf("the gang is too large for one selector of its devices, which %v: split it", err)}
	}
	if n := r.tooFull(t); n != nil {
		r.avoid[n] = true
		return nil, nil, &Obstacle{Why: fmt.Sprintf("the pods would not fit node %s even then: %s", n.name, n.shortage(r.request.needs, p.promised[n.name], r.request.members))}
	}
	asked := &supposition{gang: p.questions(r.request.view, plan, spec)}
	for d := range t.found.devices {
		change.plan(d)
	}
	if n, back := r.tooFullAgain(t); n != nil {
		r.avoid[n] = true
		return nil, nil, &Obstacle{Why: fmt.Sprintf("node %s keeps devices for which pods that are moved may come back, and would not have room for all then: %s",
			n.name, n.shortage(r.request.needs, back, r.request.members))}
	}
	for _, ch := range t.found.choices {
		change.take(ch.site.node, amountsFor(r.request.needs, ch.members))
	}
	var obstacle *Obstacle
	if t.Moves, obstacle = r.relocate(&change, t.Victims, mayLose); obstacle != nil {
		return nil, nil, obstacle
	}
	asked.victims = p.destinations(t.Moves)
	return plan, asked, nil
}

// tooFull is a node of the trial on which the members do not fit. Cheapest supposed that all pods that may be
// moved leave it.
func (r *Room) tooFull(t *Trial) *node {
	for n, members := range t.nodes {
		if n.room(r.request.needs, r.planner.promised[n.name], false) < members {
			return n
		}
	}
	return nil
}

// nodes are those of the trial, in its order, and how many members each gets.
func (t *Trial) nodes(yield func(*node, int) bool) {
	members := map[*node]int{}
	var order []*node
	for _, ch := range t.found.choices {
		if members[ch.site.node] == 0 {
			order = append(order, ch.site.node)
		}
		members[ch.site.node] += ch.members
	}
	for _, n := range order {
		if !yield(n, members[n]) {
			return
		}
	}
}

// tooFullAgain is a node of the trial on which the members do not fit if victims' replacements come there before them,
// and what it is promised to then. Only devices are fenced: where the node keeps others that suit a victim, the scheduler
// may choose it, as it is the one that has just become emptier. As many may come as there are such devices.
func (r *Room) tooFullAgain(t *Trial) (*node, amounts) {
	find := r.finder()
	for n, members := range t.nodes {
		most := map[corev1.ResourceName][]int64{}
		suited := map[DeviceID]bool{}
		for _, v := range t.Victims {
			if n.suits(r.planner.needsOfReplacement(v.Pod)) != "" {
				continue
			}
			spots := find.onNode(n, find.alternatives(v.Claim))
			for _, s := range spots {
				suited[s.device.id] = true
			}
			if len(spots) == 0 {
				continue
			}
			for name, value := range v.pod.requests {
				most[name] = append(most[name], value)
			}
		}
		back := maps.Clone(r.planner.promised[n.name])
		if back == nil {
			back = amounts{}
		}
		for name, values := range most {
			slices.Sort(values)
			for _, value := range values[max(0, len(values)-len(suited)):] {
				back[name] += value
			}
		}
		if n.room(r.request.needs, back, false) < members {
			return n, back
		}
	}
	return nil, nil
}

func amountsFor(n needs, pods int) amounts {
	a := amounts{}
	for _, need := range n.requests {
		a[need.name.Value()] = need.value * int64(pods)
	}
	return a
}

// stillThere reports whether the victims are as they were when they were priced.
func (c *Cluster) stillThere(t *Trial) bool {
	return !slices.ContainsFunc(t.Victims, func(v Resident) bool {
		return c.claims[types.NamespacedName{Namespace: v.Claim.Namespace, Name: v.Claim.Name}] != v.held ||
			c.pods[types.NamespacedName{Namespace: v.Pod.Namespace, Name: v.Pod.Name}] != v.pod
	})
}

// holds reports whether the place and the destinations are still there.
func (r *Room) holds(t *Trial) bool {
	p := r.planner
	if !p.stillThere(t) {
		return false
	}
	change := change{Cluster: p.Cluster}
	defer change.undo()
	for _, v := range t.Victims {
		change.leave(v)
	}
	if !p.holds(r.request, t.found) {
		return false
	}
	for d := range t.found.devices {
		change.plan(d)
	}
	find := r.finder()
	for _, m := range t.Moves {
		d := p.devices[m.To]
		if m.Node == "" {
			continue
		}
		if d == nil || d.use.held() || len(d.use.reserved) > 0 || !find.counters(p.pools[poolKey{m.To.Driver, m.To.Pool}], d).take(d) {
			return false
		}
	}
	return true
}

// relocate finds a free device for each victim, those with the fewest to choose from first. The suggestion is
// the tightest fit that breaks no domain; the scheduler chooses by itself.
func (r *Room) relocate(c *change, victims []Resident, mayLose func(Resident) bool) ([]Destination, *Obstacle) {
	find := r.finder()
	searches := find.searches(victims)
	var moves []Destination
	for _, s := range searches {
		at := slices.IndexFunc(s.spots, func(s2 *spot) bool {
			d := s2.device
			return !d.use.planned && s2.node.room(s.needs, c.promised[s2.node.name], false) > 0 && find.counters(s2.pool, d).take(d)
		})
		if at < 0 && mayLose != nil && mayLose(s.victim) {
			moves = append(moves, Destination{Resident: s.victim, FromDomain: r.planner.domainOf(s.victim)})
			continue
		}
		if at < 0 {
			return nil, &Obstacle{Victim: &s.victim, Why: "no device and node that suit it are free elsewhere"}
		}
		chosen := s.spots[at]
		c.plan(chosen.device)
		c.take(chosen.node, s.victim.pod.requests)
		moves = append(moves, r.moveTo(chosen, s.victim))
	}
	slices.SortFunc(moves, Destination.compare)
	return moves, nil
}

func (r *Room) moveTo(s *spot, victim Resident) Destination {
	return Destination{Resident: victim, Node: s.node.name, To: s.device.id, Domain: s.domain(), FromDomain: r.planner.domainOf(victim)}
}

func (d Destination) compare(o Destination) int {
	return cmp.Or(cmp.Compare(d.Claim.Namespace, o.Claim.Namespace), cmp.Compare(d.Claim.Name, o.Claim.Name))
}

// domainOf is the domain of a victim's device.
func (c *Cluster) domainOf(v Resident) string {
	_, domain := c.whereabouts(v.Devices[0])
	return domain
}

// Elsewhere says which of the victims of a gang's committed plan has no free device on a node that suits it any
// more, or nil; Interrupted where that cannot be told now. What the gang keeps for them counts as free. Victims must be as Resident returns them.
func (c *Cluster) Elsewhere(gang *v1alpha1.GangClaim, victims []Resident) *Obstacle {
	room := &Room{planner: &planner{Cluster: c, cost: planCost}, request: &request{claim: gang, uid: gang.UID}}
	for _, v := range victims { // after a restart nobody has yet
		if obstacle := room.evaluate(context.Background(), v); obstacle != nil {
			return obstacle
		}
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if obstacle := room.unevaluated(victims); obstacle != nil {
		return obstacle
	}
	change := change{Cluster: c}
	defer change.undo()
	for _, v := range victims {
		change.leave(v)
	}
	for _, id := range PlannedDevices(gang.Status.Plan) {
		if d := c.devices[id]; d != nil {
			change.plan(d)
		}
	}
	_, obstacle := room.relocate(&change, victims, nil)
	return obstacle
}

// unevaluated names a victim whose selectors are not evaluated on all devices, if there is one.
func (r *Room) unevaluated(victims []Resident) *Obstacle {
	for _, v := range victims {
		for _, a := range r.finder().alternatives(v.Claim) {
			if len(r.planner.missing(a.view)) > 0 {
				return &Obstacle{Victim: &v, Interrupted: true, Why: "its selectors could not be evaluated on all devices"}
			}
		}
	}
	return nil
}
