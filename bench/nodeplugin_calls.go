// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/switchyard-dev/switchyard/test/harness/plugin"
)

const (
	// warmUp is how many rounds go unmeasured: connections, caches and the heap settle.
	warmUp = 20
	// callRounds is how many rounds are measured.
	callRounds = 300
	// parallelRounds is the same for rounds of 8 claims.
	parallelRounds = 100
	// manyClaims is how many claims are prepared on a full node.
	manyClaims = 200
	// burst is how many prepares follow each other without a pause.
	burst = 50
)

// nodePluginCalls are the kubelet's calls. Each prepare includes that the helper reads the claim from
// the API server, as on a real node.
func nodePluginCalls() []Benchmark {
	return []Benchmark{
		{
			Name:  "node-plugin/calls",
			About: "one call for one claim, one after the other, on 8 GPUs",
			Series: []Series{
				{Name: "prepare-1-gpu", Unit: "ms", Better: Lower, Statistics: []Statistic{P50.With(3.5), P95, P99}},
				{Name: "reprepare-1-gpu", Unit: "ms", Better: Lower, Statistics: []Statistic{P50, P95, P99}},
				{Name: "unprepare-1-gpu", Unit: "ms", Better: Lower, Statistics: []Statistic{P50.With(1.5), P95, P99}},
				{Name: "prepare-8-gpus", Unit: "ms", Better: Lower, Statistics: []Statistic{P50, P95, P99}},
				{Name: "reprepare-8-gpus", Unit: "ms", Better: Lower, Statistics: []Statistic{P50, P95, P99}},
				{Name: "unprepare-8-gpus", Unit: "ms", Better: Lower, Statistics: []Statistic{P50, P95, P99}},
			},
			Run: onRunningPlugin(measureCalls),
		},
		{
			Name:  "node-plugin/parallel",
			About: "8 claims of one GPU each, in one call and in 8 calls at once, until the last is prepared",
			Series: []Series{
				{Name: "prepare-8-claims-in-one-call", Unit: "ms", Better: Lower, Statistics: []Statistic{P50.With(15), P95, P99}},
				{Name: "prepare-8-calls-at-once", Unit: "ms", Better: Lower, Statistics: []Statistic{P50.With(15), P95, P99}},
			},
			Run: onRunningPlugin(measureParallel),
		},
		{
			Name:  "node-plugin/full-node",
			About: fmt.Sprintf("one call for one claim while %d others are prepared, against with none, in turn", manyClaims),
			Series: []Series{
				{Name: "prepare-1-gpu-of-200", Unit: "ms", Better: Lower, Statistics: []Statistic{P50, P95, P99}},
				{Name: "unprepare-1-gpu-of-200", Unit: "ms", Better: Lower, Statistics: []Statistic{P50, P95, P99}},
				{Name: "prepare-1-gpu-of-200-to-none", Unit: "ratio", Better: Lower, Statistics: []Statistic{Median.With(1.2)}},
				{Name: "unprepare-1-gpu-of-200-to-none", Unit: "ratio", Better: Lower, Statistics: []Statistic{Median.With(1.2)}},
			},
			Run: onRunningPlugin(measureFullNode),
		},
		{
			Name:  "node-plugin/burst",
			About: fmt.Sprintf("%d prepares one after the other without a pause: a client that throttles itself shows as 190 ms", burst),
			Series: []Series{
				{Name: "prepare-burst-of-50", Unit: "ms", Better: Lower, Statistics: []Statistic{P50, Max.With(100)}},
			},
			Run: onRunningPlugin(measureBurst),
		},
	}
}

func measureCalls(ctx context.Context, n *gpuNode, _ *plugin.Plugin, samples Samples) error {
	single, err := n.claims(ctx, "single", len(n.gpus))
	if err != nil {
		return err
	}
	whole, err := n.claim("whole", 0).Request("gpus", n.gpus...).Create(ctx, n.cluster.Client())
	if err != nil {
		return err
	}
	return rounds(samples, callRounds, func(i int) error {
		if err := n.cycle(ctx, samples, "-1-gpu", single[i%len(single)]); err != nil {
			return err
		}
		return n.cycle(ctx, samples, "-8-gpus", whole)
	})
}

// cycle prepares a claim, prepares it again, as the kubelet does when it restarts, and unprepares it.
func (n *gpuNode) cycle(ctx context.Context, samples Samples, suffix string, claim *resourceapi.ResourceClaim) error {
	prepare := func() error { return n.prepare(ctx, claim) }
	for _, step := range []struct {
		name string
		call func() error
	}{
		{"prepare", prepare},
		{"reprepare", prepare},
		{"unprepare", func() error { return n.kubelet.Unprepare(ctx, claim) }},
	} {
		if err := timed(samples, step.name+suffix, step.call); err != nil {
			return err
		}
	}
	return nil
}

func measureParallel(ctx context.Context, n *gpuNode, _ *plugin.Plugin, samples Samples) error {
	claims, err := n.claims(ctx, "parallel", len(n.gpus))
	if err != nil {
		return err
	}
	return rounds(samples, parallelRounds, func(int) error {
		for _, way := range []struct {
			series  string
			prepare func() error
		}{
			{"prepare-8-claims-in-one-call", func() error { return n.prepare(ctx, claims...) }},
			{"prepare-8-calls-at-once", func() error {
				return together(len(claims), func(i int) error { return n.prepare(ctx, claims[i]) })
			}},
		} {
			if err := timed(samples, way.series, way.prepare); err != nil {
				return err
			}
			if err := n.kubelet.Unprepare(ctx, claims...); err != nil {
				return err
			}
		}
		return nil
	})
}

// measureFullNode compares in several rounds, so that what else the machine does hits both sides.
func measureFullNode(ctx context.Context, n *gpuNode, _ *plugin.Plugin, samples Samples) error {
	single, err := n.claims(ctx, "single", len(n.gpus))
	if err != nil {
		return err
	}
	others, err := n.adminClaims(ctx, "other", manyClaims)
	if err != nil {
		return err
	}
	calls := func(count int) (Samples, error) {
		taken := Samples{}
		for i := range count {
			if err := n.cycle(ctx, taken, "", single[i%len(single)]); err != nil {
				return nil, err
			}
		}
		return taken, nil
	}

	const turns = 5
	if _, err := calls(warmUp); err != nil {
		return err
	}
	for range turns {
		empty, err := calls(callRounds / turns)
		if err != nil {
			return err
		}
		for _, claim := range others {
			if err := n.prepare(ctx, claim); err != nil {
				return err
			}
		}
		full, err := calls(callRounds / turns)
		if err != nil {
			return err
		}
		if err := n.kubelet.Unprepare(ctx, others...); err != nil {
			return err
		}
		for _, call := range []string{"prepare", "unprepare"} {
			samples.Add(call+"-1-gpu-of-200", full[call]...)
			samples.Add(call+"-1-gpu-of-200-to-none", median(full[call])/median(empty[call]))
		}
	}
	return nil
}

// median is the middle of unsorted samples.
func median(samples []float64) float64 { return Median.Of(slices.Sorted(slices.Values(samples))) }

func measureBurst(ctx context.Context, n *gpuNode, _ *plugin.Plugin, samples Samples) error {
	claims, err := n.adminClaims(ctx, "burst", burst)
	if err != nil {
		return err
	}
	for _, claim := range claims {
		if err := timed(samples, "prepare-burst-of-50", func() error { return n.prepare(ctx, claim) }); err != nil {
			return err
		}
	}
	return nil
}
