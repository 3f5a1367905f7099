// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"cmp"
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// RoomMaker looks for pods whose move would give a gang its place.
type RoomMaker interface {
	// Wanted says whether MakeRoom is to be called for a gang. It must answer at once: a lock is held.
	Wanted(g Gang) bool
	// MakeRoom is called for a gang that has no place. A plan, made of what Try returned, is the decision
	// then, in place of the refusal. The report is passed on in either case.
	MakeRoom(ctx context.Context, room *Room) (*v1alpha1.GangPlan, *v1alpha1.GangDefragmentation)
}

// Room is a what-if about one gang that has no place: what if some pods were moved? It is valid for the
// call of MakeRoom that it is passed to. Nothing of what it supposes is ever seen by others: the cluster is
// changed, asked and changed back under one lock, without a copy of it.
type Room struct {
	planner *planner
	gang    Gang
	request *request
	// blocker is the gang for which pods are being moved now, empty if there is none.
	blocker string
	avoid   map[*node]bool
	pricing Pricing
	// movable are the pods on a node that may be moved, while sites are gathered.
	movable map[*node][]*pod
	kept    *Trial
}

// Resident is a claim that has devices, and who has it.
type Resident struct {
	// Claim is allocated. It is read only, and so is Pod.
	Claim *resourceapi.ResourceClaim
	// Pod is the only pod that the claim is reserved for; nil when there are more, or none, or it is not known.
	Pod *corev1.Pod
	// Devices are what the claim keeps others from.
	Devices []DeviceID
	// SharesCounters says that one of the devices is a partition of a GPU, or a GPU that can be partitioned (KEP-4815).
	SharesCounters bool
	// ForPart says that the gang would get a part of the GPU only: who else has to move for that, and who may stay, is
	// not looked at.
	ForPart bool

	held *claim
	pod  *pod
}

// Price is what it costs to move a pod. Prices of several pods are added, and compared field by field; Pods and
// Rank count before what becomes of the domains, Work after it.
type Price struct {
	// Pods is how many pods are evicted: 1.
	Pods int
	// Rank is how important the pod is: 0 for the least important. Small numbers keep the search fast.
	Rank int
	// Work is what is lost with the pod's state, in steps: likewise.
	Work int
}

// Plus adds prices.
func (p Price) Plus(o Price) Price { return Price{p.Pods + o.Pods, p.Rank + o.Rank, p.Work + o.Work} }

// Compare is negative where p is less than o.
func (p Price) Compare(o Price) int {
	return cmp.Or(cmp.Compare(p.Pods, o.Pods), cmp.Compare(p.Rank, o.Rank), cmp.Compare(p.Work, o.Work))
}

// Pricing says what it costs to move a resident, or that it must not be moved.
type Pricing func(Resident) (Price, bool)

// Gang is the gang that needs room.
func (r *Room) Gang() Gang { return r.gang }

// Blocker names another gang for which pods are being moved now: two at a time could rely on the same
// disruption budget, or on the same free device. It is empty when there is none.
func (r *Room) Blocker() string { return r.blocker }

// askForRoom lets the maker look for moves. The lock is held, but while it does.
func (p *planner) askForRoom(ctx context.Context, g Gang, r *request, refusal *Refusal, quota map[corev1.ResourceName]int64) (*v1alpha1.GangPlan, *v1alpha1.GangDefragmentation) {
	if p.maker == nil || !p.maker.Wanted(g) || refusal.Reason != ReasonNoFeasibleDomain && refusal.Reason != ReasonNodesFull {
		return nil, nil
	}
	room := &Room{planner: p, gang: g, request: r, blocker: cmp.Or(p.movedFor, p.moving(r.uid)), avoid: map[*node]bool{}}
	p.mutex.Unlock()
	plan, report := p.maker.MakeRoom(ctx, room)
	p.mutex.Lock()
	if room.kept != nil {
		patient := p.unmark(r.claim)
		switch {
		case plan == nil && patient:
			p.earmarkTrial(r, room.kept)
		case plan != nil:
			p.commit(r, room.kept.found, quota)
			p.markDestinations(room.kept)
			p.movedFor = g.Claim.Namespace + "/" + g.Claim.Name
		}
	}
	return plan, report
}

// unmark takes the earmarks of a gang away, and says whether it had any.
func (p *planner) unmark(claim *v1alpha1.GangClaim) bool {
	had := false
	for _, id := range p.marked {
		if u := p.use(id); u.earmarked == claim {
			u.earmark(nil)
			had = true
		}
	}
	return had
}

// earmarkTrial keeps what a trial found from the gangs behind, in place of the next best place: the devices, and
// those that the victims would go to.
func (p *planner) earmarkTrial(r *request, t *Trial) {
	mark := func(id DeviceID) {
		if u := p.use(id); u.earmarked == nil {
			u.earmark(r.claim)
			p.marked = append(p.marked, id)
		}
	}
	for d := range t.found.devices {
		mark(d.id)
	}
	for _, m := range t.Moves {
		if m.Node != "" {
			mark(m.To)
		}
	}
}

func (p *planner) markDestinations(t *Trial) {
	for _, m := range t.Moves {
		if m.Node != "" {
			p.use(m.To).plan(true)
			p.marked = append(p.marked, m.To)
		}
	}
}

