// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// commit puts a plan into the status: the commit point. Nothing of the plan exists before.
func (t *turn) commit(found *v1alpha1.GangPlan) {
	plan := found.DeepCopy()
	if t.plan != nil { // of a version that did not count in the status
		t.status.Attempts = max(t.status.Attempts, t.plan.Attempt)
	}
	t.status.Attempts++
	plan.Attempt = t.status.Attempts
	if t.need() >= int(t.Claim.Spec.Members) {
		t.status.Started = nil // a new run
	}
	plan.Step, plan.StepSince, plan.Reason = v1alpha1.StepFencing, metav1.NewMicroTime(t.Now), ""
	plan.Hash = planHash(t.Claim, plan)
	t.status.Plan, t.plan = plan, plan
	// What is known of devices is about the plan before: to judge this one by it could give it up, and commit to it again, for
	// ever. An answer is used once.
	t.Devices, t.Holders, t.Placement = nil, nil, nil
	t.status.ObservedGeneration = t.Claim.Generation
	t.state, t.message = "", ""
}

// planHash identifies a plan. The time of the commit is in it, so that no two plans of a gang have the
// same, even after the status was lost with the number of attempts.
func planHash(claim *v1alpha1.GangClaim, plan *v1alpha1.GangPlan) string {
	placements, err := json.Marshal(plan.Placements)
	if err != nil {
		panic(err) // strings, numbers and booleans
	}
	return digest(string(claim.UID), fmt.Sprint(plan.Attempt), plan.StepSince.UTC().Format(time.RFC3339Nano), string(placements))
}

func hasFinalizer(claim *v1alpha1.GangClaim) bool {
	return slices.Contains(claim.Finalizers, Finalizer)
}
