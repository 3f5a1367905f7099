// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// plannerNodes are the sizes of the clusters, each node with 8 GPUs in two domains.
var plannerNodes = []int{100, 1000, 5000}

// plannerLoads are the parts of the GPUs in use, in percent.
var plannerLoads = []int{50, 95}

// plannerGangs are the gangs that are planned, one at a time. Eight GPUs are in no domain of four: such
// members share a node.
var plannerGangs = []struct {
	name               string
	members, perMember int32
	scope              v1alpha1.MemberScope
}{
	{"1x8", 1, 8, v1alpha1.MemberNode},
	{"8x4", 8, 4, v1alpha1.MemberNVSwitchDomain},
	{"32x8", 32, 8, v1alpha1.MemberNode},
}

// plannerWarmUp is how many plans go unmeasured: selectors are evaluated on all devices once.
const plannerWarmUp = 3

// plannerRounds is how many plans are measured of each kind.
const plannerRounds = 100

// planner measures how long the planner takes to decide for a gang: to find a place, with what
// kube-scheduler's allocator takes to check it, or to say why there is none.
func planner() []Benchmark {
	var series []Series
	for _, nodes := range plannerNodes {
		p99 := P99
		if nodes == 1000 {
			p99 = p99.With(10)
		}
		for _, load := range plannerLoads {
			for _, gang := range plannerGangs {
				series = append(series, Series{
					Name: plannerSeries(nodes, load, gang.name), Unit: "ms", Better: Lower,
					Statistics: []Statistic{P50, p99},
				})
			}
		}
	}
	for _, load := range plannerLoads {
		for _, gang := range plannerGangs {
			series = append(series, Series{
				Name: plannerGrowth(load, gang.name), Unit: "ratio", Better: Lower,
				Statistics: []Statistic{Median.With(1)},
			})
		}
	}
	return []Benchmark{{
		Name:   "planner",
		About:  "one gang planned or refused, with the scheduler's allocator as oracle; one GPU changes hands before each. Growth: time per node at 5000 nodes to that at 1000",
		Series: series,
		Run:    measurePlanner,
	}}
}

func plannerSeries(nodes, load int, gang string) string {
	return fmt.Sprintf("plan-%s-on-%d-nodes-%d-percent", gang, nodes, load)
}

func plannerGrowth(load int, gang string) string {
	return fmt.Sprintf("plan-%s-growth-%d-percent", gang, load)
}

func measurePlanner(ctx context.Context, _ *Lab, samples Samples) error {
	for _, load := range plannerLoads {
		for _, nodes := range plannerNodes {
			random := rand.New(rand.NewPCG(uint64(nodes), uint64(load)))
			cluster := newPlannerCluster(nodes, load, random)
			for _, gang := range plannerGangs {
				request := gangToPlan(gang.name, gang.members, gang.perMember, gang.scope)
				for i := range plannerWarmUp + plannerRounds {
					cluster.change(random)
					start := time.Now()
					decision := cluster.Plan(ctx, []placement.Gang{request})[0]
					took := time.Since(start)
					if refusal := decision.Refusal; refusal != nil && refusal.Reason != placement.ReasonNoFeasibleDomain {
						return fmt.Errorf("plan %s on %d nodes: %s: %s", gang.name, nodes, refusal.Reason, refusal.Message)
					}
					if i >= plannerWarmUp {
						samples.Add(plannerSeries(nodes, load, gang.name), took.Seconds()*1000)
					}
				}
			}
		}
		for _, gang := range plannerGangs {
			perNode := func(nodes int) float64 {
				return median(samples[plannerSeries(nodes, load, gang.name)]) / float64(nodes)
			}
			samples.Add(plannerGrowth(load, gang.name), perNode(5000)/perNode(1000))
		}
	}
	return nil
}
