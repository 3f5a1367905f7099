// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"encoding/binary"
	"slices"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// site is a part of a node that members may be placed on: all of its devices, or, where the gang has to
// be in one domain, those of a domain. Its devices are looked up again when it is chosen: most sites
// are not.
type site struct {
	node    *node
	only    *domain // nil for all
	room    int     // members, by CPU, memory and so on
	domains []siteDomain
	shape   *shape
}

// siteDomain is a domain as far as it is at the site.
type siteDomain struct {
	*domain
	free  int32
	inUse int32
}

func (d *siteDomain) whole() bool { return d.name != "" && d.inUse == 0 }

// tally counts the devices of a domain, at all nodes.
type tally struct {
	attempt int64 // which attempt the rest belongs to
	class   int32 // devices of the class
	free    int32 // devices that the gang may have
	inUse   int32 // devices that others have
	sites   int32
	planned int32
	unknown bool // some of the domain may not be listed
}

// availability is what a device is to a gang.
type availability int

const (
	useless availability = iota
	free
	busy // useful once someone else gives it back
	// barred is busy too, and would be of no use then, as another device is that shares its counters.
	barred
)

// attempt is one try to place a gang: which devices count, and what was found.
type attempt struct {
	*Cluster
	request *request
	member  v1alpha1.MemberScope
	gang    v1alpha1.GangScope
	// evict counts devices as useful that others have, and nodes that others fill.
	evict bool
	// room, where not nil, leaves of those the devices whose pods may be moved, at their price.
	room *Room
	// pastEarmarks lets the gang have what gangs before it wait for.
	pastEarmarks bool
	// anyNode looks at devices only, not at whether the pods fit their nodes.
	anyNode bool

	// avoid are nodes on which the allocator disagreed.
	avoid map[*node]bool

	// largest is the largest number of devices that could ever serve one member.
	largest int

	number int64
	shapes map[string]*shape
	// vectors numbers lists of options that are equal.
	vectors map[string]int
	*workspace
}

// tallyOf returns the domain's tally of this attempt.
func (a *attempt) tallyOf(d *domain) *tally {
	if d.tally.attempt != a.number {
		d.tally = tally{attempt: a.number}
	}
	return &d.tally
}

// gather finds the sites.
func (a *attempt) gather() {
	a.attempts++
	a.number = a.attempts
	a.shapes = map[string]*shape{}
	a.vectors = map[string]int{}
	for _, n := range a.sortedNodes {
		if len(n.pools) > 0 {
			a.gatherNode(n) // also one that is avoided: it counts for the domains that it shares with others
		}
	}
	for i := range a.sites {
		for j := range a.sites[i].domains {
			a.tallyOf(a.sites[i].domains[j].domain).sites++
		}
	}
}

func (a *attempt) gatherNode(n *node) {
	b := &a.scratch
	b.collect(a, n, true)
	a.largest = max(a.largest, b.largest())
	if b.largest() < a.request.perMember || !a.allows(n) {
		return
	}
	room := a.request.members
	if !a.anyNode {
		room = min(room, a.roomOn(n))
	}
	if room == 0 {
		return
	}
	if a.gang != v1alpha1.GangNVSwitchDomain {
		a.addSite(site{node: n, room: room})
		return
	}
	for i := range b.onNode {
		if d := b.onNode[i].domain; a.request.domain == "" || a.request.domain == d.name {
			a.addSite(site{node: n, room: room, only: d})
		}
	}
}

// roomOn is how many members the node has room for.
func (a *attempt) roomOn(n *node) int {
	if a.room == nil {
		return n.room(a.request.needs, a.promised[n.name], a.evict)
	}
	return n.room(a.request.needs, a.room.promisedWithout(n), false)
}

