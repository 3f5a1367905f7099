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
)

// GroupVersion is the group and version of every type in this package.
var GroupVersion = schema.GroupVersion{Group: GroupName, Version: Version}
