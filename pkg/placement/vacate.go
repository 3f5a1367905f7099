// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"cmp"
	"context"
	"slices"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/resourcemodel"
)

// Occupancy is an NVSwitch domain, at all its nodes, and who has devices of it.
type Occupancy struct {
	Domain string
	// Product is that of its GPUs, as NVML gives it; of several the first.
	Product string
	// Free is how many of its GPUs a new claim could get, Freed how many more when all residents have left.
	Free, Freed int
	// Residents are the claims that have devices of it, by namespace and name.
	Residents []Resident
	// Unclear says that what becomes of the domain is not known: it has GPUs that several claims may share, that a
	// gang's plan reserves, or that are not all listed.
	Unclear bool
}

// Occupancies lists the domains of the GPUs of driver gpu.switchyard.dev by name. Free is what Domains says.
func (c *Cluster) Occupancies() []Occupancy {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	p := planner{Cluster: c}
	domains := map[string]*Occupancy{}
	for _, pool := range c.pools {
		if pool.key.driver != v1alpha1.DriverName {
			continue
		}
		left := pool.countersLeft(func(u *use) bool { return u.held() || len(u.reserved) > 0 })
		for _, d := range pool.devices {
			if d.domain == nil || d.kind != resourcemodel.TypeGPU && d.kind != resourcemodel.TypeShare {
				continue
			}
			o := domains[d.domain.name]
			if o == nil {
				o = &Occupancy{Domain: d.domain.name}
				domains[o.Domain] = o
			}
			o.add(&p, pool, d, len(d.use.claims) > 0 || left != nil && !left.take(d))
		}
	}
	var list []Occupancy
	for _, o := range domains {
		slices.SortFunc(o.Residents, func(a, b Resident) int {
			return cmp.Or(cmp.Compare(a.Claim.Namespace, b.Claim.Namespace), cmp.Compare(a.Claim.Name, b.Claim.Name))
		})
		list = append(list, *o)
	}
	slices.SortFunc(list, func(a, b Occupancy) int { return cmp.Compare(a.Domain, b.Domain) })
	return list
}

// add counts a device.
func (o *Occupancy) add(p *planner, pool *pool, d *device, inUse bool) {
	if o.Product == "" || d.product != "" && d.product < o.Product {
		o.Product = d.product
	}
	if d.unplannable || d.kind == resourcemodel.TypeShare || len(d.use.reserved) > 0 || !pool.complete {
		o.Unclear = true
	}
	if tainted, _ := d.tainted(nil); !tainted && pool.complete && d.kind == resourcemodel.TypeGPU && len(d.use.reserved) == 0 {
		if inUse {
			o.Freed++
		} else {
			o.Free++
		}
	}
	for _, held := range p.claimsOn(d) {
		if !slices.ContainsFunc(o.Residents, func(r Resident) bool { return r.held == held }) {
			o.Residents = append(o.Residents, p.resident(held))
		}
	}
}

// Vacate finds out where all residents of a domain would find a place elsewhere, by kube-scheduler's allocator, in
// domains that are broken already, or beside all domains. Of several places it takes one with the least loss, a
// function of a domain and how many of its devices are free, and there the tightest. free is how many that are; what is
// given to residents is taken off it. Residents must have one device and a pod each.
//
// The places are what there is, not what kube-scheduler will choose.
func (c *Cluster) Vacate(ctx context.Context, o Occupancy, free map[string]int, loss func(domain string, free int) int) ([]Destination, *Obstacle) {
	c.planning.Lock()
	defer c.planning.Unlock()
	p := &planner{Cluster: c, cost: planCost}
	p.begin(0)
	defer p.end()
	r := &Room{planner: p, request: &request{}}
	for _, v := range o.Residents {
		if obstacle := r.evaluate(ctx, v); obstacle != nil {
			return nil, obstacle
		}
	}
	t := &Trial{Victims: o.Residents}
	asked, obstacle := r.supposeVacated(t, o.Domain, free, loss)
	if obstacle != nil {
		return nil, obstacle
	}
	for _, at := range asked {
		if obstacle := at.ask(ctx, t); obstacle != nil {
			return nil, obstacle
		}
	}
	return t.Moves, nil
}

// supposeVacated changes the cluster, copies what the allocator looks at, and changes it back.
func (r *Room) supposeVacated(t *Trial, domain string, free map[string]int, loss func(domain string, free int) int) ([]*destination, *Obstacle) {
	p := r.planner
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if obstacle := r.unevaluated(t.Victims); obstacle != nil {
		return nil, obstacle
	}
	if !p.stillThere(t) {
		return nil, &Obstacle{Why: "pods changed while moves were looked for", Interrupted: true}
	}
	change := change{Cluster: p.Cluster}
	defer change.undo()
	for _, v := range t.Victims {
		change.leave(v)
	}
	for _, d := range p.devices {
		if d.domain != nil && d.domain.name == domain {
			change.plan(d)
		}
	}
	var obstacle *Obstacle
	if t.Moves, obstacle = r.packInto(&change, t.Victims, free, loss); obstacle != nil {
		return nil, obstacle
	}
	// The allocator is asked about these devices: others of the node may be in a whole domain.
	for _, m := range t.Moves {
		for _, pool := range p.nodes[m.Node].pools {
			for _, d := range pool.devices {
				change.plan(d)
			}
		}
	}
	return p.destinations(t.Moves), nil
}

// packInto finds a free device for each victim, those with the fewest to choose from first.
func (r *Room) packInto(c *change, victims []Resident, free map[string]int, loss func(domain string, free int) int) ([]Destination, *Obstacle) {
	find := r.finder()
	searches := find.searches(victims)
	var moves []Destination
	for _, s := range searches {
		var best *spot
		for _, at := range s.spots {
			if at.breaks || at.device.use.planned || at.node.room(s.needs, c.promised[at.node.name], false) == 0 {
				continue
			}
			if find.counters(at.pool, at.device).suffice(at.device) && (best == nil || better(at, best, free, loss)) {
				best = at
			}
		}
		if best == nil {
			return nil, &Obstacle{Victim: &s.victim, Why: "no device and node that suit it are free elsewhere in a domain that is broken already"}
		}
		find.counters(best.pool, best.device).take(best.device)
		c.plan(best.device)
		c.take(best.node, s.victim.pod.requests)
		free[best.domain()]--
		moves = append(moves, r.moveTo(best, s.victim))
	}
	slices.SortFunc(moves, Destination.compare)
	return moves, nil
}

// better prefers what loses least, then the tightest; the first of those that are equal.
func better(a, b *spot, free map[string]int, loss func(domain string, free int) int) bool {
	lossAt := func(s *spot) int {
		if s.domain() == "" {
			return 0
		}
		return loss(s.domain(), free[s.domain()])
	}
	return cmp.Or(cmp.Compare(lossAt(a), lossAt(b)), cmp.Compare(free[a.domain()], free[b.domain()])) < 0
}
