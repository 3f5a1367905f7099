// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

const (
	// fenceNodes have 2,000 GPUs, half of which is fenced.
	fenceNodes = 250
	// fenceRounds is how often each side has a turn.
	fenceRounds = 3
	// fenceSettles is how long the scheduler gets to see a fence, or that there is none.
	fenceSettles = 2 * time.Second
)

// gangFence measures what devices that are reserved for gangs cost everybody else's pods: as domains, of
// which every node has another that is free, and as nodes, which the scheduler looks at in vain.
func gangFence() []Benchmark {
	const without, domains, nodes = "singles-without-fence", "singles-with-1000-fenced-in-domains", "singles-with-1000-fenced-in-nodes"
	const usedDomains, usedNodes = "singles-with-1000-used-in-domains", "singles-with-1000-used-in-nodes"
	return []Benchmark{{
		Name: "gang-fence",
		About: fmt.Sprintf("pods with one GPU bound per second on %d nodes, each deleted when it is bound, in turn: nothing fenced; a domain of 4 GPUs of every node, a rule for each GPU; all 8 GPUs of every second node, a rule for each node; and the same GPUs in use, which is what Kubernetes itself pays for GPUs that it cannot give",
			fenceNodes),
		Series: []Series{
			{Name: without, Unit: "pods/s", Better: Higher, Statistics: []Statistic{Median}},
			{Name: domains, Unit: "pods/s", Better: Higher, Statistics: []Statistic{Median}},
			{Name: nodes, Unit: "pods/s", Better: Higher, Statistics: []Statistic{Median}},
			{Name: usedDomains, Unit: "pods/s", Better: Higher, Statistics: []Statistic{Median}},
			{Name: usedNodes, Unit: "pods/s", Better: Higher, Statistics: []Statistic{Median}},
			{Name: domains + "-to-without", Unit: "ratio", Better: Higher, Statistics: []Statistic{Median.With(0.95)}},
			{Name: nodes + "-to-without", Unit: "ratio", Better: Higher, Statistics: []Statistic{Median.With(0.95)}},
			{Name: usedDomains + "-to-without", Unit: "ratio", Better: Higher, Statistics: []Statistic{Median}},
			{Name: usedNodes + "-to-without", Unit: "ratio", Better: Higher, Statistics: []Statistic{Median}},
		},
		Run: onGangs(gangSetup{nodes: fenceNodes, rates: unlimitedRates}, func(ctx context.Context, c *gangCluster, samples Samples) error {
			fences, err := c.fences(ctx)
			if err != nil {
				return err
			}
			if _, err := c.schedule(ctx); err != nil { // warms caches up
				return err
			}
			sides := []string{without, domains, usedDomains, nodes, usedNodes}
			turns := map[string]func() (float64, error){
				without:     func() (float64, error) { return c.schedule(ctx) },
				domains:     func() (float64, error) { return fences[0].schedule(ctx) },
				nodes:       func() (float64, error) { return fences[1].schedule(ctx) },
				usedDomains: func() (float64, error) { return fences[0].scheduleInUse(ctx) },
				usedNodes:   func() (float64, error) { return fences[1].scheduleInUse(ctx) },
			}
			for round := range fenceRounds {
				measured := map[string]float64{}
				for i := range sides { // another side begins each time
					side := sides[(round+i)%len(sides)]
					if measured[side], err = turns[side](); err != nil {
						return fmt.Errorf("%s: %w", side, err)
					}
					samples.Add(side, measured[side])
				}
				if measured[without] == 0 {
					return fmt.Errorf("no pod was bound within %v, with nothing fenced", singlesTurn)
				}
				for _, side := range sides[1:] {
					samples.Add(side+"-to-without", measured[side]/measured[without])
				}
			}
			return nil
		}),
	}}
}

// fence is put up and taken down with the controller's rights, as the controller does it.
type fence struct {
	cluster *gangCluster
	client  kubernetes.Interface
	// selectors are the devices, a rule for each, gpus the same by node.
	selectors []resourceapi.DeviceTaintSelector
	gpus      map[string][]gpu
	// nodes have no GPU outside the fence.
	nodes map[string]bool
}

