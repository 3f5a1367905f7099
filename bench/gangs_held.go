// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// heldNodes have 8 domains, of which each member takes one.
	heldNodes = 4
	// heldDeadline is the schedulingTimeout of the GangClaims, and what pods are given beside it.
	heldDeadline = 6 * time.Second
	// heldWindow is how long devices are looked at.
	heldWindow = 12 * time.Second
	// heldStep is how often.
	heldStep = 200 * time.Millisecond
)

// heldGangs arrive at the same time, member by member in turn. Each of the first two fits alone, not both,
// and the third fits never.
var heldGangs = []struct {
	name    string
	members int
}{
	{"fits", 6},
	{"fits-too", 6},
	{"never", 10},
}

// heldWays are the ways to write these gangs down.
var heldWays = []struct {
	name   string
	native bool
	create func(ctx context.Context, c *gangCluster, namespace, gang string, members int) error
	member func(gang string, pod *corev1.Pod)
	// target is what is held past the deadline.
	target *float64
}{
	{
		name: "gangclaims",
		create: func(ctx context.Context, c *gangCluster, namespace, gang string, members int) error {
			return c.createGangClaim(ctx, namespace, gang, members, heldDeadline)
		},
		target: new(float64),
	},
	{
		name: "plain-pods",
		create: func(ctx context.Context, c *gangCluster, namespace, gang string, _ int) error {
			return c.createTemplate(ctx, namespace, gang, gpusPerDomain)
		},
	},
	{
		name: "podgroups", native: true,
		create: func(ctx context.Context, c *gangCluster, namespace, gang string, members int) error {
			if err := c.createTemplate(ctx, namespace, gang, gpusPerDomain); err != nil {
				return err
			}
			return c.client.Create(ctx, &schedulingv1beta1.PodGroup{
				ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: gang},
				Spec: schedulingv1beta1.PodGroupSpec{SchedulingPolicy: schedulingv1beta1.PodGroupSchedulingPolicy{
					Gang: &schedulingv1beta1.GangSchedulingPolicy{MinCount: int32(members)},
				}},
			})
		},
		member: func(gang string, pod *corev1.Pod) {
			pod.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: ptr.To(gang)}
		},
	},
}

// gangHeld measures what gangs cost that do not start: GPUs that are allocated to some of their members.
func gangHeld() []Benchmark {
	var benchmarks []Benchmark
	for _, way := range heldWays {
		name := "gang-gpu-seconds-held-" + way.name
		past := Median
		past.Target = way.target
		setup := gangSetup{nodes: heldNodes, native: way.native, controller: true}
		benchmarks = append(benchmarks, Benchmark{
			Name: name,
			About: fmt.Sprintf("GPU-seconds held in %v by gangs that do not start, and of that past %v: 6, 6 and 10 members that want one of 8 domains of 4 GPUs each",
				heldWindow, heldDeadline),
			Series: []Series{
				{Name: name + "-in-all", Unit: "GPU-s", Better: Lower, Statistics: []Statistic{Median}},
				{Name: name + "-past-the-deadline", Unit: "GPU-s", Better: Lower, Statistics: []Statistic{past}},
				{Name: "gangs-started-" + way.name, Unit: "of 3", Better: Higher, Statistics: []Statistic{Median}},
			},
			Run: onGangs(setup, func(ctx context.Context, c *gangCluster, samples Samples) error {
				observed, err := c.observeHeld(ctx, func(namespace, gang string, members int) error {
					return way.create(ctx, c, namespace, gang, members)
				}, way.member)
				if err != nil {
					return err
				}
				held := heldBy(observed, 0)
				samples.Add(name+"-in-all", held.gpuSeconds)
				samples.Add(name+"-past-the-deadline", heldBy(observed, heldDeadline).gpuSeconds)
				samples.Add("gangs-started-"+way.name, float64(held.started))
				return nil
			}),
		})
	}
	return benchmarks
}

// heldAt is how many members of each gang have devices, some time after the last pod was made.
type heldAt struct {
	since   time.Duration
	members map[string]int
}

// observeHeld creates the gangs, counts for the window, and removes them.
func (c *gangCluster) observeHeld(ctx context.Context, create func(namespace, gang string, members int) error, member func(string, *corev1.Pod)) ([]heldAt, error) {
	namespace, err := c.namespace(ctx, "held")
	if err != nil {
		return nil, err
	}
	most := 0
	for _, gang := range heldGangs {
		if err := create(namespace, gang.name, gang.members); err != nil {
			return nil, err
		}
		most = max(most, gang.members)
	}
	for i := range most {
		for _, gang := range heldGangs {
			if i >= gang.members {
				continue
			}
			pod := gpuPod(namespace, fmt.Sprintf("%s-%d", gang.name, i), gang.name)
			if member != nil {
				member(gang.name, pod)
			}
			if err := c.client.Create(ctx, pod); err != nil {
				return nil, err
			}
		}
	}
	var observed []heldAt
	for start := time.Now(); len(observed) == 0 || observed[len(observed)-1].since < heldWindow; {
		members, err := c.membersWithDevices(ctx, namespace)
		if err != nil {
			return nil, err
		}
		observed = append(observed, heldAt{time.Since(start), members})
		if err := pause(ctx, heldStep); err != nil {
			return nil, err
		}
	}
	return observed, c.empty(ctx, namespace)
}

// membersWithDevices counts the claims that are allocated, by the template of their pod.
func (c *gangCluster) membersWithDevices(ctx context.Context, namespace string) (map[string]int, error) {
	var pods corev1.PodList
	var claims resourceapi.ResourceClaimList
	for _, list := range []client.ObjectList{&pods, &claims} {
		if err := c.client.List(ctx, list, client.InNamespace(namespace)); err != nil {
			return nil, err
		}
	}
	gangs := map[string]string{}
	for _, pod := range pods.Items {
		gangs[pod.Name] = pod.Labels[templateLabel]
	}
	members := map[string]int{}
	for _, claim := range claims.Items {
		if claim.Status.Allocation == nil {
			continue
		}
		for _, owner := range claim.OwnerReferences {
			if gang, ok := gangs[owner.Name]; ok {
				members[gang]++
			}
		}
	}
	return members, nil
}

// held is what gangs that never had devices for all of their members had for some.
type held struct {
	gpuSeconds float64
	started    int
}

// heldBy adds up what was held from an instant on, to the end of the window: on a busy machine the last look comes later.
// What is observed lasts until it is observed anew.
func heldBy(observed []heldAt, from time.Duration) held {
	var sum held
	for _, gang := range heldGangs {
		var seconds float64
		started := false
		for i, at := range observed {
			started = started || at.members[gang.name] >= gang.members
			if i+1 < len(observed) {
				begin, end := min(max(at.since, from), heldWindow), min(max(observed[i+1].since, from), heldWindow)
				seconds += (end - begin).Seconds() * float64(at.members[gang.name]*gpusPerDomain)
			}
		}
		if started {
			sum.started++
		} else {
			sum.gpuSeconds += seconds
		}
	}
	return sum
}
