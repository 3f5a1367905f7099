// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package gangtest

import (
	"fmt"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/gang"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// FirstFit is a planner without ambition: the first domains in which members fit.
func FirstFit(w *World, g placement.Gang) placement.Decision {
	per, need := int(g.Claim.Spec.DevicesPerMember), len(g.Pods)
	free, total := w.free(g)
	plan := &v1alpha1.GangPlan{
		Members: int32(need), MemberScope: g.Claim.Spec.Topology.Member, GangScope: g.Claim.Spec.Topology.Gang, //nolint:gosec // small
	}
	found := 0
	for _, key := range free.order {
		devices := free.by[key]
		n := min(len(devices)/per, need-found)
		if n == 0 {
			continue
		}
		found += n
		p := v1alpha1.GangPlacement{
			Node: devices[0].Node, Pool: devices[0].Node, Domain: devices[0].Domain, Members: int32(n), //nolint:gosec // small
			WholeDomain: n*per == total[key],
		}
		for _, d := range devices[:n*per] {
			p.Devices = append(p.Devices, v1alpha1.GangDevice{Name: d.Name, ID: d.ID, Siblings: d.Siblings})
		}
		plan.Placements = append(plan.Placements, p)
	}
	if found < need {
		return placement.Decision{Gang: g.Claim.UID, Refusal: &placement.Refusal{
			Reason:  placement.ReasonNoFeasibleDomain,
			Message: fmt.Sprintf("needs %d × %d devices, each in one domain; %d fit", need, per, found),
			Found:   int32(found), //nolint:gosec // small
		}}
	}
	w.markWholePools(plan)
	return placement.Decision{Gang: g.Claim.UID, Plan: plan}
}

type byDomain struct {
	order []string
	by    map[string][]*Device
}

func (w *World) free(g placement.Gang) (free byDomain, total map[string]int) {
	only := map[placement.DeviceID]bool{}
	for _, d := range g.Only {
		only[d] = true
	}
	held := w.Allocated()
	// A plan that is committed counts, fenced or not.
	promised := map[placement.DeviceID]bool{}
	for _, other := range w.Gangs {
		if p := other.Status.Plan; other.UID != g.Claim.UID && p != nil && early(p.Step) {
			for _, d := range gang.PlannedDevices(p) {
				promised[d] = true
			}
		}
	}
	free, total = byDomain{by: map[string][]*Device{}}, map[string]int{}
	for _, d := range w.Devices {
		key := d.Node + "/" + d.Domain
		total[key]++
		if held[d.DeviceID()] != nil || d.Problem != "" || w.NodeFull[d.Node] || g.Only != nil && !only[d.DeviceID()] ||
			promised[d.DeviceID()] || len(w.Fences(d).Delete(g.Claim.UID)) > 0 {
			continue
		}
		if free.by[key] == nil {
			free.order = append(free.order, key)
		}
		free.by[key] = append(free.by[key], d)
	}
	return free, total
}

func early(s v1alpha1.GangStep) bool {
	return s == v1alpha1.StepFencing || s == v1alpha1.StepQuiescing || s == v1alpha1.StepEvicting || s == v1alpha1.StepReleasing
}

func (w *World) markWholePools(plan *v1alpha1.GangPlan) {
	planned, all := map[string]int{}, map[string]int{}
	for _, d := range w.Devices {
		all[d.Node]++
	}
	for _, p := range plan.Placements {
		planned[p.Pool] += len(p.Devices)
	}
	for i, p := range plan.Placements {
		plan.Placements[i].WholePool = planned[p.Pool] == all[p.Pool]
	}
}
