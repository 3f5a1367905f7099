// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// Problem says why a device of a gang's plan cannot be used as planned, or is empty. noClass says that the
// gang's DeviceClass is gone, unusable that the placement's node cannot take the members.
func Problem(claim *v1alpha1.GangClaim, p v1alpha1.GangPlacement, d v1alpha1.GangDevice, state placement.DeviceState, noClass, unusable bool) DeviceProblem {
	switch {
	case state.Unknown: // its pool is being updated: who has it keeps it
		return ""
	case state.Gone:
		return DeviceGone
	case p.Domain != "" && state.Domain != p.Domain, state.ID != d.ID:
		return DeviceMoved
	case !tolerated(state.Tainted(claim.UID), claim.Spec.Tolerations):
		return DeviceTainted
	case state.Unfenced:
		return DevicePartitioned
	case noClass, state.NotSelected:
		return DeviceNotSelected
	case unusable:
		return DeviceNodeUnusable
	default:
		return ""
	}
}

func tolerated(taints []resourceapi.DeviceTaint, tolerations []resourceapi.DeviceToleration) bool {
	for _, taint := range taints {
		if !slices.ContainsFunc(tolerations, func(t resourceapi.DeviceToleration) bool { return resourceclaim.ToleratesTaint(t, taint) }) {
			return false
		}
	}
	return true
}
