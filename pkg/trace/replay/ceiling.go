// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"github.com/switchyard-dev/switchyard/pkg/trace"
	"github.com/switchyard-dev/switchyard/pkg/trace/cluster"
)

// ceiling is how much of the GPUs, in percent, could be allocated at most beside the tasks that run, wherever
// they ran: next to a task that needs more than half of a GPU there is room for tasks only that need no more
// than the rest, and there may be too few of those. More is possible only if other small tasks arrive.
func ceiling(c *cluster.Cluster) float64 {
	var running [trace.Whole + 1]int // by what a task needs of a GPU
	for i := range c.Nodes {
		for _, run := range c.Nodes[i].Tasks {
			if run.Request.Shared() {
				running[run.Request.Milli]++
			}
		}
	}
	// With each bound on what counts as small: what is left beside large tasks, less what small ones need.
	left, small, lost := 0, 0, 0
	for rest := 1; rest < trace.Whole/2; rest++ {
		left += running[trace.Whole-rest] * rest
		small += running[rest] * rest
		lost = max(lost, left-small)
	}
	return 100 * (1 - float64(lost)/float64(c.Capacity))
}
