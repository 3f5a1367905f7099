// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import "slices"

// item is a part of the cluster that may take members.
type item struct {
	// options[m] is what it costs that the item takes m members; options[0] is possible and free.
	options []option
	// kind is equal for items with equal options.
	kind int
}

// filling is the result of fill: the cheapest ways to place 0, 1, 2 … members on the items.
type filling struct {
	items []item
	best  []option
	// taken[i][m] is how many of m members item i takes in the cheapest way for m that uses items up
	// to i only; nil where the item changes nothing.
	taken [][]int16
}

// fill places members on items at the least score: a knapsack, exact. Items of one kind stand one
// behind the other: where one of them improves nothing, the rest of its kind does not either. So the
// time grows with the members and the kinds of items, not with the items.
func fill(members int, items []item) filling {
	f := filling{items: items, best: make([]option, members+1), taken: make([][]int16, len(items))}
	f.best[0].possible = true
	next := make([]option, members+1)
	skip := -1
	for i, it := range items {
		if it.kind == skip {
			continue
		}
		copy(next, f.best)
		var taken []int16
		for m := 1; m <= members; m++ {
			for take := 1; take < len(it.options) && take <= m; take++ {
				if !it.options[take].possible || !f.best[m-take].possible {
					continue
				}
				sum := option{true, f.best[m-take].score.plus(it.options[take].score)}
				if !sum.better(next[m]) {
					continue
				}
				if taken == nil {
					taken = make([]int16, members+1)
				}
				next[m], taken[m] = sum, int16(take)
			}
		}
		if taken == nil {
			skip = it.kind
			continue
		}
		f.best, next, f.taken[i] = next, f.best, taken
	}
	return f
}

// most is the largest number of members that have a place.
func (f filling) most() int {
	for m := len(f.best) - 1; m > 0; m-- {
		if f.best[m].possible {
			return m
		}
	}
	return 0
}

// members tells how many members each item takes when that many are placed. Among items of one kind
// the first ones take the most.
func (f filling) members(total int) []int {
	takes := make([]int, len(f.items))
	for i := len(f.items) - 1; i >= 0; i-- {
		if f.taken[i] != nil {
			takes[i] = int(f.taken[i][total])
			total -= takes[i]
		}
	}
	for start := 0; start < len(takes); {
		end := start + 1
		for end < len(takes) && f.items[end].kind == f.items[start].kind {
			end++
		}
		slices.SortFunc(takes[start:end], func(a, b int) int { return b - a })
		start = end
	}
	return takes
}