// addSite adds a site of the node that was collected, if it has devices for a member.
func (a *attempt) addSite(s site) {
	b := &a.scratch
	b.restrict(a, s.only)
	if len(b.atoms) == 0 {
		return
	}
	start := len(a.domainsOfSites)
	a.domainsOfSites = append(a.domainsOfSites, b.domains...)
	s.domains = a.domainsOfSites[start:len(a.domainsOfSites):len(a.domainsOfSites)]
	s.shape = a.shapeOf(b, s.room)
	a.sites = append(a.sites, s)
}

// devices looks up the devices of a site that was chosen.
func (a *attempt) devicesOf(s *site) []atom {
	b := &siteBuilder{}
	b.collect(a, s.node, false)
	b.restrict(a, s.only)
	return b.atoms
}

// allows reports whether the gang may use the node at all.
func (a *attempt) allows(n *node) bool {
	if a.avoid[n] || a.gang == v1alpha1.GangNode && a.request.node != "" && a.request.node != n.name {
		return false
	}
	return a.anyNode || n.suits(a.request.needs) == ""
}

// takes reports whether the use of a device keeps the gang from it.
func (a *attempt) takes(u *use) bool {
	return u.planned || u.earmarked != nil && u.earmarked != a.request.claim && !a.pastEarmarks || u.taken(a.request.uid)
}

// availability is what a device of a slice is to the gang.
func (a *attempt) availability(s *slice, i int, selected bool, left counters) availability {
	r, seen := a.request, &s.glances[i]
	// A node that publishes the ids of others, as one with a new name does, takes no more than these.
	if repeated := r.view.ofClass().repeated; len(repeated) > 0 && repeated[s.devices[i].attrID] {
		return useless
	}
	if selected && !seen.particular && r.only == nil {
		if seen.allocated {
			return busy
		}
		return free
	}
	d := s.devices[i]
	if !selected || d.unplannable || d.attrID == "" || len(d.api.ConsumesCounters) > 0 && (left == nil || a.crowded(d)) {
		return useless // without left: of counters that its pool does not have
	}
	if r.only != nil && !r.only[d.id] {
		return useless
	}
	tainted, fenced := d.tainted(r.tolerations)
	switch {
	case tainted && !fenced:
		return useless
	case fenced, a.takes(d.use):
		return busy
	case left != nil && !left.take(d):
		return busy
	default:
		return free
	}
}

// shapeOf returns the shape of what was collected.
func (a *attempt) shapeOf(b *siteBuilder, room int) *shape {
	total := 0
	for i := range b.atoms {
		total += len(b.atoms[i].free) + len(b.atoms[i].busy)
	}
	limit := min(room, total/a.request.perMember)
	b.key = b.appendKey(b.key[:0], limit)
	if known := a.shapes[string(b.key)]; known != nil {
		return known
	}
	sh := &shape{perMember: a.request.perMember, limit: limit}
	for i := range b.atoms {
		at := &b.atoms[i]
		sh.atoms = append(sh.atoms, atomShape{at.group, at.domain, b.numaIndex(i), len(at.free), len(at.busy), slices.Clone(at.prices)})
	}
	for i := range b.domains {
		sh.domains = append(sh.domains, domainShape{int(b.domains[i].free), b.domains[i].whole()})
	}
	sh.solve()
	sh.kind = a.kindOf(sh.options)
	a.shapes[string(b.key)] = sh
	return sh
}

// kindOf numbers lists of options: equal lists have equal numbers.
func (a *attempt) kindOf(options []option) int {
	var key []byte
	for _, o := range options {
		if !o.possible {
			key = append(key, 0)
			continue
		}
		key = append(key, 1)
		for _, n := range []int{o.score.evictions, o.score.rank, o.score.broken, o.score.leftover, o.score.domains, o.score.crossings, o.score.work} {
			key = binary.AppendUvarint(key, uint64(n))
		}
	}
	kind, known := a.vectors[string(key)]
	if !known {
		kind = len(a.vectors)
		a.vectors[string(key)] = kind
	}
	return kind
}
