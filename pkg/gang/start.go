// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"fmt"
	"slices"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// start opens the start gate of all members, and waits until they run. The step says that all were
// seen allocated on the plan; when none is marked ready yet, that must still be so.
func (t *turn) start() bool {
	t.status.WaitingSince = nil
	placed := t.proven()
	if !t.complete(placed) || len(placed)+t.settledOfPlan() < int(t.plan.Members) {
		if t.settledOfPlan() == 0 {
			return t.giveUp(because(ReasonMemberLost, "a member was lost before any was started"))
		}
		if len(placed) == 0 {
			return t.enter(v1alpha1.StepHolding)
		}
	}
	if gate := slices.Concat(placed, filter(t.kept(), member.bound)); len(gate) > 0 {
		t.be(StateStarting, "all members have their devices and are being started")
		t.keepFence()
		t.deleteTemplate()
		t.noteStarted(gate...)
		t.act(markReady(gate))
		t.clearStrays()
		return false
	}
	// A plan that replaces some members is through when these are started, although others were lost meanwhile.
	if t.allRun() || t.need() > 0 {
		return t.enter(v1alpha1.StepHolding)
	}
	t.beRunning()
	t.keepFence()
	t.deleteTemplate()
	t.clearStrays()
	return false
}

// adopt starts a gang whose plan is not known, when all members have devices and a node: their claims
// were allocated under the selector of a plan, and no member waits.
func (t *turn) adopt() bool {
	list := t.adoptees()
	if len(list) == 0 {
		return false
	}
	t.be(StateStarting, "all members have their devices and are being started")
	t.unplanned = because(ReasonNothingToPlan, "all members have their devices; the plan they were given by is not known any more")
	t.deleteTemplate()
	t.noteStarted(list...)
	t.act(markReady(list))
	return true
}

func (v *view) adoptable() bool { return len(v.adoptees()) > 0 }

func (v *view) adoptees() []member {
	list := filter(v.candidates, func(m member) bool {
		return m.allocated() && m.bound() && m.planLabel() != "" && v.wellFormed(m.claim)
	})
	if v.foreignTemplate() || len(v.settled)+len(list)+len(v.finished()) != int(v.Claim.Spec.Members) {
		return nil
	}
	return list
}

func markReady(members []member) MarkReady {
	var a MarkReady
	for _, m := range members {
		a.Claims = append(a.Claims, ReadyClaim{Ref: ref(m.claim), Plan: m.planLabel()})
	}
	return a
}

// deleteTemplate removes a template that is not needed any more: no later pod is to slip in.
func (t *turn) deleteTemplate() {
	if t.ourTemplate() {
		t.act(DeleteTemplate{ref(t.Template)})
	}
}

// allRun says whether every member that has not finished runs.
func (v *view) allRun() bool {
	return v.runningCount()+len(v.finished()) >= int(v.Claim.Spec.Members)
}

// beRunning sets the state of a gang that was started.
func (t *turn) beRunning() {
	of := fmt.Sprintf("%d of %d members run", t.runningCount(), t.Claim.Spec.Members)
	if done := len(t.finished()); done > 0 {
		of += fmt.Sprintf(", %d %s finished", done, plural(done, "has", "have"))
	}
	switch {
	case t.need() > 0:
		t.be(StateDegraded, of)
	case t.allRun():
		t.be(StateRunning, of)
	default:
		t.be(StateStarting, of)
	}
}
