// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"encoding/binary"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// site is a part of a node that members may be placed on: all of its devices, or, where the gang has to
// be in one domain, those of a domain.
type site struct {
	node    *node
	room    int // members, by CPU, memory and so on
	atoms   []atom
	domains []siteDomain
	shape   *shape
}

// atom are devices between which there is nothing to choose, in the allocator's order.
type atom struct {
	group      int
	domain     int // in site.domains
	numa       int64
	free, busy []*device
}

// siteDomain is a domain as far as it is at the site.
type siteDomain struct {
	*domain
	free  int
	inUse int
}

// tally counts the devices of a domain, at all nodes.
type tally struct {
	attempt int64 // which attempt the rest belongs to
	class   int   // devices of the class
	free    int   // devices that the gang may have
	inUse   int   // devices that others have
	sites   int
	unknown bool // some of the domain may not be listed
	planned int
}

// availability is what a device is to a gang.
type availability int

const (
	useless availability = iota
	free
	busy // useful once someone else gives it back
)

// attempt is one try to place a gang: which devices count, and what was found.
type attempt struct {
	*Cluster
	request *request
	member  v1alpha1.MemberScope
	gang    v1alpha1.GangScope
	// evict counts devices as useful that others have, and nodes that others fill.
	evict bool
	// pastEarmarks lets the gang have what gangs before it wait for.
	pastEarmarks bool
	// anyNode looks at devices only, not at whether the pods fit their nodes.
	anyNode bool

	// avoid are nodes on which the allocator disagreed.
	avoid map[*node]bool

	// largest is the largest number of devices that could ever serve one member.
	largest int

	number int64
	sites  []*site
	shapes map[string]*shape
	// vectors numbers lists of options that are equal.
	vectors map[string]int
	scratch siteBuilder
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
	for _, name := range a.nodeNames {
		if n := a.nodes[name]; len(n.pools) > 0 && !a.avoid[n] {
			a.gatherNode(n)
		}
	}
	for _, s := range a.sites {
		for i := range s.domains {
			a.tallyOf(s.domains[i].domain).sites++
		}
	}
	for _, s := range a.sites {
		s.shape = a.shapeOf(s)
	}
}

func (a *attempt) gatherNode(n *node) {
	b := &a.scratch
	b.reset(a)
	for _, p := range n.pools {
		if p.complete {
			a.gatherPool(n, p)
			continue
		}
		for _, d := range p.devices {
			if d.domain != nil {
				a.tallyOf(d.domain).unknown = true
			}
		}
	}
	a.largest = max(a.largest, b.largest())
	if b.largest() < a.request.perMember || !a.allows(n) {
		return
	}
	room := a.request.members
	if !a.anyNode {
		room = min(room, n.room(a.request.needs, a.evict))
	}
	if room == 0 {
		return
	}
	if a.gang != v1alpha1.GangNVSwitchDomain {
		a.sites = append(a.sites, b.site(n, room, -1))
		return
	}
	for i := range b.domains {
		if a.request.domain != "" && a.request.domain != b.domains[i].name {
			continue
		}
		if s := b.site(n, room, i); s != nil {
			a.sites = append(a.sites, s)
		}
	}
}

// gatherPool collects the devices of a pool.
func (a *attempt) gatherPool(n *node, p *pool) {
	left := p.countersLeft()
	for _, s := range p.current {
		matches := a.request.view.matches[s]
		if matches == nil {
			continue // The evaluation was interrupted.
		}
		for i, d := range s.devices {
			if matches.class[i] {
				a.scratch.add(n, p, d, a.availability(d, matches.all[i], left))
			}
		}
	}
}

// allows reports whether the gang may use the node at all.
func (a *attempt) allows(n *node) bool {
	if a.gang == v1alpha1.GangNode && a.request.node != "" && a.request.node != n.name {
		return false
	}
	return a.anyNode || n.suits(a.request.needs) == ""
}

func (a *attempt) availability(d *device, selected bool, left counters) availability {
	r := a.request
	if !selected || d.unplannable || d.attrID == "" {
		return useless
	}
	if r.only != nil && !r.only[d.id] {
		return useless
	}
	tainted, fenced := d.tainted(r.tolerations)
	switch {
	case tainted && !fenced:
		return useless
	case fenced, d.planned, d.earmarked != nil && !a.pastEarmarks, d.use.taken(r.uid):
		return busy
	case left != nil && !left.take(d):
		return busy
	default:
		return free
	}
}

// key appends what matters of the site, for finding its shape.
func (s *site) key(key []byte, limit int) []byte {
	number := func(n int) { key = binary.AppendUvarint(key, uint64(n)) }
	number(limit)
	number(len(s.atoms))
	for i := range s.atoms {
		number(s.atoms[i].group)
		number(s.atoms[i].domain)
		number(s.numaIndex(i))
		number(len(s.atoms[i].free))
		number(len(s.atoms[i].busy))
	}
	for i := range s.domains {
		number(s.domains[i].free)
		if s.domains[i].whole() {
			number(1)
		} else {
			number(0)
		}
	}
	return key
}

// numaIndex numbers the NUMA nodes of the site by their first atom.
func (s *site) numaIndex(atom int) int {
	for i := range atom {
		if s.atoms[i].numa == s.atoms[atom].numa {
			return i
		}
	}
	return atom
}

func (d *siteDomain) whole() bool { return d.name != "" && d.inUse == 0 }

func (a *attempt) shapeOf(s *site) *shape {
	total := 0
	for i := range s.atoms {
		total += len(s.atoms[i].free) + len(s.atoms[i].busy)
	}
	limit := min(s.room, total/a.request.perMember)
	key := string(s.key(nil, limit))
	if known := a.shapes[key]; known != nil {
		return known
	}
	sh := &shape{perMember: a.request.perMember, limit: limit}
	for i, at := range s.atoms {
		sh.atoms = append(sh.atoms, atomShape{at.group, at.domain, s.numaIndex(i), len(at.free), len(at.busy)})
	}
	for i := range s.domains {
		sh.domains = append(sh.domains, domainShape{s.domains[i].free, s.domains[i].whole()})
	}
	sh.solve()
	sh.kind = a.kindOf(sh.options)
	a.shapes[key] = sh
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
		for _, n := range []int{o.score.evictions, o.score.broken, o.score.leftover, o.score.domains, o.score.crossings} {
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
