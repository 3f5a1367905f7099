// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package trace

import "math/bits"

// Rand is where randomness comes from. *rand.Rand of math/rand (version 1) implements it; with
// rand.NewSource(seed) the workloads are those of the published results, seeds 42 to 51.
type Rand interface {
	Int() int
	Intn(n int) int
	Float64() float64
	Perm(n int) []int
	Shuffle(n int, swap func(i, j int))
}

// Workload is one replay: who arrives when, and which of two equal nodes comes first.
type Workload struct {
	// Nodes are the nodes by name.
	Nodes []Node
	// Ranks belong to Nodes: of nodes that a policy rates equal the one of the lowest rank is taken.
	Ranks []int
	// Arrivals are the tasks in the order of their arrival. None departs.
	Arrivals []Task
}

// floatsBeforeRanks is how many numbers the authors' simulator draws between arrivals and ranks.
const floatsBeforeRanks = 10

// NewWorkload shuffles the tasks and tunes them until they ask for so many percent of the nodes' GPUs: tasks
// are deleted at random, or drawn again with repetition and appended. It is the authors' "workload inflation":
// every draw from random counts, so that the same seed gives the same workload as theirs. The tasks must have
// passed Check.
func NewWorkload(nodes []Node, tasks []Task, percent float64, random Rand) Workload {
	nodes = byName(nodes, func(n Node) string { return n.Name })
	tasks = byName(tasks, func(t Task) string { return t.Name })
	arrivals := append([]Task(nil), tasks...)
	random.Int()
	random.Shuffle(len(arrivals), func(i, j int) { arrivals[i], arrivals[j] = arrivals[j], arrivals[i] })
	arrivals = tune(arrivals, tasks, percent/100*float64(Capacity(nodes)), random)
	for range floatsBeforeRanks {
		random.Float64()
	}
	return Workload{Nodes: nodes, Ranks: random.Perm(len(nodes)), Arrivals: arrivals}
}

// tune brings the demand of the arrivals to the target, in milli-GPUs.
func tune(arrivals, tasks []Task, target float64, random Rand) []Task {
	demand := 0
	for _, t := range arrivals {
		demand += t.Demand()
	}
	if float64(demand) > target {
		left := newPositions(len(arrivals))
		deleted := make([]bool, len(arrivals))
		for count := len(arrivals); float64(demand) > target; count-- {
			i := left.take(random.Intn(count))
			demand -= arrivals[i].Demand()
			deleted[i] = true
		}
		kept := arrivals[:0]
		for i, t := range arrivals {
			if !deleted[i] {
				kept = append(kept, t)
			}
		}
		return kept
	}
	for {
		t := tasks[random.Intn(len(tasks))]
		// Milli, not Demand: so it was published.
		if float64(demand+t.Milli) > target {
			return arrivals
		}
		demand += t.Demand()
		arrivals = append(arrivals, t)
	}
}

// positions are the positions of a list that are left: a Fenwick tree of their numbers. Lists of jobs can be long,
// and deleting from a slice takes time that grows with its length.
type positions []int

func newPositions(n int) positions {
	p := make(positions, n+1)
	for i := 1; i <= n; i++ {
		p[i]++
		if above := i + i&-i; above <= n {
			p[above] += p[i]
		}
	}
	return p
}

// take takes out the position of which so many that are left come before.
func (p positions) take(before int) int {
	at := 0
	for step := 1 << bits.Len(uint(len(p)-1)); step > 0; step >>= 1 {
		if next := at + step; next < len(p) && p[next] <= before {
			at, before = next, before-p[next]
		}
	}
	for i := at + 1; i < len(p); i += i & -i {
		p[i]--
	}
	return at
}
