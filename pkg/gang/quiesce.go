// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// quiesce waits until kube-scheduler has decided on every pod that it may have given a planned device
// before it saw the fence. Such a decision leaves no mark until it is written.
func (t *turn) quiesce() bool {
	if why := mayRelease.judge(t.view); !why.ok {
		return t.giveUp(why)
	}
	t.be(StateQuiescing, "the planned devices are reserved")
	if f := t.fenceFor(t.plan); !f.complete() {
		return t.enter(v1alpha1.StepFencing)
	}
	t.clearStrays()
	if !t.observedIn(v1alpha1.StepQuiescing) {
		t.again(TouchRuleAfter) // rivals were not looked for yet
		return false
	}
	left := QuiesceFor - t.inStep()
	if n := len(Undecided(t.Observation)); n > 0 && left > 0 {
		t.be(StateQuiescing, fmt.Sprintf("the planned devices are reserved; waiting for kube-scheduler to decide on %d other %s",
			n, plural(n, "pod", "pods")))
		t.again(left)
		return false
	}
	if len(t.plan.Moves) == 0 {
		return t.enter(v1alpha1.StepReleasing)
	}
	return t.enter(v1alpha1.StepEvicting)
}

// Undecided are the rivals that may have been given a planned device before the fence was seen. A pod that
// was created after the fence never is, so that a busy cluster does not hold up a release.
func Undecided(o Observation) []placement.PodWithDevices {
	plan := o.Claim.Status.Plan
	return slices.DeleteFunc(slices.Clone(o.Rivals), func(r placement.PodWithDevices) bool {
		return !r.Decided.IsZero() || plan != nil && r.Created.After(plan.StepSince.Time) ||
			slices.ContainsFunc(o.Pods, func(p *corev1.Pod) bool { return p.UID == r.UID })
	})
}
