// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/switchyard-dev/switchyard/test/harness/controlplane"
)

// gangs measures gangs on a real control plane with the controller as a program of its own. Nodes have no
// kubelets: a pod's life ends when it is bound. Benchmarks with the same set-up stand together, since they
// share the control plane.
func gangs() []Benchmark {
	return slices.Concat(
		gangBound(stockRates),
		gangGate(),
		gangHeld(),
		gangBound(raisedRates),
		gangSingles(),
		gangFence(),
		gangMemory(),
	)
}

// gangSetup says what a benchmark runs on.
type gangSetup struct {
	// nodes have 8 GPUs each, in two NVSwitch domains.
	nodes int
	rates rates
	// native switches the scheduler's own gangs on.
	native bool
	// apiServerOnly leaves scheduler and controller manager out.
	apiServerOnly bool
	// controller starts Switchyard's controller.
	controller bool
	// schedulerConfig is the scheduler's configuration, if not its own; %q stands for the kubeconfig.
	schedulerConfig string
}

// rates are the request rates of kube-controller-manager and kube-scheduler: --kube-api-qps and
// --kube-api-burst, for each of the controllers and for the scheduler.
type rates struct {
	suffix     string // of series
	qps, burst int    // 0: what is built into each
}

var (
	// stockRates are 20 requests a second, 30 at once, for each controller, and 50 and 100 for the scheduler.
	stockRates = rates{}
	// raisedRates are what the guide suggests for large gangs.
	raisedRates = rates{suffix: "-raised", qps: 200, burst: 400}
	// unlimitedRates let nothing but the machine limit the scheduler.
	unlimitedRates = rates{suffix: "-unlimited", qps: 2000, burst: 4000}
)

func (r rates) args() []string {
	if r.qps == 0 {
		return nil
	}
	return []string{fmt.Sprintf("--kube-api-qps=%d", r.qps), fmt.Sprintf("--kube-api-burst=%d", r.burst)}
}

func (s gangSetup) controlPlane() controlplane.Options {
	return controlplane.Options{
		Scheduler: !s.apiServerOnly, ControllerManager: !s.apiServerOnly, NativeGangs: s.native,
		SchedulerArgs: s.rates.args(), ControllerManagerArgs: s.rates.args(), SchedulerConfig: s.schedulerConfig,
	}
}

// onGangs is the Run of a benchmark that needs a cluster; it leaves it as it was, or fails and leaves the
// next benchmark a new one.
func onGangs(setup gangSetup, do func(context.Context, *gangCluster, Samples) error) func(context.Context, *Lab, Samples) error {
	return func(ctx context.Context, lab *Lab, samples Samples) error {
		c, err := lab.gangCluster(ctx, setup)
		if err != nil {
			return err
		}
		if err := do(ctx, c, samples); err != nil {
			lab.gangs = nil
			return errors.Join(err, c.Abandon())
		}
		if setup.apiServerOnly { // nobody cleans up there
			lab.gangs = nil
			return c.Close()
		}
		return nil
	}
}

// gangCluster returns a cluster with the set-up: the one that there is, or a new one in its place, so that
// only one at a time takes of the machine.
func (l *Lab) gangCluster(ctx context.Context, setup gangSetup) (*gangCluster, error) {
	if l.gangs != nil && l.gangs.setup == setup {
		return l.gangs, l.gangs.Err()
	}
	if l.gangs != nil {
		err := l.gangs.Close()
		l.gangs = nil
		if err != nil {
			return nil, err
		}
	}
	plane, dir, err := l.startCluster(ctx, setup.controlPlane())
	if err != nil {
		return nil, err
	}
	c := &gangCluster{ControlPlane: plane, setup: setup, dir: dir, lab: l}
	if err := c.prepare(ctx); err != nil {
		return nil, errors.Join(err, c.Abandon())
	}
	l.gangs = c
	return c, nil
}
