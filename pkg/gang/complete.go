// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// noteIdle writes into the status since when no pod of a gang that was started lives.
func (t *turn) noteIdle() {
	switch idle := t.wasStarted() && !t.live(); {
	case !idle:
		t.status.IdleSince = nil
	case t.status.IdleSince == nil || t.status.IdleSince.After(t.Now):
		now := metav1.NewMicroTime(t.Now)
		t.status.IdleSince = &now
	}
}

// idle is how long no pod of the gang has lived, if none does.
func (t *turn) idle() (time.Duration, bool) {
	if t.status.IdleSince == nil {
		return 0, false
	}
	return t.since(t.status.IdleSince.Time), true
}

// idleHold is how long pods are still expected for a gang of which none lives: as long as controllers take
// that make pods anew. Not at all when every member has succeeded.
func (v *view) idleHold() time.Duration {
	switch {
	case len(v.finished()) >= int(v.Claim.Spec.Members):
		return 0
	case slices.ContainsFunc(v.ended, func(m member) bool { return m.pod.Status.Phase == corev1.PodFailed }):
		return FailedHoldFor
	default:
		return EmptyHoldFor
	}
}

// over ends a gang that was started, of which no pod lives and none is expected, and no claim is left. Pods that
// come later start it anew.
func (t *turn) over() bool {
	idle, is := t.idle()
	if !is || len(t.ending) > 0 || slices.ContainsFunc(t.Claims, t.ours) {
		return false
	}
	if left := t.idleHold() - idle; left > 0 && !isTrue(t.Claim.Status.Conditions, v1alpha1.ConditionCompleted) {
		t.again(left)
		return false
	}
	t.forget()
	t.status.WaitingSince, t.status.TimedOut = nil, ""
	t.completed = true
	t.be(StateCompleted, t.outcome())
	t.unplanned = because(ReasonCompleted, "%s", t.outcome())
	return true
}

// wasStarted says whether the gang has run: it is over when nothing of it is left, instead of waiting
// for its members. So it is when pods came for another run, and went before there were enough.
func (t *turn) wasStarted() bool {
	return t.wasReleased() || isTrue(t.Claim.Status.Conditions, v1alpha1.ConditionCompleted) || len(t.finished()) >= int(t.Claim.Spec.Members)
}

// outcome is how the members ended.
func (t *turn) outcome() string {
	if c := condition(t.Claim.Status.Conditions, v1alpha1.ConditionCompleted); c != nil && c.Status == "True" {
		return c.Message // pods may have been removed since
	}
	failed := len(filter(t.ended, func(m member) bool { return m.pod.Status.Phase == corev1.PodFailed }))
	succeeded := len(t.finished())
	var parts []string
	if succeeded > 0 {
		parts = append(parts, fmt.Sprintf("%d succeeded", succeeded))
	}
	if failed > 0 {
		parts = append(parts, fmt.Sprintf("%d failed", failed))
	}
	if rest := int(t.Claim.Spec.Members) - succeeded - failed; rest > 0 {
		parts = append(parts, fmt.Sprintf("%d %s deleted", rest, plural(rest, "was", "were")))
	}
	return fmt.Sprintf("the gang has ended: of %d members %s", t.Claim.Spec.Members, strings.Join(parts, ", "))
}
