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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

const (
	// memoryNodes have 8,000 GPUs, each of which one of memoryClaims has; the other claims wait.
	memoryNodes, memoryClaims = 1000, 10000
	// memoryChanges pods end and others start, so that the planner has work.
	memoryChanges = 300
	// memorySamples is how often memory is looked at meanwhile.
	memorySamples = 20
)

func gangMemory() []Benchmark {
	return []Benchmark{{
		Name: "controller-memory",
		About: fmt.Sprintf("resident memory (VmRSS) of the controller at %d nodes, 8 GPUs each, and %d claims and pods, while a gang waits and %d pods end and others start",
			memoryNodes, memoryClaims, memoryChanges),
		Series: []Series{
			{Name: "controller-resident-memory", Unit: "MB", Better: Lower, Statistics: []Statistic{P50, Max.With(250)}},
			{Name: "controller-resident-memory-peak", Unit: "MB", Better: Lower, Statistics: []Statistic{Median}},
		},
		Run: onGangs(gangSetup{nodes: memoryNodes, apiServerOnly: true}, measureControllerMemory),
	}}
}

func measureControllerMemory(ctx context.Context, c *gangCluster, samples Samples) error {
	namespace, err := c.namespace(ctx, "memory")
	if err != nil {
		return err
	}
	gpus, err := c.gpus(ctx)
	if err != nil {
		return err
	}
	if err := inParallel(memoryClaims, func(i int) error {
		if i < len(gpus) {
			return c.runOn(ctx, namespace, busyName(i), gpus[i])
		}
		return c.waitFor(ctx, namespace, busyName(i))
	}); err != nil {
		return err
	}
	if err := dropFromCache(controllerProgram); err != nil {
		return err
	}
	if err := c.startController(ctx); err != nil {
		return err
	}
	if err := c.createGang(ctx, namespace, "gang", waitingMembers); err != nil {
		return err
	}
	if err := c.until(ctx, "the gang waits for a place", func(ctx context.Context) error {
		gang := &v1alpha1.GangClaim{}
		if err := c.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "gang"}, gang); err != nil {
			return err
		}
		return hasNoPlace(gang)
	}); err != nil {
		return err
	}
	for sample := range memorySamples {
		if err := inParallel(memoryChanges/memorySamples, func(i int) error {
			i += sample * memoryChanges / memorySamples
			return c.replace(ctx, namespace, i, gpus[i])
		}); err != nil {
			return err
		}
		if err := pause(ctx, 500*time.Millisecond); err != nil {
			return err
		}
		memory, err := c.controller.Memory()
		if err != nil {
			return err
		}
		samples.Add("controller-resident-memory", float64(memory.Resident)/1e6)
		if sample == memorySamples-1 {
			samples.Add("controller-resident-memory-peak", float64(memory.ResidentPeak)/1e6)
		}
	}
	return c.Err()
}

// waitFor makes a pod that waits for a GPU, with its claim.
func (c *gangCluster) waitFor(ctx context.Context, namespace, name string) error {
	pod := gpuPod(namespace, name, "")
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpus", ResourceClaimName: &name}}
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: v1alpha1.DriverName, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
	}}}
	return errors.Join(c.client.Create(ctx, pod), c.client.Create(ctx, claim))
}

// replace ends the i-th pod and starts another on its GPU.
func (c *gangCluster) replace(ctx context.Context, namespace string, i int, gpu gpu) error {
	old := metav1.ObjectMeta{Namespace: namespace, Name: busyName(i)}
	return errors.Join(
		c.client.Delete(ctx, &corev1.Pod{ObjectMeta: old}, client.GracePeriodSeconds(0)),
		c.client.Delete(ctx, &resourceapi.ResourceClaim{ObjectMeta: old}),
		c.runOn(ctx, namespace, old.Name+"-next", gpu),
	)
}

func busyName(i int) string { return fmt.Sprintf("pod-%05d", i) }
