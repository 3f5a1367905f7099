// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package gang

import "github.com/switchyard-dev/switchyard/api/v1alpha1"

// fence makes the rules that reserve the planned devices, all in one batch, and touches each once.
func (t *turn) fence() bool {
	if why := mayRelease.judge(t.view); !why.ok {
		return t.giveUp(why)
	}
	t.be(StateFencing, "the planned devices are being reserved")
	t.clearStrays()
	if f := t.keepFence(); !f.complete() {
		left := FenceFor - t.inStep()
		if left <= 0 {
			return t.giveUp(because(ReasonFenceTimeout, "not all planned devices could be reserved within %s: %s", FenceFor, f.missing()))
		}
		t.again(left)
		return false
	}
	return t.enter(v1alpha1.StepQuiescing)
}

// keepFence makes, repairs and touches rules where needed.
func (t *turn) keepFence() fence {
	f := t.fenceFor(t.plan)
	t.act(f.actions()...)
	t.again(f.wait)
	if len(f.create)+len(f.repair) > 0 {
		t.again(TouchRuleAfter)
	}
	return f
}
