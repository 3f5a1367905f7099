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
	"github.com/switchyard-dev/switchyard/pkg/fragmentation"
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
	// gain is by size: of the domain alone, which is the most that it can be, until the domain was tried.
	gain []Gain
	// moves are known then.
	moves []placement.Destination
}

// Consolidate finds the domain that is worth making whole most: for each eviction the most gangs more, of the common
// sizes, that are runnable. All of its pods must be movable, at most so many, and each must have a place elsewhere, which
// breaks no whole domain; the number of runnable gangs of no size becomes less. Only pods that have opted in are moved.
// It ends with ReasonPlanning when ctx ends or pods change meanwhile.
func (m *Maker) Consolidate(ctx context.Context, cluster *placement.Cluster, most int) *Consolidation {
	q := m.inquire(placement.Gang{})
	domains := cluster.Occupancies()
	free := map[string]int{}
	for _, o := range domains {
		free[o.Domain] = o.Free
	}
	candidates := q.candidates(domains, min(most, MaxMoves))
	var best *candidate
	for i := range candidates[:min(len(candidates), tries)] {
		c := &candidates[i]
		if best != nil && best.compareGain(c) >= 0 {
			break // what follows gains no more
		}
		obstacle := q.try(ctx, cluster, c, free)
		switch {
		case obstacle != nil && obstacle.Interrupted:
			return &Consolidation{Reason: ReasonPlanning, Message: obstacle.Why, RuledOut: q.summary()}
		case obstacle == nil && worthwhile(c.gain) && (best == nil || best.compareGain(c) < 0):
			best = c
		}
	}
	if best == nil {
		return q.nothing(len(candidates) > tries, most)
	}
	return q.consolidation(best)
}

// try finds out where the pods of a domain would go, and what is gained by it.
func (q *inquiry) try(ctx context.Context, cluster *placement.Cluster, c *candidate, free map[string]int) *placement.Obstacle {
	after := maps.Clone(free)
	moves, obstacle := cluster.Vacate(ctx, c.Occupancy, after, loss)
	if obstacle != nil {
		if v := obstacle.Victim; v != nil {
			q.ruledOut[v.Claim.UID] = ruledOut{verdict{NoPlaceElsewhere, "has nowhere to go: " + obstacle.Why}, nameOf(*v)}
		}
		return obstacle
	}
	after[c.Domain] += c.Freed
	c.moves, c.gain = moves, gains(free, after)
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
func (q *inquiry) candidates(domains []placement.Occupancy, most int) []candidate {
	var list []candidate
	for _, o := range domains {
		c := candidate{Occupancy: o, gain: gains(map[string]int{o.Domain: o.Free}, map[string]int{o.Domain: o.Free + o.Freed})}
		if may := q.mayLeave(&c); may && !o.Unclear && len(o.Residents) > 0 && len(o.Residents) <= most && worthwhile(c.gain) && !q.tooManyTogether(o.Residents) {
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

// compareGain compares by gangs for each eviction, and then by the larger gangs.
func (c *candidate) compareGain(o *candidate) int {
	sum := func(gain []Gain) (n int) {
		for _, g := range gain {
			n += g.more()
		}
		return n
	}
	byEviction := cmp.Compare(sum(c.gain)*len(o.Residents), sum(o.gain)*len(c.Residents))
	for i := len(c.gain) - 1; i >= 0 && byEviction == 0; i-- {
		byEviction = cmp.Compare(c.gain[i].more()*len(o.Residents), o.gain[i].more()*len(c.Residents))
	}
	return byEviction
}

// worthwhile says that gangs of a size gain, and of no size lose.
func worthwhile(gain []Gain) bool {
	return !slices.ContainsFunc(gain, func(g Gain) bool { return g.more() < 0 }) && slices.ContainsFunc(gain, func(g Gain) bool { return g.more() > 0 })
}

// runnable is how many gangs of all common sizes find their devices among those of a domain.
func runnable(free int) (n int) {
	for _, size := range fragmentation.Sizes() {
		n += free / size
	}
	return n
}

// loss is how many gangs less find their devices in a domain when one of its free devices is taken.
func loss(free int) int { return runnable(free) - runnable(free-1) }

// gains is by size how many gangs are runnable, by the number of free devices of each domain before and after.
func gains(before, after map[string]int) []Gain {
	var list []Gain
	for _, size := range fragmentation.Sizes() {
		g := Gain{Size: size}
		for domain, free := range before {
			g.Before += free / size
			g.After += after[domain] / size
		}
		list = append(list, g)
	}
	return list
}

// consolidation reports what was found.
func (q *inquiry) consolidation(c *candidate) *Consolidation {
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
