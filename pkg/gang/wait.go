// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// wait decides for a gang without a plan: sweep what an unknown plan left, adopt members that have
// their devices, and wait for members and then for a place.
func (t *turn) wait() bool {
	if t.adopt() {
		return false
	}
	if !t.sweep() {
		t.be(StateTakingBack, "objects of a plan that is not in the status are being removed")
		t.unplanned = because(ReasonSweeping, "objects of a plan that is not in the status are being removed")
		return false
	}
	if t.over() {
		return false
	}
	if t.need() == 0 && len(t.newcomers()) == 0 && len(t.settled) > 0 {
		t.beRunning()
		t.unplanned = because(ReasonNothingToPlan, "all members have their devices; the plan they were given by is over")
		return false
	}
	return t.seekPlace()
}

// seekPlace waits for members, asks for a place and commits to it. It is also how lost members of a gang
// that runs are replaced.
func (t *turn) seekPlace() bool {
	if t.state == "" {
		t.be(StateWaiting, "")
		if len(t.settled) > 0 {
			t.beRunning()
		}
	}
	why := mayPlan.judge(t.view)
	if why.ok {
		if why = t.devicesComeFree(); !why.ok {
			t.again(LookAgainAfter) // who holds devices comes from a cache of its own, whose changes bring up nobody here
		}
	}
	switch {
	case why.reason == ReasonSchedulingTimeout:
		t.status.WaitingSince = nil
		t.timedOut(why)
		return false
	case !why.ok:
		t.status.WaitingSince, t.status.TimedOut = nil, ""
		t.explain(why)
		return false
	}
	t.status.TimedOut = ""
	if t.status.WaitingSince == nil || t.status.WaitingSince.After(t.Now) {
		now := metav1.NewMicroTime(t.Now)
		t.status.WaitingSince = &now
	}
	if t.Placement == nil || !t.plannable() {
		t.explain(because(ReasonPlanning, "all members exist: looking for a place"))
		return false
	}
	if plan := t.Placement.Plan; plan != nil && int(plan.Members) == t.need() {
		t.commit(plan)
		return true
	}
	t.refused()
	return false
}

// refused waits for a place, until the scheduling timeout.
func (t *turn) refused() {
	why := because(ReasonPlanning, "the members changed while a place was looked for")
	if r := t.Placement.Refusal; r != nil {
		why = verdict{reason: string(r.Reason), message: r.Message}
		if t.mayMove() {
			t.status.Defragmentation = report(t.Placement.Room)
		}
	}
	if timeout := schedulingTimeout(t.Claim); timeout > 0 {
		left := timeout - t.since(t.status.WaitingSince.Time)
		if left <= 0 {
			t.expire(why)
			return
		}
		t.again(left)
	}
	t.explain(why)
}

// expire gives up for these pods and this spec.
func (t *turn) expire(last verdict) {
	t.status.TimedOut, t.status.WaitingSince = t.waitingHash(), nil
	message := fmt.Sprintf("no place was found within spec.schedulingTimeout, %s: change the spec, or replace a pod, to have the gang "+
		"planned again", schedulingTimeout(t.Claim))
	if last.message != "" {
		message += ". Last: " + last.message
	}
	t.timedOut(verdict{reason: ReasonSchedulingTimeout, message: message})
}

// timedOut keeps what was said when the timeout passed: it tells what was missing.
func (t *turn) timedOut(why verdict) {
	for conditionType, reason := range map[string]string{
		v1alpha1.ConditionPlanned: ReasonSchedulingTimeout, v1alpha1.ConditionRunning: StateTimedOut,
	} {
		if old := condition(t.Claim.Status.Conditions, conditionType); old != nil && old.Reason == reason {
			why.message = old.Message
		}
	}
	if len(t.settled) == 0 {
		t.be(StateTimedOut, why.message)
	}
	t.explain(why)
}

// explain says why there is no plan, or no place for a replacement.
func (t *turn) explain(why verdict) {
	t.unplanned = why
	if t.state == StateWaiting || t.state == StateDegraded {
		t.message = why.message
	}
}

// plannable says whether a plan would be committed now.
func (v *view) plannable() bool {
	return v.Claim.DeletionTimestamp == nil && hasFinalizer(v.Claim) && v.placeless() && v.need() > 0 &&
		mayPlan.judge(v).ok && v.devicesComeFree().ok
}

