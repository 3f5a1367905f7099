// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// member is a pod that names the gang's template, with the claim that was made for it.
type member struct {
	pod *corev1.Pod
	// claim is nil while there is none.
	claim *resourceapi.ResourceClaim
}

// owned says whether a controller replaces the pod when it is evicted. A bare pod would be lost.
func (m member) owned() bool { return metav1.GetControllerOfNoCopy(m.pod) != nil }

// bound says whether the pod has its node, after which its allocation is not taken from it any more.
func (m member) bound() bool { return m.pod.Spec.NodeName != "" }

// unschedulable says whether kube-scheduler said of the pod that it fits nowhere, now or earlier.
func (m member) unschedulable() bool {
	return slices.ContainsFunc(m.pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable
	})
}

// running says whether the pod's containers were started.
func (m member) running() bool { return m.pod.Status.Phase == corev1.PodRunning }

// gated says whether kube-scheduler will not look at the pod, template or not.
func (m member) gated() bool { return len(m.pod.Spec.SchedulingGates) > 0 }

func (m member) allocated() bool { return m.claim != nil && m.claim.Status.Allocation != nil }

// planLabel is the hash of the plan that the member's claim was made for.
func (m member) planLabel() string {
	if m.claim == nil {
		return ""
	}
	return m.claim.Labels[v1alpha1.PlanLabel]
}

// view is an observation, sorted out.
type view struct {
	Observation
	// plan is status.plan, or nil.
	plan *v1alpha1.GangPlan

	// settled are live members that passed the start gate: their claim is marked ready.
	settled []member
	// candidates are live members that did not: without a claim, or with one of this gang. Oldest first.
	candidates []member
	// outside are live pods that name the template and have devices, or will, that are not of this gang:
	// with a claim from another template, bound without a claim, with a claim that is being deleted while
	// allocated, or bare and with devices that no plan of the gang can use.
	outside []member
	// ending are pods that are being deleted.
	ending []member
	// ended are pods that succeeded or failed.
	ended []member
	// unready are this gang's claims that are not marked ready.
	unready []*resourceapi.ResourceClaim
	// pods has all pods by UID.
	pods map[types.UID]*corev1.Pod
}

// planNow is the plan in a status. What began in the future there, by another leader's clock, begins now.
func planNow(plan *v1alpha1.GangPlan, now time.Time) *v1alpha1.GangPlan {
	if plan == nil {
		return nil
	}
	stepAhead := plan.StepSince.After(now)
	lossAhead := plan.DegradedSince != nil && plan.DegradedSince.After(now)
	if !stepAhead && !lossAhead {
		return plan
	}
	plan = plan.DeepCopy()
	if stepAhead {
		plan.StepSince = metav1.NewMicroTime(now)
	}
	if lossAhead {
		plan.DegradedSince = ptr.To(metav1.NewMicroTime(now))
	}
	return plan
}

// look sorts an observation out.
func look(o Observation) *view {
	v := &view{Observation: o, plan: planNow(o.Claim.Status.Plan, o.Now), pods: map[types.UID]*corev1.Pod{}}
	generated, named := map[types.UID]*resourceapi.ResourceClaim{}, map[types.UID]string{}
	for _, pod := range o.Pods {
		for _, c := range pod.Spec.ResourceClaims {
			if c.ResourceClaimTemplateName != nil && *c.ResourceClaimTemplateName == o.Claim.Name {
				named[pod.UID] = c.Name
			}
		}
	}
	for _, c := range o.Claims {
		if owner := metav1.GetControllerOfNoCopy(c); owner != nil && v.forTemplate(c, named[owner.UID]) {
			// Of two claims for one pod, one is on its way out: prefer the other.
			if old := generated[owner.UID]; old == nil || old.DeletionTimestamp != nil {
				generated[owner.UID] = c
			}
		}
		if c.Labels[v1alpha1.GangLabel] == string(o.Claim.UID) && !ready(c) {
			v.unready = append(v.unready, c)
		}
	}
	pods := slices.Clone(o.Pods)
	slices.SortFunc(pods, func(a, b *corev1.Pod) int {
		return cmp.Or(
			a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
			cmp.Compare(a.Name, b.Name),
		)
	})
	for _, pod := range pods {
		v.pods[pod.UID] = pod
		m := member{pod: pod, claim: generated[pod.UID]}
		switch {
		case placement.Ended(pod):
			v.ended = append(v.ended, m)
		case pod.DeletionTimestamp != nil:
			v.ending = append(v.ending, m)
		case v.isSettled(m):
			v.settled = append(v.settled, m)
		case v.isOutside(m):
			v.outside = append(v.outside, m)
		default:
			v.candidates = append(v.candidates, m)
		}
	}
	return v
}

