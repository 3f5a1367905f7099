// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"context"
	"math"

	"github.com/switchyard-dev/switchyard/pkg/trace"
	"github.com/switchyard-dev/switchyard/pkg/trace/cluster"
	"github.com/switchyard-dev/switchyard/pkg/trace/policy"
)

// streamsSeed makes the streams of packing.Estimator: the same for all replays.
const streamsSeed = 1

// improveEvery is how many arrivals there are between two searches for moves: one costs as much as placing
// many tasks.
const improveEvery = 10

// replay is one seed.
type replay struct {
	cluster *cluster.Cluster
	catalog *cluster.Catalog
	policy  policy.Policy
	// tally counts until now.
	tally struct {
		demand                      int // that has arrived, in milli-GPUs
		multiArrived, multiRejected int // in milli-GPUs, of tasks with two or more GPUs
		arrivals, rejected, moves   int
	}
	points []Point
	// used is the sum of what tasks had after each of the arrivals of the last point, count their number.
	used, count int
}

// run replays one seed, or a part of it if ctx ends.
func run(ctx context.Context, config Config, seed int64) Seed {
	random := config.Rand(seed)
	workload := trace.NewWorkload(config.Nodes, config.Tasks, config.demand(), random)
	c := cluster.New(workload.Nodes, workload.Ranks, config.Domain)
	r := &replay{cluster: c, catalog: c.NewCatalog(config.Tasks), points: []Point{{}}}
	env := policy.Env{Cluster: c, Catalog: r.catalog, Tasks: config.Tasks, Random: random, Streams: config.Rand(streamsSeed)}
	r.policy, _ = policy.New(config.Policy, env) // Validate knows the name
	for id, task := range workload.Arrivals {
		percent := int(math.RoundToEven(float64(r.tally.demand+task.Demand()) * 100 / float64(c.Capacity)))
		if percent > config.Arrival || ctx.Err() != nil {
			break
		}
		if id%improveEvery == 0 {
			r.improve(config.Moves)
		}
		r.arrive(id, task)
		r.record(percent)
	}
	result := Seed{Seed: seed, Points: r.points, Ceiling: ceiling(c)}
	for i := range c.Nodes {
		state := &c.Nodes[i].State
		result.Free += state.Free()
		for j, size := range GangSizes {
			gang := &cluster.Request{Kind: trace.Kind{GPUs: size, Milli: trace.Whole}}
			result.Unusable[j] += state.Free() - size*c.Room(state, gang)
		}
	}
	return result
}

// improve makes the moves that are worth it, as long as there are no more than so many for every 100 arrivals.
func (r *replay) improve(per100 float64) {
	mover, ok := r.policy.(policy.Mover)
	for ok {
		saved := per100*float64(r.tally.arrivals)/100 - float64(r.tally.moves)
		if saved < 1 {
			return
		}
		var move policy.Move
		if move, ok = mover.Move(saved); ok {
			run := r.cluster.Remove(move.Task, move.From)
			r.cluster.Place(run.ID, run.Request, move.To)
			r.tally.moves++
		}
	}
}

// arrive places a task or refuses it for good.
func (r *replay) arrive(id int, task trace.Task) {
	request := r.catalog.Request(task.Kind)
	r.tally.arrivals++
	r.tally.demand += task.Demand()
	if task.GPUs >= 2 {
		r.tally.multiArrived += task.Demand()
	}
	placement, ok := r.policy.Choose(request)
	if !ok {
		r.tally.rejected++
		if task.GPUs >= 2 {
			r.tally.multiRejected += task.Demand()
		}
		return
	}
	r.cluster.Place(id, request, placement)
}

// record notes what there is now as the point of the percentage, and as that of those that were jumped over
// if there are.
func (r *replay) record(percent int) {
	for len(r.points) <= percent {
		r.used, r.count = 0, 0
		// One that is jumped over is as the one before it.
		r.points = append(r.points, r.points[len(r.points)-1])
	}
	r.used += r.cluster.Used
	r.count++
	p := &r.points[percent]
	p.Allocated = 100 * float64(r.used) / float64(r.count) / float64(r.cluster.Capacity)
	p.Arrivals, p.Rejected, p.Moves = r.tally.arrivals, r.tally.rejected, r.tally.moves
	if r.tally.multiArrived > 0 {
		p.RejectedMultiGPU = 100 * float64(r.tally.multiRejected) / float64(r.tally.multiArrived)
	}
}
