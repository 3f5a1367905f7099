// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// Reasons of the condition Running: the state of the gang in one word.
const (
	StateWaiting     = "Waiting"
	StateFencing     = "Fencing"
	StateQuiescing   = "Quiescing"
	StateEvicting    = "Evicting"
	StateReleasing   = "Releasing"
	StateStarting    = "Starting"
	StateRunning     = "Running"
	StateDegraded    = "Degraded"
	StateTakingBack  = "TakingBack"
	StateTimedOut    = "TimedOut"
	StateCompleted   = "Completed"
	StateTerminating = "Terminating"
)

// Reasons of the condition Planned, beside those of the planner (placement.Reason).
const (
	// ReasonPlanned means that there is a plan.
	ReasonPlanned = "Planned"
	// ReasonInvalidSpec means that fields of the GangClaim are wrong in a way that the API server cannot
	// refuse: the message names them.
	ReasonInvalidSpec = "InvalidSpec"
	// ReasonWaitingForMembers means that fewer pods than spec.members can be scheduled.
	ReasonWaitingForMembers = "WaitingForMembers"
	// ReasonTooManyMembers means that more pods than spec.members would get devices.
	ReasonTooManyMembers = "TooManyMembers"
	// ReasonMalformedMember means that a pod names the template more than once.
	ReasonMalformedMember = "MalformedMember"
	// ReasonTemplateConflict means that someone else's template has the gang's name, or that the
	// gang's template was changed.
	ReasonTemplateConflict = "TemplateConflict"
	// ReasonForeignClaims means that pods that name the template have devices from elsewhere.
	ReasonForeignClaims = "ForeignClaims"
	// ReasonSharedClaim means that a claim was made from the gang's template for a PodGroup, not for a pod.
	ReasonSharedClaim = "SharedClaim"
	// ReasonSchedulingTimeout means that spec.schedulingTimeout passed.
	ReasonSchedulingTimeout = "SchedulingTimeout"
	// ReasonWaitingForDevices means that a lost member still holds the devices of its replacement.
	ReasonWaitingForDevices = "WaitingForDevices"
	// ReasonBackingOff means that a plan was taken back and the next waits a while.
	ReasonBackingOff = "BackingOff"
	// ReasonPlanning means that the planner is asked.
	ReasonPlanning = "Planning"
	// ReasonSweeping means that objects of a plan that is not in the status are removed first.
	ReasonSweeping = "Sweeping"
	// ReasonNothingToPlan means that every member has devices, of a plan that is over or unknown.
	ReasonNothingToPlan = "NothingToPlan"
	// ReasonDeleted means that the GangClaim is being deleted.
	ReasonDeleted = "Deleted"
)

// Reasons why a plan is taken back: status.plan.reason.
const (
	// ReasonFenceTimeout means that not all rules could be made and touched in time.
	ReasonFenceTimeout = "FenceTimeout"
	// ReasonMemberLost means that a member went away before the release.
	ReasonMemberLost = "MemberLost"
	// ReasonDeviceUnusable means that a planned device was lost, tainted, moved or is not selected.
	ReasonDeviceUnusable = "DeviceUnusable"
	// ReasonDeviceTaken means that a planned device was allocated to another claim.
	ReasonDeviceTaken = "DeviceTaken"
	// ReasonClaimDiffers means that a member's claim was made from another template.
	ReasonClaimDiffers = "ClaimDiffers"
	// ReasonAllocatedOffPlan means that a member's claim has devices that were not planned.
	ReasonAllocatedOffPlan = "AllocatedOffPlan"
	// ReasonMovesOutdated means that pods that were to be moved must not be any more, before any was.
	ReasonMovesOutdated = "MovesOutdated"
	// ReasonEvictionRefused means that the API server refused to evict a pod.
	ReasonEvictionRefused = "EvictionRefused"
	// ReasonEvictionTimeout means that evicted pods have not given their devices back in time.
	ReasonEvictionTimeout = "EvictionTimeout"
	// ReasonVerifyTimeout means that not all claims were allocated by the deadline.
	ReasonVerifyTimeout = "VerifyTimeout"
)

// ReasonEvictedForGang is of the Event on a pod that was evicted to make room for a gang.
const ReasonEvictedForGang = "EvictedForGang"

// Reasons of the conditions Released and Completed.
const (
	// ReasonReleased means that every member's claim was seen allocated on the plan.
	ReasonReleased = "Released"
	// ReasonNotReleased means that it was not.
	ReasonNotReleased = "NotReleased"
	// ReasonMembersLeft means that pods or claims of the gang are left.
	ReasonMembersLeft = "MembersLeft"
	// ReasonCompleted means that all have ended and their claims are gone.
	ReasonCompleted = "Completed"
)

// names lists pods for a message.
func names(members []member) string {
	var list []string
	for _, m := range members {
		list = append(list, m.pod.Name)
	}
	return plural(len(members), "pod ", "pods ") + few(list, ", ")
}

// few joins at most five of a list, and says how many more there are.
func few(list []string, separator string) string {
	const most = 5
	s := strings.Join(list[:min(most, len(list))], separator)
	if len(list) > most {
		s += fmt.Sprintf(" and %d more", len(list)-most)
	}
	return s
}

const (
	// maxMessage is how many bytes of a message a condition, or status.plan.reason, has. The API server takes 32768
	// characters, which nobody reads.
	maxMessage = 2048
	// maxEventMessage is how many bytes of a message fit an Event.
	maxEventMessage = 1000
)

// clip cuts a message to so many bytes, between two characters.
func clip(message string, most int) string {
	const dots = "..."
	if len(message) <= most {
		return message
	}
	end := most - len(dots)
	for end > 0 && !utf8.RuneStart(message[end]) {
		end--
	}
	return message[:end] + dots
}

func plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

func devices(n int32) string {
	return fmt.Sprintf("%d %s", n, plural(int(n), "device", "devices"))
}

// describePlan is the message of the condition Planned.
func describePlan(claim *v1alpha1.GangClaim, plan *v1alpha1.GangPlan) string {
	var places []string
	for _, p := range plan.Placements {
		place := p.Node
		if p.Domain != "" {
			place += " in " + p.Domain
		}
		places = append(places, fmt.Sprintf("%d on %s", p.Members, place))
	}
	s := fmt.Sprintf("%d %s of %s: %s", plan.Members, plural(int(plan.Members), "member", "members"),
		devices(claim.Spec.DevicesPerMember), few(places, ", "))
	if plan.MemberScope != claim.Spec.Topology.Member && claim.Spec.Topology.Member != "" {
		s += fmt.Sprintf("; a member's devices share a %s only", plan.MemberScope)
	}
	if plan.GangScope != claim.Spec.Topology.Gang && claim.Spec.Topology.Gang != "" {
		s += fmt.Sprintf("; the members share %s only", plan.GangScope)
	}
	return s
}

// domains is status.domains.
func domains(plan *v1alpha1.GangPlan) string {
	if plan == nil || plan.Step == v1alpha1.StepTakingBack {
		return "-"
	}
	var list []string
	seen := map[string]bool{}
	for _, p := range plan.Placements {
		name := p.Domain
		if name == "" {
			name = p.Node
		}
		if !seen[name] {
			seen[name] = true
			list = append(list, name)
		}
	}
	return few(list, ",")
}
