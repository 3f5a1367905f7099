// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/switchyard-dev/switchyard/pkg/device"
	"github.com/switchyard-dev/switchyard/test/harness/plugin"
)

const (
	// partitionRounds is how often partitions are made and destroyed.
	partitionRounds = 50
	// smallestProfile is the driver's ID of 1g.10gb on an H100, of which seven fit.
	smallestProfile, smallestOnGPU = 19, 7
)

// nodePluginMIG is what of making a partition is the plugin's own: on a GPU, NVML takes longer than all of it.
func nodePluginMIG() []Benchmark {
	return []Benchmark{{
		Name:  "node-plugin/mig",
		About: "claims of a 1g.10gb of one GPU, with GPU instance and compute instance made by a simulated NVML that takes no time: alone, and seven calls at once until the last is prepared",
		Series: []Series{
			{Name: "prepare-1-partition", Unit: "ms", Better: Lower, Statistics: []Statistic{P50, P95, P99}},
			{Name: "unprepare-1-partition", Unit: "ms", Better: Lower, Statistics: []Statistic{P50, P95, P99}},
			{Name: "prepare-7-partitions-at-once", Unit: "ms", Better: Lower, Statistics: []Statistic{P50, P95, P99}},
		},
		Run: onRunningPlugin(measureMIG, func(n *gpuNode) error { return n.GPUs.SetMIGMode(0, true) }),
	}}
}

func measureMIG(ctx context.Context, n *gpuNode, _ *plugin.Plugin, samples Samples) error {
	var claims []*resourceapi.ResourceClaim
	for start := range smallestOnGPU {
		part := device.PartitionRef{GPU: n.gpus[0], ProfileID: smallestProfile, Start: start}
		c, err := n.claim("part", start).Request("part", part.Name()).Create(ctx, n.cluster.Client())
		if err != nil {
			return err
		}
		claims = append(claims, c)
	}
	return rounds(samples, partitionRounds, func(i int) error {
		one := claims[i%len(claims)]
		if err := timed(samples, "prepare-1-partition", func() error { return n.prepare(ctx, one) }); err != nil {
			return err
		}
		if err := timed(samples, "unprepare-1-partition", func() error { return n.kubelet.Unprepare(ctx, one) }); err != nil {
			return err
		}
		if err := timed(samples, "prepare-7-partitions-at-once", func() error {
			return together(len(claims), func(i int) error { return n.prepare(ctx, claims[i]) })
		}); err != nil {
			return err
		}
		return n.kubelet.Unprepare(ctx, claims...)
	})
}
