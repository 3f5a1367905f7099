// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"slices"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// unit are sites that share domains: a node with the domains on it, or all nodes of a fabric. What one
// unit takes does not change the score of another.
type unit struct {
	sites   []*site
	single  [1]*site // where sites is while there is one
	options []option
	kind    int
	// filling distributes the members among several sites.
	filling filling
	// most is how many members the sites may have together; 0 for as many as fit.
	most int
}

// choice is what a site takes: how many devices of each atom.
type choice struct {
	site    *site
	members int
	counts  []int
	atoms   []atom // filled in for what is chosen in the end
}

// outcome is what an attempt found.
type outcome struct {
	// members is how many of the gang's members have a place: all of them, or the most that have.
	members int
	score   score
	choices []choice
}

// place looks for the best place of the gang, or of as many members as have one.
func (a *attempt) place() outcome {
	a.gather()
	var found outcome
	if keys := a.request.needs.together; len(keys) > 0 && !a.anyNode {
		found = a.together(keys)
	} else {
		found = a.best(a.units())
	}
	for i := range found.choices {
		found.choices[i].atoms = a.devicesOf(found.choices[i].site)
	}
	return found
}

// best chooses among the units.
func (a *attempt) best(units []*unit) outcome {
	if a.gang == v1alpha1.GangAny {
		a.items = resized(a.items, len(units))
		items := a.items
		slices.SortStableFunc(units, func(x, y *unit) int { return x.kind - y.kind })
		for i, u := range units {
			items[i] = item{options: u.options, kind: u.kind}
		}
		f := fill(a.request.members, items)
		members := f.most()
		found := outcome{members: members, score: f.best[members].score}
		for i, take := range f.members(members) {
			found.choices = append(found.choices, units[i].choose(take)...)
		}
		return found
	}
	var found outcome
	var best *unit
	for _, u := range units {
		for m := min(len(u.options)-1, a.request.members); m > 0 && m >= found.members; m-- {
			if u.options[m].possible && (m > found.members || u.options[m].score.compare(found.score) < 0) {
				found.members, found.score, best = m, u.options[m].score, u
				break
			}
		}
	}
	if best != nil {
		found.choices = best.choose(found.members)
	}
	return found
}

// units groups the sites, in the order of the first node of each.
func (a *attempt) units() []*unit {
	if a.gang == v1alpha1.GangAny && !a.anyNode {
		if places, most := a.request.needs.bounded(); places != nil {
			return a.unitsOfPlaces(places, most)
		}
	}
	a.backing = resized(a.backing, len(a.sites))
	units := a.unitsOfSites[:0]
	owner := map[*domain]*unit{}
	for i := range a.sites {
		s := &a.sites[i]
		u := &a.backing[i]
		*u = unit{}
		u.sites = append(u.single[:0], s)
		units = append(units, u)
		if a.gang == v1alpha1.GangNode {
			continue
		}
		for j := range s.domains {
			d := s.domains[j].domain
			if a.tallyOf(d).sites < 2 {
				continue
			}
			if other := owner[d]; other != nil && other != u {
				u = merge(other, u, owner)
			}
			owner[d] = u
		}
	}
	a.unitsOfSites = units
	units = slices.DeleteFunc(units, func(u *unit) bool { return len(u.sites) == 0 })
	for _, u := range units {
		a.solve(u)
	}
	return units
}

// merge adds the sites of one unit to another.
func merge(into, from *unit, owner map[*domain]*unit) *unit {
	into.sites = append(into.sites, from.sites...)
	from.sites = nil
	for d, u := range owner {
		if u == from {
			owner[d] = into
		}
	}
	return into
}

// solve computes the options of a unit.
func (a *attempt) solve(u *unit) {
	if len(u.sites) == 1 && !a.spans(u.sites[0]) {
		u.options, u.kind = u.sites[0].shape.options, u.sites[0].shape.kind
		return
	}
	items := make([]item, len(u.sites))
	limit := 0
	slices.SortStableFunc(u.sites, func(x, y *site) int { return x.shape.kind - y.shape.kind })
	for i, s := range u.sites {
		items[i] = item{options: s.shape.options, kind: s.shape.kind}
		limit += s.shape.limit
	}
	limit = min(limit, a.request.members)
	if u.most > 0 {
		limit = min(limit, u.most)
	}
	u.filling = fill(limit, items)
	u.options = make([]option, limit+1)
	u.options[0].possible = true
	for m := 1; m <= limit; m++ {
		if u.filling.best[m].possible {
			u.options[m] = option{true, a.score(u.choose(m))}
		}
	}
	u.kind = a.kindOf(u.options)
}

// spans reports whether a domain of the site is at others too.
func (a *attempt) spans(s *site) bool {
	return slices.ContainsFunc(s.domains, func(d siteDomain) bool {
		t := a.tallyOf(d.domain)
		return t.sites > 1 || t.free != d.free || t.inUse != d.inUse
	})
}

// choose tells what the sites of the unit take for a number of members.
func (u *unit) choose(members int) []choice {
	if members == 0 {
		return nil
	}
	if u.filling.items == nil {
		s := u.sites[0]
		return []choice{{site: s, members: members, counts: s.shape.counts[members]}}
	}
	var choices []choice
	for i, take := range u.filling.members(members) {
		if take > 0 {
			choices = append(choices, choice{site: u.sites[i], members: take, counts: u.sites[i].shape.counts[take]})
		}
	}
	return choices
}

// score rates choices with what their domains have at all nodes.
func (a *attempt) score(choices []choice) score {
	var result score
	var domains []*domain
	for _, ch := range choices {
		at := ch.site.shape.options[ch.members].score
		result.evictions += at.evictions
		result.rank += at.rank
		result.crossings += at.crossings
		result.work += at.work
		for i, n := range ch.counts {
			d := ch.site.domains[ch.site.shape.atoms[i].domain].domain
			if n > 0 && a.tallyOf(d).planned == 0 {
				domains = append(domains, d)
			}
			a.tallyOf(d).planned += int32(n)
		}
	}
	for _, d := range domains {
		t := a.tallyOf(d)
		result.touch(int(t.planned), int(t.free), d.name != "" && t.inUse == 0)
		t.planned = 0
	}
	return result
}
