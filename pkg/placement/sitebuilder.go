// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"slices"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// siteBuilder collects the devices of one node. It is used again for the next, so that nodes without a
// place cost no memory.
type siteBuilder struct {
	attempt *attempt
	groups  []group
	atoms   []builtAtom
	domains []siteDomain
}

// group are devices that may serve one member together: of one pool and one value of the member's scope.
type group struct {
	pool  *pool
	value string
	numa  int64
	total int
}

type builtAtom struct {
	group, domain int
	numa          int64
	free, busy    []*device
}

func (b *siteBuilder) reset(a *attempt) {
	b.attempt = a
	b.groups, b.domains = b.groups[:0], b.domains[:0]
	b.atoms = b.atoms[:0]
}

// add counts a device of the class.
func (b *siteBuilder) add(n *node, p *pool, d *device, state availability) {
	dom := d.domain
	if dom == nil {
		dom = &n.loose
	}
	t := b.attempt.tallyOf(dom)
	t.class++
	at := b.domain(dom)
	switch {
	case state == free:
		t.free++
		b.domains[at].free++
	case state == busy || len(d.use.claims) > 0:
		t.inUse++
		b.domains[at].inUse++
	}
	if state == useless || state == busy && !b.attempt.evict {
		return
	}
	g := group{pool: p, numa: -1}
	switch b.attempt.member {
	case v1alpha1.MemberNVSwitchDomain:
		if d.domain == nil {
			return
		}
		g.value = d.domain.name
	case v1alpha1.MemberNUMANode:
		if d.numa < 0 {
			return
		}
		g.numa = d.numa
	case v1alpha1.MemberPCIeRoot:
		if d.pcie == "" {
			return
		}
		g.value = d.pcie
	}
	if b.attempt.gang == v1alpha1.GangNVSwitchDomain && d.domain == nil {
		return
	}
	atom := b.atom(b.group(g), at, d.numa)
	if state == free {
		atom.free = append(atom.free, d)
	} else {
		atom.busy = append(atom.busy, d)
	}
}

func (b *siteBuilder) domain(d *domain) int {
	for i := range b.domains {
		if b.domains[i].domain == d {
			return i
		}
	}
	b.domains = append(b.domains, siteDomain{domain: d})
	return len(b.domains) - 1
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

func (b *siteBuilder) atom(group, domain int, numa int64) *builtAtom {
	for i := range b.atoms {
		if at := &b.atoms[i]; at.group == group && at.domain == domain && at.numa == numa {
			return at
		}
	}
	if len(b.atoms) < cap(b.atoms) { // Keep the lists of devices that an earlier node left.
		b.atoms = b.atoms[:len(b.atoms)+1]
		at := &b.atoms[len(b.atoms)-1]
		at.group, at.domain, at.numa = group, domain, numa
		at.free, at.busy = at.free[:0], at.busy[:0]
		return at
	}
	b.atoms = append(b.atoms, builtAtom{group: group, domain: domain, numa: numa})
	return &b.atoms[len(b.atoms)-1]
}

// largest is how many devices the largest group has.
func (b *siteBuilder) largest() int {
	most := 0
	for i := range b.groups {
		most = max(most, b.groups[i].total)
	}
	return most
}

// site copies what was collected, of one domain if that is not negative; nil when no group has devices
// for a member.
func (b *siteBuilder) site(n *node, room, domain int) *site {
	s := &site{node: n, room: room}
	wanted := func(at *builtAtom) bool { return domain < 0 || at.domain == domain }
	totals := make([]int, len(b.groups))
	for i := range b.atoms {
		if at := &b.atoms[i]; wanted(at) {
			totals[at.group] += len(at.free) + len(at.busy)
		}
	}
	position := make([]int, len(b.domains)) // in s.domains, from 1
	for i := range b.atoms {
		at := &b.atoms[i]
		if !wanted(at) || totals[at.group] < b.attempt.request.perMember {
			continue
		}
		if position[at.domain] == 0 {
			s.domains = append(s.domains, b.domains[at.domain])
			position[at.domain] = len(s.domains)
		}
		s.atoms = append(s.atoms, atom{
			group: at.group, domain: position[at.domain] - 1, numa: at.numa,
			free: slices.Clone(at.free), busy: slices.Clone(at.busy),
		})
	}
	if len(s.atoms) == 0 {
		return nil
	}
	slices.SortStableFunc(s.atoms, func(a, b atom) int { return a.group - b.group })
	return s
}
