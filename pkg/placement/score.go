// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import "cmp"

// score says how good a choice of devices is: less is better, field by field in this order. Between
// equal scores the first node and domain by name decide, so the same cluster gives the same plan.
type score struct {
	// evictions are planned devices that others have, or, where pods may be moved (Room), the pods that
	// have them. It is 0 in every plan without moves.
	evictions int
	// rank is how important the pods to be moved are, together.
	rank int
	// broken are whole domains of which some usable devices are planned and some are not: such a
	// domain no longer serves a gang that needs all of it.
	broken int
	// leftover are the usable devices that stay free in the domains of the plan: the tightest fit
	// leaves the fewest.
	leftover int
	// domains are those that the plan touches. Devices without one count as one domain per node.
	domains int
	// crossings are members whose devices are at more than one NUMA node.
	crossings int
	// work is what the pods to be moved would lose, together.
	work int
}

func (s score) compare(o score) int {
	return cmp.Or(
		cmp.Compare(s.evictions, o.evictions),
		cmp.Compare(s.rank, o.rank),
		cmp.Compare(s.broken, o.broken),
		cmp.Compare(s.leftover, o.leftover),
		cmp.Compare(s.domains, o.domains),
		cmp.Compare(s.crossings, o.crossings),
		cmp.Compare(s.work, o.work),
	)
}

func (s score) plus(o score) score {
	return score{
		evictions: s.evictions + o.evictions,
		rank:      s.rank + o.rank,
		broken:    s.broken + o.broken,
		leftover:  s.leftover + o.leftover,
		domains:   s.domains + o.domains,
		crossings: s.crossings + o.crossings,
		work:      s.work + o.work,
	}
}

// touch adds what it does to a domain to plan some of its free devices.
func (s *score) touch(planned, free int, whole bool) {
	if planned == 0 {
		return
	}
	s.domains++
	left := max(free-planned, 0)
	s.leftover += left
	if whole && left > 0 {
		s.broken++
	}
}

// evict adds the price of the first n busy devices of an atom.
func (s *score) evict(prices []Price, n int) {
	if len(prices) == 0 {
		s.evictions += n
		return
	}
	for _, p := range prices[:n] {
		s.evictions += p.Pods
		s.rank += p.Rank
		s.work += p.Work
	}
}

// option is what it costs to place a number of members, if that is possible.
type option struct {
	possible bool
	score    score
}

func (o option) better(than option) bool {
	return o.possible && (!than.possible || o.score.compare(than.score) < 0)
}
