// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// maxEventMessage is how much of a message fits an Event.
const maxEventMessage = 1000

// events are about the conditions whose reason or message changed: Running's on the GangClaim, and
// Planned's also on the pods that wait, where most people look first.
func (t *turn) events() []Event {
	var out []Event
	planned := t.changed(v1alpha1.ConditionPlanned)
	if planned != nil {
		e := Event{Type: corev1.EventTypeNormal, Reason: planned.Reason, Message: planned.Message}
		if planned.Status == "False" && warns(planned.Reason) {
			e.Type = corev1.EventTypeWarning
		}
		out = append(out, e.about(nil))
		for _, m := range t.candidates {
			out = append(out, e.about(m.pod))
		}
	}
	// While the gang waits, Running says what Planned says.
	if running := t.changed(v1alpha1.ConditionRunning); running != nil && running.Reason != StateWaiting &&
		(planned == nil || planned.Message != running.Message) {
		e := Event{Type: corev1.EventTypeNormal, Reason: running.Reason, Message: running.Message}
		switch running.Reason {
		case StateDegraded, StateTakingBack, StateTimedOut:
			e.Type = corev1.EventTypeWarning
		}
		out = append(out, e.about(nil))
	}
	return out
}

func (e Event) about(pod *corev1.Pod) Event {
	e.Pod = pod
	if len(e.Message) > maxEventMessage {
		e.Message = e.Message[:maxEventMessage-3] + "..."
	}
	return e
}

// warns says whether a reason for no plan is one that a person may have to do something about.
func warns(reason string) bool {
	switch reason {
	case ReasonPlanning, ReasonWaitingForMembers, ReasonWaitingForDevices, ReasonSweeping, ReasonNothingToPlan, ReasonCompleted,
		ReasonBackingOff:
		return false
	}
	return true
}

// condition that has another reason or message than in the observed status, or nil.
type changedCondition struct{ Status, Reason, Message string }

func (t *turn) changed(conditionType string) *changedCondition {
	was, is := condition(t.Claim.Status.Conditions, conditionType), condition(t.status.Conditions, conditionType)
	if is == nil || was != nil && was.Reason == is.Reason && was.Message == is.Message {
		return nil
	}
	return &changedCondition{Status: string(is.Status), Reason: is.Reason, Message: is.Message}
}
