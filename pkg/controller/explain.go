// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"

	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/fragmentation"
	"github.com/switchyard-dev/switchyard/pkg/gang"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// explain adds to why a gang has no place what the planner does not know of: a PriorityClass that does not exist.
func (o *observer) explain(ctx context.Context, observation gang.Observation, answer placement.Decision) *placement.Decision {
	if answer.Refusal == nil {
		return &answer
	}
	refusal := *answer.Refusal
	answer.Refusal = &refusal
	if name := observation.Claim.Spec.PriorityClassName; name != "" {
		err := o.cached.Get(ctx, types.NamespacedName{Name: name}, &schedulingv1.PriorityClass{})
		if apierrors.IsNotFound(err) {
			refusal.Message += fmt.Sprintf(" spec.priorityClassName: PriorityClass %s does not exist, the priority is the lowest of the pods': "+
				"create it, or remove the field.", name)
		}
	}
	return &answer
}

// fragmented says what the free devices of the cluster are worth to gangs like this one; nothing where they
// need not share a domain.
func fragmented(claim *v1alpha1.GangClaim, domains []fragmentation.Domain) string {
	size := int(claim.Spec.DevicesPerMember)
	switch {
	case claim.Spec.Topology.Gang == v1alpha1.GangNVSwitchDomain:
		size *= int(claim.Spec.Members)
	case claim.Spec.Topology.Member != v1alpha1.MemberNVSwitchDomain:
		return ""
	}
	m := fragmentation.Measure(domains, []int{size}).Cluster
	if len(m.Gangs) == 0 || m.Free == 0 {
		return ""
	}
	return fmt.Sprintf(" Fragmentation of the cluster: %d of %d GPUs are free, at most %d in one NVSwitch domain; %d blocks of %d in one domain "+
		"are free, F(%d) = %.2f.", m.Free, m.Total, m.LargestFreeBlock, m.Gangs[0].Runnable, size, size, m.Gangs[0].Fragmentation)
}
