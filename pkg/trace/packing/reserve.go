// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/switchyard-dev/switchyard/pkg/demand"
	"github.com/switchyard-dev/switchyard/pkg/trace"
	"github.com/switchyard-dev/switchyard/pkg/trace/cluster"
)

// Reserve rates the room for tasks with several GPUs. It tells groups apart: tasks with 2, 3 to 4, 5 to 8 or
// 9 to 16 GPUs, of which as many find room on an empty node of each shape. So those that only a few nodes
// suit, for their CPU or GPU model, are not taken for the others, which any node suits.
type Reserve struct {
	cluster *cluster.Cluster
	groups  []demand.Group
	kinds   []kindOfGroup
	// leastCPU is the least that a task of any group needs.
	leastCPU int32
}

type kindOfGroup struct {
	request *cluster.Request
	group   int
	share   float32 // of the tasks of the group
}

// NewReserve returns the rating for the mix. If it has more than [demand.MaxGroups] groups, the rarest are one.
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
		return cmp.Or(cmp.Compare(demandOf(b), demandOf(a)), cmp.Compare(a[0].request.ID, b[0].request.ID))
	})
	for i, tasks := range members {
		if i >= demand.MaxGroups {
			members[demand.MaxGroups-1] = append(members[demand.MaxGroups-1], tasks...)
		}
	}
	for i, tasks := range members[:min(len(members), demand.MaxGroups)] {
		count := 0
		for _, t := range tasks {
			count += t.count
		}
		gpus := float64(demandOf(tasks)) / trace.Whole
		r.groups = append(r.groups, demand.Group{GPUs: gpus / float64(count), Share: gpus * trace.Whole / mix.demand})
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

func demandOf(tasks []counted) int {
	sum := 0
	for _, t := range tasks {
		sum += t.count * t.request.Demand()
	}
	return sum
}

// Rooms are those on a node in the state. Each kind of task counts for the part that it is of its group: where there
// are GPUs for one task of a group but CPU for two thirds of the kinds only, it is 2/3.
func (r *Reserve) Rooms(s *cluster.State) demand.Rooms {
	var rooms demand.Rooms
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

// Prices are what the room for one task of each group is worth, in GPUs, with the room that all nodes have and the cluster's
// idle GPUs: see [demand.Prices].
func (r *Reserve) Prices(stock *demand.Stock, idle, floor, scarce float64) demand.Rooms {
	return demand.Prices(r.groups, stock, idle, floor, scarce)
}
