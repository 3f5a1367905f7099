// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// GangClaim says what a gang needs: pods that are only useful together, each with a number of devices
// that talk to each other at full speed. Its pods name a ResourceClaimTemplate with the GangClaim's
// name; that template exists only while every member can have its devices.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced,categories=switchyard,shortName=gang
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 63",message="metadata.name must be at most 63 characters: the objects made for the gang carry it as the value of a label"
// +kubebuilder:validation:XValidation:fieldPath=".spec.members",reason=FieldValueForbidden,rule="!oldSelf.?status.plan.hasValue() || self.spec.members == oldSelf.spec.members",message="members cannot change while there is a plan: delete the GangClaim and create it anew"
// +kubebuilder:validation:XValidation:fieldPath=".spec.deviceClassName",reason=FieldValueForbidden,rule="!oldSelf.?status.plan.hasValue() || self.spec.deviceClassName == oldSelf.spec.deviceClassName",message="deviceClassName cannot change while there is a plan: delete the GangClaim and create it anew"
// +kubebuilder:validation:XValidation:fieldPath=".spec.devicesPerMember",reason=FieldValueForbidden,rule="!oldSelf.?status.plan.hasValue() || self.spec.devicesPerMember == oldSelf.spec.devicesPerMember",message="devicesPerMember cannot change while there is a plan: delete the GangClaim and create it anew"
// +kubebuilder:validation:XValidation:fieldPath=".spec.selectors",reason=FieldValueForbidden,rule="!oldSelf.?status.plan.hasValue() || (has(self.spec.selectors) && self.spec.selectors.size() > 0 ? has(oldSelf.spec.selectors) && self.spec.selectors == oldSelf.spec.selectors : !has(oldSelf.spec.selectors) || oldSelf.spec.selectors.size() == 0)",message="selectors cannot change while there is a plan: delete the GangClaim and create it anew"
// +kubebuilder:validation:XValidation:fieldPath=".spec.topology",reason=FieldValueForbidden,rule="!oldSelf.?status.plan.hasValue() || self.spec.topology == oldSelf.spec.topology",message="topology cannot change while there is a plan: delete the GangClaim and create it anew"
// +kubebuilder:validation:XValidation:fieldPath=".spec.tolerations",reason=FieldValueForbidden,rule="!oldSelf.?status.plan.hasValue() || (has(self.spec.tolerations) && self.spec.tolerations.size() > 0 ? has(oldSelf.spec.tolerations) && self.spec.tolerations == oldSelf.spec.tolerations : !has(oldSelf.spec.tolerations) || oldSelf.spec.tolerations.size() == 0)",message="tolerations cannot change while there is a plan: delete the GangClaim and create it anew"
// +kubebuilder:validation:XValidation:fieldPath=".spec.config",reason=FieldValueForbidden,rule="!oldSelf.?status.plan.hasValue() || (has(self.spec.config) && self.spec.config.size() > 0 ? has(oldSelf.spec.config) && self.spec.config == oldSelf.spec.config : !has(oldSelf.spec.config) || oldSelf.spec.config.size() == 0)",message="config cannot change while there is a plan: delete the GangClaim and create it anew"
// +kubebuilder:printcolumn:name="Members",type=integer,JSONPath=`.spec.members`
// +kubebuilder:printcolumn:name="Per Member",type=integer,JSONPath=`.spec.devicesPerMember`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.ready`
// +kubebuilder:printcolumn:name="Domains",type=string,JSONPath=`.status.domains`
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.conditions[?(@.type=="Running")].reason`
// +kubebuilder:printcolumn:name="Planned",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Planned")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type GangClaim struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is what the gang needs.
	Spec GangClaimSpec `json:"spec"`
	// Status is what the controller found and decided.
	// +optional
	Status GangClaimStatus `json:"status,omitempty"`
}

// GangClaimList is a list of GangClaims.
//
// +kubebuilder:object:root=true
type GangClaimList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []GangClaim `json:"items"`
}

// GangClaimSpec is what a gang needs. While there is a plan (status.plan), only priorityClassName,
// schedulingTimeout, restartGracePeriod and defragmentation can change.
type GangClaimSpec struct {
	// Members is how many pods the gang has.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=256
	Members int32 `json:"members"`

	// DeviceClassName is the DeviceClass of every device. Default: gpu.switchyard.dev.
	// +optional
	// +kubebuilder:default="gpu.switchyard.dev"
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Subdomain().validate(self).hasValue()",message="deviceClassName must be the name of a DeviceClass: lower-case letters, digits, - and ., as kubectl get deviceclasses lists them"
	DeviceClassName string `json:"deviceClassName,omitempty"`

	// DevicesPerMember is how many devices each pod gets.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=32
	DevicesPerMember int32 `json:"devicesPerMember"`

	// Selectors are conditions that every device meets, as in a ResourceClaim.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=31
	// +kubebuilder:validation:items:XValidation:rule="has(self.cel)",message="a selector must have the field cel with an expression"
	// +kubebuilder:validation:items:XValidation:fieldPath=".cel.expression",rule="!has(self.cel) || self.cel.expression.size() > 0 && self.cel.expression.size() <= 10240",message="expression must have 1 to 10240 characters: split a longer one into several selectors, which must all be true"
	Selectors []resourceapi.DeviceSelector `json:"selectors,omitempty"`

	// Topology says which devices belong together.
	// +optional
	// +kubebuilder:default={}
	Topology GangTopology `json:"topology,omitzero"`

	// Tolerations are device taints that the devices may have, as in a ResourceClaim. Each names the key
	// of a taint; switchyard.dev/reserved, which keeps devices for other gangs, cannot be tolerated.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=15
	// +kubebuilder:validation:items:XValidation:fieldPath=".key",rule="has(self.key) && self.key.size() > 0",message="key must be set: tolerating every taint would include switchyard.dev/reserved, which keeps devices for other gangs; name the key of the taint"
	// +kubebuilder:validation:items:XValidation:fieldPath=".key",reason=FieldValueForbidden,rule="!has(self.key) || self.key != 'switchyard.dev/reserved'",message="the taint switchyard.dev/reserved keeps devices for other gangs and cannot be tolerated: remove the toleration"
	// +kubebuilder:validation:items:XValidation:fieldPath=".operator",rule="!has(self.operator) || self.operator in ['Exists', 'Equal']",message="operator must be Exists or Equal"
	// +kubebuilder:validation:items:XValidation:fieldPath=".value",rule="!has(self.value) || self.value.size() == 0 || !has(self.operator) || self.operator != 'Exists'",message="value must be empty with operator Exists: remove value, or set operator to Equal"
	// +kubebuilder:validation:items:XValidation:fieldPath=".effect",rule="!has(self.effect) || self.effect in ['', 'NoSchedule', 'NoExecute']",message="effect must be NoSchedule, NoExecute, or left out for both"
	Tolerations []resourceapi.DeviceToleration `json:"tolerations,omitempty"`

	// Config is configuration of the devices, passed to each member's claim unchanged. Its entries
	// apply to all devices: requests must be empty.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:XValidation:fieldPath=".requests",reason=FieldValueForbidden,rule="!has(self.requests) || self.requests.size() == 0",message="requests must be empty: a gang has one request, and configuration applies to all of its devices"
	// +kubebuilder:validation:items:XValidation:rule="has(self.opaque)",message="an entry must have the field opaque with driver and parameters"
	// +kubebuilder:validation:items:XValidation:fieldPath=".opaque.driver",rule="!has(self.opaque) || self.opaque.driver.size() > 0 && self.opaque.driver.size() <= 63",message="driver must be the name of a DRA driver, such as gpu.switchyard.dev: 1 to 63 characters"
	Config []resourceapi.DeviceClaimConfiguration `json:"config,omitempty"`

	// PriorityClassName orders this gang among those that wait: a higher priority is planned first.
	// Without it, or if there is no such class, which the gang says while it waits, it has the lowest priority of its pods.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Subdomain().validate(self).hasValue()",message="priorityClassName must be the name of a PriorityClass: lower-case letters, digits, - and ., as kubectl get priorityclasses lists them"
	PriorityClassName string `json:"priorityClassName,omitempty"`

	// SchedulingTimeout is how long a gang whose pods all exist waits for a place. After that it is
	// planned no more until its spec changes or one of its pods is replaced. Default: 10m; 0s waits for ever.
	// +optional
	// +kubebuilder:default="10m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.size() > 0 && self.matches('^([0-9]{1,5}h)?([0-9]{1,7}m)?([0-9]{1,9}([.][0-9]{1,9})?s)?([0-9]{1,9}([.][0-9]{1,6})?ms)?$')",message="schedulingTimeout must be a duration of 0s or more in hours, minutes and seconds, such as 90s, 10m or 1h30m"
	SchedulingTimeout *metav1.Duration `json:"schedulingTimeout,omitempty"`

	// RestartGracePeriod is how long the gang's devices stay reserved after all members run, and after
	// one was lost, so that a member that fails gets its place back. At most 1h, and less where no pod of
	// the gang is left. Default: 5m.
	// +optional
	// +kubebuilder:default="5m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.size() > 0 && self.matches('^([0-9]{1,5}h)?([0-9]{1,7}m)?([0-9]{1,9}([.][0-9]{1,9})?s)?([0-9]{1,9}([.][0-9]{1,6})?ms)?$')",message="restartGracePeriod must be a duration of 0s or more in hours, minutes and seconds, such as 90s, 5m or 1h"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^([0-9]{1,5}h)?([0-9]{1,7}m)?([0-9]{1,9}([.][0-9]{1,9})?s)?([0-9]{1,9}([.][0-9]{1,6})?ms)?$') || self.size() == 0 || duration(self) <= duration('1h')",message="restartGracePeriod must be at most 1h, since it keeps devices from all other gangs: set it to 1h or less"
	RestartGracePeriod *metav1.Duration `json:"restartGracePeriod,omitempty"`

	// Defragmentation says whether pods may be moved to make room for this gang: Never, Plan to report in
	// status.defragmentation what would have to move, or Evict to evict those pods where each of them would
	// find a place elsewhere. Moved are pods with one device that a controller replaces and that have a lower
	// priority, or the label switchyard.dev/movable=true and no higher one. Default: Never.
	// +optional
	// +kubebuilder:default=Never
	Defragmentation DefragmentationPolicy `json:"defragmentation,omitempty"`
}

// GangTopology says which devices of a gang belong together.
type GangTopology struct {
	// Member is what the devices of one member share. Default: NVSwitchDomain.
	// +optional
	// +kubebuilder:default=NVSwitchDomain
	Member MemberScope `json:"member,omitempty"`

	// Gang is what the devices of all members share. Default: Any.
	// +optional
	// +kubebuilder:default=Any
	Gang GangScope `json:"gang,omitempty"`

	// Mode is Required, or Preferred: the best there is, reported in status.plan. Default: Required.
	// +optional
	// +kubebuilder:default=Required
	Mode TopologyMode `json:"mode,omitempty"`
}

// MemberScope is what the devices of one member share.
//
// +kubebuilder:validation:Enum=NVSwitchDomain;NUMANode;PCIeRoot;Node
type MemberScope string

const (
	// MemberNVSwitchDomain means that the devices of a member are in one NVSwitch domain.
	MemberNVSwitchDomain MemberScope = "NVSwitchDomain"
	// MemberNUMANode means that the devices of a member are at one NUMA node.
	MemberNUMANode MemberScope = "NUMANode"
	// MemberPCIeRoot means that the devices of a member are below one PCIe root complex.
	MemberPCIeRoot MemberScope = "PCIeRoot"
	// MemberNode means that the devices of a member are on one node, which Kubernetes requires anyway.
	MemberNode MemberScope = "Node"
)

// GangScope is what the devices of all members share.
//
// +kubebuilder:validation:Enum=NVSwitchDomain;Node;Any
type GangScope string

const (
	// GangNVSwitchDomain means that all devices of the gang are in one NVSwitch domain, which may
	// span nodes.
	GangNVSwitchDomain GangScope = "NVSwitchDomain"
	// GangNode means that all members run on one node.
	GangNode GangScope = "Node"
	// GangAny means that members may be anywhere.
	GangAny GangScope = "Any"
)

// TopologyMode says what happens when no devices share what they should.
//
// +kubebuilder:validation:Enum=Required;Preferred
type TopologyMode string

const (
	// TopologyRequired lets the gang wait.
	TopologyRequired TopologyMode = "Required"
	// TopologyPreferred gives up the gang's scope first, then the members', and says so in status.plan.
	TopologyPreferred TopologyMode = "Preferred"
)

// DefragmentationPolicy says whether pods may be moved to make room for a gang.
//
// +kubebuilder:validation:Enum=Never;Plan;Evict
type DefragmentationPolicy string

const (
	// DefragmentationNever moves nothing.
	DefragmentationNever DefragmentationPolicy = "Never"
	// DefragmentationPlan reports what would have to move.
	DefragmentationPlan DefragmentationPolicy = "Plan"
	// DefragmentationEvict moves it.
	DefragmentationEvict DefragmentationPolicy = "Evict"
)

// GangClaimStatus is what the controller found and decided.
type GangClaimStatus struct {
	// ObservedGeneration is the generation of the spec that the rest of the status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Ready is how many members run, of how many: "1/2".
	// +optional
	Ready string `json:"ready,omitempty"`

	// Domains are the places of the plan, comma-separated: NVSwitch domains, and nodes where devices
	// have none. Of more than five only the first are named: plan.placements has all. "-" without a plan.
	// +optional
	Domains string `json:"domains,omitempty"`

	// WaitingSince is when the members were last found complete without a place: schedulingTimeout
	// counts from it.
	// +optional
	WaitingSince *metav1.MicroTime `json:"waitingSince,omitempty"`

	// TimedOut says for which pods and which spec the scheduling timeout passed: a hash of the
	// generation and the pods' UIDs.
	// +optional
	TimedOut string `json:"timedOut,omitempty"`

	// Attempts is how many plans were made for this GangClaim.
	// +optional
	Attempts int32 `json:"attempts,omitempty"`

	// Started are the UIDs of the pods that were started as members of this run, while they exist: by them a
	// member that has succeeded is told from a pod of an earlier run.
	// +optional
	// +listType=set
	Started []types.UID `json:"started,omitempty"`

	// IdleSince is when a gang that was started was found to have no pod left that has not ended. When none
	// comes, the gang is over some time later, and its devices are not reserved any longer.
	// +optional
	IdleSince *metav1.MicroTime `json:"idleSince,omitempty"`

	// Defragmentation is what would make room for a gang that has no place. Only with spec.defragmentation Plan
	// or Evict.
	// +optional
	Defragmentation *GangDefragmentation `json:"defragmentation,omitempty"`

	// Evictions are the last pods that were evicted to make room for this gang, or that the API server refused
	// to evict, the latest last: limits count them.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	Evictions []GangEviction `json:"evictions,omitempty"`

	// Plan is the assignment of members to devices. That it is written here commits it: fences, the
	// ResourceClaimTemplate and everything else follow from it.
	// +optional
	Plan *GangPlan `json:"plan,omitempty"`

	// Conditions are Planned, Released, Running, Completed and, with spec.defragmentation Plan or Evict,
	// RoomCanBeMade.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// GangPlan is the assignment of members to devices. Members are interchangeable: whichever members the
// scheduler puts on a placement, the others fit the rest.
type GangPlan struct {
	// Hash identifies the plan: 16 hexadecimal digits over the gang's UID, Attempt, the time
	// at which it was committed, and the placements. No two plans have the same.
	Hash string `json:"hash"`

	// Attempt is the number of this plan among those of this GangClaim, from 1: status.attempts when it was made.
	Attempt int32 `json:"attempt"`

	// Members is how many members the plan places: all of the gang, or those to be replaced.
	Members int32 `json:"members"`

	// MemberScope is what the devices of each member share: the scope asked for, or with mode
	// Preferred the best there was.
	MemberScope MemberScope `json:"memberScope"`

	// GangScope is what the devices of all members share, likewise.
	GangScope GangScope `json:"gangScope"`

	// Placements are the devices, by node and domain.
	// +listType=atomic
	Placements []GangPlacement `json:"placements"`

	// Moves are the pods that are evicted to make room for the plan, once its devices are reserved.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Moves []GangMove `json:"moves,omitempty"`

	// EvictingSince is when the pods of Moves could first be evicted.
	// +optional
	EvictingSince *metav1.MicroTime `json:"evictingSince,omitempty"`

	// Step is where the protocol stands with this plan.
	Step GangStep `json:"step"`

	// StepSince is when Step was reached.
	StepSince metav1.MicroTime `json:"stepSince"`

	// DegradedSince is when a member was found to be lost; set with step Holding only, while it is not
	// replaced.
	// +optional
	DegradedSince *metav1.MicroTime `json:"degradedSince,omitempty"`

	// Reason says why the plan is taken back; set with step TakingBack only.
	// +optional
	Reason string `json:"reason,omitempty"`
}

// GangPlacement is the part of a plan on one node and in one domain.
type GangPlacement struct {
	// Node is the node on which the members will run.
	Node string `json:"node"`

	// Pool is the resource pool of the devices.
	Pool string `json:"pool"`

	// Domain is the NVSwitch domain of the devices; empty when they have none, or when the plan's
	// memberScope is not NVSwitchDomain and they have several.
	// +optional
	Domain string `json:"domain,omitempty"`

	// Members is how many members get their devices here.
	Members int32 `json:"members"`

	// WholeDomain says that Devices are all of the class's devices in Domain, on any node of it.
	// +optional
	WholeDomain bool `json:"wholeDomain,omitempty"`

	// WholePool says that Devices and their siblings, with the other placements on the same pool, are all of the
	// pool.
	// +optional
	WholePool bool `json:"wholePool,omitempty"`

	// Devices are the planned devices, members × devicesPerMember of them.
	// +listType=atomic
	Devices []GangDevice `json:"devices"`
}

// GangDevice is a planned device.
type GangDevice struct {
	// Name is the device's name in its pool.
	Name string `json:"name"`
	// ID is the device's attribute id.
	ID string `json:"id"`
	// Siblings are the names of the devices of the pool that cannot be allocated besides the planned ones, as they
	// need the same counters (KEP-4815): partitions of a GPU, and the GPU that a partition is of. They are reserved
	// with the device, and nobody gets them. One that several planned devices exclude is listed with the first.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=128
	Siblings []string `json:"siblings,omitempty"`
}

// MaxSiblings is how many siblings a GangDevice may have. A device that more devices share counters with is
// not planned.
const MaxSiblings = 128

// GangMove is a pod that is in the way of a gang, and where it would find a place.
type GangMove struct {
	// Namespace is that of the pod and of its claim.
	Namespace string `json:"namespace"`
	// Pod is the pod's name, PodUID its UID.
	Pod    string    `json:"pod"`
	PodUID types.UID `json:"podUID"`
	// Claim is the name of the ResourceClaim that has the device, ClaimUID its UID.
	Claim    string    `json:"claim"`
	ClaimUID types.UID `json:"claimUID"`
	// OwnerUID is that of the controller that replaces the pod.
	OwnerUID types.UID `json:"ownerUID"`
	// From is the device that the pod has.
	From GangMovePlace `json:"from"`
	// To is a device on which a replacement of the pod would fit: that it exists was checked. kube-scheduler
	// chooses by itself. Its fields are empty when there is none: the pod is preempted (--defrag-preempt).
	To GangMovePlace `json:"to"`
	// Why says why the pod may be moved.
	Why string `json:"why"`
	// GracePeriodSeconds is how long the pod may take to end.
	// +optional
	GracePeriodSeconds int64 `json:"gracePeriodSeconds,omitempty"`
	// EvictedAt is when the pod was first seen to be evicted; in status.plan only.
	// +optional
	EvictedAt *metav1.MicroTime `json:"evictedAt,omitempty"`
}

// GangMovePlace is a device.
type GangMovePlace struct {
	// Node is the node of the device.
	Node string `json:"node"`
	// Pool is its resource pool, Device its name there.
	Pool   string `json:"pool"`
	Device string `json:"device"`
	// Domain is its NVSwitch domain; empty when it has none.
	// +optional
	Domain string `json:"domain,omitempty"`
}

// GangDefragmentation is what would have to move to make room for a gang, or why moving does not help.
type GangDefragmentation struct {
	// Reason is that of the condition RoomCanBeMade.
	Reason string `json:"reason"`
	// Message is that of the condition RoomCanBeMade.
	Message string `json:"message"`
	// Moves are the cheapest moves after which the gang has a place, and every pod that is moved as well; empty when
	// there are none.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Moves []GangMove `json:"moves,omitempty"`
	// Domains are the NVSwitch domains, or nodes where devices have none, that the gang would get.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	Domains []string `json:"domains,omitempty"`
	// Cost is what Moves cost: how many pods, how important they are together, and what they lose together.
	// +optional
	Cost string `json:"cost,omitempty"`
	// RuledOut are the pods that were not considered, by reason.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	RuledOut []GangRuledOut `json:"ruledOut,omitempty"`
}

// GangRuledOut are pods that have devices and are not to be moved, for one reason.
type GangRuledOut struct {
	// Reason is why, in one word.
	Reason string `json:"reason"`
	// Pods is how many there are.
	Pods int32 `json:"pods"`
	// Example is the first of them by namespace and name, with more of why.
	Example string `json:"example"`
}

// GangEviction is a pod that was evicted to make room for a gang, or was not.
type GangEviction struct {
	// Time is when it was noticed.
	Time metav1.MicroTime `json:"time"`
	// Namespace and Pod name the pod, OwnerUID is that of the controller that replaces it.
	Namespace string    `json:"namespace"`
	Pod       string    `json:"pod"`
	OwnerUID  types.UID `json:"ownerUID"`
	// Outcome is what came of it.
	Outcome EvictionOutcome `json:"outcome"`
}

// EvictionOutcome is what came of the eviction of a pod for a gang.
//
// +kubebuilder:validation:Enum=Evicted;Succeeded;Failed;Refused
type EvictionOutcome string

const (
	// EvictionMade means that the pod was evicted, and the gang is not started yet.
	EvictionMade EvictionOutcome = "Evicted"
	// EvictionSucceeded means that the gang was started on the devices.
	EvictionSucceeded EvictionOutcome = "Succeeded"
	// EvictionFailed means that the pod was evicted in vain: the plan was taken back.
	EvictionFailed EvictionOutcome = "Failed"
	// EvictionRefused means that the API server did not evict the pod.
	EvictionRefused EvictionOutcome = "Refused"
)

// GangStep is a step of the protocol that starts a gang.
//
// +kubebuilder:validation:Enum=Fencing;Quiescing;Evicting;Releasing;Starting;Holding;Unfencing;TakingBack
type GangStep string

const (
	// StepFencing makes the taint rules.
	StepFencing GangStep = "Fencing"
	// StepQuiescing waits until the scheduler has decided on pods that it may have given a planned
	// device before it saw the fence.
	StepQuiescing GangStep = "Quiescing"
	// StepEvicting evicts the pods of status.plan.moves and waits until their claims have given the devices back.
	StepEvicting GangStep = "Evicting"
	// StepReleasing makes the ResourceClaimTemplate, deletes it when the members have their claims, and
	// waits until these are allocated on the plan.
	StepReleasing GangStep = "Releasing"
	// StepStarting has marked the claims ready and waits until all members run.
	StepStarting GangStep = "Starting"
	// StepHolding keeps the fence for the restart grace period.
	StepHolding GangStep = "Holding"
	// StepUnfencing has taken the effect from the taint rules and deletes them a second later; without
	// rules it is the rest of the gang's life.
	StepUnfencing GangStep = "Unfencing"
	// StepTakingBack deletes template, claims and fences, in this order, before the gang is planned anew.
	StepTakingBack GangStep = "TakingBack"
)

// Types of a GangClaim's conditions.
const (
	// ConditionPlanned is True while there is a plan; else its reason and message say what is missing.
	ConditionPlanned = "Planned"
	// ConditionReleased is True when every member's claim was seen allocated on the plan.
	ConditionReleased = "Released"
	// ConditionRunning is True while all members run. Its reason is the state of the gang in one word.
	ConditionRunning = "Running"
	// ConditionRoomCanBeMade is True while moving pods would give a gang without a place one, or they are being
	// moved. It exists only with spec.defragmentation Plan or Evict.
	ConditionRoomCanBeMade = "RoomCanBeMade"
	// ConditionCompleted is True when all members have ended and the gang's claims are gone.
	ConditionCompleted = "Completed"
)
