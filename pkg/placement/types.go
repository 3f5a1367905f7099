// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// DeviceID names a device of driver gpu.switchyard.dev, or of another driver when the class has any.
type DeviceID struct {
	Driver string
	Pool   string
	Device string
}

// Gang is what the planner needs to know of one gang that waits for a place.
type Gang struct {
	// Claim is the GangClaim, read only.
	Claim *v1alpha1.GangClaim
	// Priority orders gangs: higher first, then Claim's creation, then its UID.
	Priority int32
	// Pods are the members that need a place: all of the gang, or those that were lost.
	Pods []*corev1.Pod
	// Placed are the devices of members that have their place already; they bind the gang's scope.
	Placed []DeviceID
	// Only, where not nil, are the devices that may be planned: those that the gang still reserves for
	// members that were lost.
	Only []DeviceID
	// Avoid are nodes on which kube-scheduler did not put a member that was planned there, for a reason that the planner does
	// not foresee. They are planned on only if there is no place without them.
	Avoid []string
}

// Decision is what the planner decides for one gang: a plan, or the reason why there is none.
type Decision struct {
	Gang types.UID
	// Plan is complete but for Attempt, Hash, Step and StepSince. Nil when the gang has no place.
	Plan *v1alpha1.GangPlan
	// Refusal says why, when Plan is nil.
	Refusal *Refusal
	// Room says what would have to move, or why moving does not help, where a RoomMaker was asked. Moves that
	// are to be made are in Plan.Moves as well.
	Room *v1alpha1.GangDefragmentation
}

// Reason is a stable word for why a gang has no place: reasons of the condition Planned.
type Reason string

const (
	// ReasonNoFeasibleDomain means that too few devices are free in the scope asked for.
	ReasonNoFeasibleDomain Reason = "NoFeasibleDomain"
	// ReasonNodesFull means that devices are free where the pods do not fit: CPU, memory, other
	// resources, node selectors, affinity or taints of the nodes, affinity or anti-affinity to other pods, host ports, volumes.
	ReasonNodesFull Reason = "NodesFull"
	// ReasonVolumesNotReady means that kube-scheduler would not schedule the pods anywhere with their persistent volumes: a
	// claim does not exist or is not bound, or only one pod can use it.
	ReasonVolumesNotReady Reason = "VolumesNotReady"
	// ReasonVolumesBeingMade means that Kubernetes has not made a claim yet for a volume that ends with its pod, which takes it a
	// moment.
	ReasonVolumesBeingMade Reason = "VolumesBeingMade"
	// ReasonQuotaExceeded means that a ResourceQuota does not admit the claims.
	ReasonQuotaExceeded Reason = "QuotaExceeded"
	// ReasonBehindOthers means that the free devices are those that a gang before this one waits for.
	ReasonBehindOthers Reason = "BehindOthers"
	// ReasonNoSuchClass means that the DeviceClass does not exist.
	ReasonNoSuchClass Reason = "NoSuchClass"
	// ReasonSelectorFails means that a CEL selector has an error, or errs on a device of the class:
	// kube-scheduler would abort the pods.
	ReasonSelectorFails Reason = "SelectorFails"
	// ReasonSelectorTooExpensive means that to evaluate a CEL selector on all devices takes too long.
	ReasonSelectorTooExpensive Reason = "SelectorTooExpensive"
	// ReasonNotSupported means that the planner cannot foresee what kube-scheduler would do, for
	// example because two devices have the same attribute id.
	ReasonNotSupported Reason = "NotSupported"
	// ReasonOracleDisagrees means that kube-scheduler's own allocator does not allocate the plan.
	ReasonOracleDisagrees Reason = "AllocatorDisagrees"
	// ReasonInterrupted means that planning was given up before it came to a decision: the context ended,
	// or selectors were left to evaluate. The next call of Plan goes on.
	ReasonInterrupted Reason = "PlanningInterrupted"
)

// Refusal is why a gang has no place, and the best there is.
type Refusal struct {
	Reason Reason
	// Message is for people, one to three sentences: what the gang needs, what is free, and what
	// stands in the way.
	Message string
	// Found is how many of the gang's members would have a place.
	Found int32
	// Blocking are pods that hold devices in the next best place.
	Blocking []types.NamespacedName
}

// PodWithDevices is a pod that may yet be given one of some devices.
type PodWithDevices struct {
	Pod types.NamespacedName
	UID types.UID
	// Decided is when kube-scheduler said that the pod is unschedulable; zero when it has not, or when a
	// device became free since, so that it may say otherwise.
	Decided time.Time
	// Created is when the pod was created, in whole seconds.
	Created time.Time
}
