// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"encoding/binary"
	"slices"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// siteBuilder collects the devices of one node. It is used again for the next, so that a node costs no
// memory unless it is chosen.
type siteBuilder struct {
	groups  []group
	all     []atom       // of the node
	atoms   []atom       // of the site
	onNode  []siteDomain // the domains of the node
	domains []siteDomain // the domains of the site
	places  []int        // in domains, from 1, by place in onNode
	key     []byte
}

// group are devices that may serve one member together: of one pool and one value of the member's scope.
type group struct {
	pool  *pool
	value string
	numa  int64
	total int
}

// atom are devices between which there is nothing to choose, in the allocator's order.
type atom struct {
	group      int
	domain     int // in onNode, and for atoms of the site in domains
	numa       int64
	free, busy []*device
	prices     []Price // of busy, where pods may be moved
}

// collect reads the devices of a node, and counts them for their domains if that has not happened.
func (b *siteBuilder) collect(a *attempt, n *node, countThem bool) {
	b.groups, b.all, b.onNode = b.groups[:0], b.all[:0], b.onNode[:0]
	for _, p := range n.pools {
		if !p.complete {
			for _, d := range p.devices {
				if d.domain != nil {
					a.tallyOf(d.domain).unknown = true
				}
			}
			continue
		}
		left, could := p.countersLeft(a.takes), a.couldBeLeft(p)
		for _, s := range p.current {
			matches := a.request.view.matches[s]
			for i := range s.glances {
				if matches == nil || !matches.class[i] {
					continue
				}
				state := a.availability(s, i, matches.all[i], left)
				if state == busy && could != nil && !could.take(s.devices[i]) {
					state = barred
				}
				b.add(a, n, p, s, i, state, countThem)
			}
		}
	}
}

// couldBeLeft is what is left of the counters for busy devices, if all of these are given back and all that are free
// are planned: two that exclude each other are no place for two. It is nil where no devices are, or busy ones do not
// count.
func (a *attempt) couldBeLeft(p *pool) counters {
	if !a.evict || !p.counters {
		return nil
	}
	left, could := p.countersLeft(a.takes), p.countersLeft(nobody)
	for _, s := range p.current {
		matches := a.request.view.matches[s]
		for i, d := range s.devices {
			if matches != nil && matches.class[i] && a.availability(s, i, matches.all[i], left) == free {
				could.consume(d)
			}
		}
	}
	return could
}

// add takes a device of the class.
func (b *siteBuilder) add(a *attempt, n *node, p *pool, s *slice, i int, state availability, countIt bool) {
	seen := &s.glances[i]
	dom := seen.domain
	if dom == nil {
		dom = &n.loose
	}
	at := b.domain(dom)
	inUse := state == busy || state == barred || state == useless && seen.allocated
	if state == free {
		b.onNode[at].free++
	}
	if inUse {
		b.onNode[at].inUse++
	}
	if countIt {
		a.tallyOf(dom).add(state == free, inUse)
	}
	if state == useless || state == barred || state == busy && !a.evict {
		return
	}
	d := s.devices[i]
	g, ok := a.groupOf(p, d, seen)
	if !ok {
		return
	}
	var price Price
	if state == busy && a.room != nil {
		if price, ok = a.room.priceOf(a.request, d); !ok {
			return
		}
	}
	atom := b.atom(b.group(g), at, seen.numa)
	switch {
	case state == free:
		atom.free = append(atom.free, d)
	case a.room == nil:
		atom.busy = append(atom.busy, d)
	default:
		atom.addPriced(d, price)
	}
}

// addPriced keeps the busy devices in the order of their price: of devices between which there is nothing
// else to choose, the cheapest are taken.
func (at *atom) addPriced(d *device, price Price) {
	i := len(at.prices)
	for i > 0 && price.Compare(at.prices[i-1]) < 0 {
		i--
	}
	at.busy = slices.Insert(at.busy, i, d)
	at.prices = slices.Insert(at.prices, i, price)
}

func (t *tally) add(isFree, inUse bool) {
	t.class++
	if isFree {
		t.free++
	}
	if inUse {
		t.inUse++
	}
}

