// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"slices"
)

// maxChoices is how many choices of devices on one node are compared. More are possible only where a
// node has many devices that share next to nothing; there a simple rule decides.
const maxChoices = 20_000

// shape is what matters of a site when members are placed on it. Most nodes of a cluster have one of a
// few shapes, so that what is computed for one serves all.
type shape struct {
	perMember int
	limit     int // members
	atoms     []atomShape
	domains   []domainShape

	// options[m] is the best choice for m members, counts[m] how many devices of each atom it takes.
	options []option
	counts  [][]int
	kind    int
}

// atomShape are devices between which there is nothing to choose: of one group, one domain and one
// NUMA node.
type atomShape struct {
	group, domain, numa int
	free, busy          int
	prices              []Price // of the busy ones, the cheapest first; none where each is one eviction
}

// domainShape is a domain as far as it is at the site.
type domainShape struct {
	free  int
	whole bool
}

// solve computes the options.
func (s *shape) solve() {
	s.options = make([]option, s.limit+1)
	s.counts = make([][]int, s.limit+1)
	s.options[0].possible = true
	choices := 1
	for _, a := range s.atoms {
		choices *= a.free + a.busy + 1
		if choices > maxChoices {
			s.approximate()
			return
		}
	}
	s.enumerate(0, 0, 0, make([]int, len(s.atoms)))
}

// enumerate goes through all choices in which each group gives devices for a whole number of members,
// those first that take the first devices.
func (s *shape) enumerate(at, inGroup, total int, counts []int) {
	if at > 0 && (at == len(s.atoms) || s.atoms[at].group != s.atoms[at-1].group) {
		if inGroup%s.perMember != 0 {
			return
		}
		inGroup = 0
	}
	if at == len(s.atoms) {
		s.offer(total/s.perMember, counts)
		return
	}
	most := min(s.atoms[at].free+s.atoms[at].busy, s.limit*s.perMember-total)
	for n := most; n >= 0; n-- {
		counts[at] = n
		s.enumerate(at+1, inGroup+n, total+n, counts)
	}
	counts[at] = 0
}

// offer keeps a choice if it is the best so far for its number of members.
func (s *shape) offer(members int, counts []int) {
	if members == 0 {
		return
	}
	o := option{true, s.score(counts)}
	if o.better(s.options[members]) {
		s.options[members] = o
		s.counts[members] = slices.Clone(counts)
	}
}

// score rates a choice.
func (s *shape) score(counts []int) score {
	var result score
	for d := range s.domains {
		planned := 0
		for i, a := range s.atoms {
			if a.domain == d {
				planned += counts[i]
			}
		}
		result.touch(planned, s.domains[d].free, s.domains[d].whole)
	}
	for i, a := range s.atoms {
		result.evict(a.prices, max(counts[i]-a.free, 0))
	}
	result.crossings = s.crossings(counts)
	return result
}

// crossings counts the members whose devices are at several NUMA nodes: members take devices in their
// order, group by group, as the allocator goes.
func (s *shape) crossings(counts []int) int {
	crossing, have, numa, crosses := 0, 0, 0, false
	for i, a := range s.atoms {
		for left := counts[i]; left > 0; {
			if have == 0 {
				numa, crosses = a.numa, false
			}
			crosses = crosses || a.numa != numa
			take := min(left, s.perMember-have)
			have += take
			left -= take
			if have == s.perMember {
				have = 0
				if crosses {
					crossing++
				}
			}
		}
	}
	return crossing
}

// approximate finds a good choice for each number of members without comparing all: groups that need no
// eviction and break no domain first, then the tightest.
func (s *shape) approximate() {
	type group struct {
		atoms        []int
		free, room   int
		breaksDomain bool
	}
	var groups []group
	for i, a := range s.atoms {
		if i == 0 || a.group != s.atoms[i-1].group {
			groups = append(groups, group{})
		}
		g := &groups[len(groups)-1]
		g.atoms = append(g.atoms, i)
		g.free += a.free
		g.room += a.free + a.busy
		g.breaksDomain = g.breaksDomain || s.domains[a.domain].whole
	}
	slices.SortStableFunc(groups, func(a, b group) int {
		if a.breaksDomain != b.breaksDomain {
			if a.breaksDomain {
				return 1
			}
			return -1
		}
		return a.free - b.free
	})
	counts := make([]int, len(s.atoms))
	members := 0
	take := func(g group, room func(group) int, have func(atomShape) int) {
		for members < s.limit && room(g)-taken(counts, g.atoms) >= s.perMember {
			left := s.perMember
			for _, i := range g.atoms {
				n := min(left, max(have(s.atoms[i])-counts[i], 0))
				counts[i] += n
				left -= n
			}
			members++
			s.offer(members, counts)
		}
	}
	for _, g := range groups {
		take(g, func(g group) int { return g.free }, func(a atomShape) int { return a.free })
	}
	for _, g := range groups {
		take(g, func(g group) int { return g.room }, func(a atomShape) int { return a.free + a.busy })
	}
}

func taken(counts, atoms []int) int {
	sum := 0
	for _, i := range atoms {
		sum += counts[i]
	}
	return sum
}
