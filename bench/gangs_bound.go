// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

// boundGangs are the gangs that are started, with the time that Kubernetes takes for so many claims and
// pods at its stock rates, in milliseconds (0: not known).
var boundGangs = []struct {
	members, rounds int
	target          float64
}{
	{2, 5, 150},
	{8, 4, 900},
	{32, 2, 3500},
	{128, 1, 0},
}

// refill is how long the stock rate limiters take to forget what happened before: 30 requests at 20 a
// second.
const refill = 1500 * time.Millisecond

// gangBound measures how long a gang takes to be bound, of the first pod to the last: at stock rates of
// kube-controller-manager and kube-scheduler, which set the pace, and at raised ones.
func gangBound(rates rates) []Benchmark {
	var benchmarks []Benchmark
	for _, gang := range boundGangs {
		name := fmt.Sprintf("gang-bound-%d%s", gang.members, rates.suffix)
		sinceTemplate := P50
		if gang.target > 0 {
			sinceTemplate = P50.With(gang.target)
		}
		benchmarks = append(benchmarks, Benchmark{
			Name: name,
			About: fmt.Sprintf("%d pods, a domain of 4 GPUs each, on 100 nodes: until all are bound, from the template's appearance and from the creation of the last pod (%s)",
				gang.members, strings.TrimPrefix(rates.suffix+" rates", "-")),
			Series: []Series{
				{Name: name + "-from-template", Unit: "ms", Better: Lower, Statistics: []Statistic{sinceTemplate, Max}},
				{Name: name + "-from-pods", Unit: "ms", Better: Lower, Statistics: []Statistic{P50, Max}},
			},
			Run: onGangs(gangSetup{nodes: 100, rates: rates, controller: true}, func(ctx context.Context, c *gangCluster, samples Samples) error {
				for range gang.rounds {
					if err := pause(ctx, refill); err != nil {
						return err
					}
					fromTemplate, fromPods, err := c.measureBound(ctx, gang.members)
					if err != nil {
						return err
					}
					samples.Add(name+"-from-template", milliseconds(fromTemplate))
					samples.Add(name+"-from-pods", milliseconds(fromPods))
				}
				return nil
			}),
		})
	}
	return benchmarks
}

// measureBound starts one gang and removes it. Both times end when the last pod is seen bound.
func (c *gangCluster) measureBound(ctx context.Context, members int) (fromTemplate, fromPods time.Duration, err error) {
	namespace, err := c.namespace(ctx, "bound")
	if err != nil {
		return 0, 0, err
	}
	following, cancel := context.WithTimeout(ctx, gangPatience)
	defer cancel()
	templates, err := follow[*resourceapi.ResourceClaimTemplate](following, c, namespace, func(f informers.SharedInformerFactory) cache.SharedIndexInformer {
		return f.Resource().V1().ResourceClaimTemplates().Informer()
	})
	if err != nil {
		return 0, 0, err
	}
	appeared := make(chan time.Time, 1)
	go func() {
		select {
		case <-templates:
			appeared <- time.Now()
		case <-following.Done():
		}
	}()
	pods, err := followPods(following, c, namespace)
	if err != nil {
		return 0, 0, err
	}
	if err := c.createGang(ctx, namespace, "gang", members); err != nil {
		return 0, 0, err
	}
	created := time.Now()
	bound := map[types.UID]bool{}
	for len(bound) < members {
		if _, err := nextBound(following, pods, bound); err != nil {
			return 0, 0, err
		}
	}
	done := time.Now()
	return done.Sub(<-appeared), done.Sub(created), c.empty(ctx, namespace)
}
