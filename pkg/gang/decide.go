// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// Plannable says whether the planner is to be asked for this gang, and for what: all of its members, or
// those to be replaced.
func Plannable(o Observation) (placement.Gang, bool) {
	v := look(o)
	if !v.plannable() {
		return placement.Gang{}, false
	}
	g := placement.Gang{Claim: o.Claim, Priority: o.Priority}
	for _, m := range v.newcomers() {
		g.Pods = append(g.Pods, m.pod)
	}
	for _, m := range slices.Concat(v.settled, v.kept()) {
		g.Placed = append(g.Placed, allocatedDevices(m.claim)...)
	}
	if v.holding() {
		g.Only = v.freed()
	}
	return g, true
}

// Decide says what to do next.
func Decide(o Observation) Decision {
	t := newTurn(look(o))
	t.noteEvicted()
	if o.Claim.DeletionTimestamp != nil {
		t.terminate()
		return t.decision()
	}
	if !hasFinalizer(o.Claim) {
		t.act(AddFinalizer{ref(o.Claim)})
	}
	t.noteIdle()
	t.noteStarted()
	for t.step() {
		t.actions = slices.DeleteFunc(t.actions, func(a Action) bool { return a.Verb() != "AddFinalizer" })
	}
	return t.decision()
}

// turn is one decision being made.
type turn struct {
	*view

	status  v1alpha1.GangClaimStatus
	actions []Action
	requeue time.Duration

	// state and message are for the condition Running.
	state   string
	message string
	// unplanned is why there is no plan.
	unplanned verdict
	completed bool
}

func newTurn(v *view) *turn {
	t := &turn{view: v, status: *v.Claim.Status.DeepCopy()}
	t.status.Plan = v.plan
	t.status.Defragmentation = nil // refused writes it anew
	return t
}

// step makes the decisions of the step that the plan is in, and says whether that led to another one,
// whose decisions are to be made too.
func (t *turn) step() bool {
	if t.plan == nil {
		return t.wait()
	}
	switch t.plan.Step {
	case v1alpha1.StepFencing:
		return t.fence()
	case v1alpha1.StepQuiescing:
		return t.quiesce()
	case v1alpha1.StepEvicting:
		return t.evict()
	case v1alpha1.StepReleasing:
		return t.release()
	case v1alpha1.StepStarting:
		return t.start()
	case v1alpha1.StepHolding:
		return t.hold()
	case v1alpha1.StepUnfencing:
		return t.unfence()
	default: // TakingBack, and what a later version may have written.
		return t.takeBack()
	}
}

// enter moves the plan to a step.
func (t *turn) enter(step v1alpha1.GangStep) bool {
	plan := t.plan.DeepCopy()
	plan.Step, plan.StepSince, plan.DegradedSince, plan.Reason = step, metav1.NewMicroTime(t.Now), nil, ""
	switch step {
	case v1alpha1.StepFencing: // anew
		plan.EvictingSince = nil
	case v1alpha1.StepEvicting:
		since := plan.StepSince
		plan.EvictingSince = &since
	case v1alpha1.StepTakingBack: // what this decision has just entered was not acted on
		plan.EvictingSince = nil
		if written := t.Claim.Status.Plan; written != nil && written.Hash == plan.Hash {
			plan.EvictingSince = written.EvictingSince.DeepCopy()
		}
	}
	t.status.Plan, t.plan = plan, plan
	return true
}

// giveUp starts to take the plan back.
func (t *turn) giveUp(why verdict) bool {
	t.enter(v1alpha1.StepTakingBack)
	t.plan.Reason = clip(why.reason+": "+why.message, maxMessage)
	return true
}

// forget ends a plan of which nothing is left.
func (t *turn) forget() {
	t.status.Plan, t.plan = nil, nil
}

// be sets the state of the gang in one word, and what a person should know.
func (t *turn) be(state, message string) {
	t.state, t.message = state, message
}

func (t *turn) act(actions ...Action) {
	t.actions = append(t.actions, actions...)
}

// again asks for another decision after d.
func (t *turn) again(d time.Duration) {
	if d > 0 && (t.requeue == 0 || d < t.requeue) {
		t.requeue = d
	}
}

// inStep is how long the plan has been in its step.
func (t *turn) inStep() time.Duration {
	return t.since(t.plan.StepSince.Time)
}

// since is how long ago something was. Another leader's clock may have been ahead: what it wrote lies in the
// future then, and counts as now.
func (v *view) since(at time.Time) time.Duration {
	return max(0, v.Now.Sub(at))
}

// observedIn says whether the observation was made when the plan was in this step already, and not
// only moved there by this decision.
func (t *turn) observedIn(step v1alpha1.GangStep) bool {
	p := t.Claim.Status.Plan
	return p != nil && p.Step == step && p.Hash == t.plan.Hash
}

// decision is what came out.
func (t *turn) decision() Decision {
	t.settleEvictions()
	t.setConditions()
	return Decision{Status: t.status, Actions: t.actions, Events: t.events(), RequeueAfter: t.requeue}
}
