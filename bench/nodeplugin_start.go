// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/switchyard-dev/switchyard/test/harness/controlplane"
)

// startRounds is how many starts are measured. The first one, which reads the program from disk, is
// not.
const startRounds = 10

func nodePluginStart() []Benchmark {
	return []Benchmark{{
		Name:  "node-plugin/start",
		About: "from the execution of the program on a node with 8 GPUs that are not published yet",
		Series: []Series{
			{Name: "exec-to-serving", Unit: "ms", Better: Lower, Statistics: []Statistic{P50.With(60), Max}},
			{Name: "exec-to-published", Unit: "ms", Better: Lower, Statistics: []Statistic{P50.With(1100), Max}},
		},
		Run: measureStart,
	}}
}

func measureStart(ctx context.Context, lab *Lab, samples Samples) (err error) {
	n, err := lab.GPUNode(ctx)
	if err != nil {
		return err
	}
	defer closing(&err, func() error { return n.Close(ctx) })
	for i := range startRounds + 1 {
		if i == 1 {
			clear(samples)
		}
		if err := n.measureOneStart(ctx, samples); err != nil {
			return fmt.Errorf("start %d: %w", i, err)
		}
	}
	return nil
}

func (n *gpuNode) measureOneStart(ctx context.Context, samples Samples) error {
	if err := n.cluster.DeleteSlices(ctx, n.Name); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	existing, err := n.cluster.Client().ResourceV1().ResourceSlices().List(ctx, controlplane.SlicesOf(n.Name))
	if err != nil {
		return err
	}
	options := controlplane.SlicesOf(n.Name)
	options.ResourceVersion = existing.ResourceVersion
	events, err := n.cluster.Client().ResourceV1().ResourceSlices().Watch(ctx, options)
	if err != nil {
		return err
	}
	defer events.Stop()
	published := make(chan time.Time, 1)
	go func() {
		defer close(published)
		for event := range events.ResultChan() {
			if slice, ok := event.Object.(*resourceapi.ResourceSlice); ok && event.Type != watch.Deleted && len(slice.Spec.Devices) == len(n.gpus) {
				published <- time.Now()
				return
			}
		}
	}()

	p, serving, err := n.start(ctx)
	if err != nil {
		return err
	}
	defer p.Kill()
	samples.Add("exec-to-serving", milliseconds(serving))
	at, ok := <-published
	if !ok {
		return fmt.Errorf("the GPUs were not published within %v", startTimeout)
	}
	samples.Add("exec-to-published", milliseconds(at.Sub(p.Started())))
	return nil
}
