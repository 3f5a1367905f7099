// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

const (
	// singlesInFlight is how many pods there are at a time.
	singlesInFlight = 30
	// singlesRamp is how long they run before they are counted, singlesTurn how long they are.
	singlesRamp, singlesTurn = time.Second, 5 * time.Second
	// singlesRounds is how often each side has a turn.
	singlesRounds = 4
	// waitingGangs of waitingMembers wait beside them.
	waitingGangs, waitingMembers = 20, 8
	// singlesSettled is how long they have waited then. Kubernetes' claim controller tries to make the claim of each
	// pod again and again, 5 ms after the first time and then after twice as long each time, and writes an Event each
	// time: after 41 s and after 82 s for the last times that a turn could meet. What gangs cost that have just come
	// is another question than what those cost that wait.
	singlesSettled = 50 * time.Second
)

// beside is what waits while single pods are scheduled.
type beside struct {
	series string
	wait   func(ctx context.Context, c *gangCluster, namespace string) error
	// settles says that what waits costs more at first than later.
	settles bool
}

// gangSingles measures what gangs that wait cost everybody else. A GPU of each domain is in use, so that no
// member, who wants a whole domain, has a place.
func gangSingles() []Benchmark {
	const alone, gangClaims, gated, plainClaims = "singles-alone", "singles-beside-gangclaims", "singles-beside-gated-pods", "singles-beside-plain-claims"
	sides := []beside{
		{series: alone, wait: func(context.Context, *gangCluster, string) error { return nil }},
		{series: gangClaims, wait: waitAsGangClaims, settles: true},
		{series: gated, wait: waitGated, settles: true},
		{series: plainClaims, wait: waitAsPlainClaims},
	}
	return []Benchmark{{
		Name: "gang-singles",
		About: fmt.Sprintf("pods with one GPU bound per second on 100 nodes, each deleted when it is bound: alone, beside %d gangs of %d that wait as GangClaims, beside the same pods without GangClaims and template, which is what Kubernetes itself pays for pods that wait, and beside the same pods with plain claims, in turn",
			waitingGangs, waitingMembers),
		Series: []Series{
			{Name: alone, Unit: "pods/s", Better: Higher, Statistics: []Statistic{Median}},
			{Name: gangClaims, Unit: "pods/s", Better: Higher, Statistics: []Statistic{Median}},
			{Name: gated, Unit: "pods/s", Better: Higher, Statistics: []Statistic{Median}},
			{Name: plainClaims, Unit: "pods/s", Better: Higher, Statistics: []Statistic{Median}},
			{Name: gangClaims + "-to-alone", Unit: "ratio", Better: Higher, Statistics: []Statistic{Median.With(0.95)}},
			{Name: gangClaims + "-to-gated-pods", Unit: "ratio", Better: Higher, Statistics: []Statistic{Median}},
			{Name: gated + "-to-alone", Unit: "ratio", Better: Higher, Statistics: []Statistic{Median}},
			{Name: plainClaims + "-to-alone", Unit: "ratio", Better: Higher, Statistics: []Statistic{Median}},
		},
		Run: onGangs(gangSetup{nodes: 100, rates: unlimitedRates, controller: true}, func(ctx context.Context, c *gangCluster, samples Samples) error {
			busy, err := c.breakDomains(ctx)
			if err != nil {
				return err
			}
			if _, err := c.schedule(ctx); err != nil { // warms caches up
				return err
			}
			for round := range singlesRounds {
				measured := map[string]float64{}
				for i := range sides { // another side begins each time
					side := sides[(round+i)%len(sides)]
					if measured[side.series], err = c.scheduleBeside(ctx, side); err != nil {
						return fmt.Errorf("%s: %w", side.series, err)
					}
					samples.Add(side.series, measured[side.series])
				}
				if measured[alone] == 0 {
					return fmt.Errorf("no pod was bound within %v, with nothing beside", singlesTurn)
				}
				for _, side := range sides[1:] {
					samples.Add(side.series+"-to-alone", measured[side.series]/measured[alone])
				}
				if measured[gated] > 0 {
					samples.Add(gangClaims+"-to-gated-pods", measured[gangClaims]/measured[gated])
				}
			}
			return c.empty(ctx, busy)
		}),
	}}
}

func (c *gangCluster) scheduleBeside(ctx context.Context, side beside) (float64, error) {
	namespace, err := c.namespace(ctx, "waiting")
	if err != nil {
		return 0, err
	}
	created := time.Now()
	if err := side.wait(ctx, c, namespace); err != nil {
		return 0, err
	}
	if side.settles {
		if err := pause(ctx, singlesSettled-time.Since(created)); err != nil {
			return 0, err
		}
	}
	rate, err := c.schedule(ctx)
	return rate, errors.Join(err, c.empty(ctx, namespace))
}