// forTemplate says whether a pod's claim was made for its entry of spec.resourceClaims that names the gang's
// template, and not for one that names another.
func (v *view) forTemplate(c *resourceapi.ResourceClaim, entry string) bool {
	return v.ours(c) || entry != "" && c.Annotations[resourceapi.PodResourceClaimAnnotation] == entry
}

// ready says whether the start gate is open for a claim.
func ready(c *resourceapi.ResourceClaim) bool {
	hash := c.Annotations[v1alpha1.ReadyAnnotation]
	return hash != "" && hash == c.Labels[v1alpha1.PlanLabel]
}

func (v *view) ours(c *resourceapi.ResourceClaim) bool {
	return c.Labels[v1alpha1.GangLabel] == string(v.Claim.UID)
}

func (v *view) isSettled(m member) bool {
	return m.claim != nil && v.ours(m.claim) && ready(m.claim)
}

func (v *view) isOutside(m member) bool {
	if m.claim == nil {
		return m.bound()
	}
	if !v.ours(m.claim) || m.allocated() && m.claim.DeletionTimestamp != nil {
		return true
	}
	return m.allocated() && !m.owned() && !v.ofPlan(m) && !v.wellFormed(m.claim)
}

// kept are candidates that hold devices of an earlier plan and cannot give them back without being lost:
// bare pods. They keep their place, and the rest of the gang is planned around them.
func (v *view) kept() []member {
	return filter(v.candidates, v.isKept)
}

func (v *view) isKept(m member) bool {
	return m.allocated() && !m.owned() && !v.ofPlan(m) && v.wellFormed(m.claim)
}

// ofPlan says whether a member's claim was made for the plan that is being carried out.
func (v *view) ofPlan(m member) bool {
	return v.plan != nil && v.plan.Step != v1alpha1.StepTakingBack && m.planLabel() == v.plan.Hash
}

// newcomers are candidates that need a place: all but the kept.
func (v *view) newcomers() []member {
	return filter(v.candidates, func(m member) bool { return !v.isKept(m) })
}

// finished are members that were started in this run and have succeeded: they need no replacement. Pods of an
// earlier run that still exist are not among them: a gang runs anew when none of its members lives and pods
// come for all of them, or for some after all have succeeded.
func (v *view) finished() []member {
	started := v.Claim.Status.Started
	list := filter(v.ended, func(m member) bool {
		return m.pod.Status.Phase == corev1.PodSucceeded && slices.Contains(started, m.pod.UID)
	})
	members, waiting := int(v.Claim.Spec.Members), len(v.newcomers())
	if len(v.settled)+len(v.kept()) == 0 && waiting > 0 && max(waiting, len(list)) >= members {
		return nil
	}
	return list
}

// noteStarted writes into the status which pods the start gate is open for, or about to be opened.
func (t *turn) noteStarted(opening ...member) {
	started := slices.DeleteFunc(t.status.Started, func(uid types.UID) bool { return t.pods[uid] == nil })
	for _, m := range slices.Concat(t.settled, opening) {
		if !slices.Contains(started, m.pod.UID) {
			started = append(started, m.pod.UID)
		}
	}
	t.status.Started = started
}

// need is how many members have no place.
func (v *view) need() int {
	return max(0, int(v.Claim.Spec.Members)-len(v.settled)-len(v.kept())-len(v.finished()))
}

// live says whether any pod of the gang exists that has not ended, or is about to.
func (v *view) live() bool {
	return len(v.settled)+len(v.candidates)+len(v.outside) > 0
}

// runningCount is how many members run.
func (v *view) runningCount() int {
	return len(filter(v.settled, member.running))
}

// wellFormed says whether a claim asks for what a member of this gang needs, apart from where: a claim
// that does may keep its place under another plan.
func (v *view) wellFormed(c *resourceapi.ResourceClaim) bool {
	spec := v.Claim.Spec
	if c.DeletionTimestamp != nil || len(c.Spec.Devices.Requests) != 1 {
		return false
	}
	r := c.Spec.Devices.Requests[0].Exactly
	if r == nil || r.DeviceClassName != spec.DeviceClassName || max(r.Count, 1) != int64(spec.DevicesPerMember) {
		return false
	}
	if spec.Topology.Mode == v1alpha1.TopologyPreferred {
		return true
	}
	want := placement.ClaimSpec(v.Claim, &v1alpha1.GangPlan{MemberScope: spec.Topology.Member})
	return equality.Semantic.DeepEqual(c.Spec.Devices.Constraints, want.Devices.Constraints)
}

func filter(members []member, keep func(member) bool) []member {
	var out []member
	for _, m := range members {
		if keep(m) {
			out = append(out, m)
		}
	}
	return out
}

func ref(o metav1.Object) Ref {
	return Ref{
		Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(), ResourceVersion: o.GetResourceVersion(),
	}
}