// Trial is a place for the gang that moves would make, and what came of trying it.
type Trial struct {
	// Victims are the residents that have devices of the place, by namespace and name of the claim.
	Victims []Resident
	// Members is how many of the gang's members have a place: all, or no trial is worth making.
	Members int
	// Moves are where the victims would find a place, after Try.
	Moves []Destination

	attempt *attempt
	found   outcome
}

// Destination is where a victim's replacement would find a place.
type Destination struct {
	Resident

	// Node, To and Domain are the node and the device there, and its NVSwitch domain, if it has one. Node is empty
	// when there is no place for the victim.
	Node   string
	To     DeviceID
	Domain string
	// FromDomain is the domain of the device that the victim has.
	FromDomain string
}

// Cheapest finds the place of the gang at the least price, or of as many of its members as have one. Nodes on
// which an earlier Try failed for the gang itself are left out.
func (r *Room) Cheapest(pricing Pricing) *Trial {
	p := r.planner
	p.mutex.Lock()
	defer p.mutex.Unlock()
	r.pricing = pricing
	var best *Trial
	for _, s := range r.request.scopes() {
		if r.request.scattered(s) {
			continue
		}
		r.movable = map[*node][]*pod{}
		a := p.attempt(r.request, s)
		a.evict, a.room, a.avoid = true, r, r.avoid
		found := a.place()
		if best == nil || found.members > best.Members {
			best = &Trial{Members: found.members, attempt: a, found: found}
		}
		if found.members == r.request.members {
			break
		}
	}
	if best == nil {
		return &Trial{}
	}
	best.Victims = p.victims(best.found)
	return best
}

// victims are the residents of the busy devices of a place.
func (p *planner) victims(o outcome) []Resident {
	var list []Resident
	for d := range o.busy {
		for _, held := range p.claimsOn(d) {
			if !slices.ContainsFunc(list, func(r Resident) bool { return r.held == held }) {
				list = append(list, p.resident(held))
			}
		}
	}
	slices.SortFunc(list, func(a, b Resident) int {
		return cmp.Or(cmp.Compare(a.Claim.Namespace, b.Claim.Namespace), cmp.Compare(a.Claim.Name, b.Claim.Name))
	})
	return list
}

func (c *Cluster) resident(held *claim) Resident {
	r := Resident{Claim: held.object, Devices: held.devices, held: held, SharesCounters: slices.ContainsFunc(held.devices, func(id DeviceID) bool {
		d := c.devices[id]
		return d != nil && len(d.api.ConsumesCounters) > 0
	})}
	if consumers := held.object.Status.ReservedFor; len(consumers) == 1 && consumers[0].APIGroup == "" && consumers[0].Resource == "pods" {
		p := c.pods[types.NamespacedName{Namespace: held.object.Namespace, Name: consumers[0].Name}]
		if p != nil && p.object.UID == consumers[0].UID {
			r.Pod, r.pod = p.object, p
		}
	}
	return r
}

// Resident is who has devices by the claim, if there is such a claim.
func (c *Cluster) Resident(key types.NamespacedName) (Resident, bool) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	held := c.claims[key]
	if held == nil {
		return Resident{}, false
	}
	return c.resident(held), true
}

// priceOf says what it costs to free a busy device, if that is allowed.
func (r *Room) priceOf(q *request, d *device) (Price, bool) {
	tainted, _ := d.tainted(q.tolerations)
	if tainted || d.use.planned || d.use.earmarked != nil && d.use.earmarked != q.claim || r.reserved(d) {
		return Price{}, false
	}
	claims := r.planner.claimsOn(d)
	if len(claims) == 0 {
		return Price{}, false
	}
	var total Price
	part := !r.planner.isWhole(d)
	for _, held := range claims {
		resident := r.planner.resident(held)
		resident.ForPart = part
		price, ok := r.pricing(resident)
		if !ok || resident.Pod == nil {
			return Price{}, false
		}
		total = Price{total.Pods + price.Pods, total.Rank + price.Rank, total.Work + price.Work}
		if n := r.planner.nodes[resident.pod.node]; n != nil {
			r.movable[n] = append(r.movable[n], resident.pod)
		}
	}
	return total, true
}

// reserved reports whether another gang's plan has the device, or one that shares its counters, or waits for that.
func (r *Room) reserved(d *device) bool {
	if d.use.reservedByOthers(r.request.uid) {
		return true
	}
	for other := range r.planner.sharers(d) {
		if u := other.use; len(u.reserved) > 0 || u.planned || u.earmarked != nil && u.earmarked != r.request.claim {
			return true
		}
	}
	return false
}

// promisedWithout is what the node is promised to, less what the pods take that may be moved.
func (r *Room) promisedWithout(n *node) amounts {
	promised := r.planner.promised[n.name]
	if len(r.movable[n]) == 0 || n.room(r.request.needs, promised, false) >= r.request.members {
		return promised
	}
	less := amounts{}
	maps.Copy(less, promised)
	for _, p := range r.movable[n] {
		for name, value := range p.requests {
			less[name] -= value
		}
	}
	return less
}
