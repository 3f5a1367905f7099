// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/switchyard-dev/switchyard/test/harness/controlplane"
	"github.com/switchyard-dev/switchyard/test/harness/plugin"
)

const (
	// healthRounds is how often a GPU gets sick and recovers.
	healthRounds = 30
	// healthTimeout bounds each half of a round.
	healthTimeout = 30 * time.Second
)

// nodePluginHealth is how long a sick GPU can still be handed out, and a repaired one cannot.
func nodePluginHealth() []Benchmark {
	return []Benchmark{{
		Name:  "node-plugin/health",
		About: "from an XID of one of 8 GPUs until a watch of the API server shows its taint, and from the repair until it shows none",
		Series: []Series{
			{Name: "xid-to-taint", Unit: "ms", Better: Lower, Statistics: []Statistic{P50.With(1000), P95, Max}},
			{Name: "repair-to-no-taint", Unit: "ms", Better: Lower, Statistics: []Statistic{P50, P95, Max}},
		},
		Run: onRunningPlugin(measureHealth),
	}}
}

func measureHealth(ctx context.Context, n *gpuNode, p *plugin.Plugin, samples Samples) error {
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	tainted, err := n.watchTaints(watching)
	if err != nil {
		return err
	}
	for i := range healthRounds + 1 {
		if i == 1 {
			clear(samples) // the first round is not measured
		}
		if err := n.getSickAndRecover(ctx, p, tainted, i%len(n.gpus), samples); err != nil {
			return fmt.Errorf("round %d: %w", i, err)
		}
	}
	return nil
}

func (n *gpuNode) getSickAndRecover(ctx context.Context, p *plugin.Plugin, tainted <-chan map[string]bool, gpu int, samples Samples) error {
	looks, err := looksOf(ctx, p)
	if err != nil {
		return err
	}
	if err := timed(samples, "xid-to-taint", func() error {
		return errors.Join(n.GPUs.InjectXID(gpu, 48), awaitTaint(tainted, n.gpus[gpu], true))
	}); err != nil {
		return err
	}
	// Nobody repairs a GPU within the second until the plugin looks at what the GPU says of itself.
	if err := awaitLook(ctx, p, looks); err != nil {
		return err
	}
	return timed(samples, "repair-to-no-taint", func() error {
		return errors.Join(n.GPUs.RecoverGPU(gpu), awaitTaint(tainted, n.gpus[gpu], false))
	})
}

// watchTaints sends the tainted devices of the node after every write of its slices.
func (n *gpuNode) watchTaints(ctx context.Context) (<-chan map[string]bool, error) {
	client := n.cluster.Client().ResourceV1().ResourceSlices()
	options := controlplane.SlicesOf(n.Name)
	existing, err := client.List(ctx, options)
	if err != nil {
		return nil, err
	}
	options.ResourceVersion = existing.ResourceVersion
	events, err := client.Watch(ctx, options)
	if err != nil {
		return nil, err
	}
	tainted := make(chan map[string]bool, 1000)
	go func() {
		defer close(tainted)
		defer events.Stop()
		for event := range events.ResultChan() {
			slice, ok := event.Object.(*resourceapi.ResourceSlice)
			if !ok || event.Type == watch.Deleted {
				continue
			}
			now := map[string]bool{}
			for _, device := range slice.Spec.Devices {
				now[device.Name] = len(device.Taints) > 0
			}
			tainted <- now
		}
	}()
	return tainted, nil
}

// awaitTaint waits until a device is tainted, or is not.
func awaitTaint(tainted <-chan map[string]bool, device string, want bool) error {
	late := time.After(healthTimeout)
	for {
		select {
		case now, ok := <-tainted:
			if !ok {
				return fmt.Errorf("the watch of the node's slices ended")
			}
			if now[device] == want {
				return nil
			}
		case <-late:
			return fmt.Errorf("device %s has no taint: %v, want %v, after %v", device, !want, !want, healthTimeout)
		}
	}
}

// looksOf counts the plugin's looks at the hardware.
func looksOf(ctx context.Context, p *plugin.Plugin) (float64, error) {
	metrics, err := p.Metrics(ctx)
	return metrics.Value("switchyard_kubelet_plugin_discoveries_total"), err
}

// awaitLook waits until the plugin has looked at the hardware more often than before.
func awaitLook(ctx context.Context, p *plugin.Plugin, before float64) error {
	late := time.After(healthTimeout)
	for {
		now, err := looksOf(ctx, p)
		if err != nil || now > before {
			return err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-late:
			return fmt.Errorf("the plugin does not look at the hardware within %v", healthTimeout)
		}
	}
}
