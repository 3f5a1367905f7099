// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// over ends a gang that was started and of which no pod lives and no claim is left. Pods that come later
// start it anew.
func (t *turn) over() bool {
	if !t.wasStarted() || t.live() || len(t.ending) > 0 || len(t.candidates) > 0 {
		return false
	}
	if slices.ContainsFunc(t.Claims, t.ours) {
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
// for its members.
func (t *turn) wasStarted() bool {
	_, released := t.releasedSince()
	return released || isTrue(t.Claim.Status.Conditions, v1alpha1.ConditionCompleted)
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
