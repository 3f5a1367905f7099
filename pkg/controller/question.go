// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/fragmentation"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// retellAfter is how long a refusal stands before another of the same reason is told: what is free, and so its
// message, changes with every pod of the cluster, and each time would cost a write of every gang that waits. It stands
// twice as long each time, up to retellMax, for as long as only the message changes.
const retellAfter, retellMax = 5 * time.Second, time.Minute

// question is a gang that waits for a plan.
type question struct {
	key    types.NamespacedName
	gang   placement.Gang
	asked  string // what the answer must be for
	latest *placement.Decision
	// told is the answer that is given, since toldAt, and what was asked for it.
	told    *placement.Decision
	toldAt  time.Time
	toldFor string
	// stands is how long it is not told anew for another message.
	stands time.Duration
	// untold says that the latest decision has changed since.
	untold bool
}

// heardAlready says whether a refusal of the same reason was told a moment ago.
func (q *question) heardAlready(now time.Time) bool {
	stands := retellAfter
	if q.repeats() {
		stands = q.stands
	}
	return q.sameReason() && now.Sub(q.toldAt) < stands
}

// repeats says that the latest decision is what was told in other words: the moves that would make room are the same, too.
func (q *question) repeats() bool {
	return q.sameReason() && equality.Semantic.DeepEqual(q.latest.Room, q.told.Room)
}

func (q *question) sameReason() bool {
	latest, told := q.latest.Refusal, q.told.Refusal
	return latest != nil && told != nil && latest.Reason == told.Reason
}

// explained adds to why a gang has no place how fragmented the cluster is for gangs of its size.
func explained(decision placement.Decision, claim *v1alpha1.GangClaim, domains func() []fragmentation.Domain) *placement.Decision {
	if decision.Refusal != nil && decision.Refusal.Reason == placement.ReasonNoFeasibleDomain {
		refusal := *decision.Refusal
		refusal.Message += fragmented(claim, domains())
		decision.Refusal = &refusal
	}
	return &decision
}

// sameAnswer compares refusals: a plan is always news.
func sameAnswer(before *placement.Decision, now placement.Decision) bool {
	return before != nil && before.Plan == nil && now.Plan == nil &&
		before.Refusal != nil && now.Refusal != nil &&
		before.Refusal.Reason == now.Refusal.Reason && before.Refusal.Message == now.Refusal.Message &&
		equality.Semantic.DeepEqual(before.Room, now.Room)
}

// fingerprint tells two questions about a gang apart. A pod that waits may be given tolerations, or other requests.
func fingerprint(g placement.Gang) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d %d", g.Claim.Generation, g.Priority)
	for _, pod := range g.Pods {
		fmt.Fprintf(&b, " %s %d", pod.UID, pod.Generation)
	}
	fmt.Fprintf(&b, " %v %t %v", g.Placed, g.Only != nil, g.Only)
	return b.String()
}
