// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// verdict is what a policy says: fine, or why not, as reason and message of a condition.
type verdict struct {
	ok      bool
	reason  string
	message string
}

var fine = verdict{ok: true}

func because(reason, format string, args ...any) verdict {
	return verdict{reason: reason, message: fmt.Sprintf(format, args...)}
}

// policy is one rule of the protocol.
type policy func(*view) verdict

// chain is a list of policies, the most telling first: the first that is not fine decides.
type chain []policy

func (c chain) judge(v *view) verdict {
	for _, p := range c {
		if got := p(v); !got.ok {
			return got
		}
	}
	return fine
}

// The protocol's policies, by when they are asked.
var (
	// mayPlan says whether the gang waits for nothing but a place.
	mayPlan = chain{
		specIsValid,
		podsNameTemplateOnce,
		templateIsNotForeign,
		claimsAreOfPods,
		podsHaveNoOtherDevices,
		notTooManyMembers,
		notTooFewMembers,
		membersAreNotGated,
		schedulingTimeoutNotPassed,
	}

	// mayRelease says whether a plan that was not released yet is worth going on with.
	mayRelease = chain{
		templateIsNotForeign,
		membersArePlanned,
		devicesAreUsable,
		devicesAreNotTaken,
	}

	// mayVerify says whether a released plan can still become true.
	mayVerify = chain{
		templateIsNotForeign,
		templateIsIntact,
		claimsAreOfPods,
		claimsAreAsPlanned,
		claimsAreOnPlan,
		devicesAreUsable,
		devicesAreNotTaken,
	}
)

func specIsValid(v *view) verdict {
	if v.Invalid == "" {
		return fine
	}
	return verdict{reason: ReasonInvalidSpec, message: v.Invalid}
}

func podsNameTemplateOnce(v *view) verdict {
	for _, m := range v.candidates {
		named := 0
		for _, c := range m.pod.Spec.ResourceClaims {
			if c.ResourceClaimTemplateName != nil && *c.ResourceClaimTemplateName == v.Claim.Name {
				named++
			}
		}
		if named > 1 {
			return because(ReasonMalformedMember, "pod %s names the ResourceClaimTemplate %s %d times in spec.resourceClaims and would "+
				"get %d claims of %s: name it once", m.pod.Name, v.Claim.Name, named, named, devices(v.Claim.Spec.DevicesPerMember))
		}
	}
	return fine
}

func templateIsNotForeign(v *view) verdict {
	if !v.foreignTemplate() {
		return fine
	}
	return because(ReasonTemplateConflict, "a ResourceClaimTemplate %s exists that was not made for this GangClaim: delete or rename "+
		"it, then delete the pods that have claims from it", v.Claim.Name)
}

func podsHaveNoOtherDevices(v *view) verdict {
	if len(v.outside) == 0 {
		return fine
	}
	return because(ReasonForeignClaims, "%s %s ResourceClaimTemplate %s, and %s devices that were not given by this GangClaim: delete "+
		"%s, or let %s end", names(v.outside), plural(len(v.outside), "names the", "name the"), v.Claim.Name,
		plural(len(v.outside), "has or waits for", "have or wait for"), plural(len(v.outside), "it", "them"),
		plural(len(v.outside), "it", "them"))
}

func notTooManyMembers(v *view) verdict {
	waiting, need := v.newcomers(), v.need()
	if len(waiting) <= need {
		return fine
	}
	if need == 0 {
		return because(ReasonTooManyMembers, "%s %s more than the %d of spec.members, which all have their devices: delete "+
			"%s, or let a member end", names(waiting), plural(len(waiting), "is one", fmt.Sprintf("are %d", len(waiting))),
			v.Claim.Spec.Members, plural(len(waiting), "it", "them"))
	}
	extra := waiting[need:]
	return because(ReasonTooManyMembers, "%d pods name the ResourceClaimTemplate %s and wait, %d %s expected, and each would get "+
		"devices: delete %s, or set spec.members", len(waiting), v.Claim.Name, need, plural(need, "is", "are"), names(extra))
}

func notTooFewMembers(v *view) verdict {
	waiting, need := len(v.newcomers()), v.need()
	if waiting >= need {
		return fine
	}
	if len(v.settled) > 0 {
		return because(ReasonWaitingForMembers, "%d of %d members %s lost and %d %s replaced so far: waiting for pods that name the "+
			"ResourceClaimTemplate %s", need, v.Claim.Spec.Members, plural(need, "is", "are"), waiting, plural(waiting, "is", "are"),
			v.Claim.Name)
	}
	return because(ReasonWaitingForMembers, "%d of %d members exist: waiting for pods that name the ResourceClaimTemplate %s",
		int(v.Claim.Spec.Members)-need+waiting, v.Claim.Spec.Members, v.Claim.Name)
}

func membersAreNotGated(v *view) verdict {
	gated := filter(v.newcomers(), member.gated)
	if len(gated) == 0 {
		return fine
	}
	return because(ReasonWaitingForMembers, "%s %s scheduling gates: waiting until they are removed", names(gated),
		plural(len(gated), "has", "have"))
}

