// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// release has the template exist until every member has its claim, and waits until all are allocated on
// the plan.
func (t *turn) release() bool {
	if t.verified() {
		return t.enter(v1alpha1.StepStarting)
	}
	if why := mayVerify.judge(t.view); !why.ok {
		return t.giveUp(why)
	}
	left := VerifyDeadline(t.plan) - t.inStep()
	if left <= 0 {
		return t.giveUp(because(ReasonVerifyTimeout, "%s within %s", t.missing(), VerifyDeadline(t.plan)))
	}
	t.again(left)
	t.be(StateReleasing, t.missing())
	t.keepFence()

	chosen := t.chosen()
	claimless := filter(chosen, func(m member) bool { return !t.ofPlan(m) })
	switch {
	case len(claimless) > 0 || len(chosen) < int(t.plan.Members):
		if t.Template == nil {
			t.act(CreateTemplate{Template(t.Claim, t.plan)})
		}
		t.touch(claimless)
	case t.ourTemplate():
		t.act(DeleteTemplate{ref(t.Template)})
	}
	t.clearStrays()
	return false
}

// chosen are the newcomers that the plan places, out of those and any that slipped in. Members are
// interchangeable: bare pods that have planned devices come first, since they cannot give them back, then
// the oldest.
func (v *view) chosen() []member {
	list := v.newcomers()
	slices.SortStableFunc(list, func(a, b member) int {
		return cmp.Compare(rank(v, a), rank(v, b))
	})
	// After the gate was opened for some members, they count.
	n := int(v.plan.Members) - v.settledOfPlan()
	return list[:max(0, min(n, len(list)))]
}

func rank(v *view, m member) int {
	if v.ofPlan(m) && m.allocated() && !m.owned() {
		return 0
	}
	return 1
}

// settledOfPlan is how many members the plan has placed for good.
func (v *view) settledOfPlan() int {
	return len(filter(v.settled, v.ofPlan))
}

// touch touches members that have no claim: the claim controller may have missed them, or believe that
// a deleted claim still exists. First TouchPodAfter after the release, then ever more rarely.
func (t *turn) touch(members []member) {
	released := t.plan.StepSince.Time
	var due []Ref
	for _, m := range members {
		if m.claim != nil {
			continue // it has one of another plan, which goes first
		}
		next := released.Add(TouchPodAfter)
		if last, ok := stamped(m.pod.Annotations, StampTouched); ok && last.After(released) && !last.After(t.Now) {
			next = last.Add(max(TouchPodAfter, last.Sub(released)))
		}
		if t.Now.Before(next) {
			t.again(next.Sub(t.Now))
			continue
		}
		due = append(due, ref(m.pod))
		t.again(max(TouchPodAfter, t.Now.Sub(released)))
	}
	if len(due) > 0 {
		t.act(TouchPods{due})
	}
}

// missing says what a release still waits for.
func (v *view) missing() string {
	chosen := v.chosen()
	var claimless, unallocated, unbound []member
	for _, m := range chosen {
		switch {
		case !v.ofPlan(m):
			claimless = append(claimless, m)
		case !m.allocated():
			unallocated = append(unallocated, m)
		case !m.bound():
			unbound = append(unbound, m)
		}
	}
	unbound = append(unbound, filter(v.kept(), func(m member) bool { return !m.bound() })...)
	switch gone := int(v.plan.Members) - v.settledOfPlan() - len(chosen); {
	case gone > 0:
		return fmt.Sprintf("%d %s gone and not replaced", gone, plural(gone, "member is", "members are"))
	case len(claimless) > 0:
		return fmt.Sprintf("%s %s no claim", names(claimless), plural(len(claimless), "has", "have"))
	case len(unallocated) > 0:
		return fmt.Sprintf("the %s of %s %s not allocated%s", plural(len(unallocated), "claim", "claims"), names(unallocated),
			plural(len(unallocated), "is", "are"), schedulerSays(unallocated))
	case len(unbound) > 0:
		return fmt.Sprintf("%s %s devices and no node%s", names(unbound), plural(len(unbound), "has", "have"), schedulerSays(unbound))
	default:
		return "not all members are placed"
	}
}

// schedulerSays quotes what kube-scheduler says about the first of some pods.
func schedulerSays(members []member) string {
	for _, m := range members {
		for _, c := range m.pod.Status.Conditions {
			if c.Type == "PodScheduled" && c.Status == "False" && c.Message != "" {
				return fmt.Sprintf(" (kube-scheduler on pod %s: %s)", m.pod.Name, c.Message)
			}
		}
	}
	return ""
}
