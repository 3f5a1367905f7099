// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// PlannedDevices are the devices of a plan, in its order. A nil plan has none.
func PlannedDevices(plan *v1alpha1.GangPlan) []placement.DeviceID {
	if plan == nil {
		return nil
	}
	return placement.PlannedDevices(plan)
}

// ReservedDevices are the devices that a plan keeps from others: its own, and their siblings. A nil plan has none.
func ReservedDevices(plan *v1alpha1.GangPlan) []placement.DeviceID {
	if plan == nil {
		return nil
	}
	return placement.ReservedDevices(plan)
}

// Rules are the DeviceTaintRules that fence a plan: one for each pool that the plan takes as a whole, and
// one for each other device, after these one for each sibling. Their names follow from the gang, the plan and the
// position in it.
func Rules(claim *v1alpha1.GangClaim, plan *v1alpha1.GangPlan) []*resourceapi.DeviceTaintRule {
	var out []*resourceapi.DeviceTaintRule
	add := func(pool, device string) *resourceapi.DeviceTaintRule {
		selector := &resourceapi.DeviceTaintSelector{Driver: ptr.To(v1alpha1.DriverName), Pool: &pool}
		if device != "" {
			selector.Device = &device
		}
		rule := &resourceapi.DeviceTaintRule{
			ObjectMeta: metav1.ObjectMeta{
				Name:        fmt.Sprintf("switchyard-%s-%s-%d", claim.UID, plan.Hash, len(out)),
				Labels:      objectLabels(claim, plan),
				Annotations: objectAnnotations(claim),
			},
			Spec: resourceapi.DeviceTaintRuleSpec{
				DeviceSelector: selector,
				Taint: resourceapi.DeviceTaint{
					Key:    v1alpha1.ReservedTaintKey,
					Value:  string(claim.UID),
					Effect: resourceapi.DeviceTaintEffectNoSchedule,
				},
			},
		}
		out = append(out, rule)
		return rule
	}
	whole := map[string]*resourceapi.DeviceTaintRule{}
	for _, p := range plan.Placements {
		for _, d := range p.Devices {
			switch rule := whole[p.Pool]; {
			case !p.WholePool:
				add(p.Pool, d.Name)
			case rule == nil:
				rule = add(p.Pool, "")
				rule.Annotations[DevicesAnnotation] = d.Name
				whole[p.Pool] = rule
			default:
				rule.Annotations[DevicesAnnotation] += "," + d.Name
			}
		}
	}
	for _, p := range plan.Placements {
		for _, d := range p.Devices {
			if p.WholePool {
				continue
			}
			for _, sibling := range d.Siblings {
				add(p.Pool, sibling).Annotations[DevicesAnnotation] = d.Name
			}
		}
	}
	return out
}

// reserves returns the pool and, unless it is for the whole pool, the device that an intact rule of
// this gang keeps for it. A rule that someone changed, or that has lost its effect, reserves nothing.
func (v *view) reserves(rule *resourceapi.DeviceTaintRule) (pool, device string, ok bool) {
	s, taint := rule.Spec.DeviceSelector, rule.Spec.Taint
	if rule.DeletionTimestamp != nil || s == nil || ptr.Deref(s.Driver, "") != v1alpha1.DriverName || s.Pool == nil ||
		taint.Key != v1alpha1.ReservedTaintKey || taint.Value != string(v.Claim.UID) ||
		taint.Effect != resourceapi.DeviceTaintEffectNoSchedule {
		return "", "", false
	}
	return *s.Pool, ptr.Deref(s.Device, ""), true
}

// reserved are the devices that the gang's rules and plan name: what a replacement may be planned on.
func (v *view) reserved() []placement.DeviceID {
	set := map[placement.DeviceID]bool{}
	for _, d := range PlannedDevices(v.plan) {
		set[d] = true
	}
	for _, rule := range v.Rules {
		pool, device, ok := v.reserves(rule)
		if !ok {
			continue
		}
		names := []string{device}
		if planned, named := rule.Annotations[DevicesAnnotation]; named || device == "" {
			names = strings.Split(planned, ",") // a sibling is not to be planned on
		}
		for _, name := range names {
			if name != "" {
				set[placement.DeviceID{Driver: v1alpha1.DriverName, Pool: pool, Device: name}] = true
			}
		}
	}
	return sortedDevices(set)
}

func sortedDevices(set map[placement.DeviceID]bool) []placement.DeviceID {
	return slices.SortedFunc(maps.Keys(set), func(a, b placement.DeviceID) int {
		return strings.Compare(a.Pool+"/"+a.Device, b.Pool+"/"+b.Device)
	})
}

