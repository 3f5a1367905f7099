// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"fmt"
	"math"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// Reasons why a claim will not be allocated, whatever becomes free.
const (
	reasonNoSuchAttribute = "NoSuchAttribute"
	reasonTooManyDevices  = "TooManyDevices"
)

// fault names what has to be corrected in a claim before any devices can suit it; false where there is nothing.
func (x *explainer) fault(claim *resourceapi.ResourceClaim) (explanation, bool) {
	const again = "the spec of a claim cannot change: correct the ResourceClaimTemplate, or what made the claim, and create the pod anew"
	devices := claim.Spec.Devices
	for path, class := range classesOf(devices) {
		if _, there := find(x.classes, "", class); !there {
			return explanation{Reason: string(placement.ReasonNoSuchClass), Message: fmt.Sprintf("%s: there is no DeviceClass %s", path, class), Help: again}, true
		}
	}
	for i, constraint := range devices.Constraints {
		for field, attribute := range map[string]*resourceapi.FullyQualifiedName{"matchAttribute": constraint.MatchAttribute, "distinctAttribute": constraint.DistinctAttribute} {
			if attribute != nil && !x.published(*attribute) {
				return explanation{
					Reason:  reasonNoSuchAttribute,
					Message: fmt.Sprintf("spec.devices.constraints[%d].%s: no device has an attribute %s; docs/reference/attributes.md lists those of GPUs", i, field, *attribute),
					Help:    again,
				}, true
			}
		}
	}
	if count := exactCount(devices); count > resourceapi.AllocationResultsMaxSize {
		return explanation{
			Reason:  reasonTooManyDevices,
			Message: fmt.Sprintf("asks for %d devices; a ResourceClaim can have %d", count, resourceapi.AllocationResultsMaxSize),
			Help:    "ask for fewer, in several pods with a claim each",
		}, true
	}
	return explanation{}, false
}

// classesOf yields the DeviceClasses that a claim names, each with the path of the field.
func classesOf(devices resourceapi.DeviceClaim) func(yield func(path, class string) bool) {
	return func(yield func(path, class string) bool) {
		for i, request := range devices.Requests {
			if request.Exactly != nil && !yield(fmt.Sprintf("spec.devices.requests[%d].exactly.deviceClassName", i), request.Exactly.DeviceClassName) {
				return
			}
			for j, alternative := range request.FirstAvailable {
				if !yield(fmt.Sprintf("spec.devices.requests[%d].firstAvailable[%d].deviceClassName", i, j), alternative.DeviceClassName) {
					return
				}
			}
		}
	}
}

// published says whether a device of any driver has the attribute; where there are no devices, it is taken to.
func (x *explainer) published(attribute resourceapi.FullyQualifiedName) bool {
	devices := 0
	domain, name, _ := strings.Cut(string(attribute), "/")
	for _, slice := range x.slices {
		for _, d := range slice.Spec.Devices {
			devices++
			if _, has := d.Attributes[resourceapi.QualifiedName(attribute)]; has {
				return true
			}
			if _, has := d.Attributes[resourceapi.QualifiedName(name)]; has && domain == slice.Spec.Driver {
				return true
			}
		}
	}
	return devices == 0
}

// exactCount is how many devices a claim asks for by number.
func exactCount(devices resourceapi.DeviceClaim) int64 {
	var sum int64
	for _, request := range devices.Requests {
		if exactly := request.Exactly; exactly != nil && exactly.AllocationMode != resourceapi.DeviceAllocationModeAll && !ptr.Deref(exactly.AdminAccess, false) {
			sum += min(max(exactly.Count, 1), math.MaxInt64/resourceapi.DeviceRequestsMaxSize)
		}
	}
	return sum
}

// inClaim says of a ResourceClaim what the planner says of the GangClaim that stands for it.
func inClaim(message string) string {
	if rest, is := strings.CutPrefix(message, "spec.selectors"); is {
		return "spec.devices.requests[0].exactly.selectors" + rest
	}
	return message
}
