// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement_test

import (
	"context"
	"fmt"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// A node on which the allocator disagrees is left out. The fabric that it shares with the planned node is not whole by that:
// selected by its name, the members could get devices of the node that was left out, which nobody fences.
func TestDomainWithANodeThatIsLeftOutIsNotWhole(t *testing.T) {
	broken := sliceOf("a", gpus(2, "fabric", 0)...)
	for i := range broken.Spec.Devices { // the allocator prefers the longer name
		broken.Spec.Devices[i].Attributes[driver+"/nvswitchDomain"] = resourceapi.DeviceAttribute{StringValue: ptr.To(fmt.Sprint(i))}
	}
	c := clusterOf(t, readyNode("a"), readyNode("b"), broken, sliceOf("b", gpus(2, "fabric", 0)...))
	d := c.Plan(context.Background(), []placement.Gang{gangOf("g", 1, 2)})[0]
	if got, want := describe(d), "b fabric ×1: 0 1"; got != want {
		t.Fatalf("planned %s (%+v), want %s", got, d.Refusal, want)
	}
	if d.Plan.Placements[0].WholeDomain {
		t.Error("the domain is planned as a whole, and half of it is on a node that was left out")
	}
}

// The allocator gives nobody a device that consumes counters which its pool does not publish. Found to be taken each time before the
// plan was through, it kept gangs from the other nodes.
func TestDeviceOfCountersThatAreNotPublishedIsNotPlanned(t *testing.T) {
	lost := sliceOf("a", gpus(2, "a.0", 0)...)
	for i := range lost.Spec.Devices {
		lost.Spec.Devices[i].ConsumesCounters = []resourceapi.DeviceCounterConsumption{{
			CounterSet: "gpu", Counters: map[string]resourceapi.Counter{"memory": {Value: resource.MustParse("1")}},
		}}
	}
	c := clusterOf(t, readyNode("a"), readyNode("b"), lost, sliceOf("b", gpus(2, "b.0", 0)...))
	if got, want := planOf(t, c, gangOf("g", 1, 2)), "b b.0 ×1: 0 1"; got != want {
		t.Errorf("planned %s, want %s", got, want)
	}
	if got, want := planOf(t, c, gangOf("g", 2, 2)), string(placement.ReasonNoFeasibleDomain); got != want {
		t.Errorf("planned %s, want %s", got, want)
	}
}

// Nodes on which kube-scheduler did not put a member are planned on when there is nothing else.
func TestNodesAreAvoidedAsLongAsThereAreOthers(t *testing.T) {
	c := clusterOf(t, readyNode("node-a"), hgx("node-a"), readyNode("node-b"), hgx("node-b"))
	avoiding := func(members int32, nodes ...string) placement.Gang {
		return gangOf("g", members, 4, func(g *placement.Gang) { g.Avoid = nodes })
	}
	const onA, onB = "node-a node-a.0 ×1: 0 1 2 3; node-a node-a.1 ×1: 4 5 6 7", "node-b node-b.0 ×1: 0 1 2 3; node-b node-b.1 ×1: 4 5 6 7"
	for name, test := range map[string]struct {
		gang placement.Gang
		want string
	}{
		"no node":                 {avoiding(2), onA},
		"one":                     {avoiding(2, "node-a"), onB},
		"one that is gone":        {avoiding(2, "node-c"), onA},
		"all":                     {avoiding(2, "node-a", "node-b"), onA},
		"one that is needed":      {avoiding(4, "node-b"), onA + "; " + onB},
		"and there is no place":   {avoiding(5, "node-b"), "NoFeasibleDomain"},
		"and a spread to be kept": {gangOf("g", 2, 4, spread(), func(g *placement.Gang) { g.Avoid = []string{"node-a"} }), onB},
		"all, and a spread to be kept": {
			gangOf("g", 2, 4, spread(), func(g *placement.Gang) { g.Avoid = []string{"node-a", "node-b"} }),
			"node-a node-a.0 ×1: 0 1 2 3; node-b node-b.0 ×1: 0 1 2 3",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := planOf(t, c, test.gang); got != test.want {
				t.Errorf("planned on %q, want %q", got, test.want)
			}
		})
	}
}