// placeless says whether the step is one in which a plan may be made: nothing of an earlier one is left
// that is not to be kept.
func (v *view) placeless() bool {
	switch {
	case v.plan == nil:
		return v.swept() && !v.adoptable()
	case v.plan.Step == v1alpha1.StepTakingBack:
		return v.swept() && v.backoff() == 0 && !v.outOfTime()
	case v.plan.Step == v1alpha1.StepUnfencing:
		return v.swept()
	default:
		return v.holding() && !v.ourTemplate() && len(v.strays()) == 0
	}
}

// holding says whether the fence of an earlier plan is still up for replacements.
func (v *view) holding() bool {
	return v.plan != nil && v.plan.Step == v1alpha1.StepHolding
}

// freed are the devices that the gang reserves and that no claim has, or nil when they are too few for the
// replacements: these are then planned anywhere.
func (v *view) freed() []placement.DeviceID {
	held := map[placement.DeviceID]bool{}
	for _, c := range v.Claims {
		for _, d := range allocatedDevices(c) {
			held[d] = true
		}
	}
	out := slices.DeleteFunc(v.reserved(), func(d placement.DeviceID) bool {
		_, taken := v.Holders[d]
		_, bad := v.Devices[d]
		return held[d] || taken || bad
	})
	if len(out) < v.need()*int(v.Claim.Spec.DevicesPerMember) {
		return nil
	}
	return out
}

// devicesComeFree lets a replacement wait for the devices of the member that it replaces: they are still
// reserved, and about to be given back.
func (v *view) devicesComeFree() verdict {
	if !v.holding() || v.freed() != nil {
		return fine
	}
	live := map[types.UID]bool{}
	for _, m := range slices.Concat(v.settled, v.candidates) {
		live[m.pod.UID] = true
	}
	reserved := v.reserved()
	for _, c := range v.Claims {
		owner := metav1.GetControllerOfNoCopy(c)
		if !v.ours(c) || owner == nil || live[owner.UID] {
			continue
		}
		for _, d := range allocatedDevices(c) {
			if slices.Contains(reserved, d) {
				return because(ReasonWaitingForDevices, "the devices of pod %s, which is lost, are not free yet", owner.Name)
			}
		}
	}
	for _, d := range reserved {
		if h, held := v.Holders[d]; held && v.inPassing(h) {
			return because(ReasonWaitingForDevices, "the devices of claim %s, whose pod is lost, are not free yet", h.Claim.Name)
		}
	}
	return fine
}

// inPassing says whether a holder is a claim of this gang that is about to have its devices, or to be without.
// Claims and holders come from different caches: a claim that has no allocation in the first yet, or any more,
// or is gone from it, may be in the second.
func (v *view) inPassing(h Holder) bool {
	return h.Gang == v.Claim.UID && !slices.ContainsFunc(v.Claims, func(c *resourceapi.ResourceClaim) bool {
		return c.UID == h.UID && c.Status.Allocation != nil
	})
}

// outOfTime says whether the scheduling timeout has passed, plans that were taken back included.
func (v *view) outOfTime() bool {
	since, timeout := v.Claim.Status.WaitingSince, schedulingTimeout(v.Claim)
	return since != nil && timeout > 0 && v.since(since.Time) >= timeout
}

// backoff is how long the gang still waits after a plan was taken back: as long as it has waited for a
// place before, so that plans that fail get rare.
func (v *view) backoff() time.Duration {
	since := v.plan.StepSince.Time
	var pause time.Duration
	if w := v.Claim.Status.WaitingSince; w != nil {
		pause = min(MaxBackoff, max(0, since.Sub(w.Time)))
	}
	return max(0, pause-v.since(since))
}

// waitingHash identifies the spec and the pods that wait: status.timedOut.
func (v *view) waitingHash() string {
	var uids []string
	for _, m := range v.candidates {
		uids = append(uids, string(m.pod.UID))
	}
	slices.Sort(uids)
	return digest(fmt.Sprint(v.Claim.Generation), strings.Join(uids, ","))
}

// digest is 16 hexadecimal digits over strings.
func digest(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\n")))
	return hex.EncodeToString(sum[:8])
}
