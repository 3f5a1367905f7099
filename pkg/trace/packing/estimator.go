// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"math"

	"github.com/switchyard-dev/switchyard/pkg/trace"
	"github.com/switchyard-dev/switchyard/pkg/trace/cluster"
)

// Options bound and weigh the estimate.
type Options struct {
	// Streams is how many random streams of tasks are rolled through a node.
	Streams int
	// LengthBase and LengthPerFill say how many GPU tasks a stream offers: LengthBase, and LengthPerFill
	// times as many as would fill the node's GPUs; at most MaxLength.
	LengthBase, LengthPerFill float64
	MaxLength                 int
	// CPUOnly is the part of the expected CPU-only tasks that streams contain.
	CPUOnly float64
	// Load is the demand that is expected, in parts of the cluster's GPUs.
	Load float64
}

// DefaultOptions are what the published numbers were measured with.
var DefaultOptions = Options{Streams: 64, LengthBase: 4, LengthPerFill: 3, MaxLength: 60, CPUOnly: 0.5, Load: 1.3}

// Estimator estimates how many GPUs of a node stay idle for want of tasks that fit. It is not safe for
// concurrent use.
type Estimator struct {
	cluster *cluster.Cluster
	mix     Mix
	options Options
	shapes  []streams // by shape; made when needed
	known   map[cluster.State]float64
	limit   int // of known
}

// maxKnown bounds the estimates that are remembered: about 100 MiB.
const maxKnown = 1 << 20

// NewEstimator returns an estimator for nodes of the cluster. random draws the streams.
func NewEstimator(c *cluster.Cluster, mix Mix, options Options, random trace.Rand) *Estimator {
	e := &Estimator{cluster: c, mix: mix, options: options, known: map[cluster.State]float64{}, limit: maxKnown}
	for shape := range c.Shapes {
		e.shapes = append(e.shapes, e.newStreams(shape, random))
	}
	return e
}

// Idle is how many GPUs of a node in the state are expected to stay idle.
func (e *Estimator) Idle(s cluster.State) float64 {
	s = e.cluster.Canonical(s)
	if known, ok := e.known[s]; ok {
		return known
	}
	if len(e.known) >= e.limit {
		clear(e.known)
	}
	idle := e.shapes[s.Shape].idle(&s, e.cluster.Shapes[s.Shape].GPUs)
	e.known[s] = idle
	return idle
}

// streams are what is rolled through the nodes of a shape.
type streams struct {
	items []item // the streams one after the other
	ends  []int  // of the streams
	// least is the least CPU that a GPU task of the streams needs.
	least int32
}

// item is a task that is offered.
type item struct {
	cpu, memory int32
	milli       int16 // 0: no GPU
}

// newStreams draws the streams of a shape: the mix's tasks with one GPU or a part of one that may run there,
// and as many CPU-only tasks as the shape's nodes will get.
func (e *Estimator) newStreams(shape int, random trace.Rand) streams {
	gpus := e.cluster.Shapes[shape].GPUs
	if gpus == 0 {
		return streams{}
	}
	var pool []item
	least, demand := int32(math.MaxInt32), 0
	for _, t := range e.mix.tasks {
		if t.request.GPUs == 1 && t.request.Suits(e.cluster.Shapes[shape].Model) {
			for range t.count {
				pool = append(pool, item{t.request.CPU, t.request.Memory, int16(t.request.Milli)})
			}
			least = min(least, t.request.CPU)
			demand += t.count * t.request.Milli
		}
	}
	gpuTasks := len(pool)
	if gpuTasks == 0 {
		return streams{}
	}
	var cpuOnly []item
	for _, t := range e.mix.tasks {
		if t.request.GPUs == 0 {
			for range t.count {
				cpuOnly = append(cpuOnly, item{t.request.CPU, t.request.Memory, 0})
			}
		}
	}
	random.Shuffle(len(cpuOnly), func(i, j int) { cpuOnly[i], cpuOnly[j] = cpuOnly[j], cpuOnly[i] })
	for i := range int(math.Round(e.options.CPUOnly * e.mix.cpuOnlyFactor(e.cluster, shape, e.options.Load) * float64(len(cpuOnly)))) {
		pool = append(pool, cpuOnly[i%len(cpuOnly)])
	}
	random.Shuffle(len(pool), func(i, j int) { pool[i], pool[j] = pool[j], pool[i] })

	fill := float64(gpus) * trace.Whole * float64(gpuTasks) / float64(demand) // tasks that fill the GPUs
	length := min(e.options.MaxLength, int(math.Ceil(e.options.LengthBase+e.options.LengthPerFill*fill)))
	result := streams{least: least}
	next := 0
	for range e.options.Streams {
		for offered := 0; offered < length; next++ {
			it := pool[next%len(pool)]
			result.items = append(result.items, it)
			if it.milli > 0 {
				offered++
			}
		}
		result.ends = append(result.ends, len(result.items))
	}
	return result
}

// idle is the mean of what the streams leave of the GPUs.
func (s *streams) idle(state *cluster.State, gpus int) float64 {
	idle := state.Idle()
	if idle == 0 || len(s.ends) == 0 {
		return float64(idle) / trace.Whole
	}
	sum, first := 0, 0
	for _, end := range s.ends {
		sum += roll(s.items[first:end], *state, idle, gpus, s.least)
		first = end
	}
	return float64(sum) / float64(len(s.ends)) / trace.Whole
}

// roll offers the tasks one after the other, places what fits on the GPU that has least left, and returns
// what stays idle.
func roll(items []item, state cluster.State, idle, gpus int, least int32) int {
	cpu, memory, left := state.CPU, state.Memory, state.Left[:gpus]
	for i := range items {
		it := &items[i]
		if cpu < it.cpu || memory < it.memory {
			if cpu < least {
				return idle
			}
			continue
		}
		if it.milli > 0 {
			best := -1
			for g, l := range left {
				if l >= it.milli && (best < 0 || l < left[best]) {
					best = g
				}
			}
			if best < 0 {
				continue
			}
			left[best] -= it.milli
			idle -= int(it.milli)
			if idle == 0 {
				return 0
			}
		}
		cpu -= it.cpu
		memory -= it.memory
	}
	return idle
}
