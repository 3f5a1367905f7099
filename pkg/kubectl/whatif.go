// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/defrag"
	"github.com/switchyard-dev/switchyard/pkg/gang"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// Reasons that answer has beside those of the conditions Planned and RoomCanBeMade.
const (
	// reasonHasPlan means that the gang has its plan: the rest is up to the protocol that starts it.
	reasonHasPlan = "HasPlan"
	// reasonHasPlace means that the planner finds a place for it now.
	reasonHasPlace = "HasPlace"
)

// answer is what the planner says of a gang on the snapshot.
type answer struct {
	// reason and message say what is missing.
	reason, message string
	// blocking are pods in the next best place.
	blocking []types.NamespacedName
	// room is what would have to move, where the planner looked for that.
	room *v1alpha1.GangDefragmentation
}

// planRounds bounds how often the planner is asked to go on: it evaluates selectors bit by bit.
const planRounds = 100

// plan asks the planner of the controller about a gang, among all gangs that wait, and what would have to move for it,
// whatever its spec.defragmentation is.
func (s *snapshot) plan(ctx context.Context, target *v1alpha1.GangClaim, limits defrag.Limits, clk clock.PassiveClock) (answer, error) {
	if target.Status.Plan != nil {
		return s.hasPlan(target), nil
	}
	wanted := target.DeepCopy()
	wanted.Status.TimedOut = "" // what kept it from a place is what is asked for
	wanted.Spec.Defragmentation = v1alpha1.DefragmentationPlan
	asked, plannable := gang.Plannable(s.observe(wanted))
	if !plannable {
		return s.unplannable(wanted), nil
	}
	gangs := []placement.Gang{asked}
	maker := askedMaker{defrag.NewMaker(limits, clk), target.UID}
	each(s.budgets, maker.SetBudget)
	for _, g := range s.gangs {
		maker.SetGang(g)
		if g.UID != target.UID {
			if other, waits := gang.Plannable(s.observe(g)); waits {
				gangs = append(gangs, other)
			}
		}
	}
	cluster := s.cluster(true)
	for range planRounds {
		if err := ctx.Err(); err != nil {
			return answer{}, fmt.Errorf("plan gang %s: %w", keyOf(target), err)
		}
		for _, d := range cluster.PlanWithRoom(ctx, gangs, maker) {
			if d.Gang != target.UID || d.Refusal != nil && d.Refusal.Reason == placement.ReasonInterrupted {
				continue
			}
			if d.Plan != nil {
				return answer{reason: reasonHasPlace, message: "there is a place: " + strings.Join(places(d.Plan), ", ")}, nil
			}
			if d.Room != nil && d.Room.Reason == defrag.ReasonPlanning {
				continue
			}
			return answer{reason: string(d.Refusal.Reason), message: d.Refusal.Message, blocking: d.Refusal.Blocking, room: d.Room}, nil
		}
	}
	return answer{}, fmt.Errorf("plan gang %s: its selectors could not be evaluated on all devices in %d rounds: the controller has no answer either", keyOf(target), planRounds)
}

// askedMaker looks for moves for one gang only.
type askedMaker struct {
	*defrag.Maker

	gang types.UID
}

// Wanted implements placement.RoomMaker.
func (m askedMaker) Wanted(g placement.Gang) bool { return g.Claim.UID == m.gang }

// hasPlan tells of a plan, with the moves that are being made for it.
func (s *snapshot) hasPlan(g *v1alpha1.GangClaim) answer {
	a := answer{reason: reasonHasPlan, message: "has a plan: " + strings.Join(places(g.Status.Plan), ", ")}
	if running := meta.FindStatusCondition(g.Status.Conditions, v1alpha1.ConditionRunning); running != nil && running.Message != "" {
		a.message += "; " + running.Message
	}
	if plan := g.Status.Plan; len(plan.Moves) > 0 {
		a.room = &v1alpha1.GangDefragmentation{Reason: defrag.ReasonMoving, Message: "pods are being moved for the plan", Moves: plan.Moves, Domains: places(plan)}
	}
	return a
}

// unplannable says why the planner is not asked: as the controller would say it of the same objects.
func (s *snapshot) unplannable(g *v1alpha1.GangClaim) answer {
	status := gang.Decide(s.observe(g)).Status
	planned := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionPlanned)
	if planned == nil {
		return answer{reason: "Unknown", message: "the controller has not said anything of it yet"}
	}
	return answer{reason: planned.Reason, message: planned.Message}
}

// places are the domains of a plan, or nodes where devices have none.
func places(plan *v1alpha1.GangPlan) []string {
	var list []string
	for _, p := range plan.Placements {
		name := p.Domain
		if name == "" {
			name = p.Node
		}
		if !slices.Contains(list, name) {
			list = append(list, name)
		}
	}
	return list
}

