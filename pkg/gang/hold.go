// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// hold keeps the fence for the restart grace period, so that a member that is lost gets its place back.
// The period counts from when all members ran, and anew from when one was lost.
func (t *turn) hold() bool {
	t.beRunning()
	t.noteLoss()
	left := t.grace() - t.held()
	if left <= 0 {
		// What is reserved did not serve; elsewhere there may be a place.
		t.status.WaitingSince, t.status.TimedOut = nil, ""
		return t.enter(v1alpha1.StepUnfencing)
	}
	t.again(left)
	t.keepFence()
	t.deleteTemplate()
	t.clearStrays()
	if t.need() > 0 && t.live() {
		return t.seekPlace()
	}
	t.status.WaitingSince = nil
	return false
}

// noteLoss writes into the plan since when a member is missing. Only what is written there decides, not what
// the gang was called meanwhile: a loss counts once, whatever comes of looking for a place.
func (t *turn) noteLoss() {
	lost := t.need() > 0
	if lost == (t.plan.DegradedSince != nil) {
		return
	}
	now := metav1.NewMicroTime(t.Now)
	t.enter(v1alpha1.StepHolding) // anew when the gang is whole again
	if lost {
		t.plan.DegradedSince = &now
	}
}

// held is how long the fence was kept since all members ran, since one was lost, or since none is left.
func (t *turn) held() time.Duration {
	if idle, is := t.idle(); is {
		return idle
	}
	if since := t.plan.DegradedSince; since != nil {
		return t.since(since.Time)
	}
	return t.inStep()
}

// grace is how long the fence is kept.
func (t *turn) grace() time.Duration {
	grace := restartGracePeriod(t.Claim)
	if !t.live() {
		return min(grace, t.idleHold())
	}
	if t.need() > 0 && t.freed() == nil && t.devicesComeFree().ok {
		return 0 // what is reserved cannot serve the replacement
	}
	return grace
}

// unfence removes the rules. Without them the step is the rest of the gang's life: a member that is
// lost now is planned anew, around the others.
func (t *turn) unfence() bool {
	t.beRunning()
	if !t.sweep() || t.over() {
		return false
	}
	if t.need() > 0 && t.live() {
		return t.seekPlace()
	}
	t.status.WaitingSince = nil
	return false
}
