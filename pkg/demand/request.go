// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/device"
)

// classSuffix ends the names of the DeviceClasses that come with the driver; those of parts are for parts of a GPU.
const classSuffix = "." + v1alpha1.DriverName

var partClasses = []string{"mig" + classSuffix, "share" + classSuffix}

// wholeGPUs says of a class by its name that its devices are whole GPUs of the driver. What a class of another name
// selects is seen in what is allocated of it.
func wholeGPUs(class string) bool {
	return class == v1alpha1.DriverName || strings.HasSuffix(class, classSuffix) && !slices.Contains(partClasses, class)
}

// sizeOf is how many whole GPUs a claim asks for, on one node; 0 where it asks for none, or for more than a claim can have, or
// it is not known. Of alternatives the first counts, which is what was wanted.
func sizeOf(claim *resourceapi.ResourceClaim) int {
	size := int64(0)
	for _, r := range claim.Spec.Devices.Requests {
		class, mode, count := "", resourceapi.DeviceAllocationMode(""), int64(0)
		switch {
		case r.Exactly != nil && !ptr.Deref(r.Exactly.AdminAccess, false):
			class, mode, count = r.Exactly.DeviceClassName, r.Exactly.AllocationMode, r.Exactly.Count
		case len(r.FirstAvailable) > 0:
			first := r.FirstAvailable[0]
			class, mode, count = first.DeviceClassName, first.AllocationMode, first.Count
		}
		if wholeGPUs(class) && mode != resourceapi.DeviceAllocationModeAll {
			size += min(max(count, 1), resourceapi.AllocationResultsMaxSize+1) // there are 32 requests at most
		}
	}
	if size > resourceapi.AllocationResultsMaxSize {
		return 0
	}
	if size > 0 {
		return int(size)
	}
	return len(wholeDevices(claim))
}

// wholeDevices are the whole GPUs of the driver that are allocated to a claim.
func wholeDevices(claim *resourceapi.ResourceClaim) []resourceapi.DeviceRequestAllocationResult {
	if claim.Status.Allocation == nil {
		return nil
	}
	var list []resourceapi.DeviceRequestAllocationResult
	for _, r := range claim.Status.Allocation.Devices.Results {
		if _, partition := device.ParsePartitionName(r.Device); r.Driver == v1alpha1.DriverName && !partition && r.ShareID == nil && !ptr.Deref(r.AdminAccess, false) {
			list = append(list, r)
		}
	}
	return list
}

// poolOf is the pool of the first GPU that is allocated to a claim.
func poolOf(claim *resourceapi.ResourceClaim) string {
	if list := wholeDevices(claim); len(list) > 0 {
		return list[0].Pool
	}
	return ""
}

// podOf is the pod that a claim was made for, if it was.
func podOf(claim *resourceapi.ResourceClaim) types.UID {
	if c := metav1.GetControllerOfNoCopy(claim); c != nil && c.Kind == "Pod" && c.APIVersion == "v1" {
		return c.UID
	}
	return ""
}

// plansGPUs says that a gang has a plan of whole GPUs.
func plansGPUs(gang *v1alpha1.GangClaim) bool {
	plan := gang.Status.Plan
	if plan == nil || len(plan.Placements) == 0 || len(plan.Placements[0].Devices) == 0 {
		return false
	}
	_, partition := device.ParsePartitionName(plan.Placements[0].Devices[0].Name)
	return !partition
}

// roomsOf is how many rooms a gang needs, of how many GPUs each: one for all where all devices share a domain or a node,
// else one for each member.
func roomsOf(gang *v1alpha1.GangClaim) (rooms, size int) {
	spec := gang.Spec
	members, each := int(spec.Members), int(spec.DevicesPerMember)
	if spec.Topology.Gang == v1alpha1.GangNVSwitchDomain || spec.Topology.Gang == v1alpha1.GangNode {
		return 1, members * each
	}
	return members, each
}
