// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"math"
	"math/bits"
)

// limits bounds the exact search.
type limits struct {
	// steps is the number of partial sets that may be looked at.
	steps int
	// states is the number of sub-problems that may be remembered.
	states int
}

// limitsFor returns the limits for a graph of n vertices. Up to 16 they cannot
// be reached: such a graph has 2^16 subsets, and the search visits fewer than
// 3^16 (about 2^25.4) partial sets, as a rule far fewer (BenchmarkDomains).
// Above, they keep the time under a second and the memory under 20 MiB.
func limitsFor(n int) limits {
	if n <= 16 {
		return limits{steps: 1 << 26, states: 1 << 16}
	}
	return limits{steps: 1 << 23, states: 1 << 17}
}

// setBits is the room below the links in a score for the number of sets, so
// that one comparison puts more links first and then fewer sets.
const setBits = 8

// search finds the best partition of a weighted graph into cliques: dynamic
// programming over the sets of vertices that are not yet placed, with a bound.
type search struct {
	w         [][]int64
	adjacent  []uint64
	memo      map[uint64]solution
	limits    limits
	steps     int
	exhausted bool
}

// solution is the best partition of a set: its score and its first set, the
// one that holds the smallest vertex.
type solution struct {
	score int64
	first uint64
}

// searchPartition returns the cliques of the best partition of the graph with
// symmetric weights w (0: not adjacent), the one with the smallest vertex
// first. It reports false if the limits were reached.
func searchPartition(w [][]int64, l limits) ([]uint64, bool) {
	s := &search{w: w, adjacent: adjacency(w), memo: map[uint64]solution{}, limits: l}
	all := uint64(1)<<len(w) - 1 // also right for 64: 1<<64 is 0 in Go
	s.best(all)
	if s.exhausted {
		return nil, false
	}
	var cliques []uint64
	for rest := all; rest != 0; {
		first := s.memo[rest].first
		cliques = append(cliques, first)
		rest &^= first
	}
	return cliques, true
}

// adjacency returns each vertex's neighbours.
func adjacency(w [][]int64) []uint64 {
	adjacent := make([]uint64, len(w))
	for v, row := range w {
		for u, weight := range row {
			if weight > 0 {
				adjacent[v] |= 1 << u
			}
		}
	}
	return adjacent
}

// weightTo returns the weight between v and the vertices of set.
func (s *search) weightTo(v int, set uint64) int64 {
	var sum int64
	for set &= s.adjacent[v]; set != 0; set &= set - 1 {
		sum += s.w[v][bits.TrailingZeros64(set)]
	}
	return sum
}

// best returns the score of the best partition of set.
func (s *search) best(set uint64) int64 {
	if set == 0 || s.exhausted {
		return 0
	}
	if found, ok := s.memo[set]; ok {
		return found.score
	}
	if len(s.memo) >= s.limits.states {
		s.exhausted = true
		return 0
	}
	var total int64
	for rest := set; rest != 0; rest &= rest - 1 {
		total += s.weightTo(bits.TrailingZeros64(rest), rest)
	}
	smallest := bits.TrailingZeros64(set)
	clique := uint64(1) << smallest
	candidates := set & s.adjacent[smallest]
	f := frame{search: s, set: set, total: total, best: solution{score: math.MinInt64}}
	f.extend(clique, candidates, 0, 0)
	s.memo[set] = f.best
	return f.best.score
}

// frame is the enumeration of the cliques that hold the smallest vertex of set.
type frame struct {
	*search
	set   uint64
	total int64 // weight of all edges in set
	best  solution
}

// extend looks at every clique that contains clique and otherwise only
// candidates, all of which are adjacent to all of clique. inner is the weight
// inside clique, lost that between clique and the vertices already ruled out.
//
// A clique with the next candidate is looked at before one without it. This is
// the order in which Domains prefers equally good partitions, so the first of
// the best is the one to keep.
func (f *frame) extend(clique, candidates uint64, inner, lost int64) {
	f.steps++
	if f.steps > f.limits.steps {
		f.exhausted = true
	}
	if f.exhausted || (f.total-lost)<<setBits-1 <= f.best.score {
		return
	}
	if candidates == 0 {
		score := inner<<setBits - 1 + f.search.best(f.set&^clique)
		if score > f.best.score && !f.exhausted {
			f.best = solution{score: score, first: clique}
		}
		return
	}
	next := bits.TrailingZeros64(candidates)
	bit := uint64(1) << next
	gain := f.weightTo(next, clique)

	remaining := candidates & f.adjacent[next]
	lostWith := lost + f.weightTo(next, f.set&^clique&^candidates)
	for out := candidates &^ remaining &^ bit; out != 0; out &= out - 1 {
		lostWith += f.weightTo(bits.TrailingZeros64(out), clique)
	}
	f.extend(clique|bit, remaining, inner+gain, lostWith)
	f.extend(clique, candidates&^bit, inner, lost+gain)
}

// mergeGreedily returns a partition of the graph into cliques: starting from
// single vertices, it merges the two sets with the most weight between them
// whose union is a clique, the pair with the smallest vertices first among
// equals, until no two can be merged.
func mergeGreedily(w [][]int64) []uint64 {
	s := &search{w: w, adjacent: adjacency(w)}
	sets := make([]uint64, len(w))
	for v := range sets {
		sets[v] = 1 << v
	}
	for {
		var most int64
		var into, from int
		for i := range sets {
			for j := i + 1; j < len(sets); j++ {
				if weight, ok := s.between(sets[i], sets[j]); ok && weight > most {
					most, into, from = weight, i, j
				}
			}
		}
		if most == 0 {
			return sets
		}
		sets[into] |= sets[from]
		sets = append(sets[:from], sets[from+1:]...)
	}
}

// between returns the weight between two cliques, and whether their union is a
// clique.
func (s *search) between(a, b uint64) (int64, bool) {
	var sum int64
	for ; a != 0; a &= a - 1 {
		v := bits.TrailingZeros64(a)
		if b&^s.adjacent[v] != 0 {
			return 0, false
		}
		sum += s.weightTo(v, b)
	}
	return sum, true
}
