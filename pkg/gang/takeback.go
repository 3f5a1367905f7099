// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// takeBack removes what was made for a plan: the template, then the claims, then the fences. After a
// pause the gang is planned anew.
func (t *turn) takeBack() bool {
	if t.saved() {
		return t.enter(v1alpha1.StepStarting)
	}
	t.be(StateTakingBack, t.plan.Reason)
	t.unplanned = because(StateTakingBack, "the plan is taken back: %s", t.plan.Reason)
	if !t.sweep() {
		return false
	}
	if left := t.backoff(); left > 0 {
		t.again(left)
		t.be(StateWaiting, "the last plan was taken back: "+t.plan.Reason)
		t.unplanned = because(ReasonBackingOff, "a plan was taken back, and the next waits a while: %s", t.plan.Reason)
		return false
	}
	last := verdict{reason: ReasonVerifyTimeout, message: t.plan.Reason}
	switch {
	case t.outOfTime():
		t.forget()
		t.be(StateWaiting, "")
		t.expire(last)
		return false
	case t.plannable() && t.Placement == nil:
		t.be(StateWaiting, "the last plan was taken back: "+t.plan.Reason)
		t.unplanned = because(ReasonPlanning, "a plan was taken back: %s", t.plan.Reason)
		return false
	case t.plannable() && t.Placement.Plan != nil:
		t.state, t.message = "", ""
		return t.seekPlace()
	default:
		t.forget()
		t.state, t.message, t.unplanned = "", "", fine
		return true
	}
}

// saved says whether the last allocation came while the plan was given up, before anything of it was
// taken: then the gang starts.
func (t *turn) saved() bool {
	released := *t.view
	released.plan = t.plan.DeepCopy()
	released.plan.Step = v1alpha1.StepReleasing
	return released.verified() && mayVerify.judge(&released).ok
}

// sweep removes what is left of plans, and says whether nothing is.
func (t *turn) sweep() bool {
	actions, wait, clean := t.leftovers().sweep()
	t.act(actions...)
	t.again(wait)
	return clean
}

// swept says whether nothing is left of earlier plans that is to be removed.
func (v *view) swept() bool {
	_, _, clean := v.leftovers().sweep()
	return clean
}

func (v *view) leftovers() leftovers {
	l := leftovers{now: v.Now, claims: v.unready, rules: v.Rules, pods: v.pods}
	if v.ourTemplate() {
		l.template = v.Template
	}
	return l
}

// leftovers are objects of one gang without a plan to live for.
type leftovers struct {
	now      time.Time
	template *resourceapi.ResourceClaimTemplate
	// claims are not marked ready. Those that are belong to members that run.
	claims []*resourceapi.ResourceClaim
	rules  []*resourceapi.DeviceTaintRule
	pods   map[types.UID]*corev1.Pod
}

// sweep removes the template, then the claims, then the rules: none is touched while there is one of an
// earlier kind, since the template makes claims, and claims need the rules.
func (l leftovers) sweep() (actions []Action, wait time.Duration, clean bool) {
	if l.template != nil {
		return []Action{DeleteTemplate{ref(l.template)}}, 0, false
	}
	if actions, left := giveBack(l.claims, l.pods); left {
		return actions, 0, false
	}
	return unfence(l.rules, l.now)
}

// giveBack deletes claims that are not allocated, and evicts the pods of those that are: deleting an
// allocated claim would leave it, with its devices. A bare pod would be lost, and keeps what it has. It says
// whether a claim is left that is to go or on its way.
func giveBack(claims []*resourceapi.ResourceClaim, pods map[types.UID]*corev1.Pod) (actions []Action, left bool) {
	var remove, evict []Ref
	for _, c := range claims {
		if c.Status.Allocation == nil {
			left = true
			if c.DeletionTimestamp == nil {
				remove = append(remove, ref(c))
			}
			continue
		}
		owner := metav1.GetControllerOfNoCopy(c)
		if owner == nil {
			continue
		}
		pod := pods[owner.UID]
		if pod == nil || pod.DeletionTimestamp != nil || placement.Ended(pod) {
			continue // freed without us
		}
		if (member{pod: pod}).owned() {
			left = true
			evict = append(evict, ref(pod))
		}
	}
	if len(remove) > 0 {
		actions = append(actions, DeleteClaims{remove})
	}
	if len(evict) > 0 {
		actions = append(actions, EvictPods{evict})
	}
	return actions, left
}

// strays are claims of the gang, not marked ready, that the plan has no use for: of earlier plans, or
// of pods that slipped in.
func (v *view) strays() []*resourceapi.ResourceClaim {
	useful := map[types.UID]bool{}
	for _, m := range v.kept() {
		useful[m.claim.UID] = true
	}
	if v.plan != nil && (v.plan.Step == v1alpha1.StepReleasing || v.plan.Step == v1alpha1.StepStarting) {
		for _, m := range filter(v.chosen(), v.ofPlan) {
			useful[m.claim.UID] = true
		}
	}
	var out []*resourceapi.ResourceClaim
	for _, c := range v.unready {
		if !useful[c.UID] {
			out = append(out, c)
		}
	}
	return out
}

// clearStrays removes strays.
func (t *turn) clearStrays() {
	actions, _ := giveBack(t.strays(), t.pods)
	t.act(actions...)
}
