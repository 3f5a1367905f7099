// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// planWith has whole domains with names of the greatest length, and single devices.
func planWith(domains, ids int) *v1alpha1.GangPlan {
	plan := &v1alpha1.GangPlan{}
	for i := range domains {
		plan.Placements = append(plan.Placements, v1alpha1.GangPlacement{WholeDomain: true, Domain: strings.Repeat("d", 60) + fmt.Sprintf("%04d", i)})
	}
	single := v1alpha1.GangPlacement{}
	for i := range ids {
		single.Devices = append(single.Devices, v1alpha1.GangDevice{ID: fmt.Sprintf("%08d", i)})
	}
	plan.Placements = append(plan.Placements, single)
	return plan
}

func TestSelectorLimits(t *testing.T) {
	tests := map[string]struct {
		domains, ids int
		want         string
	}{
		"what is not checked is certainly accepted": {cheapDomains, cheapIDs, ""},
		"more may be accepted too":                  {100, 100, ""},
		"a selector of more than 10 KiB is refused": {200, 0, "bytes long, 10240 are allowed"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			err := checkExpression(selectorOf(planWith(test.domains, test.ids)).CEL.Expression)
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("error %v, want %q", err, test.want)
			}
		})
	}
	plan := planWith(200, 0)
	if err := checkSelector(plan, ClaimSpec(&v1alpha1.GangClaim{}, plan)); err == nil {
		t.Error("a plan with too long a selector passes")
	}
	if err := checkSelector(planWith(1, 1), resourceapi.ResourceClaimSpec{}); err != nil {
		t.Errorf("a small plan is checked: %v", err)
	}
	for _, expression := range []string{"device.", `[1,2,3,4,5,6,7,8,9].all(a, [1,2,3,4,5,6,7,8,9].all(b, [1,2,3,4,5,6,7,8,9].all(c, device.attributes.all(d, device.attributes[d].all(e, e != d)))))`} {
		if err := checkExpression(expression); err == nil {
			t.Errorf("%s is accepted", expression)
		}
	}
}

func TestClaimSpec(t *testing.T) {
	claim := &v1alpha1.GangClaim{Spec: v1alpha1.GangClaimSpec{
		Members: 2, DevicesPerMember: 4, DeviceClassName: "gpus",
		Selectors:   []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: "true"}}},
		Tolerations: []resourceapi.DeviceToleration{{Key: "mine", Operator: resourceapi.DeviceTolerationOpExists}},
		Config:      []resourceapi.DeviceClaimConfiguration{{}},
	}}
	claim.UID = types.UID("uid-1")
	plan := &v1alpha1.GangPlan{MemberScope: v1alpha1.MemberNVSwitchDomain, Placements: []v1alpha1.GangPlacement{
		{Domain: "node-b.1", WholeDomain: true, Devices: []v1alpha1.GangDevice{{ID: "zz"}}},
		{Domain: "node-a.0", Devices: []v1alpha1.GangDevice{{ID: "b"}, {ID: "a"}}},
	}}
	spec := ClaimSpec(claim, plan)
	exactly := spec.Devices.Requests[0].Exactly
	want := `device.driver == "gpu.switchyard.dev" && ` +
		`(device.attributes["gpu.switchyard.dev"].?nvswitchDomain.orValue("") in ["node-b.1"] || ` +
		`device.attributes["gpu.switchyard.dev"].?id.orValue("") in ["a", "b"])`
	if got := exactly.Selectors[0].CEL.Expression; got != want {
		t.Errorf("selector\n%s, want\n%s", got, want)
	}
	if exactly.Selectors[1].CEL.Expression != "true" || exactly.Count != 4 || exactly.DeviceClassName != "gpus" || len(spec.Devices.Config) != 1 {
		t.Errorf("what the GangClaim says is not passed on: %+v", spec)
	}
	tolerations := []resourceapi.DeviceToleration{
		{Key: "mine", Operator: resourceapi.DeviceTolerationOpExists},
		{Key: "switchyard.dev/reserved", Operator: resourceapi.DeviceTolerationOpEqual, Value: "uid-1", Effect: resourceapi.DeviceTaintEffectNoSchedule},
	}
	if diff := cmp.Diff(tolerations, exactly.Tolerations); diff != "" {
		t.Errorf("tolerations differ: %s", diff)
	}
	for scope, want := range map[v1alpha1.MemberScope]string{
		v1alpha1.MemberNVSwitchDomain: "gpu.switchyard.dev/nvswitchDomain",
		v1alpha1.MemberNUMANode:       "resource.kubernetes.io/numaNode",
		v1alpha1.MemberPCIeRoot:       "resource.kubernetes.io/pcieRoot",
		v1alpha1.MemberNode:           "",
	} {
		got := ""
		for _, constraint := range ClaimSpec(claim, &v1alpha1.GangPlan{MemberScope: scope}).Devices.Constraints {
			got = string(*constraint.MatchAttribute)
		}
		if got != want {
			t.Errorf("members share a %s: constraint %q, want %q", scope, got, want)
		}
	}
	if got := selectorOf(&v1alpha1.GangPlan{}).CEL.Expression; !strings.HasSuffix(got, "&& false") {
		t.Errorf("an empty plan selects %s", got)
	}
}
