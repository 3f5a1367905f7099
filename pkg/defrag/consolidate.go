// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package defrag

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/demand"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// DefaultConsolidationMoves is how many pods are moved to make one domain whole, where nobody has set another number.
const DefaultConsolidationMoves = 4

// Consolidation is what is worth moving while no gang waits: the pods of one domain, which is whole then.
type Consolidation struct {
	// Reason is ReasonMovesFound, ReasonNoMoves, ReasonGivenUp, or ReasonPlanning: the search is to be made again.
	Reason string
	// Message is for people.
	Message string
	// Domain is the NVSwitch domain that the moves make whole; empty when there are none.
	Domain string
	// Moves are the pods, and where each would find a place. kube-scheduler chooses by itself.
	Moves []v1alpha1.GangMove
	// Gain says by size how many gangs are runnable before and after, in the cluster. None becomes less.
	Gain []Gain
	// Mix is what was asked for, by which the gangs were weighed.
	Mix demand.Mix
	// Cost is what the moves cost together.
	Cost string
	// RuledOut are pods that are not to be moved, by reason.
	RuledOut []v1alpha1.GangRuledOut
}

// Gain is a number of gangs that need so many devices in one domain, and find them.
type Gain struct{ Size, Before, After int }

func (g Gain) more() int { return g.After - g.Before }

// Found says whether there is something to move.
func (c *Consolidation) Found() bool { return c.Reason == ReasonMovesFound }

// candidate is a domain that may be made whole.
type candidate struct {
	placement.Occupancy

	price placement.Price
	// gain is by size, and value what it is worth: of the domain alone, which is the most that it can be, until the domain
	// was tried.
	gain  []Gain
	value int
	// moves are known then.
	moves []placement.Destination
}

// state is what the domains of the cluster have free, and what that is worth.
type state struct {
	free     map[string]int    // by domain
	products map[string]string // by domain
	weights  demand.Weights
}

func newState(domains []placement.Occupancy, mix demand.Mix) *state {
	s := &state{free: map[string]int{}, products: map[string]string{}}
	var places []demand.Place
	for _, o := range domains {
		s.free[o.Domain], s.products[o.Domain] = o.Free, o.Product
		places = append(places, demand.Place{Product: o.Product, Free: o.Free, Total: o.Free + o.Freed})
	}
	s.weights = mix.Weights(places)
	return s
}

// Consolidate finds the domain that is worth making whole most: for each eviction the most gangs more that are runnable,
// by size weighed with what the mix says is asked for. All of its pods must be movable, at most so many, and each must have
// a place elsewhere, which breaks no whole domain; the number of runnable gangs of no size becomes less. Only pods that have
// opted in are moved. It ends with ReasonPlanning when ctx ends or pods change meanwhile.
func (m *Maker) Consolidate(ctx context.Context, cluster *placement.Cluster, most int, mix demand.Mix) *Consolidation {
	q := m.inquire(placement.Gang{})
	domains := cluster.Occupancies()
	s := newState(domains, mix)
	candidates := q.candidates(domains, s, min(most, MaxMoves))
	var best *candidate
	for i := range candidates[:min(len(candidates), tries)] {
		c := &candidates[i]
		if best != nil && best.compareGain(c) >= 0 {
			break // what follows gains no more
		}
		obstacle := q.try(ctx, cluster, c, s)
		switch {
		case obstacle != nil && obstacle.Interrupted:
			return &Consolidation{Reason: ReasonPlanning, Message: obstacle.Why, RuledOut: q.summary(), Mix: mix}
		case obstacle == nil && worthwhile(c.gain) && (best == nil || best.compareGain(c) < 0):
			best = c
		}
	}
	var found *Consolidation
	if best == nil {
		found = q.nothing(len(candidates) > tries, most)
	} else {
		found = q.consolidation(best, mix)
	}
	found.Mix = mix
	return found
}

// try finds out where the pods of a domain would go, and what is gained by it.
func (q *inquiry) try(ctx context.Context, cluster *placement.Cluster, c *candidate, s *state) *placement.Obstacle {
	after := maps.Clone(s.free)
	moves, obstacle := cluster.Vacate(ctx, c.Occupancy, after, s.loss)
	if obstacle != nil {
		if v := obstacle.Victim; v != nil {
			q.ruledOut[v.Claim.UID] = ruledOut{verdict{NoPlaceElsewhere, "has nowhere to go: " + obstacle.Why}, nameOf(*v)}
		}
		return obstacle
	}
	after[c.Domain] += c.Freed
	c.moves, c.gain, c.value = moves, s.sizes(), 0
	for domain, before := range s.free {
		c.value += s.count(c.gain, domain, before, after[domain])
	}
	return nil
}

