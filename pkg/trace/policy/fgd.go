// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"math"
	"slices"

	"github.com/switchyard-dev/switchyard/pkg/trace"
	"github.com/switchyard-dev/switchyard/pkg/trace/cluster"
)

// gradientDescent takes the place that makes least GPUs useless to a typical task: fragmentation gradient
// descent (FGD) of the paper.
type gradientDescent struct {
	cluster *cluster.Cluster
	typical []typicalTask
	// known are fragmentations that were computed before.
	known map[cluster.State]float64
}

// typicalTask is what many tasks ask for. Memory does not count.
type typicalTask struct {
	cluster.Request
	share float64 // of the typical tasks
}

// typicalShare is the part of all tasks that the typical ones are.
const typicalShare = 0.95

func newGradientDescent(e Env) *gradientDescent {
	return &gradientDescent{cluster: e.Cluster, typical: typicalTasks(e), known: map[cluster.State]float64{}}
}

// typicalTasks are the most frequent kinds of tasks, until they are typicalShare of all.
func typicalTasks(e Env) []typicalTask {
	counts := map[trace.Kind]int{}
	for _, t := range e.Tasks {
		kind := t.Kind
		kind.Memory = 0
		counts[kind]++
	}
	kinds := make([]trace.Kind, 0, len(counts))
	for kind := range counts {
		kinds = append(kinds, kind)
	}
	slices.SortFunc(kinds, func(a, b trace.Kind) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(b.CPU, a.CPU), cmp.Compare(b.Milli, a.Milli),
			cmp.Compare(b.GPUs, a.GPUs), cmp.Compare(b.Spec, a.Spec))
	})
	var typical []typicalTask
	sum := 0
	catalog := e.Cluster.NewCatalog(nil)
	for _, kind := range kinds {
		if float64(sum) >= typicalShare*float64(len(e.Tasks)) {
			break
		}
		sum += counts[kind]
		typical = append(typical, typicalTask{*catalog.Request(kind), float64(counts[kind])})
	}
	for i := range typical {
		// Divided twice, as it was published: see fragmentation.
		typical[i].share = typical[i].share / float64(len(e.Tasks)) / (float64(sum) / float64(len(e.Tasks)))
	}
	return typical
}

func (p *gradientDescent) score(n *cluster.Node, r *cluster.Request) (float64, cluster.GPUSet) {
	before := p.fragmentation(n.State)
	rate := func(gpus cluster.GPUSet) float64 {
		after := p.fragmentation(n.After(r, gpus))
		return float64(int(maxScore * sigmoid((before-after)/trace.Whole)))
	}
	if !r.Shared() {
		gpus := p.cluster.FirstFit(&n.State, r)
		return rate(gpus), gpus
	}
	var options [trace.MaxGPUs]cluster.GPUSet
	best, chosen := -1.0, cluster.GPUSet(0)
	for _, gpus := range p.cluster.Options(options[:0], &n.State, r) {
		if score := rate(gpus); score > best {
			best, chosen = score, gpus
		}
	}
	return best, chosen
}

func sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

// fragmentation is how many of a node's idle milli-GPUs a typical task cannot use.
func (p *gradientDescent) fragmentation(s cluster.State) float64 {
	s = p.cluster.Canonical(s)
	if known, ok := p.known[s]; ok {
		return known
	}
	idle, model := s.Idle(), p.cluster.Shapes[s.Shape].Model
	// One sum for each reason why GPUs are of no use, in the order of the authors' simulator: floats that
	// are summed in another order differ in the last bit, and a score that is cut to a whole number by one.
	var sums [reasons]float64
	for i := range p.typical {
		t := &p.typical[i]
		reason, useless := p.useless(&s, t, idle, model)
		sums[reason] += t.share * float64(useless)
	}
	sum := 0.0
	for _, s := range sums {
		sum += s
	}
	p.known[s] = sum
	return sum
}

// The reasons why idle GPUs are of no use to a task, in the order in which they are summed.
const (
	lacksBoth = iota // CPU and GPUs
	lacksGPU
	lacksCPU
	needsNoGPU
	needsNoGPULacksCPU
	wrongModel
	reasons
)

// useless is how many of the node's idle milli-GPUs the task cannot use, and why.
func (p *gradientDescent) useless(s *cluster.State, t *typicalTask, idle, model int) (reason, milli int) {
	cpu := t.CPU <= s.CPU
	switch {
	case t.GPUs == 0 && cpu:
		return needsNoGPU, idle
	case t.GPUs == 0:
		return needsNoGPULacksCPU, idle
	case !t.Suits(model):
		return wrongModel, idle
	}
	useful, enough := 0, 0
	for _, left := range s.Left {
		if left > 0 && int(left) >= t.Milli {
			enough++
			useful += int(left)
		}
	}
	switch {
	case enough >= t.GPUs && cpu:
		return lacksGPU, idle - useful
	case enough >= t.GPUs:
		return lacksCPU, idle
	case cpu:
		return lacksGPU, idle
	default:
		return lacksBoth, idle
	}
}
