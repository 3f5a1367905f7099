// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/switchyard-dev/switchyard/pkg/fragmentation"
)

// Mix is what is asked for of late. The zero value knows of nothing.
type Mix struct {
	// Requests are by product and size.
	Requests []Request
	// Owners is by how many owners those for two GPUs or more were made; older ones count for less.
	Owners float64
}

// Request is what was asked for of one size.
type Request struct {
	// Product is that of the GPUs that were got; empty where none were, or it is not known.
	Product string
	// Size is how many GPUs are wanted together.
	Size int
	// Requests is how many requests there were; older ones count for less.
	Requests float64
}

// gpus is what was asked for, in GPUs.
func (r Request) gpus() float64 { return r.Requests * float64(r.Size) }

// prior is by how many owners two GPUs or more must have been asked for to count as much as what is expected without
// having seen anything.
const prior = 4

// History is the part, 0 to 1, that what was seen has in the weights. The rest is that gangs of 2, 4 and 8 are worth the
// same. One owner alone has at most a fifth; among others its requests have the part that they are of the demand.
func (m Mix) History() float64 { return m.Owners / (m.Owners + prior) }

// Share is what part of the demand one size is.
type Share struct {
	Size int
	// Requests is how many there were; Part, 0 to 1, what they are of all GPUs that were asked for.
	Requests, Part float64
}

// Shares are by size, of all products.
func (m Mix) Shares() []Share {
	all, sum := map[int]float64{}, 0.0
	for _, r := range m.Requests {
		all[r.Size] += r.Requests
		sum += r.gpus()
	}
	var list []Share
	for _, size := range slices.Sorted(maps.Keys(all)) {
		list = append(list, Share{size, all[size], all[size] * float64(size) / sum})
	}
	return list
}

// mostNamed is how many sizes a text names.
const mostNamed = 4

// String says for people what is asked for: "75 % of the GPUs 8 together, 25 % singly", the largest part first.
func (m Mix) String() string {
	shares := m.Shares()
	if len(shares) == 0 {
		return "nothing that is known"
	}
	slices.SortStableFunc(shares, func(a, b Share) int { return cmp.Or(cmp.Compare(b.Part, a.Part), cmp.Compare(b.Size, a.Size)) })
	var texts []string
	of, rest := " of the GPUs", 1.0
	for _, s := range shares[:min(len(shares), mostNamed)] {
		together := fmt.Sprintf("%d together", s.Size)
		if s.Size == 1 {
			together = "singly"
		}
		texts = append(texts, fmt.Sprintf("%.0f %%%s %s", 100*s.Part, of, together))
		of, rest = "", rest-s.Part
	}
	if len(shares) > mostNamed {
		texts = append(texts, fmt.Sprintf("%.0f %% otherwise", 100*max(rest, 0)))
	}
	return strings.Join(texts, ", ")
}

// Place is an NVSwitch domain, as far as it matters to what room in it is worth.
type Place struct {
	Product string
	// Free is how many of its GPUs are free, Total how many there could be.
	Free, Total int
}

// even is the weight of each common size where nothing was seen. Weights are whole numbers, so that what is worth the same
// is found to be.
const even = 1000

// Weights are what rooms for gangs are worth, by size and product.
type Weights struct {
	// Sizes are those that are counted: 2, 4, 8, and others for which a 50th of the GPUs or more was asked; MaxGroups at most.
	Sizes []int
	// of has the weights of the sizes by product.
	of map[string][]int
}

// Weights weighs rooms in the cluster's domains: alike as far as nothing was seen, and for the rest by price, with the
// room that there is now.
func (m Mix) Weights(places []Place) Weights {
	m.Requests = heldBy(places, m.Requests)
	w := Weights{Sizes: m.sizes(), of: map[string][]int{}}
	prices := map[string][]float64{}
	sum := 0.0
	products := map[string][]Place{}
	for _, p := range places {
		products[p.Product] = append(products[p.Product], p)
	}
	for _, product := range slices.Sorted(maps.Keys(products)) {
		prices[product] = m.prices(product, w.Sizes, products[product])
		for _, price := range prices[product] {
			sum += price
		}
	}
	history := m.History()
	if sum == 0 {
		history = 0
	}
	common := fragmentation.Sizes()
	// With history the mean over products of the weights' sum is as without.
	scale := float64(even*len(common)*len(products)) / max(sum, math.SmallestNonzeroFloat64)
	for product, list := range prices {
		weights := make([]int, len(w.Sizes))
		for i, size := range w.Sizes {
			weight := 0.0
			if slices.Contains(common, size) {
				weight = even * (1 - history)
			}
			if history > 0 {
				weight += history * scale * list[i]
			}
			weights[i] = max(1, int(math.Round(weight)))
		}
		w.of[product] = weights
	}
	return w
}

// heldBy are the requests that some domain could hold, were it empty. The others take no room from them, however many GPUs
// they are for.
func heldBy(places []Place, requests []Request) []Request {
	largest := 0
	for _, p := range places {
		largest = max(largest, p.Total)
	}
	return slices.DeleteFunc(slices.Clone(requests), func(r Request) bool { return r.Size > largest })
}

// rare is a part of the demand that does not count: no gang of that size keeps a domain from being made whole.
const rare = 0.02

// sizes are those that are counted.
func (m Mix) sizes() []int {
	sizes := fragmentation.Sizes()
	shares := slices.DeleteFunc(m.Shares(), func(s Share) bool { return s.Size < 2 || s.Part < rare || slices.Contains(sizes, s.Size) })
	slices.SortStableFunc(shares, func(a, b Share) int { return cmp.Compare(b.Part, a.Part) })
	for _, s := range shares[:min(len(shares), MaxGroups-len(sizes))] {
		sizes = append(sizes, s.Size)
	}
	slices.Sort(sizes)
	return sizes
}

// prices are those of room for each size in the domains of a product. What was asked for without a product that is known
// counts for each. Sizes that no domain has room for, were it empty, have none.
func (m Mix) prices(product string, sizes []int, places []Place) []float64 {
	asked, demand := map[int]float64{}, 0.0
	for _, r := range m.Requests {
		if r.Product == product || r.Product == "" {
			asked[r.Size] += r.gpus()
			demand += r.gpus()
		}
	}
	largest, idle := 0, 0
	for _, p := range places {
		largest = max(largest, p.Total)
		idle += p.Free
	}
	var groups []Group
	var of []int
	for i, size := range sizes {
		if asked[size] > 0 && size <= largest {
			groups = append(groups, Group{GPUs: float64(size), Share: asked[size] / demand})
			of = append(of, i)
		}
	}
	var stock Stock
	for _, p := range places {
		var rooms Rooms
		for g, i := range of {
			rooms[g] = float32(p.Free / sizes[i])
		}
		stock.Change(&Rooms{}, &rooms)
	}
	list := make([]float64, len(sizes))
	prices := Prices(groups, &stock, float64(idle), DomainFloor, Scarce)
	for g, i := range of {
		list[i] = float64(prices[g])
	}
	return list
}

// Rooms is what the rooms are worth that so many free GPUs of a domain are.
func (w Weights) Rooms(product string, free int) int {
	sum := 0
	for i, weight := range w.of[product] {
		sum += weight * (free / w.Sizes[i])
	}
	return sum
}
