// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// bound is how many of the pods may be in each place, where places are told apart by a node label, or listed. A node without
// the label is in none.
type bound struct {
	key    string           // of the label; empty if places are listed
	places map[*node]string // listed: the name of each node's place
	most   int              // in a place that is not in by
	by     map[string]int   // by name of the place, or value of the label
}

// place is where a node is.
func (b *bound) place(n *node) (name string, ok bool) {
	if b.places != nil {
		name, ok = b.places[n]
		return name, ok
	}
	return n.label(b.key)
}

func (b bound) of(value string) int {
	if most, ok := b.by[value]; ok {
		return most
	}
	return b.most
}

func (b bound) same(o bound) bool {
	return b.key == o.key && b.most == o.most && maps.Equal(b.by, o.by) && maps.Equal(b.places, o.places)
}

// on is how many of the pods may be on the node by the bounds, if that is less.
func (c *company) on(n *node, room int) int {
	for _, list := range [][]bound{c.bounds, c.limits} {
		for _, b := range list {
			if value, ok := b.place(n); ok {
				room = min(room, b.of(value))
			}
		}
	}
	return room
}

// bounded is a bound of which the places hold several nodes, and how many of the pods a place may have by it; nil if there is
// none. Where the pods are bound by several kinds of such places it is the first: members that the others keep off are found
// after the release.
func (c *company) bounded() (places *bound, most func(name string) int) {
	var of []*bound
	for _, list := range [][]bound{c.bounds, c.limits} {
		for i := range list {
			b := &list[i]
			if b.key != corev1.LabelHostname && (len(of) == 0 || b.key == of[0].key) {
				of = append(of, b)
			}
		}
	}
	if len(of) == 0 {
		return nil, nil
	}
	return of[0], func(name string) int {
		return slices.MinFunc(of, func(a, b *bound) int { return cmp.Compare(a.of(name), b.of(name)) }).of(name)
	}
}

// why says what keeps the pods from sharing places, where no node says anything against them.
func (c *company) why() string {
	places, _ := c.bounded()
	switch {
	case len(c.together) > 0:
		return fmt.Sprintf("the pods' affinity to each other wants all of them at nodes with one value of label %s", strings.Join(c.together, " and of label "))
	case places != nil && places.places != nil:
		return "the pods' node selectors, tolerations or PersistentVolumes want several places, and each has to have room for its own"
	case places != nil:
		return fmt.Sprintf("the pods' anti-affinity or topology spread lets too few of them share a value of label %s", places.key)
	default:
		return ""
	}
}

// together splits the sites where the pods have to be in one place, and finds the best.
func (a *attempt) together(keys []string) outcome {
	all := a.sites
	defer func() { a.sites = all }()
	place := func(s *site) string {
		var text strings.Builder
		for _, key := range keys {
			value, _ := s.node.label(key)
			fmt.Fprintf(&text, "%q ", value)
		}
		return text.String()
	}
	number, of := map[string]int{}, make(map[*node]int, len(all)) // places by their first node
	for i := range all {
		name := place(&all[i])
		if _, known := number[name]; !known {
			number[name] = len(number)
		}
		of[all[i].node] = number[name]
	}
	slices.SortStableFunc(all, func(x, y site) int { return cmp.Compare(of[x.node], of[y.node]) })
	var found outcome
	for start := 0; start < len(all); {
		end := start + 1
		for end < len(all) && of[all[end].node] == of[all[start].node] {
			end++
		}
		a.sites = all[start:end]
		if here := a.best(a.units()); here.members > found.members || here.members == found.members && here.score.compare(found.score) < 0 {
			found = here
		}
		start = end
	}
	return found
}

// unitsOfPlaces makes a unit of each place that is bound, and of each site that is in none.
func (a *attempt) unitsOfPlaces(places *bound, most func(name string) int) []*unit {
	a.backing = resized(a.backing, len(a.sites))
	units := a.unitsOfSites[:0]
	of := map[string]*unit{}
	for i := range a.sites {
		s := &a.sites[i]
		value, bound := places.place(s.node)
		u := of[value]
		if u == nil || !bound {
			u = &a.backing[i]
			*u = unit{}
			units = append(units, u)
		}
		if bound {
			of[value], u.most = u, most(value)
		}
		u.sites = append(u.sites, s)
	}
	a.unitsOfSites = units
	for _, u := range units {
		a.solve(u)
	}
	return units
}
