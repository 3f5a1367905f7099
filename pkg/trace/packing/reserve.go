// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/switchyard-dev/switchyard/pkg/trace"
	"github.com/switchyard-dev/switchyard/pkg/trace/cluster"
)

// MaxGroups is how many groups of tasks a Reserve tells apart.
const MaxGroups = 12

// Rooms are how many tasks of each group find room. Each kind of task counts for the part that it is of its
// group: where there are GPUs for one task of a group but CPU for two thirds of the kinds only, it is 2/3.
type Rooms [MaxGroups]float32

// Reserve rates the room for tasks with several GPUs. It tells groups apart: tasks with 2, 3 to 4, 5 to 8 or
// 9 to 16 GPUs, of which as many find room on an empty node of each shape. So those that only a few nodes
// suit, for their CPU or GPU model, are not taken for the others, which any node suits.
type Reserve struct {
	cluster *cluster.Cluster
	groups  []group
	kinds   []kindOfGroup
	// leastCPU is the least that a task of any group needs.
	leastCPU int32
}

type group struct {
	// gpus is the mean number of GPUs of a task, share the part that all are of the demand for GPUs.
	gpus, share float64
}

type kindOfGroup struct {
	request *cluster.Request
	group   int
	share   float32 // of the tasks of the group
}

// NewReserve returns the rating for the mix. If it has more than MaxGroups groups, the rarest are one.
func NewReserve(c *cluster.Cluster, mix Mix) *Reserve {
	r := &Reserve{cluster: c, leastCPU: math.MaxInt32}
	byKey := map[string][]counted{}
	for _, t := range mix.tasks {
		if t.request.GPUs >= 2 {
			byKey[groupKey(c, t.request)] = append(byKey[groupKey(c, t.request)], t)
			r.leastCPU = min(r.leastCPU, t.request.CPU)
		}
	}
	var members [][]counted
	for _, tasks := range byKey {
		members = append(members, tasks)
	}
	slices.SortFunc(members, func(a, b []counted) int {
		return cmp.Or(cmp.Compare(demand(b), demand(a)), cmp.Compare(a[0].request.ID, b[0].request.ID))
	})
	for i, tasks := range members {
		if i >= MaxGroups {
			members[MaxGroups-1] = append(members[MaxGroups-1], tasks...)
		}
	}
	for i, tasks := range members[:min(len(members), MaxGroups)] {
		count := 0
		for _, t := range tasks {
			count += t.count
		}
		gpus := float64(demand(tasks)) / trace.Whole
		r.groups = append(r.groups, group{gpus: gpus / float64(count), share: gpus * trace.Whole / mix.demand})
		for _, t := range tasks {
			r.kinds = append(r.kinds, kindOfGroup{t.request, i, float32(t.count) / float32(count)})
		}
	}
	return r
}

// groupKey is equal for requests of a group.
func groupKey(c *cluster.Cluster, r *cluster.Request) string {
	rooms := make([]int, 0, len(c.Shapes))
	for shape := range c.Shapes {
		room := 0
		if r.Suits(c.Shapes[shape].Model) {
			empty := c.Empty(shape)
			room = c.Room(&empty, r)
		}
		rooms = append(rooms, room)
	}
	return fmt.Sprint(bits.Len(uint(r.GPUs-1)), rooms)
}

func demand(tasks []counted) int {
	sum := 0
	for _, t := range tasks {
		sum += t.count * t.request.Demand()
	}
	return sum
}

// Rooms are those on a node in the state.
func (r *Reserve) Rooms(s *cluster.State) Rooms {
	var rooms Rooms
	if s.CPU < r.leastCPU || s.Free() < 2 {
		return rooms
	}
	model := r.cluster.Shapes[s.Shape].Model
	for i := range r.kinds {
		k := &r.kinds[i]
		if s.CPU >= k.request.CPU && k.request.Suits(model) {
			rooms[k.group] += k.share * float32(r.cluster.Room(s, k.request))
		}
	}
	return rooms
}

// Stock is the room that all nodes of a cluster have.
type Stock struct {
	rooms [MaxGroups]float64
	// common has, by two groups, the rooms of the second on nodes that have room for the first.
	common [MaxGroups][MaxGroups]float64
}

// Change replaces the rooms of a node.
func (s *Stock) Change(before, after *Rooms) {
	s.add(before, -1)
	s.add(after, 1)
}

func (s *Stock) add(rooms *Rooms, sign float64) {
	for g, room := range rooms {
		if room == 0 {
			continue
		}
		s.rooms[g] += sign * float64(room)
		for h, other := range rooms {
			s.common[g][h] += sign * float64(min(room, 1)*other)
		}
	}
}

// Prices are what the room for one task of each group is worth, in GPUs. floor is what it is worth in any
// case, in parts of the task's GPUs and for a group that is all of the demand; scarce what it is worth if it
// will be missed for certain. idle are the cluster's idle GPUs: as many GPUs as that will be asked for until
// it is full, by each group in proportion to its share. A task of another group with as many GPUs or more takes
// as much of a group's room as there is, on average, where it finds its own.
func (r *Reserve) Prices(stock *Stock, idle, floor, scarce float64) Rooms {
	var prices Rooms
	for g, of := range r.groups {
		expected := idle * of.share / of.gpus
		for h, other := range r.groups {
			if h != g && other.gpus >= of.gpus && stock.rooms[h] > 0 {
				expected += idle * other.share / other.gpus * stock.common[h][g] / stock.rooms[h]
			}
		}
		missed := normal((caution*expected - stock.rooms[g]) / math.Sqrt(expected+1))
		prices[g] = float32(of.gpus * (floor*math.Sqrt(of.share) + scarce*missed))
	}
	return prices
}

// caution is by how much more the demand for rooms is taken to be than expected: rooms are also lost to CPU,
// and to single tasks that find no other place.
const caution = 1.2

// normal is the cumulative distribution function of the standard normal distribution.
func normal(x float64) float64 { return math.Erfc(-x/math.Sqrt2) / 2 }

// Dot is the sum of the products of the groups.
func (r *Rooms) Dot(other *Rooms) float64 {
	var sum float32
	for i := range r {
		sum += r[i] * other[i]
	}
	return float64(sum)
}
