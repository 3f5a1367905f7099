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