// fence is what is to be done so that every device of the plan is reserved, with its siblings.
type fence struct {
	create []*resourceapi.DeviceTaintRule
	repair []*resourceapi.DeviceTaintRule
	touch  []Ref
	// blocked are names of rules to be made that one has which someone's finalizer keeps.
	blocked []string
	// wait is how long until the next rule is to be touched.
	wait time.Duration
}

// complete says whether all devices are reserved and each rule was touched.
func (f fence) complete() bool {
	return len(f.create)+len(f.repair)+len(f.touch) == 0 && f.wait == 0
}

// missing says why the fence is not complete.
func (f fence) missing() string {
	if len(f.blocked) > 0 {
		return "DeviceTaintRule " + few(f.blocked, ", ") + " is being deleted and has a finalizer: remove it"
	}
	return fmt.Sprintf("%d DeviceTaintRules are not made yet", len(f.create)+len(f.repair)+len(f.touch))
}

func (f fence) actions() []Action {
	var out []Action
	if len(f.repair) > 0 {
		out = append(out, RepairRules{f.repair})
	}
	if len(f.create) > 0 {
		out = append(out, CreateRules{f.create})
	}
	if len(f.touch) > 0 {
		out = append(out, TouchRules{f.touch})
	}
	return out
}

// fenceFor compares the gang's rules with those that a plan needs. A device that a rule of an earlier
// plan reserves needs no second one.
func (v *view) fenceFor(plan *v1alpha1.GangPlan) fence {
	var f fence
	byName := map[string]*resourceapi.DeviceTaintRule{}
	covered := map[[2]string]bool{}
	for _, rule := range v.Rules {
		byName[rule.Name] = rule
		if pool, device, ok := v.reserves(rule); ok {
			covered[[2]string{pool, device}] = true
			v.touchRule(&f, rule)
		}
	}
	for _, want := range Rules(v.Claim, plan) {
		s := want.Spec.DeviceSelector
		pool, device := *s.Pool, ptr.Deref(s.Device, "")
		have := byName[want.Name]
		switch {
		case covered[[2]string{pool, device}] || covered[[2]string{pool, ""}]:
		case have == nil:
			f.create = append(f.create, want)
		case have.DeletionTimestamp != nil:
			f.blocked = append(f.blocked, want.Name) // it has someone's finalizer; its name is free when it is gone
			f.wait = TouchRuleAfter
		default:
			repaired := have.DeepCopy()
			repaired.Spec = want.Spec
			f.repair = append(f.repair, repaired)
		}
	}
	return f
}

// touchRule has a rule touched once, some time after it was written: the scheduler may have missed it.
func (v *view) touchRule(f *fence, rule *resourceapi.DeviceTaintRule) {
	if _, done := stamped(rule.Annotations, StampTouched); done {
		return
	}
	created, known := stamped(rule.Annotations, StampCreated)
	// A stamp from the future is another leader's, whose clock is ahead: due.
	if left := TouchRuleAfter - v.Now.Sub(created); known && left > 0 && left <= TouchRuleAfter {
		f.wait = max(f.wait, left)
		return
	}
	f.touch = append(f.touch, ref(rule))
}

// unfence takes the effect from rules and deletes them when they had none for NeutralFor: the taint of a
// rule that is simply deleted can stay until the slice is next written.
// A rule that has no effect and is gone but for someone's finalizer is done.
func unfence(rules []*resourceapi.DeviceTaintRule, now time.Time) (actions []Action, wait time.Duration, done bool) {
	var neutralize, remove []Ref
	left := len(rules)
	for _, rule := range rules {
		at, neutral := stamped(rule.Annotations, StampNeutralized)
		switch {
		case !neutral || at.After(now) || rule.Spec.Taint.Effect != resourceapi.DeviceTaintEffectNone:
			// Also one that was stamped by a clock that is ahead: by ours, it is known when it may go.
			neutralize = append(neutralize, ref(rule))
		case now.Sub(at) < NeutralFor:
			wait = max(wait, NeutralFor-now.Sub(at))
		case rule.DeletionTimestamp != nil:
			left--
		default:
			remove = append(remove, ref(rule))
		}
	}
	if len(neutralize) > 0 {
		actions = append(actions, NeutralizeRules{neutralize})
		wait = max(wait, NeutralFor)
	}
	if len(remove) > 0 {
		actions = append(actions, DeleteRules{remove})
	}
	return actions, wait, left == 0
}
