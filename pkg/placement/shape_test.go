// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func randomShape(r *rand.Rand) *shape {
	s := &shape{perMember: 1 + r.IntN(3)}
	groups := 1 + r.IntN(3)
	total := 0
	for g := range groups {
		for range 1 + r.IntN(2) {
			a := atomShape{group: g, domain: r.IntN(2), numa: r.IntN(2), free: r.IntN(4), busy: r.IntN(2)}
			s.atoms = append(s.atoms, a)
			total += a.free + a.busy
		}
	}
	s.domains = []domainShape{{free: 1 + r.IntN(8), whole: r.IntN(2) == 0}, {free: 1 + r.IntN(8)}}
	s.limit = max(min(total/s.perMember, 4), 1)
	return s
}

// valid reports whether counts give each member devices of one group.
func (s *shape) valid(members int, counts []int) bool {
	inGroup := map[int]int{}
	total := 0
	for i, n := range counts {
		if n > s.atoms[i].free+s.atoms[i].busy {
			return false
		}
		inGroup[s.atoms[i].group] += n
		total += n
	}
	for _, n := range inGroup {
		if n%s.perMember != 0 {
			return false
		}
	}
	return total == members*s.perMember
}

func TestTheSimpleRuleFindsValidChoicesNoBetterThanTheBest(t *testing.T) {
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 3))
		exact := randomShape(r)
		simple := *exact
		exact.solve()
		simple.options, simple.counts = make([]option, simple.limit+1), make([][]int, simple.limit+1)
		simple.approximate()
		for m := 1; m <= exact.limit; m++ {
			if exact.options[m].possible && !exact.valid(m, exact.counts[m]) {
				t.Fatalf("seed %d: %d members on %v", seed, m, exact.counts[m])
			}
			if !simple.options[m].possible {
				continue
			}
			if !simple.valid(m, simple.counts[m]) {
				t.Fatalf("seed %d: the simple rule puts %d members on %v", seed, m, simple.counts[m])
			}
			if simple.options[m].better(exact.options[m]) {
				t.Fatalf("seed %d: %d members: %+v is better than the best, %+v", seed, m, simple.options[m], exact.options[m])
			}
		}
	}
}

func TestManyRootsTakeTheSimpleRule(t *testing.T) {
	s := &shape{perMember: 1, limit: 16, domains: []domainShape{{free: 16}}}
	for g := range 16 {
		s.atoms = append(s.atoms, atomShape{group: g, free: 1, busy: 1})
	}
	s.solve()
	for m := 1; m <= 16; m++ {
		if o := s.options[m]; !o.possible || o.score.evictions != 0 {
			t.Errorf("%d members: %+v", m, o)
		}
	}
}

// best tries all ways to give members to the items.
func bestOf(items []item, members int) option {
	if len(items) == 0 {
		return option{possible: members == 0}
	}
	var found option
	for take := range min(len(items[0].options)-1, members) + 1 {
		rest := bestOf(items[1:], members-take)
		if o := items[0].options[take]; o.possible && rest.possible {
			if sum := (option{true, o.score.plus(rest.score)}); sum.better(found) {
				found = sum
			}
		}
	}
	return found
}

func TestFillIsExact(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 4))
		var items []item
		for kind := range 1 + r.IntN(3) {
			options := []option{{possible: true}}
			for range r.IntN(4) {
				options = append(options, option{r.IntN(4) > 0, score{evictions: r.IntN(2), broken: r.IntN(2), leftover: r.IntN(5), domains: 1, crossings: r.IntN(2)}})
			}
			for range 1 + r.IntN(3) {
				items = append(items, item{options, kind})
			}
		}
		const members = 7
		f := fill(members, items)
		for m := range members + 1 {
			want := bestOf(items, m)
			if f.best[m] != want {
				t.Fatalf("seed %d: %d members cost %+v, want %+v", seed, m, f.best[m], want)
			}
			if !want.possible {
				continue
			}
			var sum score
			takes := f.members(m)
			for i, take := range takes {
				sum = sum.plus(items[i].options[take].score)
			}
			if sum != want.score {
				t.Fatalf("seed %d: %d members as %v cost %+v, want %+v", seed, m, takes, sum, want.score)
			}
		}
		if most := f.most(); slices.ContainsFunc(f.best[most+1:], func(o option) bool { return o.possible }) {
			t.Fatalf("seed %d: more than %d members have a place", seed, most)
		}
	}
}
