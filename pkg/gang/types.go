// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// Observation is everything that a decision about one gang depends on. It is read only.
type Observation struct {
	// Now is the time of the observation.
	Now time.Time
	// Claim is the GangClaim, not older than the last write of this controller to it.
	Claim *v1alpha1.GangClaim
	// Invalid says which fields of the GangClaim are wrong, and how to right them, where the API server
	// could not; empty for a valid one. An invalid gang is not planned.
	Invalid string
	// Priority is the lowest of the gang's pods, and not above the value of its PriorityClass.
	Priority int32
	// Pods are all pods of the namespace that name the template, in any phase.
	Pods []*corev1.Pod
	// Claims are the ResourceClaims of the namespace that have GangLabel with the gang's UID, and those
	// generated for Pods, whoever's template they were made from.
	Claims []*resourceapi.ResourceClaim
	// Template is the ResourceClaimTemplate with the GangClaim's name, whoever made it. Nil when there
	// is none.
	Template *resourceapi.ResourceClaimTemplate
	// Rules are the DeviceTaintRules that have GangLabel with the gang's UID.
	Rules []*resourceapi.DeviceTaintRule

	// Rivals are the pods that may yet be given one of the devices that status.plan reserves: placement's Rivals
	// for ReservedDevices. Read in step Quiescing only, and before Holders: a claim that was allocated in
	// between must be in one of them.
	Rivals []placement.PodWithDevices
	// Holders are the claims that have devices allocated which status.plan reserves, this gang's own among them.
	Holders map[placement.DeviceID]Holder
	// Devices are the devices of status.plan that cannot be used as planned any more, and why.
	// Devices that can are not in it.
	Devices map[placement.DeviceID]DeviceProblem

	// Moves are the pods of status.plan.moves that exist still, by UID, and their claims. Read where ReadsMoves says so.
	Moves map[types.UID]MovedPod
	// MovesBlocked says why pods of status.plan.moves must not be evicted any more; empty when they may. Read at the
	// end of step Quiescing, and in step Evicting until the first of them was evicted.
	MovesBlocked string
	// Evictions is what came of the last EvictVictims. It was not observed: it is the reply.
	Evictions *EvictionReply

	// Placement is the planner's answer to what Plannable returned for this same observation; nil when
	// it was not asked.
	Placement *placement.Decision
}

// MovedPod is a pod that is moved out of the way of a gang.
type MovedPod struct {
	// Pod is nil when it is gone.
	Pod *corev1.Pod
	// Claim is the claim that has the device; nil when it is gone.
	Claim *resourceapi.ResourceClaim
}

// EvictionReply is what the API server said to evictions.
type EvictionReply struct {
	// Evicted are the UIDs of the pods that were evicted.
	Evicted []types.UID
	// Refused is the UID of the pod that was not, if one was refused, Message what the API server said.
	Refused types.UID
	Message string
}

// Holder is a claim that has a device allocated.
type Holder struct {
	Claim types.NamespacedName
	UID   types.UID
	// Gang is the UID of the GangClaim that the claim was made for, if it was.
	Gang types.UID
}

// DeviceProblem is why a planned device cannot be used as planned.
type DeviceProblem string

const (
	// DeviceGone means that no slice lists the device, or its node is gone.
	DeviceGone DeviceProblem = "Gone"
	// DeviceTainted means that the device has a taint, not of this gang's fence, that the gang's claims
	// do not tolerate.
	DeviceTainted DeviceProblem = "Tainted"
	// DeviceMoved means that the device has another NVSwitch domain, or another id, than the plan says.
	DeviceMoved DeviceProblem = "Moved"
	// DevicePartitioned means that devices share its counters which were published after the plan was made: the
	// fence does not cover them.
	DevicePartitioned DeviceProblem = "Partitioned"
	// DeviceNotSelected means that the DeviceClass or the gang's selectors do not select the device any
	// more, or that the class is gone.
	DeviceNotSelected DeviceProblem = "NotSelected"
	// DeviceNodeUnusable means that the device's node cannot take the members any more: not Ready,
	// cordoned or tainted.
	DeviceNodeUnusable DeviceProblem = "NodeUnusable"
)

// Decision is what to do: write the status, then run the actions, then send the events.
type Decision struct {
	// Status is the whole new status. It is written in one update, and only when it differs.
	Status v1alpha1.GangClaimStatus
	// Actions are run in order after the status was written; the first error ends them.
	Actions []Action
	// Events are sent when the status was written.
	Events []Event
	// RequeueAfter is when to decide again if nothing changes before; 0 for not at all.
	RequeueAfter time.Duration
}

// Ref names one object as it was observed.
type Ref struct {
	Namespace       string
	Name            string
	UID             types.UID
	ResourceVersion string
}

