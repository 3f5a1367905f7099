// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement_test

import (
	"context"
	"fmt"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
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
