// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package gangtest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/gang"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// validStatus says whether the API server would take a status.
func validStatus(s v1alpha1.GangClaimStatus) error {
	for _, c := range s.Conditions {
		if c.Reason == "" {
			return fmt.Errorf("condition %s has no reason", c.Type)
		}
	}
	return nil
}

// Invariants checks what must hold at every write of the controller. The GangClaim is as it is stored; nil
// in a sweep.
func Invariants(w *World, g *v1alpha1.GangClaim, a gang.Action) error {
	switch a := a.(type) {
	case gang.CreateRules:
		return w.planCommitted(g, a.Rules[0].Labels[v1alpha1.PlanLabel])
	case gang.CreateTemplate:
		if g.Status.Plan == nil || g.Status.Plan.Step != v1alpha1.StepReleasing {
			return errors.New("a template is created outside of step Releasing")
		}
		if err := w.fenceUp(g); err != nil {
			return err
		}
		return w.planCommitted(g, a.Template.Labels[v1alpha1.PlanLabel])
	case gang.DeleteTemplate:
		return onlyOurs(w.Templates[a.Template.Name])
	case gang.MarkReady:
		return w.allPlaced(g, a)
	case gang.NeutralizeRules:
		return w.nothingWaits(a.Rules)
	case gang.DeleteRules:
		return w.rulesNeutral(a.Rules)
	case gang.DeleteClaims:
		for _, r := range a.Claims {
			if c := w.Claims[r.Name]; c != nil && c.ResourceVersion == r.ResourceVersion && c.Status.Allocation != nil {
				return fmt.Errorf("claim %s is deleted while it is allocated", r.Name)
			}
			if err := onlyOurs(w.Claims[r.Name]); err != nil {
				return err
			}
		}
	case gang.EvictVictims:
		return w.movesPlanned(g, a)
	case gang.EvictPods:
		return w.noneBare(a.Pods)
	}
	return nil
}

func (w *World) noneBare(pods []gang.Ref) error {
	for _, r := range pods {
		if p := w.Pods[r.Name]; p != nil && metav1.GetControllerOf(p) == nil {
			return fmt.Errorf("bare pod %s is evicted", r.Name)
		}
	}
	return nil
}

// movesPlanned says whether the pods that are evicted are those that the plan moves, with its devices fenced.
func (w *World) movesPlanned(g *v1alpha1.GangClaim, a gang.EvictVictims) error {
	if g.Status.Plan == nil || g.Status.Plan.Step != v1alpha1.StepEvicting {
		return errors.New("pods are moved outside of step Evicting")
	}
	for _, r := range a.Pods {
		if !slices.ContainsFunc(g.Status.Plan.Moves, func(m v1alpha1.GangMove) bool { return m.PodUID == r.UID }) {
			return fmt.Errorf("pod %s is moved, which the plan does not say", r.Name)
		}
	}
	return w.fenceUp(g)
}

func onlyOurs[T interface {
	comparable
	metav1.Object
}](o T) error {
	var none T
	if o != none && o.GetLabels()[v1alpha1.GangLabel] == "" {
		return fmt.Errorf("%s is not ours and is deleted", o.GetName())
	}
	return nil
}

func (w *World) planCommitted(g *v1alpha1.GangClaim, hash string) error {
	if g.Status.Plan == nil || g.Status.Plan.Hash != hash || g.Status.Plan.Step == v1alpha1.StepTakingBack {
		return fmt.Errorf("an object of plan %s is made, which is not committed", hash)
	}
	return nil
}

// fenceUp says whether every planned device, and every sibling, is fenced for the gang.
func (w *World) fenceUp(g *v1alpha1.GangClaim) error {
	reserved := map[placement.DeviceID]bool{}
	for _, d := range gang.ReservedDevices(g.Status.Plan) {
		reserved[d] = true
	}
	for _, d := range w.Devices {
		if reserved[d.DeviceID()] && !w.Fences(d).Has(g.UID) {
			return fmt.Errorf("the template is created while %s of %s is not fenced", d.Name, d.Node)
		}
	}
	return nil
}

// allPlaced says whether all members of a gang have devices of which no two are the same, once none of the
// claims to be marked was marked before.
func (w *World) allPlaced(g *v1alpha1.GangClaim, a gang.MarkReady) error {
	planned := map[placement.DeviceID]bool{}
	for _, d := range gang.PlannedDevices(g.Status.Plan) {
		planned[d] = true
	}
	placed, opened := 0, false
	started := meta.IsStatusConditionTrue(g.Status.Conditions, v1alpha1.ConditionReleased)
	for _, c := range w.Claims {
		if c.Labels[v1alpha1.GangLabel] != string(g.UID) {
			continue
		}
		isReady := c.Annotations[v1alpha1.ReadyAnnotation] == c.Labels[v1alpha1.PlanLabel]
		ofPlan := g.Status.Plan != nil && c.Labels[v1alpha1.PlanLabel] == g.Status.Plan.Hash
		opened = opened || isReady && (ofPlan || started)
		if c.Status.Allocation == nil {
			continue
		}
		placed++
		for _, d := range DevicesOf(c) {
			if ofPlan && !planned[d] {
				return fmt.Errorf("claim %s has a device that is not of the plan, and the gang is started", c.Name)
			}
		}
	}
	for _, p := range w.Pods {
		if p.Status.Phase == "Succeeded" {
			placed++
		}
	}
	if !opened && placed < int(g.Spec.Members) {
		return fmt.Errorf("the gang is started with %d of %d members placed (%d to be marked)", placed, g.Spec.Members, len(a.Claims))
	}
	return nil
}

// nothingWaits says that no claim of a gang that loses its fence is still to be allocated.
func (w *World) nothingWaits(rules []gang.Ref) error {
	for _, r := range rules {
		rule := w.Rules[r.Name]
		if rule == nil {
			continue
		}
		for _, c := range w.Claims {
			if c.Labels[v1alpha1.GangLabel] == rule.Labels[v1alpha1.GangLabel] && c.Status.Allocation == nil {
				return fmt.Errorf("a fence is removed while claim %s is not allocated", c.Name)
			}
		}
		for _, t := range w.Templates {
			if t.Labels[v1alpha1.GangLabel] == rule.Labels[v1alpha1.GangLabel] {
				return fmt.Errorf("a fence is removed while template %s exists", t.Name)
			}
		}
	}
	return nil
}

func (w *World) rulesNeutral(rules []gang.Ref) error {
	for _, r := range rules {
		rule := w.Rules[r.Name]
		if rule == nil {
			continue
		}
		if rule.Spec.Taint.Effect != resourceapi.DeviceTaintEffectNone {
			return fmt.Errorf("rule %s is deleted while it has an effect", r.Name)
		}
		_, stamp, _ := strings.Cut(rule.Annotations[v1alpha1.TouchedAnnotation], " ")
		if at, err := time.Parse(time.RFC3339Nano, stamp); err != nil || w.Now.Sub(at) < gang.NeutralFor {
			return fmt.Errorf("rule %s is deleted less than %s after it lost its effect", r.Name, gang.NeutralFor)
		}
	}
	return nil
}

// DoublyAllocated returns an error when two claims have one device, which would be a fault of the World.
func (w *World) DoublyAllocated() error {
	seen := map[placement.DeviceID]string{}
	for _, c := range Sorted(w.Claims) {
		for _, d := range DevicesOf(c) {
			if other := seen[d]; other != "" {
				return fmt.Errorf("device %s of %s is allocated to %s and %s", d.Device, d.Pool, other, c.Name)
			}
			seen[d] = c.Name
		}
	}
	return nil
}