// Action is one write, or a set of writes whose order does not matter, to be applied to the cluster. It
// is one of the types of this package below; appliers switch over them.
type Action interface {
	// Verb is the action in one word, for logs and metrics: "CreateRules".
	Verb() string
}

type (
	// AddFinalizer puts Finalizer on the GangClaim, so that its deletion waits for the sweep.
	AddFinalizer struct{ Claim Ref }

	// RemoveFinalizer takes Finalizer off the GangClaim: nothing of the gang is left to sweep.
	RemoveFinalizer struct{ Claim Ref }

	// CreateRules creates DeviceTaintRules, all in one batch. The applier sets TouchedAnnotation to
	// Stamp(StampCreated, now) as it writes each.
	CreateRules struct {
		Rules []*resourceapi.DeviceTaintRule
	}

	// RepairRules updates DeviceTaintRules that someone changed to what they were; each carries the
	// resourceVersion that was observed. The applier stamps each with StampCreated: to the scheduler it
	// is a new rule.
	RepairRules struct {
		Rules []*resourceapi.DeviceTaintRule
	}

	// TouchRules stamps DeviceTaintRules with StampTouched, and changes nothing else.
	TouchRules struct{ Rules []Ref }

	// NeutralizeRules sets the effect of DeviceTaintRules to None and stamps each with
	// StampNeutralized, in one write a rule.
	NeutralizeRules struct{ Rules []Ref }

	// DeleteRules deletes DeviceTaintRules, with the UID as precondition.
	DeleteRules struct{ Rules []Ref }

	// CreateTemplate creates the ResourceClaimTemplate: the release of the gang. One that exists is no
	// error.
	CreateTemplate struct {
		Template *resourceapi.ResourceClaimTemplate
	}

	// DeleteTemplate deletes the ResourceClaimTemplate, with the UID as precondition.
	DeleteTemplate struct{ Template Ref }

	// DeleteClaims deletes ResourceClaims that were seen unallocated, with UID and resourceVersion as
	// preconditions: kube-scheduler may be allocating them.
	DeleteClaims struct{ Claims []Ref }

	// TouchPods stamps pods with StampTouched, so that the resource claim controller looks at them
	// again.
	TouchPods struct{ Pods []Ref }

	// EvictPods evicts pods through the Eviction API, with the UID as precondition: a dry run of all
	// of them first. Each has a controller that replaces it.
	EvictPods struct{ Pods []Ref }

	// EvictVictims evicts the pods of other users that are in the way of the plan, through the Eviction API with the
	// UID as precondition: a dry run of all of them first, then one after the other. The first refusal ends it. The
	// gang is then decided on anew with an EvictionReply. It is the last action of its decision.
	EvictVictims struct{ Pods []Ref }

	// MarkReady opens the start gate: ReadyAnnotation is set on each claim, with the UID and the
	// resourceVersion as preconditions. To be run in parallel: members start in one moment.
	MarkReady struct{ Claims []ReadyClaim }
)

// ReadyClaim is a claim to be marked ready, and the value of its ReadyAnnotation.
type ReadyClaim struct {
	Ref

	Plan string
}

// Verb returns "AddFinalizer".
func (AddFinalizer) Verb() string { return "AddFinalizer" }

// Verb returns "RemoveFinalizer".
func (RemoveFinalizer) Verb() string { return "RemoveFinalizer" }

// Verb returns "CreateRules".
func (CreateRules) Verb() string { return "CreateRules" }

// Verb returns "RepairRules".
func (RepairRules) Verb() string { return "RepairRules" }

// Verb returns "TouchRules".
func (TouchRules) Verb() string { return "TouchRules" }

// Verb returns "NeutralizeRules".
func (NeutralizeRules) Verb() string { return "NeutralizeRules" }

// Verb returns "DeleteRules".
func (DeleteRules) Verb() string { return "DeleteRules" }

// Verb returns "CreateTemplate".
func (CreateTemplate) Verb() string { return "CreateTemplate" }

// Verb returns "DeleteTemplate".
func (DeleteTemplate) Verb() string { return "DeleteTemplate" }

// Verb returns "DeleteClaims".
func (DeleteClaims) Verb() string { return "DeleteClaims" }

// Verb returns "TouchPods".
func (TouchPods) Verb() string { return "TouchPods" }

// Verb returns "EvictPods".
func (EvictPods) Verb() string { return "EvictPods" }

// Verb returns "EvictVictims".
func (EvictVictims) Verb() string { return "EvictVictims" }

// Verb returns "MarkReady".
func (MarkReady) Verb() string { return "MarkReady" }

// Event is a message for the person who looks at the GangClaim or at one of its pods.
type Event struct {
	// Pod is the pod that the event is about; nil when it is about the GangClaim.
	Pod *corev1.Pod
	// Type is corev1.EventTypeNormal or corev1.EventTypeWarning.
	Type string
	// Reason is the reason of the condition that changed.
	Reason string
	// Message is the message of the condition that changed.
	Message string
}
