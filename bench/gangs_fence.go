// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
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
	// fencedNodes have 1,000 GPUs, openNodes the 800 that single pods may have all the time.
	fencedNodes, openNodes = 125, 100
	// fenceRounds is how often each side has a turn.
	fenceRounds = 4
	// fenceSettles is how long the scheduler gets to see a fence: on its side, everything is tainted by then.
	fenceSettles = 2 * time.Second
)

// gangFence measures what devices that are reserved for gangs cost everybody else's pods.
func gangFence() []Benchmark {
	const without, with = "singles-without-fence", "singles-with-1000-fenced"
	return []Benchmark{{
		Name: "gang-fence",
		About: fmt.Sprintf("pods with one GPU bound per second on %d nodes, each deleted when it is bound: with nothing fenced, and with all 8 GPUs of %d of the nodes, a rule for each node, in turn",
			openNodes+fencedNodes, fencedNodes),
		Series: []Series{
			{Name: without, Unit: "pods/s", Better: Higher, Statistics: []Statistic{Median}},
			{Name: with, Unit: "pods/s", Better: Higher, Statistics: []Statistic{Median}},
			{Name: with + "-to-without", Unit: "ratio", Better: Higher, Statistics: []Statistic{Median.With(0.95)}},
		},
		Run: onGangs(gangSetup{nodes: openNodes + fencedNodes, rates: unlimitedRates}, func(ctx context.Context, c *gangCluster, samples Samples) error {
			fence, err := c.fence(ctx, c.nodes[:fencedNodes])
			if err != nil {
				return err
			}
			if _, err := c.schedule(ctx); err != nil { // warms caches up
				return err
			}
			turns := map[string]func() (float64, error){
				without: func() (float64, error) { return c.schedule(ctx) },
				with:    func() (float64, error) { return fence.schedule(ctx) },
			}
			for round := range fenceRounds {
				order := []string{without, with}
				if round%2 == 1 {
					order = []string{with, without}
				}
				measured := map[string]float64{}
				for _, side := range order {
					if measured[side], err = turns[side](); err != nil {
						return fmt.Errorf("%s: %w", side, err)
					}
					samples.Add(side, measured[side])
				}
				if measured[without] == 0 {
					return fmt.Errorf("no pod was bound within %v, with nothing fenced", singlesTurn)
				}
				samples.Add(with+"-to-without", measured[with]/measured[without])
			}
			return nil
		}),
	}}
}

// fence is put up and taken down with the controller's rights, as the controller does it.
type fence struct {
	cluster *gangCluster
	client  kubernetes.Interface
	nodes   []string
}

func (c *gangCluster) fence(ctx context.Context, nodes []string) (*fence, error) {
	token, err := c.controllerToken(ctx)
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(c.ConfigFor(token))
	if err != nil {
		return nil, err
	}
	return &fence{cluster: c, client: client, nodes: nodes}, nil
}

// schedule measures behind the fence.
func (f *fence) schedule(ctx context.Context) (float64, error) {
	if err := f.putUp(ctx); err != nil {
		return 0, fmt.Errorf("put the fence up: %w", err)
	}
	fenced := map[string]bool{}
	for _, node := range f.nodes {
		fenced[node] = true
	}
	rate, err := f.cluster.schedule(ctx, func(pod *corev1.Pod) error {
		if fenced[pod.Spec.NodeName] {
			return fmt.Errorf("pod %s was bound to %s, whose GPUs are all fenced", pod.Name, pod.Spec.NodeName)
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	if err := f.takeDown(ctx); err != nil {
		return 0, fmt.Errorf("take the fence down: %w", err)
	}
	return rate, nil
}

func (f *fence) putUp(ctx context.Context) error {
	rules := f.client.ResourceV1().DeviceTaintRules()
	if err := inParallel(len(f.nodes), func(i int) error {
		_, err := rules.Create(ctx, &resourceapi.DeviceTaintRule{
			ObjectMeta: metav1.ObjectMeta{Name: f.nodes[i]},
			Spec: resourceapi.DeviceTaintRuleSpec{
				DeviceSelector: &resourceapi.DeviceTaintSelector{Driver: ptr.To(v1alpha1.DriverName), Pool: &f.nodes[i]},
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
	if err := inParallel(len(f.nodes), func(i int) error {
		_, err := rules.Patch(ctx, f.nodes[i], types.MergePatchType, []byte(`{"spec":{"taint":{"effect":"None"}}}`), metav1.PatchOptions{})
		return err
	}); err != nil {
		return err
	}
	if err := pause(ctx, fenceSettles); err != nil {
		return err
	}
	if err := inParallel(len(f.nodes), func(i int) error {
		return rules.Delete(ctx, f.nodes[i], metav1.DeleteOptions{})
	}); err != nil {
		return err
	}
	return pause(ctx, fenceSettles)
}
