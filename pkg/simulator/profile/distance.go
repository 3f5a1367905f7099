// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package profile

import "slices"

// Distance is how far two GPUs are apart over PCIe, nearest first (nvmlGpuTopologyLevel_t).
type Distance int

// The distances in the words of nvidia-smi topo -m.
const (
	DistanceSelf Distance = iota // X
	DistancePIX                  // the same PCIe switch
	DistancePXB                  // several PCIe switches below one root
	DistancePHB                  // the same root complex
	DistanceNODE                 // the same NUMA node
	DistanceSYS                  // across NUMA nodes
)

func (d Distance) String() string {
	return [...]string{"X", "PIX", "PXB", "PHB", "NODE", "SYS"}[d]
}

// Distance returns the PCIe distance between the GPUs of two indexes.
func (p Profile) Distance(a, b int) Distance {
	x, y := p.GPUs[a], p.GPUs[b]
	switch {
	case a == b:
		return DistanceSelf
	case x.PCIeRoot == y.PCIeRoot:
		if len(x.Bridges) > 0 && len(y.Bridges) > 0 {
			if x.Bridges[len(x.Bridges)-1] == y.Bridges[len(y.Bridges)-1] {
				return DistancePIX
			}
			if slices.ContainsFunc(x.Bridges, func(bridge string) bool { return slices.Contains(y.Bridges, bridge) }) {
				return DistancePXB
			}
		}
		return DistancePHB
	case x.NUMANode != nil && y.NUMANode != nil && *x.NUMANode == *y.NUMANode:
		return DistanceNODE
	default:
		return DistanceSYS
	}
}
