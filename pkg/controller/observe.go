// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/defrag"
	"github.com/switchyard-dev/switchyard/pkg/gang"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// claimsPerPage bounds the size of one answer where claims are listed live.
const claimsPerPage = 500

// observer gathers what a decision about a gang depends on.
type observer struct {
	// cached reads are at least as new as this process's writes; live ones go to the API server.
	cached  client.Reader
	live    client.Reader
	cluster *placement.Cluster
	maker   *defrag.Maker
	clock   clock.PassiveClock
}

// observe gathers everything but the planner's answer.
func (o *observer) observe(ctx context.Context, claim *v1alpha1.GangClaim) (gang.Observation, error) {
	observation := gang.Observation{Claim: claim}
	if errs := v1alpha1.ValidateGangClaim(claim); len(errs) > 0 {
		observation.Invalid = errs.ToAggregate().Error()
	}
	for what, read := range map[string]func(context.Context, *gang.Observation) error{
		"pods": o.pods, "template": o.template, "rules": o.rules,
	} {
		if err := read(ctx, &observation); err != nil {
			return observation, fmt.Errorf("read %s of GangClaim %s: %w", what, keyOf(claim), err)
		}
	}
	// After the pods: the claims are those of the pods, too.
	if err := o.claims(ctx, &observation); err != nil {
		return observation, fmt.Errorf("read claims of GangClaim %s: %w", keyOf(claim), err)
	}
	if err := o.priority(ctx, &observation); err != nil {
		return observation, fmt.Errorf("read priority of GangClaim %s: %w", keyOf(claim), err)
	}
	// Before the devices: whether they are looked up at the API server depends on the time, and must not
	// depend on another one than the decision.
	observation.Now = o.clock.Now()
	if plan := claim.Status.Plan; plan != nil {
		if err := o.plan(ctx, &observation, plan); err != nil {
			return observation, fmt.Errorf("read devices of GangClaim %s: %w", keyOf(claim), err)
		}
	}
	return observation, nil
}

func (o *observer) pods(ctx context.Context, observation *gang.Observation) error {
	var pods corev1.PodList
	if err := o.cached.List(ctx, &pods, client.InNamespace(observation.Claim.Namespace),
		client.MatchingFields{podsByTemplate: observation.Claim.Name}); err != nil {
		return err
	}
	for i := range pods.Items {
		observation.Pods = append(observation.Pods, &pods.Items[i])
	}
	slices.SortFunc(observation.Pods, compareNames)
	return nil
}

func (o *observer) template(ctx context.Context, observation *gang.Observation) error {
	template := &resourceapi.ResourceClaimTemplate{}
	if err := o.cached.Get(ctx, keyOf(observation.Claim), template); err != nil {
		return ignore(apierrors.IsNotFound, err)
	}
	observation.Template = template
	return nil
}

func (o *observer) rules(ctx context.Context, observation *gang.Observation) error {
	var rules resourceapi.DeviceTaintRuleList
	if err := o.cached.List(ctx, &rules, client.MatchingFields{byGang: string(observation.Claim.UID)}); err != nil {
		return err
	}
	for i := range rules.Items {
		observation.Rules = append(observation.Rules, &rules.Items[i])
	}
	slices.SortFunc(observation.Rules, compareNames)
	return nil
}

// claims are those that carry the gang's label, and those generated for its pods from whatever template.
func (o *observer) claims(ctx context.Context, observation *gang.Observation) error {
	found := map[types.UID]*resourceapi.ResourceClaim{}
	list := func(index, value string) error {
		var claims resourceapi.ResourceClaimList
		if err := o.cached.List(ctx, &claims, client.InNamespace(observation.Claim.Namespace), client.MatchingFields{index: value}); err != nil {
			return err
		}
		for i := range claims.Items {
			found[claims.Items[i].UID] = &claims.Items[i]
		}
		return nil
	}
	if err := list(byGang, string(observation.Claim.UID)); err != nil {
		return err
	}
	for _, pod := range observation.Pods {
		if err := list(claimsByPod, string(pod.UID)); err != nil {
			return err
		}
	}
	for _, claim := range found {
		observation.Claims = append(observation.Claims, claim)
	}
	slices.SortFunc(observation.Claims, compareNames)
	return nil
}

// priority is the gang's; a class that does not exist counts as none.
func (o *observer) priority(ctx context.Context, observation *gang.Observation) error {
	var class *schedulingv1.PriorityClass
	if name := observation.Claim.Spec.PriorityClassName; name != "" {
		class = &schedulingv1.PriorityClass{}
		switch err := o.cached.Get(ctx, types.NamespacedName{Name: name}, class); {
		case apierrors.IsNotFound(err):
			class = nil
		case err != nil:
			return err
		}
	}
	observation.Priority = gang.Priority(class, observation.Pods)
	return nil
}

