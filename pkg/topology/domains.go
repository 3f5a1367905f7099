// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"cmp"
	"math/bits"
	"slices"
)

// Domains returns the NVSwitch domains: disjoint sets of GPUs in which every
// pair is connected by NVLink. GPUs ascend in each domain and domains are
// ordered by their smallest GPU.
//
// Of all partitions of a connected component into such sets it takes the one
// with the most NVLink bandwidth inside the sets, counted in links; among those
// the one with the fewest sets; among those the first one in this order: list
// the sets by smallest GPU, and at the first set that differs, the partition
// comes first whose set holds the smallest GPU that the other's lacks. So
// GPU 0 is paired with GPU 1 rather than with GPU 2, all else being equal.
//
// A GPU that shares NVLink speed with nobody in its set has no domain: one
// without NVLink, and also one that has NVLinks but is left alone, like the end
// of a chain of three. The exception is a GPU whose NVLinks end at an NVSwitch
// or a fabric ([Graph.Switched]): it is a domain of one on this node, for the
// fabric may hold GPUs that the node does not show.
//
// The partition is the exact optimum for components of up to 16 GPUs, and for
// any component whose GPUs fall into at most 16 classes that are linked alike
// (such as all NVSwitch boards). Larger ones are searched exactly as well, but
// only up to a fixed number of steps; if that does not suffice (it takes a
// dense and irregular graph that no board has) sets are merged greedily, the
// pair with the most links between them first. Either way the result depends
// on the Graph alone, never on time.
func Domains(g Graph) [][]int {
	var domains [][]int
	for _, component := range components(g) {
		for _, set := range partition(g, component, limitsFor) {
			if len(set) > 1 || g.Switched(set[0]) {
				domains = append(domains, set)
			}
		}
	}
	slices.SortFunc(domains, func(a, b []int) int { return cmp.Compare(a[0], b[0]) })
	return domains
}

// components returns the sets of GPUs that are connected over NVLinks, the
// GPUs of each ascending.
func components(g Graph) [][]int {
	var result [][]int
	seen := make([]bool, g.Len())
	for start := range g.Len() {
		if seen[start] {
			continue
		}
		seen[start] = true
		component := []int{start}
		for next := 0; next < len(component); next++ {
			for j := range g.Len() {
				if !seen[j] && g.Connection(component[next], j).NVLinks > 0 {
					seen[j] = true
					component = append(component, j)
				}
			}
		}
		slices.Sort(component)
		result = append(result, component)
	}
	return result
}

// partition returns the best partition of a connected component into sets in
// which every pair is NVLinked.
func partition(g Graph, component []int, limits func(vertices int) limits) [][]int {
	classes := mergeTwins(g, component)
	if len(classes) == 1 {
		return classes
	}
	w := make([][]int64, len(classes))
	for a := range classes {
		w[a] = make([]int64, len(classes))
		for b := range classes {
			if a != b {
				links := g.Connection(classes[a][0], classes[b][0]).NVLinks
				w[a][b] = int64(links * len(classes[a]) * len(classes[b]))
			}
		}
	}
	masks, exact := searchPartition(w, limits(len(w)))
	if !exact {
		masks = mergeGreedily(w)
	}
	sets := make([][]int, 0, len(masks))
	for _, mask := range masks {
		var set []int
		for ; mask != 0; mask &= mask - 1 {
			set = append(set, classes[bits.TrailingZeros64(mask)]...)
		}
		slices.Sort(set)
		sets = append(sets, set)
	}
	return sets
}

// mergeTwins groups GPUs that are NVLinked to each other and linked alike to
// every other GPU, ordered by smallest GPU. Such twins are in one set in every
// best partition: were they in two, moving one of them to the other's set gains
// the links between them, and of the two possible moves at least one loses no
// other link. The relation is transitive, and a clique with equal links
// everywhere is one class.
func mergeTwins(g Graph, component []int) [][]int {
	twins := func(a, b int) bool {
		if g.Connection(a, b).NVLinks == 0 {
			return false
		}
		for _, x := range component {
			if x != a && x != b && g.Connection(a, x).NVLinks != g.Connection(b, x).NVLinks {
				return false
			}
		}
		return true
	}
	var classes [][]int
next:
	for _, gpu := range component {
		for i, class := range classes {
			if twins(class[0], gpu) {
				classes[i] = append(class, gpu)
				continue next
			}
		}
		classes = append(classes, []int{gpu})
	}
	return classes
}