// fences are one of a domain of every node, and one of every second node.
func (c *gangCluster) fences(ctx context.Context) ([2]*fence, error) {
	token, err := c.controllerToken(ctx)
	if err != nil {
		return [2]*fence{}, err
	}
	client, err := kubernetes.NewForConfig(c.ConfigFor(token))
	if err != nil {
		return [2]*fence{}, err
	}
	gpus, err := c.gpus(ctx)
	if err != nil {
		return [2]*fence{}, err
	}
	domains := &fence{cluster: c, client: client, gpus: map[string][]gpu{}}
	nodes := &fence{cluster: c, client: client, gpus: map[string][]gpu{}, nodes: map[string]bool{}}
	for i, node := range c.nodes {
		if i%2 == 0 {
			nodes.nodes[node] = true
			nodes.selectors = append(nodes.selectors, resourceapi.DeviceTaintSelector{Driver: ptr.To(v1alpha1.DriverName), Pool: &node})
		}
	}
	for _, gpu := range gpus {
		if nodes.nodes[gpu.node] {
			nodes.gpus[gpu.node] = append(nodes.gpus[gpu.node], gpu)
		}
		if gpu.domain == gpu.node+".0" {
			domains.gpus[gpu.node] = append(domains.gpus[gpu.node], gpu)
			domains.selectors = append(domains.selectors, resourceapi.DeviceTaintSelector{Driver: ptr.To(v1alpha1.DriverName), Pool: &gpu.node, Device: &gpu.device})
		}
	}
	if len(domains.selectors) != fenceNodes*gpusPerDomain {
		return [2]*fence{}, fmt.Errorf("the first domains of the nodes have %d GPUs, want %d", len(domains.selectors), fenceNodes*gpusPerDomain)
	}
	return [2]*fence{domains, nodes}, nil
}

// scheduleInUse measures with pods that run on the GPUs, and no fence.
func (f *fence) scheduleInUse(ctx context.Context) (float64, error) {
	c := f.cluster
	namespace, err := c.namespace(ctx, "in-use")
	if err != nil {
		return 0, err
	}
	nodes := slices.Sorted(maps.Keys(f.gpus))
	if err := inParallel(len(nodes), func(i int) error {
		return c.runOn(ctx, namespace, "busy-"+nodes[i], f.gpus[nodes[i]]...)
	}); err != nil {
		return 0, fmt.Errorf("use the GPUs: %w", err)
	}
	rate, err := c.schedule(ctx, f.keepsOut)
	return rate, errors.Join(err, c.empty(ctx, namespace))
}

// keepsOut is an error for a pod on a node without a GPU outside.
func (f *fence) keepsOut(pod *corev1.Pod) error {
	if f.nodes[pod.Spec.NodeName] {
		return fmt.Errorf("pod %s was bound to %s, which has no GPU for it", pod.Name, pod.Spec.NodeName)
	}
	return nil
}

// schedule measures behind the fence.
func (f *fence) schedule(ctx context.Context) (float64, error) {
	if err := f.putUp(ctx); err != nil {
		return 0, fmt.Errorf("put the fence up: %w", err)
	}
	rate, err := f.cluster.schedule(ctx, f.keepsOut)
	if err != nil {
		return 0, err
	}
	if err := f.takeDown(ctx); err != nil {
		return 0, fmt.Errorf("take the fence down: %w", err)
	}
	return rate, nil
}

func ruleName(i int) string { return fmt.Sprintf("fence-%d", i) }

func (f *fence) putUp(ctx context.Context) error {
	rules := f.client.ResourceV1().DeviceTaintRules()
	if err := inParallel(len(f.selectors), func(i int) error {
		_, err := rules.Create(ctx, &resourceapi.DeviceTaintRule{
			ObjectMeta: metav1.ObjectMeta{Name: ruleName(i)},
			Spec: resourceapi.DeviceTaintRuleSpec{
				DeviceSelector: &f.selectors[i],
				Taint:          resourceapi.DeviceTaint{Key: v1alpha1.ReservedTaintKey, Value: "bench", Effect: resourceapi.DeviceTaintEffectNoSchedule},
			},
		}, metav1.CreateOptions{})
		return err
	}); err != nil {
		return err
	}
	return pause(ctx, fenceSettles)
}

// takeDown takes the effect away first: the scheduler can miss that a rule with one was deleted.
func (f *fence) takeDown(ctx context.Context) error {
	rules := f.client.ResourceV1().DeviceTaintRules()
	if err := inParallel(len(f.selectors), func(i int) error {
		_, err := rules.Patch(ctx, ruleName(i), types.MergePatchType, []byte(`{"spec":{"taint":{"effect":"None"}}}`), metav1.PatchOptions{})
		return err
	}); err != nil {
		return err
	}
	if err := pause(ctx, fenceSettles); err != nil {
		return err
	}
	if err := inParallel(len(f.selectors), func(i int) error {
		return rules.Delete(ctx, ruleName(i), metav1.DeleteOptions{})
	}); err != nil {
		return err
	}
	return pause(ctx, fenceSettles)
}
