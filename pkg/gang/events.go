// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// events are about conditions whose reason changed: Running's on the GangClaim, and Planned's also on the pods
// that wait, where most people look first. What passes by itself, and messages that only count on, are in the
// conditions alone: a gang of many pods would fill the cluster with Events.
func (t *turn) events() []Event {
	var out []Event
	tell := func(warning bool, reason, message string) Event {
		e := Event{Type: corev1.EventTypeNormal, Reason: reason, Message: clip(message, maxEventMessage)}
		if warning {
			e.Type = corev1.EventTypeWarning
		}
		out = append(out, e)
		return e
	}
	if c := t.changed(v1alpha1.ConditionPlanned); c != nil && !passing(c.Reason) {
		e := tell(c.Status == metav1.ConditionFalse && warns(c.Reason), c.Reason, c.Message)
		for _, m := range t.candidates {
			e.Pod = m.pod
			out = append(out, e)
		}
	}
	if c := t.changed(v1alpha1.ConditionReleased); c != nil && c.Status == metav1.ConditionTrue {
		tell(false, c.Reason, c.Message)
	}
	if c := t.changed(v1alpha1.ConditionRunning); c != nil {
		switch c.Reason {
		case StateRunning, StateTerminating:
			tell(false, c.Reason, c.Message)
		case StateDegraded, StateTakingBack:
			tell(true, c.Reason, c.Message)
		case StateTimedOut:
			if t.status.Plan != nil { // else Planned says it
				tell(true, c.Reason, c.Message)
			}
		}
	}
	if d := t.Claim.Spec.Defragmentation; t.movesNothing() && t.Claim.Status.ObservedGeneration != t.Claim.Generation {
		tell(true, ReasonDefragmentationNotAvailable, fmt.Sprintf("spec.defragmentation is %s, and this version moves nothing for a gang: "+
			"it waits as with Never", d))
	}
	return out
}

// movesNothing says whether the gang asks for room to be made, which nobody does yet.
func (v *view) movesNothing() bool {
	d := v.Claim.Spec.Defragmentation
	return d == v1alpha1.DefragmentationPlan || d == v1alpha1.DefragmentationEvict
}

// passing says whether a reason for no plan is over by itself in seconds.
func passing(reason string) bool {
	switch reason {
	case ReasonPlanning, ReasonSweeping, ReasonBackingOff, ReasonWaitingForDevices, ReasonNothingToPlan, ReasonDeleted, StateTakingBack:
		return true
	}
	return false
}

// warns says whether a reason for no plan is one that a person may have to do something about.
func warns(reason string) bool {
	return reason != ReasonWaitingForMembers && reason != ReasonCompleted
}

// changed is a condition that has another reason than in the observed status, or, as long as there is a plan, is
// about another plan; else nil.
func (t *turn) changed(conditionType string) *metav1.Condition {
	was, is := condition(t.Claim.Status.Conditions, conditionType), condition(t.status.Conditions, conditionType)
	if is != nil && was != nil && was.Reason == is.Reason &&
		(is.Reason != ReasonPlanned || planHashOf(t.Claim.Status.Plan) == planHashOf(t.status.Plan)) {
		return nil
	}
	return is
}

func planHashOf(plan *v1alpha1.GangPlan) string {
	if plan == nil {
		return ""
	}
	return plan.Hash
}
