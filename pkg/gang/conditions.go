// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// setConditions writes what the turn came to into the status.
func (t *turn) setConditions() {
	s := &t.status
	s.ObservedGeneration = t.Claim.Generation
	s.Ready = fmt.Sprintf("%d/%d", t.runningCount(), t.Claim.Spec.Members)
	s.Domains = domains(s.Plan)

	switch planned := s.Plan != nil && s.Plan.Step != v1alpha1.StepTakingBack && t.state != StateTerminating; {
	case planned:
		t.set(v1alpha1.ConditionPlanned, true, ReasonPlanned, describePlan(t.Claim, s.Plan)+t.replacing())
	default:
		t.set(v1alpha1.ConditionPlanned, false, t.unplanned.reason, t.unplanned.message)
	}
	if t.released() {
		t.set(v1alpha1.ConditionReleased, true, ReasonReleased, "the claims of all members were allocated as planned")
	} else {
		t.set(v1alpha1.ConditionReleased, false, ReasonNotReleased, "not all members have their devices")
	}
	t.set(v1alpha1.ConditionRunning, t.state == StateRunning, t.state, t.message)
	t.setRoomCondition()
	if t.completed {
		t.set(v1alpha1.ConditionCompleted, true, ReasonCompleted, t.message)
	} else {
		t.set(v1alpha1.ConditionCompleted, false, ReasonMembersLeft, "the gang has not ended")
	}
}

func (t *turn) set(conditionType string, is bool, reason, message string) {
	status := metav1.ConditionFalse
	if is {
		status = metav1.ConditionTrue
	}
	meta.SetStatusCondition(&t.status.Conditions, metav1.Condition{
		Type: conditionType, Status: status, Reason: reason, Message: clip(message, maxMessage),
		ObservedGeneration: t.Claim.Generation, LastTransitionTime: metav1.NewTime(t.Now),
	})
}

// replacing says why a replacement has no place, while the plan of the others is alive.
func (t *turn) replacing() string {
	if t.unplanned.reason == "" {
		return ""
	}
	return "; for a replacement: " + t.unplanned.message
}

// released says whether every member of the gang was seen allocated. It stays so while any of these members
// lives or has finished, whatever becomes of the others, and until pods come for the next run.
func (t *turn) released() bool {
	if p := t.status.Plan; p != nil {
		switch p.Step {
		case v1alpha1.StepStarting, v1alpha1.StepHolding, v1alpha1.StepUnfencing:
			return true
		}
	}
	was := t.wasReleased()
	return t.completed || was && (!t.live() || len(t.settled)+len(t.ending)+len(t.finished()) > 0) || len(t.settled) > 0 && t.need() == 0
}

// wasReleased says whether the gang was started when its status was last written.
func (v *view) wasReleased() bool {
	return isTrue(v.Claim.Status.Conditions, v1alpha1.ConditionReleased)
}

func condition(conditions []metav1.Condition, conditionType string) *metav1.Condition {
	return meta.FindStatusCondition(conditions, conditionType)
}

func isTrue(conditions []metav1.Condition, conditionType string) bool {
	return meta.IsStatusConditionTrue(conditions, conditionType)
}
