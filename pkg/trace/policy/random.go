// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"github.com/switchyard-dev/switchyard/pkg/trace"
	"github.com/switchyard-dev/switchyard/pkg/trace/cluster"
)

// random takes any node that the task fits, and any GPU of it that has the part that is asked for.
type random struct {
	cluster *cluster.Cluster
	random  trace.Rand
	nodes   []int // reused
}

func newRandom(e Env) Policy { return &random{cluster: e.Cluster, random: e.Random} }

// Choose implements Policy.
func (p *random) Choose(r *cluster.Request) (cluster.Placement, bool) {
	p.nodes = p.nodes[:0]
	for i := range p.cluster.Nodes {
		if p.cluster.Fits(&p.cluster.Nodes[i].State, r) {
			p.nodes = append(p.nodes, i)
		}
	}
	if len(p.nodes) == 0 {
		return cluster.Placement{}, false
	}
	chosen := p.nodes[p.random.Intn(len(p.nodes))]
	state := &p.cluster.Nodes[chosen].State
	if !r.Shared() {
		return cluster.Placement{Node: chosen, GPUs: p.cluster.FirstFit(state, r)}, true
	}
	var gpus []int
	for i, left := range state.Left {
		if int(left) >= r.Milli {
			gpus = append(gpus, i)
		}
	}
	return cluster.Placement{Node: chosen, GPUs: 1 << gpus[p.random.Intn(len(gpus))]}, true
}
