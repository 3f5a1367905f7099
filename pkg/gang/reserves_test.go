// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

func TestReserves(t *testing.T) {
	for name, tc := range map[string]struct {
		step    v1alpha1.GangStep
		planned string // reason of the condition
		want    bool
	}{
		"no plan":                                   {want: false},
		"a plan that was committed":                 {step: v1alpha1.StepFencing, want: true},
		"members run behind the fence":              {step: v1alpha1.StepHolding, want: true},
		"the fence comes down":                      {step: v1alpha1.StepUnfencing, want: false},
		"taken back, and the fence may be up":       {step: v1alpha1.StepTakingBack, planned: StateTakingBack, want: true},
		"taken back, and nobody has said how far":   {step: v1alpha1.StepTakingBack, want: true},
		"taken back, and the pause has begun":       {step: v1alpha1.StepTakingBack, planned: ReasonBackingOff, want: false},
		"taken back, and another plan is asked for": {step: v1alpha1.StepTakingBack, planned: ReasonPlanning, want: false},
	} {
		claim := &v1alpha1.GangClaim{}
		if tc.step != "" {
			claim.Status.Plan = &v1alpha1.GangPlan{Step: tc.step}
		}
		if tc.planned != "" {
			claim.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionPlanned, Reason: tc.planned}}
		}
		if got := Reserves(claim); got != tc.want {
			t.Errorf("%s: %t, want %t", name, got, tc.want)
		}
	}
}

func TestStarting(t *testing.T) {
	for step, want := range map[v1alpha1.GangStep]bool{
		"": false, v1alpha1.StepFencing: true, v1alpha1.StepEvicting: true, v1alpha1.StepStarting: true, v1alpha1.StepTakingBack: true,
		v1alpha1.StepHolding: false, v1alpha1.StepUnfencing: false,
	} {
		claim := &v1alpha1.GangClaim{}
		if step != "" {
			claim.Status.Plan = &v1alpha1.GangPlan{Step: step}
		}
		if got := Starting(claim); got != want {
			t.Errorf("step %q: %t, want %t", step, got, want)
		}
	}
}
