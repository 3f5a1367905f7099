// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"time"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// Times of the protocol. Why each is as it is: docs/design/gangs.md.
const (
	// TouchRuleAfter is how long after its creation a rule is touched.
	TouchRuleAfter = 100 * time.Millisecond
	// NeutralFor is how long a rule has no effect before it is deleted.
	NeutralFor = time.Second
	// QuiesceFor is how long the scheduler may take to decide on pods that it saw before the fence.
	QuiesceFor = 10 * time.Second
	// TouchPodAfter is how long after the release a member without a claim is touched.
	TouchPodAfter = 2 * time.Second
	// VerifyBase and VerifyPerMember make the deadline of a release.
	VerifyBase = 10 * time.Second
	// VerifyPerMember is what each member adds to VerifyBase.
	VerifyPerMember = 200 * time.Millisecond
	// MaxBackoff is the longest pause after a plan was taken back, before the next.
	MaxBackoff = time.Minute
	// EmptyHoldFor is how long devices stay reserved for a gang of which no pod exists any more: a
	// controller that restarts a gang deletes all pods before it makes new ones.
	EmptyHoldFor = 30 * time.Second
	// FailedHoldFor is the same when pods are left that failed: the Job controller's longest back-off
	// before it replaces one. With backoffLimit 0 it never does.
	FailedHoldFor = 6 * time.Minute
	// LookAgainAfter is how often it is looked whether the devices of a lost member are free.
	LookAgainAfter = time.Second
	// FenceFor is how long the rules of a plan may take to be made.
	FenceFor = 30 * time.Second

	// EvictBase is how long the pods to be moved may take to give their devices back beyond the longest grace
	// period among them.
	EvictBase = time.Minute
	// FirstEvictionFor is how long it may take until the first pod is evicted: after that the longest grace period
	// would not fit any more.
	FirstEvictionFor = EvictBase / 2

	// DefaultSchedulingTimeout is used where the API server did not set one.
	DefaultSchedulingTimeout = 10 * time.Minute
	// DefaultRestartGracePeriod is used where the API server did not set one.
	DefaultRestartGracePeriod = 5 * time.Minute
)

// VerifyDeadline is how long after the release every claim of the plan must be allocated on it.
func VerifyDeadline(plan *v1alpha1.GangPlan) time.Duration {
	return VerifyBase + time.Duration(plan.Members)*VerifyPerMember
}

// EvictDeadline is how long after step Evicting began the pods that are moved must have given their devices back: a
// fence on devices that others use must not stay for ever.
func EvictDeadline(plan *v1alpha1.GangPlan) time.Duration {
	var grace int64
	for _, m := range plan.Moves {
		grace = max(grace, m.GracePeriodSeconds)
	}
	return EvictBase + time.Duration(grace)*time.Second
}

func schedulingTimeout(claim *v1alpha1.GangClaim) time.Duration {
	if t := claim.Spec.SchedulingTimeout; t != nil {
		return t.Duration
	}
	return DefaultSchedulingTimeout
}

func restartGracePeriod(claim *v1alpha1.GangClaim) time.Duration {
	if t := claim.Spec.RestartGracePeriod; t != nil {
		return min(t.Duration, v1alpha1.MaxRestartGracePeriod)
	}
	return DefaultRestartGracePeriod
}
