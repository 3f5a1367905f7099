// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/defrag"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// maxEvictions is how many entries status.evictions has.
const maxEvictions = 256

// evict has the pods of the plan's moves evicted and waits until their claims have given the devices back. The
// devices are fenced already, so that no replacement lands there. It stops at the first refusal: the fence is then
// taken back, and the pods that were evicted count as evicted in vain.
func (t *turn) evict() bool {
	if reply := t.Evictions; reply != nil && reply.Refused != "" {
		return t.refuse(reply)
	}
	if why := mayRelease.judge(t.view); !why.ok {
		return t.giveUp(why)
	}
	fence := t.keepFence()
	if !t.begun() {
		if !fence.complete() {
			return t.enter(v1alpha1.StepFencing)
		}
		if why := t.mayBegin(); !why.ok {
			return t.giveUp(why)
		}
	}
	t.clearStrays()
	if !t.observedIn(v1alpha1.StepEvicting) {
		t.be(StateEvicting, fmt.Sprintf("%d %s evicted to make room", len(t.plan.Moves), plural(len(t.plan.Moves), "pod is", "pods are")))
		t.again(TouchRuleAfter) // the pods were not looked for yet
		return false
	}
	waiting := Unreleased(t.Observation)
	if len(waiting) == 0 {
		return t.enter(v1alpha1.StepReleasing)
	}
	left := EvictDeadline(t.plan) - t.inStep()
	if left <= 0 {
		return t.giveUp(because(ReasonEvictionTimeout, "%s not given %s back within %s", movedNames(waiting, "has", "have"),
			plural(len(waiting), "its device", "their devices"), EvictDeadline(t.plan)))
	}
	t.again(left)
	if !t.begun() {
		t.again(FirstEvictionFor - t.inStep())
	}
	t.be(StateEvicting, fmt.Sprintf("%d of %d pods that are moved have given their devices back: waiting for %s",
		len(t.plan.Moves)-len(waiting), len(t.plan.Moves), movedNames(waiting, "", "")))
	var live []Ref
	for _, m := range waiting {
		if m.EvictedAt != nil {
			continue // the cache may still show it as if it were not
		}
		if pod := t.Moves[m.PodUID].Pod; pod != nil && pod.DeletionTimestamp == nil && !placement.Ended(pod) {
			live = append(live, ref(pod))
		}
	}
	if len(live) > 0 && fence.complete() { // else a replacement could land on what its predecessor leaves
		t.act(EvictVictims{live})
	}
	return false
}

// begun says whether a pod of the plan was evicted.
func (t *turn) begun() bool {
	return slices.ContainsFunc(t.plan.Moves, func(m v1alpha1.GangMove) bool { return m.EvictedAt != nil })
}

// mayBegin is asked as long as no pod was evicted. What it refuses would be in vain.
func (t *turn) mayBegin() verdict {
	switch d := t.Claim.Spec.Defragmentation; {
	case d != v1alpha1.DefragmentationEvict:
		return because(ReasonMovesOutdated, "spec.defragmentation is %s now", d)
	case t.MovesBlocked != "":
		return because(ReasonMovesOutdated, "%s", t.MovesBlocked)
	case t.inStep() >= FirstEvictionFor:
		return because(ReasonEvictionTimeout, "no pod could be evicted within %s", FirstEvictionFor)
	}
	return fine
}

// refuse gives up because the API server refused to evict a pod.
func (t *turn) refuse(reply *EvictionReply) bool {
	for _, m := range t.plan.Moves {
		if m.PodUID == reply.Refused {
			t.noteEviction(m, v1alpha1.EvictionRefused, t.Now)
			return t.giveUp(because(ReasonEvictionRefused, "pod %s/%s, which was to be moved, was not evicted: %s", m.Namespace, m.Pod, reply.Message))
		}
	}
	return t.giveUp(because(ReasonEvictionRefused, "%s", reply.Message))
}

