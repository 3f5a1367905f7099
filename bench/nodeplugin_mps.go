// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/switchyard-dev/switchyard/test/harness/plugin"
	"github.com/switchyard-dev/switchyard/test/harness/process"
)

const (
	supervisorProgram = "bin/switchyard-mps-supervisor"
	// mpsRounds is how often an MPS daemon is started and ended.
	mpsRounds = 50
	mpsConfig = `{"apiVersion":"switchyard.dev/v1alpha1","kind":"GPUConfig","sharing":{"strategy":"MPS","mps":{"activeThreadPercentage":50,"pinnedDeviceMemoryLimit":"20Gi"}}}`
)

// nodePluginMPS is mostly what the daemon takes to start and to end, as a program on this machine: NVIDIA's takes a time of its own.
func nodePluginMPS() []Benchmark {
	return []Benchmark{{
		Name:  "node-plugin/mps",
		About: "a claim of one GPU with MPS: compute mode set, a simulated MPS daemon started, given its limits and ready; and taken back until it is gone",
		Series: []Series{
			{Name: "prepare-1-mps", Unit: "ms", Better: Lower, Statistics: []Statistic{P50, P95, P99}},
			{Name: "unprepare-1-mps", Unit: "ms", Better: Lower, Statistics: []Statistic{P50, P95, P99}},
		},
		Run: onRunningPlugin(measureMPS),
	}}
}

func measureMPS(ctx context.Context, n *gpuNode, _ *plugin.Plugin, samples Samples) error {
	supervisor, err := n.supervise(ctx)
	if err != nil {
		return err
	}
	defer supervisor.Kill()
	var claims []*resourceapi.ResourceClaim
	for i, gpu := range n.gpus {
		c, err := n.claim("mps", i).Request("gpu", gpu).Config(mpsConfig).Create(ctx, n.cluster.Client())
		if err != nil {
			return err
		}
		claims = append(claims, c)
	}
	if err := rounds(samples, mpsRounds, func(i int) error {
		one := claims[i%len(claims)]
		if err := timed(samples, "prepare-1-mps", func() error { return n.prepare(ctx, one) }); err != nil {
			return err
		}
		return timed(samples, "unprepare-1-mps", func() error { return n.kubelet.Unprepare(ctx, one) })
	}); err != nil {
		return err
	}
	return supervisor.Err()
}

// supervise runs the MPS supervisor on the node, and waits until it does what the plugin asks for.
func (n *gpuNode) supervise(ctx context.Context) (*process.Process, error) {
	supervisor, err := n.StartSupervisor(supervisorProgram)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for !strings.Contains(supervisor.Tail(5), "Keeping MPS daemons") {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-supervisor.Done():
			return nil, fmt.Errorf("run the MPS supervisor: %w", supervisor.Err())
		case <-ctx.Done():
			supervisor.Kill()
			return nil, errors.Join(errors.New("the MPS supervisor does not get ready"), ctx.Err())
		}
	}
	return supervisor, nil
}
