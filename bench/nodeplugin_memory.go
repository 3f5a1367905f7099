// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"github.com/switchyard-dev/switchyard/test/harness/plugin"
)

// memoryRounds is how many claims are prepared and unprepared before memory is looked at.
const memoryRounds = 500

func nodePluginMemory() []Benchmark {
	return []Benchmark{{
		Name:  "node-plugin/memory",
		About: "resident memory (VmRSS, pages of the program included) after 500 prepares and unprepares on 8 GPUs",
		Series: []Series{
			{Name: "resident-memory", Unit: "MiB", Better: Lower, Statistics: []Statistic{Median.With(50)}},
			{Name: "resident-memory-peak", Unit: "MiB", Better: Lower, Statistics: []Statistic{Median}},
		},
		Run: onRunningPlugin(measureMemory, func(*gpuNode) error { return dropFromCache(simulator) }),
	}}
}

func measureMemory(ctx context.Context, n *gpuNode, p *plugin.Plugin, samples Samples) error {
	claims, err := n.claims(ctx, "single", len(n.gpus))
	if err != nil {
		return err
	}
	for i := range memoryRounds {
		claim := claims[i%len(claims)]
		if err := n.prepare(ctx, claim); err != nil {
			return err
		}
		if err := n.kubelet.Unprepare(ctx, claim); err != nil {
			return err
		}
	}
	memory, err := p.Memory()
	if err != nil {
		return err
	}
	const mib = 1 << 20
	samples.Add("resident-memory", float64(memory.Resident)/mib)
	samples.Add("resident-memory-peak", float64(memory.ResidentPeak)/mib)
	return nil
}
