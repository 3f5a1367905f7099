// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/resourcemodel"
)

// RequestName is the name of the one request in the claims of a gang.
const RequestName = "devices"

// ClaimSpec translates a plan into the claim that each member gets; all of them are the same. It asks
// for devicesPerMember devices out of those planned and no others, which share what the plan's
// memberScope says, and tolerates the fence of this gang only.
//
// The selector of the planned devices comes first: the GangClaim's own selectors are then evaluated on
// planned devices only.
func ClaimSpec(claim *v1alpha1.GangClaim, plan *v1alpha1.GangPlan) resourceapi.ResourceClaimSpec {
	request := resourceapi.ExactDeviceRequest{
		DeviceClassName: claim.Spec.DeviceClassName,
		Selectors:       slices.Concat([]resourceapi.DeviceSelector{selectorOf(plan)}, claim.Spec.Selectors),
		AllocationMode:  resourceapi.DeviceAllocationModeExactCount,
		Count:           int64(claim.Spec.DevicesPerMember),
		Tolerations:     slices.Concat(claim.Spec.Tolerations, []resourceapi.DeviceToleration{ownFence(claim.UID)}),
	}
	spec := resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
		Requests: []resourceapi.DeviceRequest{{Name: RequestName, Exactly: &request}},
		Config:   slices.Clone(claim.Spec.Config),
	}}
	if attribute := scopeAttribute(plan.MemberScope); attribute != "" {
		spec.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: ptr.To(attribute)}}
	}
	return spec
}

// scopeAttribute is the attribute that devices of a scope share; empty for a node, which they share
// anyway.
func scopeAttribute(scope v1alpha1.MemberScope) resourceapi.FullyQualifiedName {
	switch scope {
	case v1alpha1.MemberNVSwitchDomain:
		return resourceapi.FullyQualifiedName(v1alpha1.DriverName + "/" + resourcemodel.AttributeNVSwitchDomain)
	case v1alpha1.MemberNUMANode:
		return resourceapi.FullyQualifiedName(resourcemodel.AttributeNUMANode)
	case v1alpha1.MemberPCIeRoot:
		return resourceapi.FullyQualifiedName(resourcemodel.AttributePCIeRoot)
	default:
		return ""
	}
}

// selectorOf selects exactly the devices of a plan: whole domains by their name, which is shorter, the
// others one by one. It reads attributes that may be absent, on devices of any driver: an error would
// abort the scheduling of the pod.
func selectorOf(plan *v1alpha1.GangPlan) resourceapi.DeviceSelector {
	var domains, ids []string
	for _, p := range plan.Placements {
		if p.WholeDomain {
			domains = append(domains, p.Domain)
			continue
		}
		for _, d := range p.Devices {
			ids = append(ids, d.ID)
		}
	}
	var either []string
	if len(domains) > 0 {
		either = append(either, oneOf(resourcemodel.AttributeNVSwitchDomain, domains))
	}
	if len(ids) > 0 {
		either = append(either, oneOf(resourcemodel.AttributeID, ids))
	}
	planned := strings.Join(either, " || ")
	switch len(either) {
	case 0:
		planned = "false"
	case 2:
		planned = "(" + planned + ")"
	}
	return resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{
		Expression: fmt.Sprintf("device.driver == %q && %s", v1alpha1.DriverName, planned),
	}}
}

func oneOf(attribute resourceapi.QualifiedName, values []string) string {
	slices.Sort(values)
	values = slices.Compact(values)
	quoted := make([]string, len(values))
	for i, v := range values {
		quoted[i] = strconv.Quote(v)
	}
	return fmt.Sprintf("device.attributes[%q].?%s.orValue(\"\") in [%s]", v1alpha1.DriverName, attribute, strings.Join(quoted, ", "))
}

const (
	// cheapDomains and cheapIDs are how many values of the greatest length are certainly accepted in
	// the selector of a plan. Estimating its cost takes as long as compiling it.
	cheapDomains = 64
	cheapIDs     = 320
)

// checkSelector checks the selector of a plan against the limits by which the API server accepts it:
// length and estimated cost (KEP-4381).
func checkSelector(plan *v1alpha1.GangPlan, spec resourceapi.ResourceClaimSpec) error {
	domains, ids := 0, 0
	for _, p := range plan.Placements {
		if p.WholeDomain {
			domains++
		} else {
			ids += len(p.Devices)
		}
	}
	if domains <= cheapDomains && ids <= cheapIDs {
		return nil
	}
	return checkExpression(spec.Devices.Requests[0].Exactly.Selectors[0].CEL.Expression)
}

// checkExpression checks a selector against the same limits.
func checkExpression(expression string) error {
	if len(expression) > resourceapi.CELSelectorExpressionMaxLength {
		return fmt.Errorf("is %d bytes long, %d are allowed", len(expression), resourceapi.CELSelectorExpressionMaxLength)
	}
	result := cel.GetCompiler(celFeatures).CompileCELExpression(expression, cel.Options{})
	switch {
	case result.Error != nil:
		return fmt.Errorf("does not compile: %w", result.Error)
	case result.MaxCost == math.MaxUint64:
		return errors.New("has no bound on its cost")
	case result.MaxCost > resourceapi.CELSelectorExpressionMaxCost:
		return fmt.Errorf("may cost %d, %d are allowed", result.MaxCost, uint64(resourceapi.CELSelectorExpressionMaxCost))
	}
	return nil
}
