// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/defrag"
	"github.com/switchyard-dev/switchyard/pkg/demand"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

const (
	// defragNodes is the size of the cluster in which the time is measured.
	defragNodes = 1000
	// defragSmall is that of the clusters in which evictions are counted, defragCases how many.
	defragSmall, defragCases = 100, 30
)

// defragGangs are the gangs that need room, with the moves that the cluster makes them need.
var defragGangs = []struct {
	name               string
	members, perMember int32
	scope              v1alpha1.MemberScope
	moves              int
}{
	{"1x8", 1, 8, v1alpha1.MemberNode, 2},
	{"8x4", 8, 4, v1alpha1.MemberNVSwitchDomain, 8},
	{"8x8", 8, 8, v1alpha1.MemberNode, 16},
}

// defragmentation measures how long it takes to find the pods to move for a gang, and how many there are.
func defragmentation() []Benchmark {
	var series []Series
	for _, gang := range defragGangs {
		series = append(series, Series{
			Name: defragSeries(gang.name), Unit: "ms", Better: Lower, Statistics: []Statistic{P50, P99.With(50)},
		})
	}
	return []Benchmark{{
		Name:   "defrag",
		About:  "the pods to move for one gang found, and each shown a place elsewhere, by the scheduler's allocator; 1,000 nodes × 8 GPUs, up to 16 moves",
		Series: series,
		Run:    measureDefrag,
	}, {
		Name:  "defrag-evictions",
		About: "pods evicted for a gang of 2 × 4 on 100 nodes at 80 % load, against evicting the pods of the lowest priority, one after the other, until it fits",
		Series: []Series{
			{Name: "evictions-per-gang", Unit: "pods", Better: Lower, Statistics: []Statistic{Median}},
			{Name: "evictions-per-gang-lowest-priority-first", Unit: "pods", Better: Lower, Statistics: []Statistic{Median}},
		},
		Run: measureEvictions,
	}, {
		Name:   "consolidation",
		About:  "the domain found that is worth making whole most, and each of its pods shown a place elsewhere, by the scheduler's allocator, weighed with what 8,000 gangs and the pods asked for; 1,000 nodes × 8 GPUs, all pods opted in",
		Series: []Series{{Name: consolidationSeries, Unit: "ms", Better: Lower, Statistics: []Statistic{P50, P99.With(50)}}},
		Run:    measureConsolidation,
	}}
}

var consolidationSeries = fmt.Sprintf("consolidate-%d-nodes", defragNodes)

func defragSeries(gang string) string {
	return fmt.Sprintf("make-room-%s-on-%d-nodes", gang, defragNodes)
}

// defragCluster is one in which single GPUs are held by pods that may be moved.
type defragCluster struct {
	*plannerCluster

	pods map[*resourceapi.ResourceClaim]*corev1.Pod
}

// movable puts a pod on a device that has opted in to be moved and that a ReplicaSet would make anew.
func (c *defragCluster) movable(node, device string, priority int32) {
	claim := c.claim(node, device)
	claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: v1alpha1.DriverName, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
	}}}
	pod := plannerPod(claim.Namespace, claim.Name, node)
	pod.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Hour))
	pod.Labels = map[string]string{v1alpha1.MovableLabel: "true"}
	pod.Spec.Priority = &priority
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "service", UID: types.UID("service-" + node), Controller: new(true)}}
	c.SetClaim(claim)
	c.SetPod(pod)
	c.singles = append(c.singles, claim)
	c.pods[claim] = pod
}

// change ends a pod that may be moved and starts another like it on the same GPU.
func (c *defragCluster) change(random *rand.Rand) {
	at := random.IntN(len(c.singles))
	old := c.singles[at]
	pod := c.pods[old]
	c.DeleteClaim(types.NamespacedName{Namespace: old.Namespace, Name: old.Name})
	c.DeletePod(types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name})
	delete(c.pods, old)
	c.singles = slices.Delete(c.singles, at, at+1)
	was := old.Status.Allocation.Devices.Results[0]
	c.movable(was.Pool, was.Device, *pod.Spec.Priority)
}

// newDefragCluster has as many nodes, and 8 × 8, 8 × 4 or 1 × 8 GPUs are free only once 16, 8 or 2 pods have moved:
// of 20 nodes each has two pods with a GPU, one in each domain, and those of the others are taken by large jobs, but for
// some 500 GPUs that stay.
func newDefragCluster(nodes int, random *rand.Rand) *defragCluster {
	c := &defragCluster{plannerCluster: newPlannerCluster(nodes, 0, random), pods: map[*resourceapi.ResourceClaim]*corev1.Pod{}}
	i := 0
	for _, name := range slices.Sorted(maps.Keys(c.devices)) {
		devices := c.devices[name]
		switch {
		case i%50 == 0:
			c.movable(name, devices[random.IntN(4)], random.Int32N(10))
			c.movable(name, devices[4+random.IntN(4)], random.Int32N(10))
		case i%2 == 0:
			c.claim(name, devices[:4]...)
			c.movable(name, devices[4], random.Int32N(10))
			c.movable(name, devices[5], random.Int32N(10))
			c.movable(name, devices[6], random.Int32N(10))
		default:
			c.claim(name, devices...)
		}
		i++
	}
	return c
}