// groupOf tells the group of a device, and whether it has what the scopes are about.
func (a *attempt) groupOf(p *pool, d *device, seen *glance) (group, bool) {
	if a.gang == v1alpha1.GangNVSwitchDomain && seen.domain == nil {
		return group{}, false
	}
	switch a.member {
	case v1alpha1.MemberNVSwitchDomain:
		if seen.domain == nil {
			return group{}, false
		}
		return group{pool: p, value: seen.domain.name}, true
	case v1alpha1.MemberNUMANode:
		return group{pool: p, numa: seen.numa}, seen.numa >= 0
	case v1alpha1.MemberPCIeRoot:
		return group{pool: p, value: d.pcie}, d.pcie != ""
	default:
		return group{pool: p}, true
	}
}

func (b *siteBuilder) domain(d *domain) int {
	for i := range b.onNode {
		if b.onNode[i].domain == d {
			return i
		}
	}
	b.onNode = append(b.onNode, siteDomain{domain: d})
	return len(b.onNode) - 1
}

func (b *siteBuilder) group(g group) int {
	for i := range b.groups {
		if k := &b.groups[i]; k.pool == g.pool && k.value == g.value && k.numa == g.numa {
			k.total++
			return i
		}
	}
	g.total = 1
	b.groups = append(b.groups, g)
	return len(b.groups) - 1
}

func (b *siteBuilder) atom(group, domain int, numa int64) *atom {
	for i := range b.all {
		if at := &b.all[i]; at.group == group && at.domain == domain && at.numa == numa {
			return at
		}
	}
	if len(b.all) == cap(b.all) {
		b.all = append(b.all, atom{})
	} else { // Keep the lists of devices that an earlier node left.
		b.all = b.all[:len(b.all)+1]
	}
	at := &b.all[len(b.all)-1]
	at.group, at.domain, at.numa = group, domain, numa
	at.free, at.busy, at.prices = at.free[:0], at.busy[:0], at.prices[:0]
	return at
}

// largest is how many devices the largest group has.
func (b *siteBuilder) largest() int {
	most := 0
	for i := range b.groups {
		most = max(most, b.groups[i].total)
	}
	return most
}

// restrict leaves the groups that have devices for a member, of one domain if one is given.
func (b *siteBuilder) restrict(a *attempt, only *domain) {
	wanted := func(at *atom) bool { return only == nil || b.onNode[at.domain].domain == only }
	for i := range b.groups {
		b.groups[i].total = 0
	}
	for i := range b.all {
		if at := &b.all[i]; wanted(at) {
			b.groups[at.group].total += len(at.free) + len(at.busy)
		}
	}
	b.places = b.places[:0]
	for range b.onNode {
		b.places = append(b.places, 0)
	}
	b.atoms, b.domains = b.atoms[:0], b.domains[:0]
	for i := range b.all {
		at := b.all[i]
		if !wanted(&at) || b.groups[at.group].total < a.request.perMember {
			continue
		}
		if b.places[at.domain] == 0 {
			b.domains = append(b.domains, b.onNode[at.domain])
			b.places[at.domain] = len(b.domains)
		}
		at.domain = b.places[at.domain] - 1
		b.atoms = append(b.atoms, at)
	}
	slices.SortStableFunc(b.atoms, func(x, y atom) int { return x.group - y.group })
}

// appendKey appends what matters of the site, to find its shape by.
func (b *siteBuilder) appendKey(key []byte, limit int) []byte {
	number := func(n int) { key = binary.AppendUvarint(key, uint64(n)) }
	number(limit)
	number(len(b.atoms))
	for i := range b.atoms {
		at := &b.atoms[i]
		number(at.group)
		number(at.domain)
		number(b.numaIndex(i))
		number(len(at.free))
		number(len(at.busy))
		for _, p := range at.prices {
			number(p.Pods)
			number(p.Rank)
			number(p.Work)
		}
	}
	for i := range b.domains {
		whole := 0
		if b.domains[i].whole() {
			whole = 1
		}
		number(int(b.domains[i].free))
		number(whole)
	}
	return key
}

// numaIndex numbers the NUMA nodes of the site by their first atom.
func (b *siteBuilder) numaIndex(atom int) int {
	for i := range atom {
		if b.atoms[i].numa == b.atoms[atom].numa {
			return i
		}
	}
	return atom
}
