// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"github.com/switchyard-dev/switchyard/pkg/trace"
	"github.com/switchyard-dev/switchyard/pkg/trace/cluster"
)

// The largest node of the trace, by which scores are normalised, and the greatest score. Scores are cut to
// whole numbers, as a scheduler's are: with floats the published results do not come out.
const (
	mostCPU  = 128000 // milli-CPUs
	mostGPU  = 8 * trace.Whole
	maxScore = 100
)

// bestFit prefers nodes that have least CPU and GPUs left.
type bestFit struct{ cluster *cluster.Cluster }

func (p bestFit) score(n *cluster.Node, r *cluster.Request) (float64, cluster.GPUSet) {
	cpu := float64(n.CPU-r.CPU) / mostCPU
	gpu := float64(n.Idle()-r.Demand()) / mostGPU
	return float64(int(maxScore * (1 - cpu/2 - gpu/2))), p.cluster.FirstFit(&n.State, r)
}

// dotProduct prefers nodes whose rest is least like the request.
type dotProduct struct{ cluster *cluster.Cluster }

func (p dotProduct) score(n *cluster.Node, r *cluster.Request) (float64, cluster.GPUSet) {
	cpu := float64(n.CPU) / mostCPU * float64(r.CPU) / mostCPU
	gpu := float64(n.Idle()) / mostGPU * float64(r.Demand()) / mostGPU
	return float64(int(maxScore * (1 - cpu/2 - gpu/2))), p.cluster.FirstFit(&n.State, r)
}

// gpuPacking prefers GPUs in use, then nodes in use, then free nodes.
type gpuPacking struct{ cluster *cluster.Cluster }

func (p gpuPacking) score(n *cluster.Node, r *cluster.Request) (float64, cluster.GPUSet) {
	gpus := p.cluster.FirstFit(&n.State, r)
	if r.GPUs == 0 {
		return 0, gpus
	}
	if free := n.Free(); free == n.GPUs {
		return float64(max(maxScore/3-free, free)), gpus
	}
	newlyUsed, left := 0, 0
	for i := range gpus.All {
		if n.Left[i] == trace.Whole {
			newlyUsed++
		}
		left += int(n.Left[i]) * 100 / trace.Whole
	}
	if newlyUsed > 0 {
		return float64(max(maxScore/2-newlyUsed, maxScore/3)), gpus
	}
	return float64(max(maxScore-left/10, maxScore/2)), gpus
}

// gpuClustering keeps tasks together that ask for the same number of GPUs.
type gpuClustering struct{ cluster *cluster.Cluster }

func (p gpuClustering) score(n *cluster.Node, r *cluster.Request) (float64, cluster.GPUSet) {
	gpus := p.cluster.FirstFit(&n.State, r)
	if r.GPUs == 0 {
		return 0, gpus
	}
	score := maxScore / 4 * (mostGPU - n.Idle()) / mostGPU
	same, classes := n.Has(r), n.ClassCount()
	switch {
	case same && classes == 1:
		score += maxScore * 3 / 4
	case same:
		score += maxScore * 2 / 4
	case classes == 0:
		score += maxScore / 4
	}
	return float64(score), gpus
}
