// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/defrag"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// maxTold is how many pods get an Event of their own: as many as the largest gang has members. Any number of pods may name a
// template, and what waits for the API server is bounded, for all gangs together.
const maxTold = 256

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
		for _, m := range t.candidates[:min(len(t.candidates), maxTold)] {
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
	if c := t.changed(v1alpha1.ConditionRoomCanBeMade); c != nil && c.Reason != defrag.ReasonPlanning && c.Reason != defrag.ReasonWaiting {
		tell(false, c.Reason, c.Message)
	}
	return append(out, t.evictionEvents()...)
}

// passing says whether a reason for no plan is over by itself in seconds.
func passing(reason string) bool {
	switch reason {
	case ReasonPlanning, ReasonSweeping, ReasonBackingOff, ReasonWaitingForDevices, ReasonNothingToPlan, ReasonDeleted, StateTakingBack,
		string(placement.ReasonVolumesBeingMade):
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
