// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// idleInterval is how often what gangs hold without having started is measured.
const idleInterval = time.Second

// idleMeter adds up the device-seconds that gangs hold without having started.
type idleMeter struct {
	reader  client.Reader
	watched *watched
	clock   clock.Clock
	add     func(deviceSeconds float64)
}

// Run measures until ctx ends.
func (m *idleMeter) Run(ctx context.Context) {
	last := m.clock.Now()
	for {
		timer := m.clock.NewTimer(idleInterval)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C():
		}
		now := m.clock.Now()
		m.add(float64(m.devices(ctx)) * now.Sub(last).Seconds())
		last = now
	}
}

// devices counts those that are allocated for gangs whose start gate is closed.
func (m *idleMeter) devices(ctx context.Context) int {
	if !m.watched.any(v1alpha1.StepReleasing, v1alpha1.StepTakingBack) {
		return 0
	}
	var claims resourceapi.ResourceClaimList
	if err := m.reader.List(ctx, &claims, client.HasLabels{v1alpha1.GangLabel}, client.DisableReadYourWritesConsistency); err != nil {
		return 0 // of the cache: it is shutting down
	}
	n := 0
	for i := range claims.Items {
		claim := &claims.Items[i]
		if claim.Status.Allocation != nil && claim.Annotations[v1alpha1.ReadyAnnotation] != claim.Labels[v1alpha1.PlanLabel] {
			n += len(claim.Status.Allocation.Devices.Results)
		}
	}
	return n
}
