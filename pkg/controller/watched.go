// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// watched are the gangs that have to be looked at when devices, nodes or other pods change: changes to
// their own objects bring them up anyway. Changes come in bursts; one look follows each burst.
type watched struct {
	clock clock.Clock
	look  func(types.NamespacedName)
	wake  chan struct{} // of capacity 1

	mu     sync.Mutex
	steps  map[types.NamespacedName]v1alpha1.GangStep
	supply bool // devices or nodes have changed
	usage  bool // pods or claims have changed
}

func newWatched(clk clock.Clock, look func(types.NamespacedName)) *watched {
	return &watched{clock: clk, look: look, wake: make(chan struct{}, 1), steps: map[types.NamespacedName]v1alpha1.GangStep{}}
}

func (w *watched) set(key types.NamespacedName, plan *v1alpha1.GangPlan) {
	if plan == nil {
		w.remove(key)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.steps[key] = plan.Step
}

func (w *watched) remove(key types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.steps, key)
}

// supplyChanged says that devices or nodes have changed: it matters to all gangs with a plan.
func (w *watched) supplyChanged() {
	w.mu.Lock()
	w.supply = true
	w.mu.Unlock()
	w.signal()
}

// usageChanged says that pods or claims have changed: it matters to gangs that wait for others' to be
// decided.
func (w *watched) usageChanged() {
	w.mu.Lock()
	w.usage = true
	w.mu.Unlock()
	w.signal()
}

func (w *watched) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Run looks until ctx ends.
func (w *watched) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		}
		for _, key := range w.due() {
			w.look(key)
		}
		pause := w.clock.NewTimer(settleTime)
		select {
		case <-ctx.Done():
			pause.Stop()
			return
		case <-pause.C():
		}
	}
}

func (w *watched) due() []types.NamespacedName {
	w.mu.Lock()
	defer w.mu.Unlock()
	var keys []types.NamespacedName
	for key, step := range w.steps {
		if w.supply || w.usage && (step == v1alpha1.StepQuiescing || step == v1alpha1.StepEvicting) {
			keys = append(keys, key)
		}
	}
	w.supply, w.usage = false, false
	return keys
}

// any says that a gang is in one of the steps.
func (w *watched) any(steps ...v1alpha1.GangStep) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, step := range w.steps {
		if slices.Contains(steps, step) {
			return true
		}
	}
	return false
}
