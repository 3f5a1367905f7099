// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/fragmentation"
	"github.com/switchyard-dev/switchyard/pkg/gang"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

func TestFragmentationIsToldForTheSizeOfTheGang(t *testing.T) {
	domains := []fragmentation.Domain{
		{Name: "a.0", Node: "a", Total: 4, Free: 3, InUse: 1},
		{Name: "a.1", Node: "a", Total: 4, Free: 4},
	}
	for name, test := range map[string]struct {
		topology v1alpha1.GangTopology
		want     string
	}{
		"each member in a domain: the size is a member's": {
			v1alpha1.GangTopology{Member: v1alpha1.MemberNVSwitchDomain, Gang: v1alpha1.GangAny},
			"7 of 8 GPUs are free, at most 4 in one NVSwitch domain; 1 blocks of 4 in one domain are free, F(4) = 0.43",
		},
		"all in one domain: the size is the gang's": {
			v1alpha1.GangTopology{Member: v1alpha1.MemberNVSwitchDomain, Gang: v1alpha1.GangNVSwitchDomain}, "0 blocks of 8 in one domain are free, F(8) = 1.00",
		},
		"no matter where: nothing": {v1alpha1.GangTopology{Member: v1alpha1.MemberNode, Gang: v1alpha1.GangAny}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			claim := gangNamed("gang")
			claim.Spec.Members, claim.Spec.DevicesPerMember, claim.Spec.Topology = 2, 4, test.topology
			if got := fragmented(claim, domains); !strings.Contains(got, test.want) || (got == "") != (test.want == "") {
				t.Errorf("says %q, want %q", got, test.want)
			}
		})
	}
}

func TestAPriorityClassThatDoesNotExistIsReported(t *testing.T) {
	o := &observer{cached: fakeAPI(t, interceptor.Funcs{}), cluster: placement.NewCluster()}
	claim := gangNamed("gang")
	claim.Spec.PriorityClassName = "missing"
	refusal := &placement.Refusal{Reason: placement.ReasonNodesFull, Message: "no room."}
	got := o.explain(t.Context(), gang.Observation{Claim: claim}, placement.Decision{Refusal: refusal})
	if !strings.Contains(got.Refusal.Message, "PriorityClass missing does not exist") {
		t.Errorf("says %q", got.Refusal.Message)
	}
	if refusal.Message != "no room." {
		t.Error("the planner's own answer was changed")
	}
}
