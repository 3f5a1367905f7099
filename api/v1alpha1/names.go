// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import "k8s.io/apimachinery/pkg/runtime/schema"

const (
	// DriverName is the name of the DRA driver: in ResourceSlices, DeviceClasses, allocation results,
	// attribute domains and the kubelet's plugin directories.
	DriverName = "gpu.switchyard.dev"

	// GroupName is the API group of every type in this package.
	GroupName = "switchyard.dev"

	// Version is the API version of every type in this package.
	Version = "v1alpha1"

	// APIVersion is the apiVersion that opaque device configurations carry.
	APIVersion = GroupName + "/" + Version

	// GPUConfigKind is the kind of the opaque configuration of whole GPUs.
	GPUConfigKind = "GPUConfig"

	// MIGConfigKind is the kind of the opaque configuration of MIG partitions.
	MIGConfigKind = "MIGConfig"

	// NodeConfigKind is the kind of the node plugin's configuration file.
	NodeConfigKind = "NodeConfig"

	// GangClaimKind is the kind of the statement of what a gang needs.
	GangClaimKind = "GangClaim"
)

const (
	// ReservedTaintKey is the key of the taint that fences planned devices. Its value is the UID of
	// the GangClaim, its effect NoSchedule.
	ReservedTaintKey = GroupName + "/reserved"

	// MovableLabel on a Pod, with the value "true", says that the pod may be evicted to make room for a gang of the
	// same or a higher priority, when it would find a place elsewhere.
	MovableLabel = GroupName + "/movable"

	// GangLabel is on every object made for a gang: DeviceTaintRules, the ResourceClaimTemplate and
	// the ResourceClaims made from it. Its value is the UID of the GangClaim.
	GangLabel = GroupName + "/gang"

	// PlanLabel is on the same objects. Its value is the hash of the plan they belong to.
	PlanLabel = GroupName + "/plan"

	// ReadyAnnotation on a ResourceClaim of a gang opens the start gate: its value is the hash of the
	// plan on which every member's claim was seen allocated. The node plugin prepares a claim that has
	// GangLabel only when the annotation's value is that of its PlanLabel.
	ReadyAnnotation = GroupName + "/ready"

	// GangClaimAnnotation on every object made for a gang is the namespace and the name of the GangClaim,
	// "namespace/name", for people and for messages. What decides is GangLabel.
	GangClaimAnnotation = GroupName + "/gangclaim"

	// TouchedAnnotation on a Pod or a DeviceTaintRule is what the controller did to the object last, and when:
	// "created", "touched" or "neutralized", a space, and a time of RFC 3339 with nanoseconds. Writing it makes other
	// controllers look at the object again; by its time the controller waits before it acts again.
	TouchedAnnotation = GroupName + "/touched"
)

// GroupVersion is the group and version of every type in this package.
var GroupVersion = schema.GroupVersion{Group: GroupName, Version: Version}