// nothing reports that nothing is worth moving.
func (q *inquiry) nothing(gaveUp bool, most int) *Consolidation {
	c := &Consolidation{Reason: ReasonNoMoves, RuledOut: q.summary()}
	c.Message = fmt.Sprintf("no domain can be made whole to an advantage by moving at most %s", count(most, "pod"))
	if gaveUp {
		c.Reason = ReasonGivenUp
		c.Message = fmt.Sprintf("%d domains were tried, and making one whole is no advantage", tries)
	}
	c.Message += ruledOutText(c.RuledOut)
	return c
}

// candidates are the domains all of whose pods may be moved, the most promising first.
func (q *inquiry) candidates(domains []placement.Occupancy, s *state, most int) []candidate {
	var list []candidate
	for _, o := range domains {
		c := candidate{Occupancy: o}
		if may := q.mayLeave(&c); !may || o.Unclear || len(o.Residents) == 0 || len(o.Residents) > most {
			continue
		}
		c.gain = s.sizes()
		c.value = s.count(c.gain, o.Domain, o.Free, o.Free+o.Freed)
		if worthwhile(c.gain) && !q.tooManyTogether(o.Residents) {
			list = append(list, c)
		}
	}
	slices.SortStableFunc(list, func(a, b candidate) int {
		return cmp.Or(-a.compareGain(&b), a.price.Compare(b.price))
	})
	return list
}

// mayLeave says whether all pods of the domain may be moved, and notes at what price.
func (q *inquiry) mayLeave(c *candidate) bool {
	may := true
	for _, r := range c.Residents {
		p, ok := q.pricing(r)
		may = may && ok
		c.price = c.price.Plus(p)
	}
	return may
}

// tooManyTogether says whether pods that may each be moved may not be at once.
func (q *inquiry) tooManyTogether(victims []placement.Resident) bool {
	if !q.together(victims) {
		return false
	}
	for _, r := range victims {
		if v, is := q.excluded[r.Claim.UID]; is {
			q.ruledOut[r.Claim.UID] = ruledOut{v, nameOf(r)}
		}
	}
	clear(q.excluded)
	return true
}

// compareGain compares by what gangs are worth for each eviction, and then by the larger gangs.
func (c *candidate) compareGain(o *candidate) int {
	byEviction := cmp.Compare(c.value*len(o.Residents), o.value*len(c.Residents))
	for i := len(c.gain) - 1; i >= 0 && byEviction == 0; i-- {
		byEviction = cmp.Compare(c.gain[i].more()*len(o.Residents), o.gain[i].more()*len(c.Residents))
	}
	return byEviction
}

// worthwhile says that gangs of a size gain, and of no size lose.
func worthwhile(gain []Gain) bool {
	return !slices.ContainsFunc(gain, func(g Gain) bool { return g.more() < 0 }) && slices.ContainsFunc(gain, func(g Gain) bool { return g.more() > 0 })
}

// loss is what the gangs are worth that do not find their devices in a domain any more when one of its free devices is
// taken.
func (s *state) loss(domain string, free int) int {
	product := s.products[domain]
	return s.weights.Rooms(product, free) - s.weights.Rooms(product, free-1)
}

// sizes are the gangs that are counted, none of which is runnable yet.
func (s *state) sizes() []Gain {
	list := make([]Gain, 0, len(s.weights.Sizes))
	for _, size := range s.weights.Sizes {
		list = append(list, Gain{Size: size})
	}
	return list
}

// count adds the gangs that are runnable in a domain with so many free devices before and after, and says what those are worth
// that are more.
func (s *state) count(list []Gain, domain string, before, after int) (value int) {
	for i := range list {
		list[i].Before += before / list[i].Size
		list[i].After += after / list[i].Size
	}
	if before == after {
		return 0
	}
	product := s.products[domain]
	return s.weights.Rooms(product, after) - s.weights.Rooms(product, before)
}

// consolidation reports what was found.
func (q *inquiry) consolidation(c *candidate, mix demand.Mix) *Consolidation {
	r := &Consolidation{
		Reason: ReasonMovesFound, Domain: c.Domain, Gain: c.gain, RuledOut: q.summary(),
		Cost: costText(c.price),
	}
	var texts []string
	for _, d := range c.moves {
		move := q.move(d)
		r.Moves = append(r.Moves, move)
		texts = append(texts, moveText(d, move))
	}
	r.Message = fmt.Sprintf("evict %s: %s. Domain %s is whole then: %s", count(len(texts), "pod"), few(texts), c.Domain, gainText(r.Gain))
	if len(mix.Requests) > 0 {
		r.Message += fmt.Sprintf(" (asked for of late: %s)", mix)
	}
	return r
}

func gainText(gain []Gain) string {
	var texts []string
	for _, g := range gain {
		if g.more() != 0 {
			texts = append(texts, fmt.Sprintf("%d of %d", g.more(), g.Size))
		}
	}
	return "runnable gangs more: " + strings.Join(texts, ", ")
}
