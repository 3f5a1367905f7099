// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"fmt"

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
	if n := t.undecided(); n > 0 && left > 0 {
		t.be(StateQuiescing, fmt.Sprintf("the planned devices are reserved; waiting for kube-scheduler to decide on %d other %s",
			n, plural(n, "pod", "pods")))
		t.again(left)
		return false
	}
	return t.enter(v1alpha1.StepReleasing)
}

// undecided is how many rivals may have been given a planned device.
func (t *turn) undecided() int {
	n := 0
	for _, r := range t.Rivals {
		if r.Decided.IsZero() && !t.isMember(r) {
			n++
		}
	}
	return n
}

func (t *turn) isMember(r placement.PodWithDevices) bool {
	_, ok := t.pods[r.UID]
	return ok
}