func defragGang(name string, members, perMember int32, scope v1alpha1.MemberScope) placement.Gang {
	gang := gangToPlan(name, members, perMember, scope)
	gang.Priority = 100
	gang.Claim.Spec.Defragmentation = v1alpha1.DefragmentationPlan
	return gang
}

func measureDefrag(ctx context.Context, _ *Lab, samples Samples) error {
	random := rand.New(rand.NewPCG(1, 2))
	cluster := newDefragCluster(defragNodes, random)
	maker := defrag.NewMaker(defrag.DefaultLimits(), clock.RealClock{})
	for _, gang := range defragGangs {
		request := defragGang(gang.name, gang.members, gang.perMember, gang.scope)
		for i := range plannerWarmUp + plannerRounds {
			cluster.change(random)
			start := time.Now()
			decision := cluster.PlanWithRoom(ctx, []placement.Gang{request}, maker)[0]
			took := time.Since(start)
			if room := decision.Room; room == nil || room.Reason != defrag.ReasonMovesFound || len(room.Moves) < gang.moves || len(room.Moves) > 16 {
				return fmt.Errorf("make room for %s: %+v, want %d moves", gang.name, room, gang.moves)
			}
			if i >= plannerWarmUp {
				samples.Add(defragSeries(gang.name), took.Seconds()*1000)
			}
		}
	}
	return nil
}

func measureConsolidation(ctx context.Context, _ *Lab, samples Samples) error {
	random := rand.New(rand.NewPCG(1, 2))
	cluster := newDefragCluster(defragNodes, random)
	maker := defrag.NewMaker(defrag.DefaultLimits(), clock.RealClock{})
	asked := cluster.asked()
	for i := range plannerWarmUp + plannerRounds {
		cluster.change(random)
		start := time.Now()
		mix := asked.Mix(cluster.Products())
		found := maker.Consolidate(ctx, cluster.Cluster, defrag.DefaultConsolidationMoves, mix)
		took := time.Since(start)
		if !found.Found() || len(found.Moves) != 1 {
			return fmt.Errorf("consolidate: %s: %s, want one move", found.Reason, found.Message)
		}
		if i >= plannerWarmUp {
			samples.Add(consolidationSeries, took.Seconds()*1000)
		}
	}
	return nil
}

// asked is what the cluster's pods and gangs of other sizes ask for, and what as many owners asked for who are gone.
func (c *defragCluster) asked() *demand.Tracker {
	asked := demand.NewTracker(demand.DefaultHalfLife, clock.RealClock{})
	for claim, pod := range c.pods {
		asked.SetPod(pod)
		asked.SetClaim(claim)
	}
	for i := range 8000 {
		gang := defragGang(fmt.Sprintf("asked-%d", i), 1+int32(i)%4, 1<<(i%4), v1alpha1.MemberNVSwitchDomain).Claim
		gang.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Duration(i) * time.Minute))
		if asked.SetGang(gang); i%2 == 0 {
			asked.DeleteGang(gang)
		}
	}
	return asked
}

// measureEvictions counts on random clusters in which no domain is whole.
func measureEvictions(ctx context.Context, _ *Lab, samples Samples) error {
	for seed := range uint64(defragCases) {
		random := rand.New(rand.NewPCG(seed, 3))
		c := &defragCluster{plannerCluster: newPlannerCluster(defragSmall, 0, random), pods: map[*resourceapi.ResourceClaim]*corev1.Pod{}}
		for _, name := range slices.Sorted(maps.Keys(c.devices)) {
			for d := range 2 {
				first := random.IntN(4) // one at least
				for i := range 4 {
					if i == first || random.IntN(100) < 73 {
						c.movable(name, c.devices[name][4*d+i], random.Int32N(10))
					}
				}
			}
		}
		gang := defragGang("2x4", 2, 4, v1alpha1.MemberNVSwitchDomain)
		maker := defrag.NewMaker(defrag.DefaultLimits(), clock.RealClock{})
		decision := c.PlanWithRoom(ctx, []placement.Gang{gang}, maker)[0]
		if decision.Room == nil || decision.Room.Reason != defrag.ReasonMovesFound {
			return fmt.Errorf("case %d: %+v", seed, decision.Room)
		}
		samples.Add("evictions-per-gang", float64(len(decision.Room.Moves)))
		samples.Add("evictions-per-gang-lowest-priority-first", float64(c.lowestFirst(ctx, gang)))
	}
	return nil
}

// lowestFirst evicts pods by priority until the gang fits, as preemption without an eye for domains would, and says
// how many. Their replacements are not looked at.
func (c *defragCluster) lowestFirst(ctx context.Context, gang placement.Gang) int {
	order := slices.SortedStableFunc(slices.Values(c.singles), func(a, b *resourceapi.ResourceClaim) int {
		return int(*c.pods[a].Spec.Priority - *c.pods[b].Spec.Priority)
	})
	for n, claim := range order {
		if c.Plan(ctx, []placement.Gang{gang})[0].Plan != nil {
			return n
		}
		key := types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}
		c.DeleteClaim(key)
		c.DeletePod(key)
	}
	return len(order)
}