// plan says what became of the planned devices.
func (o *observer) plan(ctx context.Context, observation *gang.Observation, plan *v1alpha1.GangPlan) error {
	devices := placement.ReservedDevices(plan)
	if plan.Step == v1alpha1.StepQuiescing {
		// Before the holders: a claim that is allocated in between must be in one of them.
		observation.Rivals = o.cluster.Rivals(devices, observation.Claim.UID)
	}
	observation.Holders = map[placement.DeviceID]gang.Holder{}
	for id, holder := range o.cluster.Holders(devices) {
		observation.Holders[id] = gang.Holder{Claim: types.NamespacedName{Namespace: holder.Namespace, Name: holder.Name}, UID: holder.UID, Gang: holder.Gang}
	}
	var err error
	if observation.Devices, err = o.problems(ctx, observation, plan); err != nil {
		return err
	}
	if gang.ReadsMoves(plan) {
		if err := o.moves(ctx, observation, plan); err != nil {
			return err
		}
	}
	if mayEvict(*observation, plan) {
		observation.MovesBlocked = o.maker.Recheck(o.cluster, placement.Gang{Claim: observation.Claim, Priority: observation.Priority})
	}
	if !mayRelease(*observation, plan) {
		return nil
	}
	// The last look before the release. An allocation that kube-scheduler wrote a moment ago may not be
	// in the cache yet.
	if observation.Holders, err = o.holders(ctx, devices); err != nil {
		return err
	}
	return nil
}

// mayEvict says whether the decision on the observation may be to evict the first pod of the plan's moves.
func mayEvict(observation gang.Observation, plan *v1alpha1.GangPlan) bool {
	if len(plan.Moves) == 0 {
		return false
	}
	return plan.Step == v1alpha1.StepQuiescing && mayRelease(observation, plan) ||
		plan.Step == v1alpha1.StepEvicting && !slices.ContainsFunc(plan.Moves, func(m v1alpha1.GangMove) bool { return m.EvictedAt != nil })
}

// mayRelease says whether the decision on the observation may be to release.
func mayRelease(observation gang.Observation, plan *v1alpha1.GangPlan) bool {
	if plan.Step == v1alpha1.StepEvicting {
		return len(gang.Unreleased(observation)) == 0
	}
	return plan.Step == v1alpha1.StepQuiescing &&
		(len(gang.Undecided(observation)) == 0 || observation.Now.Sub(plan.StepSince.Time) >= gang.QuiesceFor)
}

// holders lists all claims at the API server.
func (o *observer) holders(ctx context.Context, devices []placement.DeviceID) (map[placement.DeviceID]gang.Holder, error) {
	wanted := make(map[placement.DeviceID]bool, len(devices))
	for _, id := range devices {
		wanted[id] = true
	}
	holders := map[placement.DeviceID]gang.Holder{}
	for next := ""; ; {
		page := &resourceapi.ResourceClaimList{}
		if err := o.live.List(ctx, page, client.Limit(claimsPerPage), client.Continue(next)); err != nil {
			return nil, fmt.Errorf("list claims at the API server: %w", err)
		}
		for i := range page.Items {
			claim := &page.Items[i]
			if claim.Status.Allocation == nil {
				continue
			}
			for _, result := range claim.Status.Allocation.Devices.Results {
				id := placement.DeviceID{Driver: result.Driver, Pool: result.Pool, Device: result.Device}
				if wanted[id] && !ptr.Deref(result.AdminAccess, false) {
					holders[id] = gang.Holder{Claim: keyOf(claim), UID: claim.UID, Gang: types.UID(claim.Labels[v1alpha1.GangLabel])}
				}
			}
		}
		if next = page.Continue; next == "" {
			return holders, nil
		}
	}
}

// problems says which planned devices cannot be used as planned any more.
func (o *observer) problems(ctx context.Context, observation *gang.Observation, plan *v1alpha1.GangPlan) (map[placement.DeviceID]gang.DeviceProblem, error) {
	states := o.cluster.DeviceStates(observation.Claim, placement.PlannedDevices(plan))
	class := &resourceapi.DeviceClass{}
	err := o.cached.Get(ctx, types.NamespacedName{Name: observation.Claim.Spec.DeviceClassName}, class)
	if ignore(apierrors.IsNotFound, err) != nil {
		return nil, err
	}
	noClass := err != nil
	nodes := map[string]*corev1.Node{}
	for _, p := range plan.Placements {
		node := &corev1.Node{}
		err := o.cached.Get(ctx, types.NamespacedName{Name: p.Node}, node)
		switch {
		case err == nil:
			nodes[p.Node] = node
		case apierrors.IsNotFound(err):
			nodes[p.Node] = nil
		default:
			return nil, err
		}
	}
	unusable := placement.UnusableNodes(plan, nodes, observation.Pods)
	found := map[placement.DeviceID]gang.DeviceProblem{}
	for _, p := range plan.Placements {
		for _, d := range p.Devices {
			id := placement.DeviceID{Driver: v1alpha1.DriverName, Pool: p.Pool, Device: d.Name}
			if problem := gang.Problem(observation.Claim, p, d, states[id], noClass, unusable[p.Node]); problem != "" {
				found[id] = problem
			}
		}
	}
	return found, nil
}

func compareNames[T client.Object](a, b T) int {
	switch {
	case a.GetName() < b.GetName():
		return -1
	case a.GetName() > b.GetName():
		return 1
	}
	return 0
}
