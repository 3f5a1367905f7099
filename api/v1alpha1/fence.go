// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

// ToleratesFence reports whether a claim could be given devices that are kept for a gang: whether one of
// its requests, or of the alternatives of one, tolerates the taint switchyard.dev/reserved, by name or
// by tolerating every taint. The path is that of the first such toleration, relative to spec, for
// example devices.requests[0].exactly.tolerations[1].
//
// A request with adminAccess is left out: it takes no device from anybody.
//
// An admission policy (deployments/manifests/fence-policy.yaml) refuses such claims and templates when
// they are created, by the same rule; those that are older are found with this function. The gangs' own
// templates and claims tolerate their fence, of course.
func ToleratesFence(spec resourceapi.ResourceClaimSpec) (path string, tolerates bool) {
	for i, request := range spec.Devices.Requests {
		requestPath := field.NewPath("devices", "requests").Index(i)
		if exactly := request.Exactly; exactly != nil && !ptr.Deref(exactly.AdminAccess, false) {
			if j, found := fenceToleration(exactly.Tolerations); found {
				return requestPath.Child("exactly", "tolerations").Index(j).String(), true
			}
		}
		for k, alternative := range request.FirstAvailable {
			if j, found := fenceToleration(alternative.Tolerations); found {
				return requestPath.Child("firstAvailable").Index(k).Child("tolerations").Index(j).String(), true
			}
		}
	}
	return "", false
}

// fenceToleration finds the first toleration that matches the fence of some gang. An empty key matches
// every key. The effect and the value are not looked at: a toleration that names the key and cannot
// match today's fences has no use.
func fenceToleration(tolerations []resourceapi.DeviceToleration) (index int, found bool) {
	for i, toleration := range tolerations {
		if toleration.Key == "" || toleration.Key == ReservedTaintKey {
			return i, true
		}
	}
	return 0, false
}