// noteEvicted writes into the status which pods of the plan's moves were evicted: in whatever step that is first seen, as
// the cache of pods may be behind. One that went for another reason counts too: that it was not us cannot be told.
func (t *turn) noteEvicted() {
	written := t.Claim.Status.Plan
	if t.plan == nil || written == nil || written.EvictingSince == nil || t.Moves == nil {
		return
	}
	plan := t.plan.DeepCopy()
	for i := range plan.Moves {
		m := &plan.Moves[i]
		if m.EvictedAt != nil || !t.isEvicted(m.PodUID) {
			continue
		}
		now := metav1.NewMicroTime(t.Now)
		m.EvictedAt = &now
		t.noteEviction(*m, v1alpha1.EvictionMade, t.deletedAt(m.PodUID))
	}
	t.status.Plan, t.plan = plan, plan
}

func (t *turn) isEvicted(pod types.UID) bool {
	if t.Evictions != nil && slices.Contains(t.Evictions.Evicted, pod) {
		return true
	}
	p := t.Moves[pod].Pod
	if p != nil && p.DeletionTimestamp != nil && t.plan.Step == v1alpha1.StepTakingBack {
		return !t.deletedAt(pod).After(t.plan.StepSince.Add(time.Second)) // else it is not our doing
	}
	return p == nil || p.DeletionTimestamp != nil
}

// deletedAt is when a pod was evicted: its replacement may be older than the first sight of that. Where it is not known
// it is when the evictions began.
func (t *turn) deletedAt(pod types.UID) time.Time {
	at := t.Claim.Status.Plan.EvictingSince.Time
	if p := t.Moves[pod].Pod; p != nil && p.DeletionTimestamp != nil {
		asked := p.DeletionTimestamp.Add(-time.Duration(ptr.Deref(p.DeletionGracePeriodSeconds, 0)) * time.Second)
		if asked.After(at) { // the clock of the API server, in whole seconds
			at = asked
		}
	}
	return at
}

func (t *turn) noteEviction(m v1alpha1.GangMove, outcome v1alpha1.EvictionOutcome, at time.Time) {
	list := append(slices.Clone(t.status.Evictions), v1alpha1.GangEviction{
		Time: metav1.NewMicroTime(at), Namespace: m.Namespace, Pod: m.Pod, OwnerUID: m.OwnerUID, Outcome: outcome,
	})
	for len(list) > maxEvictions { // the oldest of which it is known what came of them
		oldest := slices.IndexFunc(list, func(e v1alpha1.GangEviction) bool { return e.Outcome != v1alpha1.EvictionMade })
		list = slices.Delete(list, max(oldest, 0), max(oldest, 0)+1)
	}
	t.status.Evictions = list
}

// settleEvictions says of evictions whether they were of use: a member of the gang was started, or nothing is left of
// the plan. A plan that is being taken back may still be saved.
func (t *turn) settleEvictions() {
	var outcome v1alpha1.EvictionOutcome
	switch before, p := t.Claim.Status.Plan, t.status.Plan; {
	case p != nil && (p.Step == v1alpha1.StepHolding || p.Step == v1alpha1.StepUnfencing || t.settledOfPlan() > 0):
		outcome = v1alpha1.EvictionSucceeded
	case p == nil, t.Claim.DeletionTimestamp != nil, before == nil, before.Hash != p.Hash:
		outcome = v1alpha1.EvictionFailed
	default:
		return
	}
	for i := range t.status.Evictions { // a copy, like all of the status
		if t.status.Evictions[i].Outcome == v1alpha1.EvictionMade {
			t.status.Evictions[i].Outcome = outcome
		}
	}
}