func schedulingTimeoutNotPassed(v *view) verdict {
	if v.Claim.Status.TimedOut == "" || v.Claim.Status.TimedOut != v.waitingHash() {
		return fine
	}
	return because(ReasonSchedulingTimeout, "no place was found within spec.schedulingTimeout, %s: change the spec, or replace a pod, "+
		"to have the gang planned again", schedulingTimeout(v.Claim))
}

// membersArePlanned is asked while no claim of the plan can exist.
func membersArePlanned(v *view) verdict {
	if have, want := len(v.newcomers()), int(v.plan.Members); have < want {
		return because(ReasonMemberLost, "%d of %d members to be placed are gone", want-have, want)
	}
	return notTooManyMembers(v)
}

func devicesAreUsable(v *view) verdict {
	for _, d := range PlannedDevices(v.plan) {
		if problem, bad := v.Devices[d]; bad {
			return because(ReasonDeviceUnusable, "device %s of pool %s, which was planned, %s", d.Device, d.Pool, problem.describe())
		}
	}
	return fine
}

// describe completes "the device …".
func (p DeviceProblem) describe() string {
	switch p {
	case DeviceGone:
		return "is gone"
	case DeviceTainted:
		return "was tainted"
	case DeviceMoved:
		return "is in another NVSwitch domain now"
	case DeviceNotSelected:
		return "is not selected by the DeviceClass and spec.selectors any more"
	case DevicePartitioned:
		return "shares counters with devices that have been published since and are not reserved"
	case DeviceNodeUnusable:
		return "is on a node that takes no pods now"
	default:
		return "cannot be used: " + string(p)
	}
}

// devicesAreNotTaken is about claims of others, and of other plans. The gang's own that come or go are waited for, and
// so are those of pods that are moved.
func devicesAreNotTaken(v *view) verdict {
	mine := map[string]bool{}
	for _, c := range v.Claims {
		if v.ours(c) && c.Labels[v1alpha1.PlanLabel] == v.plan.Hash {
			mine[string(c.UID)] = true
		}
	}
	planned := len(PlannedDevices(v.plan))
	for i, d := range ReservedDevices(v.plan) {
		if h, held := v.Holders[d]; held && !mine[string(h.UID)] && !v.inPassing(h) && !v.isMoved(h.UID) {
			what := "was planned"
			if i >= planned {
				what = "excludes one that was planned"
			}
			return because(ReasonDeviceTaken, "device %s of pool %s, which %s, was allocated to claim %s: kube-scheduler had "+
				"decided so before it saw the fence", d.Device, d.Pool, what, h.Claim)
		}
	}
	return fine
}

func templateIsIntact(v *view) verdict {
	if v.Template == nil || v.intactTemplate() {
		return fine
	}
	return because(ReasonTemplateConflict, "ResourceClaimTemplate %s does not ask for what was planned, or its claims would not "+
		"carry the labels of the plan: someone replaced it, or an admission webhook changes it", v.Claim.Name)
}

// claimsAreOfPods refuses a claim that all pods of a PodGroup would share: a member has devices of its own.
func claimsAreOfPods(v *view) verdict {
	for _, c := range v.Claims {
		if owner := metav1.GetControllerOfNoCopy(c); v.ours(c) && owner != nil && owner.Kind == "PodGroup" {
			return because(ReasonSharedClaim, "claim %s was made for PodGroup %s, whose pods would share it, while each member needs devices of its "+
				"own: remove the entry for ResourceClaimTemplate %s from spec.resourceClaims of the PodGroup, which must be created anew, and "+
				"leave it in its pods", c.Name, owner.Name, v.Claim.Name)
		}
	}
	return fine
}

func claimsAreAsPlanned(v *view) verdict {
	want := placement.ClaimSpec(v.Claim, v.plan)
	for _, m := range v.candidates {
		if v.ofPlan(m) && !sameSpec(m.claim.Spec, want) {
			return because(ReasonClaimDiffers, "claim %s of pod %s does not ask for what was planned: it was made from another template",
				m.claim.Name, m.pod.Name)
		}
	}
	return fine
}

func claimsAreOnPlan(v *view) verdict {
	for _, m := range v.candidates {
		if v.ofPlan(m) && m.allocated() && !v.onPlan(m) {
			return because(ReasonAllocatedOffPlan, "claim %s of pod %s was allocated devices that are not those of the plan", m.claim.Name,
				m.pod.Name)
		}
	}
	return fine
}

// onPlan says whether a member's claim is of the plan and has devices of the plan, and nothing else.
func (v *view) onPlan(m member) bool {
	if !m.allocated() || m.planLabel() != v.plan.Hash || m.claim.DeletionTimestamp != nil {
		return false
	}
	planned := map[placement.DeviceID]bool{}
	for _, d := range PlannedDevices(v.plan) {
		planned[d] = true
	}
	got := allocatedDevices(m.claim)
	for _, d := range got {
		if !planned[d] {
			return false
		}
	}
	return len(got) == int(v.Claim.Spec.DevicesPerMember)
}

// allocatedDevices are the devices that a claim has.
func allocatedDevices(c *resourceapi.ResourceClaim) []placement.DeviceID {
	if c.Status.Allocation == nil {
		return nil
	}
	var out []placement.DeviceID
	for _, r := range c.Status.Allocation.Devices.Results {
		out = append(out, placement.DeviceID{Driver: r.Driver, Pool: r.Pool, Device: r.Device})
	}
	return out
}
