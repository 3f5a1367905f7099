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
	if degraded := t.state == StateDegraded; t.observedIn(v1alpha1.StepHolding) && degraded != t.wasDegraded() {
		t.enter(v1alpha1.StepHolding)
		t.plan.StepSince = metav1.NewMicroTime(t.Now)
	}
	left := t.grace() - t.inStep()
	if left <= 0 {
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

// grace is how long the fence is kept, from StepSince.
func (t *turn) grace() time.Duration {
	grace := restartGracePeriod(t.Claim)
	switch {
	case t.live():
		if t.need() > 0 && t.freed() == nil && t.devicesComeFree().ok {
			return 0 // what is reserved cannot serve the replacement
		}
		return grace
	case len(t.ended) > 0 && len(t.ended) == len(t.finished()):
		return 0 // all succeeded
	case len(t.ended) == 0:
		return min(grace, EmptyHoldFor)
	default:
		return grace
	}
}

// wasDegraded says what the gang was when the status was last written.
func (t *turn) wasDegraded() bool {
	c := condition(t.Claim.Status.Conditions, v1alpha1.ConditionRunning)
	return c != nil && c.Reason == StateDegraded
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
