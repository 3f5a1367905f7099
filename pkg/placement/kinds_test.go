// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"context"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

func TestTheAllocatorIsAskedOnceAboutNodesOfOneKind(t *testing.T) {
	on := func(node, device string) v1alpha1.GangPlacement {
		return v1alpha1.GangPlacement{Node: node, Pool: node, Members: 1, Devices: []v1alpha1.GangDevice{{Name: device, ID: node + device}}}
	}
	taint := func(effect resourceapi.DeviceTaintEffect) func(*Cluster) {
		return func(c *Cluster) {
			c.SetRule(&resourceapi.DeviceTaintRule{Spec: resourceapi.DeviceTaintRuleSpec{
				DeviceSelector: &resourceapi.DeviceTaintSelector{Driver: ptr.To(v1alpha1.DriverName), Pool: ptr.To("b"), Device: ptr.To("y")},
				Taint:          resourceapi.DeviceTaint{Key: "k", Effect: effect},
			}})
		}
	}
	slice := func(change func(*resourceapi.ResourceSlice)) func(*Cluster) {
		return func(c *Cluster) {
			s := c.slices["b"].object.DeepCopy()
			change(s)
			c.SetSlice(s)
		}
	}
	placements := []v1alpha1.GangPlacement{on("a", "x"), on("b", "x")}
	tests := map[string]struct {
		placements []v1alpha1.GangPlacement
		scope      v1alpha1.MemberScope
		change     func(*Cluster)
		same       bool
	}{
		"names and ids do not matter":     {placements: placements, same: true},
		"which device is planned does":    {placements: []v1alpha1.GangPlacement{on("a", "x"), on("b", "y")}},
		"what the selector names does":    {placements: []v1alpha1.GangPlacement{on("a", "x"), {Node: "b", Pool: "b", Members: 1, Devices: []v1alpha1.GangDevice{{Name: "x", ID: "other"}}}}},
		"a taint does":                    {placements: placements, change: taint(resourceapi.DeviceTaintEffectNoSchedule)},
		"a taint without effect does not": {placements: placements, change: taint(resourceapi.DeviceTaintEffectNone), same: true},
		"a device more does": {placements: placements, change: slice(func(s *resourceapi.ResourceSlice) {
			s.Spec.Devices = append(s.Spec.Devices, resourceapi.Device{Name: "z"})
		})},
		"another attribute does not": {placements: placements, change: slice(func(s *resourceapi.ResourceSlice) {
			s.Spec.Devices[1].Attributes["color"] = resourceapi.DeviceAttribute{StringValue: ptr.To("red")}
		}), same: true},
		"not one that members need not share": {placements: placements, scope: v1alpha1.MemberNode, same: true, change: slice(func(s *resourceapi.ResourceSlice) {
			s.Spec.Devices[1].Attributes["resource.kubernetes.io/numaNode"] = resourceapi.DeviceAttribute{IntValue: ptr.To(int64(1))}
		})},
		"but one that members share": {placements: placements, scope: v1alpha1.MemberNUMANode, change: slice(func(s *resourceapi.ResourceSlice) {
			s.Spec.Devices[1].Attributes["resource.kubernetes.io/numaNode"] = resourceapi.DeviceAttribute{IntValue: ptr.To(int64(1))}
		})},
		"an allocated device does": {placements: placements, change: func(c *Cluster) {
			c.SetClaim(&resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
				Results: []resourceapi.DeviceRequestAllocationResult{{Driver: v1alpha1.DriverName, Pool: "b", Device: "y"}},
			}}}})
		}},
		"devices that claims may share are like no other": {placements: placements, change: slice(func(s *resourceapi.ResourceSlice) { s.Spec.Devices[1].AllowMultipleAllocations = ptr.To(true) })},
		"an incomplete pool is like no other":             {placements: placements, change: slice(func(s *resourceapi.ResourceSlice) { s.Spec.Pool.ResourceSliceCount = 2 })},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c := oracleCluster("a", "b")
			if test.change != nil {
				test.change(c)
			}
			claim := &v1alpha1.GangClaim{Spec: v1alpha1.GangClaimSpec{DeviceClassName: "all", DevicesPerMember: 1}}
			plan := &v1alpha1.GangPlan{MemberScope: test.scope, Placements: test.placements}
			p := planner{Cluster: c, cost: planCost}
			v, refusal := p.evaluated(context.Background(), claim)
			if refusal != nil {
				t.Fatal(refusal.Message)
			}
			asked := c.questions(v, plan, ClaimSpec(claim, plan)).nodes
			if got := asked[0].kind == asked[1].kind; got != test.same {
				t.Errorf("same kind: %v, want %v: %q and %q", got, test.same, asked[0].kind, asked[1].kind)
			}
		})
	}
}
