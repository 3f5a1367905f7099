// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"github.com/switchyard-dev/switchyard/pkg/trace/cluster"
)

// scorer rates the nodes that a task fits.
type scorer interface {
	// score returns how good the node is, greater is better, and the GPUs to take. It depends on nothing
	// but the node's state, its tasks and the request.
	score(n *cluster.Node, r *cluster.Request) (float64, cluster.GPUSet)
}

// ranked takes the node of the best score; of equal ones that of the lowest rank. It rates a node again
// only after the node changed.
type ranked struct {
	cluster *cluster.Cluster
	scorer  scorer
	// rated has the last rating of each node, by request.
	rated [][]rating
}

type rating struct {
	version uint32 // of the node, plus 1: 0 is none
	fits    bool
	gpus    cluster.GPUSet
	score   float64
}

func newRanked(e Env, s scorer) *ranked {
	return &ranked{cluster: e.Cluster, scorer: s}
}

// Choose implements Policy.
func (p *ranked) Choose(r *cluster.Request) (cluster.Placement, bool) {
	for len(p.rated) <= r.ID {
		p.rated = append(p.rated, nil)
	}
	if p.rated[r.ID] == nil {
		p.rated[r.ID] = make([]rating, len(p.cluster.Nodes))
	}
	ratings := p.rated[r.ID]
	best := -1
	for i := range ratings {
		n, rated := &p.cluster.Nodes[i], &ratings[i]
		if rated.version != n.Version+1 {
			*rated = rating{version: n.Version + 1, fits: p.cluster.Fits(&n.State, r)}
			if rated.fits {
				rated.score, rated.gpus = p.scorer.score(n, r)
			}
		}
		if !rated.fits {
			continue
		}
		if best < 0 || rated.score > ratings[best].score ||
			rated.score == ratings[best].score && n.Rank < p.cluster.Nodes[best].Rank {
			best = i
		}
	}
	if best < 0 {
		return cluster.Placement{}, false
	}
	return cluster.Placement{Node: best, GPUs: ratings[best].gpus}, true
}
