// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
)

// Whole is a whole GPU in milli-GPUs.
const Whole = 1000

// MaxGPUs is how many GPUs a node may have.
const MaxGPUs = 16

// Node is a node without any task.
type Node struct {
	Name string
	// CPU is in milli-CPUs, Memory in MiB.
	CPU, Memory int32
	GPUs        int
	// Model is the GPU model; empty on a node without GPUs.
	Model string
}

// Kind is what a task asks for. Tasks of the same kind are interchangeable.
type Kind struct {
	// CPU is in milli-CPUs, Memory in MiB.
	CPU, Memory int32
	// GPUs is how many GPUs of one node the task needs.
	GPUs int
	// Milli is how much it needs of each, in milli-GPUs: Whole, or less if GPUs is 1. It is 0 if GPUs is 0.
	Milli int
	// Spec are the GPU models that suit, as the file has it: separated by "|", empty if any does.
	Spec string
}

// Demand is what the task asks for of the cluster's GPUs, in milli-GPUs.
func (k Kind) Demand() int { return k.GPUs * k.Milli }

// Shared reports whether the task needs a part of a GPU only.
func (k Kind) Shared() bool { return k.GPUs == 1 && k.Milli < Whole }

// Models are the GPU models that suit, each once and in order; nil if any does.
func (k Kind) Models() []string {
	if k.Spec == "" {
		return nil
	}
	models := strings.Split(k.Spec, "|")
	slices.Sort(models)
	return slices.Compact(models)
}

// Task is a job that needs the resources of one node.
type Task struct {
	Name string
	Kind
}

// Capacity is the number of GPUs of the nodes, in milli-GPUs.
func Capacity(nodes []Node) int {
	total := 0
	for _, n := range nodes {
		total += n.GPUs * Whole
	}
	return total
}

// MaxArrivals bounds how many tasks may have to be drawn until they ask for as much as they should: their memory.
const MaxArrivals = 5_000_000

// Check reports what keeps the tasks from being replayed on the nodes until they have asked for so many percent of
// the GPUs, although each of both is valid.
func Check(nodes []Node, tasks []Task, percent float64) error {
	if Capacity(nodes) == 0 {
		return fmt.Errorf("none of the %d nodes has a GPU: column gpu must be greater than 0 on one at least", len(nodes))
	}
	if !slices.ContainsFunc(tasks, func(t Task) bool { return t.GPUs > 0 }) {
		return fmt.Errorf("none of the %d tasks asks for a GPU: column num_gpu must be greater than 0 on one at least", len(tasks))
	}
	if arrivals := expectedArrivals(nodes, tasks, percent); arrivals > MaxArrivals {
		return fmt.Errorf("about %.0f tasks have to arrive until they ask for %.0f %% of the nodes' GPUs, more than %d: "+
			"take fewer nodes, or leave out tasks that ask for little or nothing", arrivals, percent, MaxArrivals)
	}
	least := math.MaxInt
	for _, t := range tasks {
		if t.GPUs > 0 {
			least = min(least, t.Demand())
		}
	}
	if asked := percent / 100 * float64(Capacity(nodes)); float64(least) > asked {
		return fmt.Errorf("no task that asks for a GPU would arrive: each asks for more than %.0f %% of the nodes' %d GPUs: take more nodes, or smaller tasks",
			percent, Capacity(nodes)/Whole)
	}
	known := map[string]bool{}
	for _, n := range nodes {
		if n.GPUs > 0 {
			known[n.Model] = true
		}
	}
	for _, t := range tasks {
		for _, model := range t.Models() {
			if !known[model] {
				return fmt.Errorf("task %s: gpu_spec %q: no node has GPU model %q: the nodes have %s; correct the name or take it out of gpu_spec",
					t.Name, t.Spec, model, strings.Join(sortedKeys(known), ", "))
			}
		}
	}
	return nil
}

// expectedArrivals is how many of the tasks, drawn at random, ask for so many percent of the nodes' GPUs.
func expectedArrivals(nodes []Node, tasks []Task, percent float64) float64 {
	demand := 0
	for _, t := range tasks {
		demand += t.Demand()
	}
	return percent / 100 * float64(Capacity(nodes)) * float64(len(tasks)) / float64(demand)
}

func sortedKeys(set map[string]bool) []string {
	keys := make([]string, 0, len(set))
	for key := range set {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// byName returns a sorted copy.
func byName[T any](values []T, name func(T) string) []T {
	sorted := slices.Clone(values)
	slices.SortStableFunc(sorted, func(a, b T) int { return cmp.Compare(name(a), name(b)) })
	return sorted
}
