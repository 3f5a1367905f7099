// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package packing rates what a node's idle GPUs are worth to the tasks still to come: how many stay idle for
// want of tasks that fit, how many tasks with several GPUs find room, and which GPU models are sought after.
//
// It imports packages demand, trace and cluster and the standard library. Its ratings depend on the mix of tasks it
// is given, not on the tasks that arrive later, and on nothing else: nodes in equal states are rated equal.
package packing

import (
	"cmp"
	"slices"

	"github.com/switchyard-dev/switchyard/pkg/trace"
	"github.com/switchyard-dev/switchyard/pkg/trace/cluster"
)

// Mix is which tasks are to be expected, in which proportions.
type Mix struct {
	tasks []counted
	// demand is what all ask for, in milli-GPUs; gpuCPU the CPU of those with GPUs, cpuOnly that of the
	// others, in milli-CPUs.
	demand, gpuCPU, cpuOnly float64
}

type counted struct {
	request *cluster.Request
	count   int
}

// NewMix returns the mix of the tasks.
func NewMix(tasks []trace.Task, catalog *cluster.Catalog) Mix {
	var m Mix
	counts := map[*cluster.Request]int{}
	for _, t := range tasks {
		counts[catalog.Request(t.Kind)]++
		m.demand += float64(t.Demand())
		if t.GPUs > 0 {
			m.gpuCPU += float64(t.CPU)
		} else {
			m.cpuOnly += float64(t.CPU)
		}
	}
	for request, count := range counts {
		m.tasks = append(m.tasks, counted{request, count})
	}
	slices.SortFunc(m.tasks, func(a, b counted) int { return cmp.Compare(a.request.ID, b.request.ID) })
	return m
}

// cpuOnlyFactor is how much CPU-only demand the nodes of a shape will get, in parts of what they would get if
// it were spread over the cluster as GPUs are. It goes first where GPU tasks leave CPU.
func (m Mix) cpuOnlyFactor(c *cluster.Cluster, shape int, load float64) float64 {
	if m.cpuOnly == 0 {
		return 0
	}
	perGPU := m.gpuCPU / m.demand * trace.Whole
	spare := func(s cluster.Shape) float64 { return max(0, float64(s.CPU)-float64(s.GPUs)*perGPU) }
	demand := m.cpuOnly * load * float64(c.Capacity) / m.demand
	all := 0.0
	for _, s := range c.Shapes {
		all += spare(s) * float64(s.Nodes)
	}
	s := c.Shapes[shape]
	even := demand * float64(s.GPUs) * trace.Whole / float64(c.Capacity)
	gets := spare(s)
	if demand <= all {
		gets *= demand / all
	} else {
		gets += (demand - all) * float64(s.GPUs) * trace.Whole / float64(c.Capacity)
	}
	return gets / even
}

// Pressure is, by GPU model, how much more sought after its GPUs are than the mean: 0 if as much, 1 if twice
// as much. A task counts for the models that suit it, in proportion to their GPUs.
func (m Mix) Pressure(c *cluster.Cluster) []float64 {
	gpus := make([]float64, len(c.Models)) // milli-GPUs by model
	for _, s := range c.Shapes {
		if s.Model >= 0 {
			gpus[s.Model] += float64(s.GPUs*s.Nodes) * trace.Whole
		}
	}
	pressure := make([]float64, len(c.Models))
	for _, t := range m.tasks {
		suitable := 0.0
		for model := range gpus {
			if t.request.Suits(model) {
				suitable += gpus[model]
			}
		}
		for model := range gpus {
			if t.request.Suits(model) {
				pressure[model] += float64(t.count*t.request.Demand()) / suitable
			}
		}
	}
	mean := m.demand / float64(c.Capacity)
	for model := range pressure {
		pressure[model] = pressure[model]/mean - 1
	}
	return pressure
}