func waitAsGangClaims(ctx context.Context, c *gangCluster, namespace string) error {
	for i := range waitingGangs {
		if err := c.createGang(ctx, namespace, fmt.Sprintf("gang-%d", i), waitingMembers); err != nil {
			return err
		}
	}
	return c.until(ctx, "all gangs wait for a place", func(ctx context.Context) error {
		var gangs v1alpha1.GangClaimList
		if err := c.client.List(ctx, &gangs, client.InNamespace(namespace)); err != nil {
			return err
		}
		for _, gang := range gangs.Items {
			if err := hasNoPlace(&gang); err != nil {
				return err
			}
		}
		return nil
	})
}

// waitGated creates the same pods without GangClaims, and no template either: what Kubernetes itself has to do for
// pods that wait for their template.
func waitGated(ctx context.Context, c *gangCluster, namespace string) error {
	for i := range waitingGangs {
		if err := c.createMembers(ctx, namespace, fmt.Sprintf("gang-%d", i), waitingMembers); err != nil {
			return err
		}
	}
	return nil
}

// hasNoPlace returns nil when the planner has refused the gang.
func hasNoPlace(gang *v1alpha1.GangClaim) error {
	planned := meta.FindStatusCondition(gang.Status.Conditions, v1alpha1.ConditionPlanned)
	if planned == nil || planned.Reason != string(placement.ReasonNoFeasibleDomain) {
		return fmt.Errorf("condition %s of gang %s is %+v", v1alpha1.ConditionPlanned, gang.Name, planned)
	}
	return nil
}

func waitAsPlainClaims(ctx context.Context, c *gangCluster, namespace string) error {
	for i := range waitingGangs {
		name := fmt.Sprintf("gang-%d", i)
		if err := c.createTemplate(ctx, namespace, name, gpusPerDomain); err != nil {
			return err
		}
		if err := c.createMembers(ctx, namespace, name, waitingMembers); err != nil {
			return err
		}
	}
	return c.until(ctx, "all pods were tried", func(ctx context.Context) error {
		var pods corev1.PodList
		if err := c.client.List(ctx, &pods, client.InNamespace(namespace)); err != nil {
			return err
		}
		for _, pod := range pods.Items {
			unschedulable := false
			for _, condition := range pod.Status.Conditions {
				unschedulable = unschedulable || condition.Type == corev1.PodScheduled && condition.Reason == corev1.PodReasonUnschedulable && len(pod.Status.ResourceClaimStatuses) > 0
			}
			if !unschedulable {
				return fmt.Errorf("pod %s: %+v", pod.Name, pod.Status)
			}
		}
		return nil
	})
}

// breakDomains lets a pod run on one GPU of every domain. It returns their namespace.
func (c *gangCluster) breakDomains(ctx context.Context) (string, error) {
	namespace, err := c.namespace(ctx, "busy")
	if err != nil {
		return "", err
	}
	all, err := c.gpus(ctx)
	if err != nil {
		return "", err
	}
	seen := map[string]bool{}
	all = slices.DeleteFunc(all, func(g gpu) bool {
		again := seen[g.domain]
		seen[g.domain] = true
		return again
	})
	return namespace, inParallel(len(all), func(i int) error {
		return c.runOn(ctx, namespace, fmt.Sprintf("busy-%d", i), all[i])
	})
}

// schedule lets pods with one GPU through the scheduler and returns how many are bound a second. A fixed number
// is under way: where one is bound, it is deleted, and the next one is made.
func (c *gangCluster) schedule(ctx context.Context, checks ...func(*corev1.Pod) error) (rate float64, err error) {
	namespace, err := c.namespace(ctx, "singles")
	if err != nil {
		return 0, err
	}
	if err := c.createTemplate(ctx, namespace, "single", 1); err != nil {
		return 0, err
	}
	following, cancel := context.WithCancel(ctx)
	defer cancel()
	pods, err := followPods(following, c, namespace)
	if err != nil {
		return 0, err
	}
	var writes errgroup.Group
	create := func(i int) {
		writes.Go(func() error {
			return c.client.Create(ctx, gpuPod(namespace, fmt.Sprintf("single-%d", i), "single"))
		})
	}
	for i := range singlesInFlight {
		create(i)
	}
	turn, stop := context.WithTimeout(ctx, singlesRamp+singlesTurn)
	defer stop()
	start := time.Now().Add(singlesRamp)
	bound := map[types.UID]bool{}
	for counted := 0; ; {
		pod, err := nextBound(turn, pods, bound)
		if err != nil { // the turn is over
			rate = float64(counted) / singlesTurn.Seconds()
			break
		}
		for _, check := range checks {
			if err := check(pod); err != nil {
				return 0, err
			}
		}
		if time.Now().After(start) {
			counted++
		}
		writes.Go(func() error { return c.client.Delete(ctx, pod, client.GracePeriodSeconds(0)) })
		create(singlesInFlight + len(bound) - 1)
	}
	return rate, errors.Join(ctx.Err(), writes.Wait(), c.empty(ctx, namespace))
}