// observe gathers what a decision about a gang depends on, as the controller does. A GangClaim that no controller
// has seen yet counts as one that it has.
func (s *snapshot) observe(g *v1alpha1.GangClaim) gang.Observation {
	if !slices.Contains(g.Finalizers, gang.Finalizer) {
		g = g.DeepCopy()
		g.Finalizers = append(g.Finalizers, gang.Finalizer)
	}
	o := gang.Observation{Now: s.now, Claim: g}
	if errs := v1alpha1.ValidateGangClaim(g); len(errs) > 0 {
		o.Invalid = errs.ToAggregate().Error()
	}
	ofMember := map[types.UID]bool{}
	for _, pod := range s.pods {
		if pod.Namespace == g.Namespace && slices.ContainsFunc(pod.Spec.ResourceClaims, func(c corev1.PodResourceClaim) bool {
			return ptr.Deref(c.ResourceClaimTemplateName, "") == g.Name
		}) {
			o.Pods = append(o.Pods, pod)
			ofMember[pod.UID] = true
		}
	}
	for _, claim := range s.claims {
		owner := metav1.GetControllerOfNoCopy(claim)
		if claim.Namespace == g.Namespace && (claim.Labels[v1alpha1.GangLabel] == string(g.UID) || owner != nil && ofMember[owner.UID]) {
			o.Claims = append(o.Claims, claim)
		}
	}
	o.Template, _ = find(s.templates, g.Namespace, g.Name)
	for _, rule := range s.rules {
		if rule.Labels[v1alpha1.GangLabel] == string(g.UID) {
			o.Rules = append(o.Rules, rule)
		}
	}
	class, _ := find(s.priorities, "", g.Spec.PriorityClassName)
	o.Priority = gang.Priority(class, o.Pods)
	return o
}

// scopesOf are what GangClaims can ask devices to share, by the attribute that claims name.
var scopesOf = map[resourceapi.FullyQualifiedName]v1alpha1.MemberScope{
	v1alpha1.DriverName + "/nvswitchDomain": v1alpha1.MemberNVSwitchDomain,
	"resource.kubernetes.io/numaNode":       v1alpha1.MemberNUMANode,
	"resource.kubernetes.io/pcieRoot":       v1alpha1.MemberPCIeRoot,
}

// asGang says what a claim asks for as a gang of one, which the planner understands; false where it cannot.
func asGang(claim *resourceapi.ResourceClaim) (*v1alpha1.GangClaim, bool) {
	devices := claim.Spec.Devices
	if len(devices.Requests) != 1 || devices.Requests[0].Exactly == nil || len(devices.Constraints) > 1 {
		return nil, false
	}
	request := devices.Requests[0].Exactly
	if request.AllocationMode == resourceapi.DeviceAllocationModeAll || ptr.Deref(request.AdminAccess, false) || request.Capacity != nil {
		return nil, false
	}
	scope := v1alpha1.MemberNode
	for _, constraint := range devices.Constraints {
		shared, known := scopesOf[ptr.Deref(constraint.MatchAttribute, "")]
		if !known {
			return nil, false
		}
		scope = shared
	}
	return &v1alpha1.GangClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID, CreationTimestamp: claim.CreationTimestamp},
		Spec: v1alpha1.GangClaimSpec{
			Members: 1, DeviceClassName: request.DeviceClassName, DevicesPerMember: int32(max(request.Count, 1)),
			Selectors: request.Selectors, Tolerations: request.Tolerations,
			Topology: v1alpha1.GangTopology{Member: scope, Gang: v1alpha1.GangAny, Mode: v1alpha1.TopologyRequired},
		},
	}, true
}

// planClaim asks the planner where a claim that is not allocated would find its devices, for the pod that wants them;
// false where it cannot say. kube-scheduler keeps nothing for gangs but what their plans reserve.
func (s *snapshot) planClaim(ctx context.Context, claim *resourceapi.ResourceClaim, pod *corev1.Pod) (answer, bool) {
	asked, can := asGang(claim)
	if !can {
		return answer{}, false
	}
	cluster := s.cluster(false) // the claim is counted in its quota already
	for range planRounds {
		d := cluster.Plan(ctx, []placement.Gang{{Claim: asked, Pods: []*corev1.Pod{pod}}})[0]
		switch {
		case d.Plan != nil:
			return answer{reason: reasonHasPlace, message: "its devices are free: " + strings.Join(places(d.Plan), ", ")}, true
		case d.Refusal.Reason != placement.ReasonInterrupted:
			return answer{reason: string(d.Refusal.Reason), message: d.Refusal.Message, blocking: d.Refusal.Blocking}, true
		case ctx.Err() != nil:
			return answer{}, false
		}
	}
	return answer{}, false
}
