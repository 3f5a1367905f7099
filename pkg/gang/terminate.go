// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"slices"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// terminate removes what was made for a gang whose GangClaim is being deleted. Members that run keep their
// claims and go on; those that were not started give their devices back, and wait for a GangClaim of the
// same name. A start that was begun is finished: part of a gang does not run for want of the rest.
func (t *turn) terminate() {
	t.be(StateTerminating, "the GangClaim is being deleted")
	t.unplanned = because(ReasonDeleted, "the GangClaim is being deleted: pods that were not started wait for a GangClaim %s", t.Claim.Name)
	if gate := t.toStart(); len(gate) > 0 {
		t.noteStarted(gate...)
		t.act(markReady(gate))
		return
	}
	if t.sweep() && hasFinalizer(t.Claim) {
		t.act(RemoveFinalizer{ref(t.Claim)})
	}
}

// toStart are the members that a start which was begun has left out so far.
func (v *view) toStart() []member {
	if v.plan == nil || v.plan.Step != v1alpha1.StepStarting || v.settledOfPlan() == 0 {
		return nil
	}
	return slices.Concat(v.proven(), filter(v.kept(), member.bound))
}
