// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package defrag

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/utils/clock"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// tries is how many places are tried for one gang: after each, what was in the way is ruled out.
const tries = 16

// Maker looks for moves. It follows PodDisruptionBudgets and GangClaims.
type Maker struct {
	limits Limits
	clock  clock.PassiveClock

	mu      sync.Mutex
	budgets budgets
	history history
}

var _ placement.RoomMaker = (*Maker)(nil)

// NewMaker returns a maker that knows of no budgets and of no evictions.
func NewMaker(limits Limits, clk clock.PassiveClock) *Maker {
	return &Maker{limits: limits, clock: clk, budgets: budgets{}, history: newHistory(limits)}
}

// SetBudget adds or replaces a PodDisruptionBudget. It is not changed afterwards.
func (m *Maker) SetBudget(object *policyv1.PodDisruptionBudget) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.budgets.set(object)
}

// DeleteBudget removes a PodDisruptionBudget.
func (m *Maker) DeleteBudget(key types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.budgets.remove(key)
}

// SetGang notes the evictions that the status of a GangClaim tells of. They outlive it.
func (m *Maker) SetGang(claim *v1alpha1.GangClaim) {
	if len(claim.Status.Evictions) == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.history.note(claim, m.clock.Now())
}

// Wanted implements placement.RoomMaker.
func (m *Maker) Wanted(g placement.Gang) bool {
	policy := g.Claim.Spec.Defragmentation
	return policy == v1alpha1.DefragmentationPlan || policy == v1alpha1.DefragmentationEvict
}

// MakeRoom implements placement.RoomMaker.
func (m *Maker) MakeRoom(ctx context.Context, room *placement.Room) (*v1alpha1.GangPlan, *v1alpha1.GangDefragmentation) {
	plan, report := m.search(ctx, room, nil)
	if !m.limits.Preempt || Found(report.Reason) || report.Reason == ReasonPlanning {
		return plan, report
	}
	if plan, preempted := m.search(ctx, room, func(r placement.Resident) bool {
		return corev1helpers.PodPriority(r.Pod) < room.Gang().Priority
	}); Found(preempted.Reason) {
		return plan, preempted
	}
	return nil, report
}

// search looks for moves; pods of which mayLose says so need no place elsewhere.
func (m *Maker) search(ctx context.Context, room *placement.Room, mayLose func(placement.Resident) bool) (*v1alpha1.GangPlan, *v1alpha1.GangDefragmentation) {
	q := m.inquire(room.Gang())
	var last *placement.Trial
	for range tries {
		t := room.Cheapest(q.pricing)
		if t.Members < len(q.gang.Pods) {
			return nil, q.impossible(t)
		}
		last = t
		if len(t.Victims) > min(q.limits.Moves, MaxMoves) {
			return nil, q.tooMany(t)
		}
		if q.together(t.Victims) {
			continue
		}
		plan, obstacle := room.Try(ctx, t, mayLose)
		switch {
		case obstacle == nil && len(t.Victims) == 0:
			room.Drop()
			return nil, q.report(ReasonPlanning, "there is a place without moves by now")
		case obstacle == nil:
			return m.decide(room, q, t, plan)
		case obstacle.Interrupted:
			return nil, q.report(ReasonPlanning, obstacle.Why)
		case obstacle.Final:
			return nil, q.report(ReasonNoMoves, obstacle.Why)
		case obstacle.Victim != nil:
			q.exclude(*obstacle.Victim, t.Victims, verdict{NoPlaceElsewhere, "has nowhere to go: " + obstacle.Why})
		}
	}
	return nil, q.gaveUp(last)
}

// inquire starts a search.
func (m *Maker) inquire(g placement.Gang) *inquiry {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.clock.Now()
	made, madeIn := 0, map[string]int{}
	for _, e := range m.history.recent(time.Hour, now) {
		if e.Outcome != v1alpha1.EvictionRefused {
			made++
			madeIn[e.Namespace]++
		}
	}
	return &inquiry{
		now: now, gang: g, limits: m.limits, budgets: maps.Clone(m.budgets),
		recent:   m.history.recent(m.limits.Cooldown, now),
		left:     m.limits.PerHour - made,
		leftIn:   func(namespace string) int { return m.limits.PerNamespaceHour - madeIn[namespace] },
		excluded: map[types.UID]verdict{}, owners: map[types.UID]verdict{}, ruledOut: map[types.UID]ruledOut{},
	}
}

// decide says whether the moves that were found are made now.
func (m *Maker) decide(room *placement.Room, q *inquiry, t *placement.Trial, plan *v1alpha1.GangPlan) (*v1alpha1.GangPlan, *v1alpha1.GangDefragmentation) {
	claim := q.gang.Claim
	found := q.found(t, plan)
	if claim.Spec.Defragmentation != v1alpha1.DefragmentationEvict {
		return nil, found
	}
	if len(t.Victims) > q.left {
		found.Reason = ReasonEvictionBudget
		found.Message = fmt.Sprintf("%d more of at most %d pods in an hour may be evicted: waiting to %s", max(q.left, 0), q.limits.PerHour, found.Message)
		return nil, found
	}
	if other := room.Blocker(); other != "" {
		found.Reason = ReasonOneAtATime
		found.Message = fmt.Sprintf("pods are being moved for gang %s: waiting to %s", other, found.Message)
		return nil, found
	}
	if since := claim.Status.WaitingSince; q.limits.After > 0 && (since == nil || q.now.Sub(since.Time) < q.limits.After) {
		found.Reason = ReasonWaiting
		found.Message = fmt.Sprintf("a place may come free by itself within %s: waiting to %s", q.limits.After, found.Message)
		return nil, found
	}
	found.Reason = ReasonMoving
	plan = plan.DeepCopy()
	plan.Moves = slices.Clone(found.Moves)
	return plan, found
}

// Recheck says why the moves of a committed plan must not be made any more; empty when they may. It is to be asked
// before the first of them is made. Limits are not asked again.
func (m *Maker) Recheck(cluster *placement.Cluster, g placement.Gang) string {
	plan := g.Claim.Status.Plan
	if plan == nil || len(plan.Moves) == 0 {
		return ""
	}
	q := m.inquire(g)
	var victims, placed []placement.Resident
	for _, move := range plan.Moves {
		r, there := cluster.Resident(types.NamespacedName{Namespace: move.Namespace, Name: move.Claim})
		if !there || r.Claim.UID != move.ClaimUID || r.Claim.Status.Allocation == nil {
			continue // gone by itself
		}
		if r.Pod == nil || r.Pod.UID != move.PodUID {
			return fmt.Sprintf("claim %s/%s, which pod %s had, is another's now", move.Namespace, move.Claim, move.Pod)
		}
		if v := q.judge(r); v.reason != "" && v.reason != Ending {
			return fmt.Sprintf("pod %s/%s must not be moved any more: it %s", move.Namespace, move.Pod, v.why)
		}
		victims = append(victims, r)
		if move.To.Node != "" {
			placed = append(placed, r)
		}
	}
	q.leftIn = func(string) int { return MaxMoves }
	if q.together(victims) {
		for _, v := range q.excluded {
			return "a pod to be moved " + v.why
		}
	}
	switch stuck := cluster.Elsewhere(g.Claim, placed); {
	case stuck == nil:
	case stuck.Interrupted:
		return fmt.Sprintf("it could not be found out whether pod %s still has a place elsewhere: %s", nameOf(*stuck.Victim), stuck.Why)
	default:
		return fmt.Sprintf("pod %s has no place elsewhere any more: %s", nameOf(*stuck.Victim), stuck.Why)
	}
	return ""
}
