// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// Reserves says whether the plan of a gang keeps its devices from others. Once it is being unfenced only what its
// claims hold is taken, and likewise once it has been taken back: the pause that follows is no reason to keep devices
// from others.
func Reserves(claim *v1alpha1.GangClaim) bool {
	plan := claim.Status.Plan
	switch {
	case plan == nil || plan.Step == v1alpha1.StepUnfencing:
		return false
	case plan.Step == v1alpha1.StepTakingBack:
		planned := condition(claim.Status.Conditions, v1alpha1.ConditionPlanned)
		return planned == nil || planned.Reason != ReasonBackingOff && planned.Reason != ReasonPlanning
	}
	return true
}

// Starting says that a gang has a plan and has not been seen running on it.
func Starting(claim *v1alpha1.GangClaim) bool {
	plan := claim.Status.Plan
	return plan != nil && plan.Step != v1alpha1.StepHolding && plan.Step != v1alpha1.StepUnfencing
}