// Unreleased are the moves of status.plan whose claims still have a device.
func Unreleased(o Observation) []v1alpha1.GangMove {
	plan := o.Claim.Status.Plan
	if plan == nil {
		return nil
	}
	held := map[types.UID]bool{}
	for _, d := range ReservedDevices(plan) {
		if h, ok := o.Holders[d]; ok {
			held[h.UID] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(plan.Moves), func(m v1alpha1.GangMove) bool {
		c := o.Moves[m.PodUID].Claim
		return !held[m.ClaimUID] && (c == nil || c.Status.Allocation == nil)
	})
}

// ReadsMoves says whether Observation.Moves is to be read: in step Evicting, and later as long as not all evictions are
// counted.
func ReadsMoves(plan *v1alpha1.GangPlan) bool {
	return plan.Step == v1alpha1.StepEvicting || plan.EvictingSince != nil &&
		slices.ContainsFunc(plan.Moves, func(m v1alpha1.GangMove) bool { return m.EvictedAt == nil })
}

// isMoved says whether a claim is that of a pod that is moved for the plan. A claim that was released is never
// allocated again: its pod is gone.
func (v *view) isMoved(claim types.UID) bool {
	return slices.ContainsFunc(v.plan.Moves, func(m v1alpha1.GangMove) bool { return m.ClaimUID == claim })
}

// mayMove says whether moves are looked for.
func (v *view) mayMove() bool {
	d := v.Claim.Spec.Defragmentation
	return d == v1alpha1.DefragmentationPlan || d == v1alpha1.DefragmentationEvict
}

// report is what the planner says about moves, at a size that fits a status.
func report(room *v1alpha1.GangDefragmentation) *v1alpha1.GangDefragmentation {
	if room == nil {
		return nil
	}
	room = room.DeepCopy()
	room.Message = clip(room.Message, maxMessage)
	for i := range room.RuledOut {
		room.RuledOut[i].Example = clip(room.RuledOut[i].Example, maxEventMessage)
	}
	return room
}

// setRoomCondition says whether moving pods makes room. There is nothing to say of a gang that needs none.
func (t *turn) setRoomCondition() {
	p := t.status.Plan
	switch d := t.status.Defragmentation; {
	case p != nil && len(p.Moves) > 0 && (p.Step == v1alpha1.StepFencing || p.Step == v1alpha1.StepQuiescing || p.Step == v1alpha1.StepEvicting):
		t.set(v1alpha1.ConditionRoomCanBeMade, true, defrag.ReasonMoving, fmt.Sprintf("%s moved to make room for %s",
			movedNames(p.Moves, "is being", "are being"), domains(p)))
	case d != nil:
		t.set(v1alpha1.ConditionRoomCanBeMade, defrag.Found(d.Reason), d.Reason, d.Message)
	default:
		meta.RemoveStatusCondition(&t.status.Conditions, v1alpha1.ConditionRoomCanBeMade)
	}
}

// evictionEvents tell people who look at a pod why it was evicted.
func (t *turn) evictionEvents() []Event {
	if t.status.Plan == nil {
		return nil
	}
	var out []Event
	for _, m := range t.status.Plan.Moves {
		if m.EvictedAt == nil || !m.EvictedAt.Time.Equal(t.Now) {
			continue
		}
		// The pod may be gone by now; its Events are still found by its name.
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: m.Namespace, Name: m.Pod, UID: m.PodUID}}
		place := "There was a place for a replacement on node " + m.To.Node
		if m.To.Node == "" {
			place = "There was no place for a replacement"
		}
		out = append(out, Event{Pod: pod, Type: corev1.EventTypeNormal, Reason: ReasonEvictedForGang, Message: clip(fmt.Sprintf(
			"evicted to make room for GangClaim %s/%s: %s. %s", t.Claim.Namespace, t.Claim.Name, m.Why, place), maxEventMessage)})
	}
	return out
}

func movedNames(moves []v1alpha1.GangMove, one, many string) string {
	var list []string
	for _, m := range moves {
		list = append(list, m.Namespace+"/"+m.Pod)
	}
	text := plural(len(moves), "pod ", "pods ") + few(list, ", ")
	if verb := plural(len(moves), one, many); verb != "" {
		text += " " + verb
	}
	return text
}
