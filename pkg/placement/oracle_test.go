// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// oracleCluster has nodes with two devices each, all of the class.
func oracleCluster(nodes ...string) *Cluster {
	c := NewCluster()
	c.SetClass(&resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "all"}})
	for _, name := range nodes {
		c.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
		s := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.ResourceSliceSpec{
			Driver: v1alpha1.DriverName, NodeName: ptr.To(name), Pool: resourceapi.ResourcePool{Name: name, ResourceSliceCount: 1},
		}}
		for _, device := range []string{"x", "y"} {
			s.Spec.Devices = append(s.Spec.Devices, resourceapi.Device{Name: device, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				"id": {StringValue: ptr.To(name + device)},
			}})
		}
		c.SetSlice(s)
	}
	return c
}

func TestTheAllocatorIsAsked(t *testing.T) {
	at := func(node, device string, members int32) v1alpha1.GangPlacement {
		return v1alpha1.GangPlacement{Node: node, Pool: node, Members: members, Devices: []v1alpha1.GangDevice{{Name: device, ID: node + device}}}
	}
	claim := &v1alpha1.GangClaim{Spec: v1alpha1.GangClaimSpec{DeviceClassName: "all", DevicesPerMember: 1}}
	tests := map[string]struct {
		placements []v1alpha1.GangPlacement
		change     func(*Cluster)
		want       string
	}{
		"a plan that it allocates": {placements: []v1alpha1.GangPlacement{at("a", "x", 1), at("b", "y", 1)}},
		"more members than devices, named with their node": {
			placements: []v1alpha1.GangPlacement{at("a", "x", 1), at("b", "y", 2)},
			want:       "node b: member 2 of 2 gets no devices",
		},
		"a device that a claim took": {
			placements: []v1alpha1.GangPlacement{at("a", "x", 1)},
			change: func(c *Cluster) {
				c.SetClaim(&resourceapi.ResourceClaim{Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
					Results: []resourceapi.DeviceRequestAllocationResult{{Driver: v1alpha1.DriverName, Pool: "a", Device: "x"}},
				}}}})
			},
			want: "node a: member 1 of 1 gets no devices",
		},
		"a device that a rule tainted": {
			placements: []v1alpha1.GangPlacement{at("a", "x", 1)},
			change: func(c *Cluster) {
				c.SetRule(&resourceapi.DeviceTaintRule{Spec: resourceapi.DeviceTaintRuleSpec{
					DeviceSelector: &resourceapi.DeviceTaintSelector{Driver: ptr.To(v1alpha1.DriverName), Pool: ptr.To("a")},
					Taint:          resourceapi.DeviceTaint{Key: "k", Effect: resourceapi.DeviceTaintEffectNoSchedule},
				}})
			},
			want: "node a: member 1 of 1 gets no devices",
		},
		"a class that is gone": {
			placements: []v1alpha1.GangPlacement{at("a", "x", 1)},
			change:     func(c *Cluster) { c.DeleteClass("all") },
			want:       "DeviceClass all does not exist",
		},
		"another device with the id of a planned one": {
			placements: []v1alpha1.GangPlacement{{Node: "a", Pool: "a", Members: 1, Devices: []v1alpha1.GangDevice{{Name: "y", ID: "ax"}}}},
			want:       "gets device x, which is not planned",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c := oracleCluster("a", "b")
			if test.change != nil {
				test.change(c)
			}
			plan := &v1alpha1.GangPlan{MemberScope: v1alpha1.MemberNode, Placements: test.placements}
			v := &view{class: &resourceapi.DeviceClass{}, matches: map[*slice]*matches{}}
			_, err := c.questions(v, plan, ClaimSpec(claim, plan)).ask(context.Background())
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("answer %v, want %q", err, test.want)
			}
		})
	}
}
