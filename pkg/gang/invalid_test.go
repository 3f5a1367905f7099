// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package gang_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/gang"
)

func TestAnInvalidGangIsNotPlannedAndSaysWhichFieldIsWrong(t *testing.T) {
	w := gangWorld("job")
	w.UpdateGang("g", func(g *v1alpha1.GangClaim) { g.Finalizers = []string{gang.Finalizer} })
	o := w.Observe("g")
	o.Invalid = "spec.config[0].opaque: Required value: set driver and parameters"
	if _, ok := gang.Plannable(o); ok {
		t.Error("the planner is asked")
	}
	d := gang.Decide(o)
	planned := find(d.Status, v1alpha1.ConditionPlanned)
	if d.Status.Plan != nil || len(d.Actions) > 0 || planned.Reason != gang.ReasonInvalidSpec || planned.Message != o.Invalid {
		t.Errorf("plan %v, actions %v, Planned %+v; want none, for %s", d.Status.Plan, d.Actions, planned, gang.ReasonInvalidSpec)
	}
	if len(d.Events) == 0 || d.Events[0].Type != corev1.EventTypeWarning {
		t.Errorf("events are %v, want a warning", d.Events)
	}
}
