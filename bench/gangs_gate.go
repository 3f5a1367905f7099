// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/switchyard-dev/switchyard/test/harness/controlplane"
	"github.com/switchyard-dev/switchyard/test/harness/fleet"
)

const (
	// gateRounds is how many pairs of a gang and of plain pods are started.
	gateRounds = 8
	// gateMembers share the node: a domain of 8 GPUs.
	gateMembers = 2
)

// gangGate measures what it costs a gang that none of its pods starts before all have their devices: the
// controller sees that, says so in the claims, and the node plugin, in whose Prepare the pods wait, sees that.
func gangGate() []Benchmark {
	return []Benchmark{{
		Name:  "gang-start-gate",
		About: "2 pods with 4 GPUs each on one node: from the moment in which the last claim is seen allocated until Prepare of the plugin has returned for both, as a gang and with plain claims, in turn",
		Series: []Series{
			{Name: "gang-start-gate-gang", Unit: "ms", Better: Lower, Statistics: []Statistic{P50, Max}},
			{Name: "gang-start-gate-plain", Unit: "ms", Better: Lower, Statistics: []Statistic{P50, Max}},
			{Name: "gang-start-gate-adds", Unit: "ms", Better: Lower, Statistics: []Statistic{P50.With(100), Max}},
		},
		Run: onGangs(gangSetup{nodes: heldNodes, controller: true}, measureGate),
	}}
}

func measureGate(ctx context.Context, c *gangCluster, samples Samples) (err error) {
	n, err := c.lab.gpuNodeOf(ctx, c.ControlPlane)
	if err != nil {
		return err
	}
	defer closing(&err, func() error { return n.Close(ctx) })
	if err := fleet.SetReady(ctx, c.Client(), fleet.Node{Name: n.Name, Labels: map[string]string{corev1.LabelHostname: n.Name}}); err != nil {
		return err
	}
	_, stop, err := n.running(ctx)
	if err != nil {
		return err
	}
	defer closing(&err, stop)
	if err := c.until(ctx, "the node's GPUs are published", func(ctx context.Context) error {
		slices, err := c.Client().ResourceV1().ResourceSlices().List(ctx, controlplane.SlicesOf(n.Name))
		if err == nil && len(slices.Items) == 0 {
			err = errors.New("there is no ResourceSlice")
		}
		return err
	}); err != nil {
		return err
	}
	for i := range gateRounds + 1 {
		if i == 1 { // the first round warms caches up
			clear(samples)
		}
		gang, err := c.measureGateOnce(ctx, n, true)
		if err != nil {
			return fmt.Errorf("gang: %w", err)
		}
		plain, err := c.measureGateOnce(ctx, n, false)
		if err != nil {
			return fmt.Errorf("plain claims: %w", err)
		}
		samples.Add("gang-start-gate-gang", milliseconds(gang))
		samples.Add("gang-start-gate-plain", milliseconds(plain))
		samples.Add("gang-start-gate-adds", milliseconds(gang-plain))
	}
	return nil
}

// measureGateOnce starts the pods and plays the kubelet: it prepares each pod's claim as soon as the pod is
// bound.
func (c *gangCluster) measureGateOnce(ctx context.Context, n *gpuNode, asGang bool) (took time.Duration, err error) {
	const name = "gate"
	namespace, err := c.namespace(ctx, name)
	if err != nil {
		return 0, err
	}
	following, cancel := context.WithTimeout(ctx, gangPatience)
	defer cancel()
	allocated, err := c.lastAllocated(following, namespace, gateMembers)
	if err != nil {
		return 0, err
	}
	pods, err := followPods(following, c, namespace)
	if err != nil {
		return 0, err
	}
	if asGang {
		err = c.createGangClaim(ctx, namespace, name, gateMembers, 0)
	} else {
		err = c.createTemplate(ctx, namespace, name, gpusPerDomain)
	}
	if err != nil {
		return 0, err
	}
	if err := c.createMembers(ctx, namespace, name, gateMembers, func(pod *corev1.Pod) {
		pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: n.Name}
	}); err != nil {
		return 0, err
	}

	type prepared struct {
		claim *resourceapi.ResourceClaim
		at    time.Time
		err   error
	}
	results := make(chan prepared, gateMembers)
	bound := map[types.UID]bool{}
	for len(bound) < gateMembers {
		pod, err := nextBound(following, pods, bound)
		if err != nil {
			return 0, err
		}
		go func() {
			claim, err := c.claimOf(following, pod)
			if err == nil {
				err = n.prepare(following, claim)
			}
			results <- prepared{claim, time.Now(), err}
		}()
	}
	var last time.Time
	var claims []*resourceapi.ResourceClaim
	for range gateMembers {
		result := <-results
		if result.err != nil {
			return 0, result.err
		}
		claims = append(claims, result.claim)
		if result.at.After(last) {
			last = result.at
		}
	}
	took = last.Sub(<-allocated)
	return took, errors.Join(n.kubelet.Unprepare(ctx, claims...), c.empty(ctx, namespace))
}

// lastAllocated sends the instant at which the count-th claim of the namespace was seen allocated.
func (c *gangCluster) lastAllocated(ctx context.Context, namespace string, count int) (<-chan time.Time, error) {
	claims, err := follow[*resourceapi.ResourceClaim](ctx, c, namespace, func(f informers.SharedInformerFactory) cache.SharedIndexInformer {
		return f.Resource().V1().ResourceClaims().Informer()
	})
	if err != nil {
		return nil, err
	}
	at := make(chan time.Time, 1)
	go func() {
		allocated := map[types.UID]bool{}
		for len(allocated) < count {
			select {
			case claim := <-claims:
				if claim.Status.Allocation != nil {
					allocated[claim.UID] = true
				}
			case <-ctx.Done():
				return
			}
		}
		at <- time.Now()
	}()
	return at, nil
}

// claimOf returns the claim that was made for a pod.
func (c *gangCluster) claimOf(ctx context.Context, pod *corev1.Pod) (*resourceapi.ResourceClaim, error) {
	for _, status := range pod.Status.ResourceClaimStatuses {
		if status.ResourceClaimName != nil {
			claim := &resourceapi.ResourceClaim{}
			return claim, c.client.Get(ctx, client.ObjectKey{Namespace: pod.Namespace, Name: *status.ResourceClaimName}, claim)
		}
	}
	return nil, fmt.Errorf("pod %s is bound and has no claim", pod.Name)
}
