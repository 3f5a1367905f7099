// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/fragmentation"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

func rule(name, pool, device string, taint resourceapi.DeviceTaint) *resourceapi.DeviceTaintRule {
	r := &resourceapi.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.DeviceTaintRuleSpec{
		DeviceSelector: &resourceapi.DeviceTaintSelector{Driver: ptr.To(driver)}, Taint: taint,
	}}
	if pool != "" {
		r.Spec.DeviceSelector.Pool = ptr.To(pool)
	}
	if device != "" {
		r.Spec.DeviceSelector.Device = ptr.To(device)
	}
	return r
}

func TestWhatKeepsDevicesOut(t *testing.T) {
	node := readyNode("n")
	four := sliceOf("n", gpus(4, "n.0", 0)...)
	bad := resourceapi.DeviceTaint{Key: "bad", Value: "v", Effect: resourceapi.DeviceTaintEffectNoSchedule}
	none := resourceapi.DeviceTaint{Key: "bad", Effect: resourceapi.DeviceTaintEffectNone}
	fence := func(uid string) resourceapi.DeviceTaint {
		return resourceapi.DeviceTaint{Key: v1alpha1.ReservedTaintKey, Value: uid, Effect: resourceapi.DeviceTaintEffectNoSchedule}
	}
	tolerate := func(g *placement.Gang) {
		g.Claim.Spec.Tolerations = []resourceapi.DeviceToleration{{Key: "bad", Operator: resourceapi.DeviceTolerationOpExists}}
	}
	tainted := sliceOf("n", gpu{domain: "n.0", taints: []resourceapi.DeviceTaint{bad}}, gpu{domain: "n.0"}, gpu{domain: "n.0"})
	partial := sliceOf("n", gpus(4, "n.0", 0)...)
	partial.Spec.Pool.ResourceSliceCount = 2
	old := sliceOf("n", gpus(2, "n.0", 0)...)
	newer := sliceOf("n", gpus(4, "n.0", 0)...)
	newer.Name, newer.Spec.Pool.Generation = "n-newer", 2
	shared := sliceOf("n", gpus(4, "n.0", 0)...)
	shared.Spec.Devices[0].AllowMultipleAllocations = ptr.To(true)
	admin := single("s", "n", 0)
	admin.Status.Allocation.Devices.Results[0].AdminAccess = ptr.To(true)
	everywhere := sliceOf("n", gpus(4, "n.0", 0)...)
	everywhere.Spec.NodeName, everywhere.Spec.AllNodes = nil, ptr.To(true)
	noID := sliceOf("n", gpus(2, "n.0", 0)...)
	delete(noID.Spec.Devices[0].Attributes, "id")
	reserved := gangOf("other", 1, 1).Claim
	reserved.Status.Plan = &v1alpha1.GangPlan{Placements: []v1alpha1.GangPlacement{{Node: "n", Pool: "n", Members: 1, Devices: []v1alpha1.GangDevice{{Name: "gpu-0"}}}}}
	unmatched := rule("r", "n", "gpu-0", bad)
	unmatched.Spec.DeviceSelector = nil

	all, allButFirst := "n n.0 ×4: 0 1 2 3", "n n.0 ×3: 1 2 3"
	tests := map[string]struct {
		cluster []any
		gang    placement.Gang
		want    string
	}{
		"an allocated device":                               {[]any{node, four, single("s", "n", 0)}, gangOf("g", 3, 1), allButFirst},
		"admin access keeps nobody out":                     {[]any{node, four, admin}, gangOf("g", 4, 1), all},
		"a taint in the slice":                              {[]any{node, tainted}, gangOf("g", 2, 1), "n n.0 ×2: 1 2"},
		"a taint in the slice that is tolerated":            {[]any{node, tainted}, gangOf("g", 3, 1, tolerate), "n n.0 ×3: 0 1 2"},
		"a rule's taint on a device":                        {[]any{node, four, rule("r", "n", "gpu-0", bad)}, gangOf("g", 3, 1), allButFirst},
		"a rule's taint on all pools":                       {[]any{node, four, rule("r", "", "", bad)}, gangOf("g", 1, 1), "NoFeasibleDomain"},
		"a rule's taint that is tolerated":                  {[]any{node, four, rule("r", "n", "", bad)}, gangOf("g", 4, 1, tolerate), all},
		"a rule of effect None keeps nobody out":            {[]any{node, four, rule("r", "n", "", none)}, gangOf("g", 4, 1), all},
		"a rule without a selector":                         {[]any{node, four, unmatched}, gangOf("g", 4, 1), all},
		"another gang's fence":                              {[]any{node, four, rule("r", "n", "gpu-0", fence("uid-x"))}, gangOf("g", 3, 1), allButFirst},
		"the gang's own fence keeps it not out":             {[]any{node, four, rule("r", "n", "gpu-0", fence("uid-g"))}, gangOf("g", 4, 1), all},
		"a plan of another gang":                            {[]any{node, four, reserved}, gangOf("g", 3, 1), allButFirst},
		"the gang's own plan keeps it not out":              {[]any{node, four, reserved}, gangOf("other", 4, 1), all},
		"a pool of which a slice is missing":                {[]any{node, partial}, gangOf("g", 1, 1), "NoFeasibleDomain"},
		"only the newest generation of a pool counts":       {[]any{node, newer, old}, gangOf("g", 4, 1), all},
		"a device for several claims":                       {[]any{node, shared}, gangOf("g", 3, 1), allButFirst},
		"devices that are reached from elsewhere":           {[]any{node, everywhere}, gangOf("g", 1, 1), "NoFeasibleDomain"},
		"slices of other drivers":                           {[]any{node, foreign(), four}, gangOf("g", 4, 1), all},
		"a device without an id":                            {[]any{node, noID}, gangOf("g", 1, 1), "n n.0 ×1: 1"},
		"a device without a domain, where members need one": {[]any{node, sliceOf("n", gpus(2, "", 0)...)}, gangOf("g", 1, 2), "NoFeasibleDomain"},
		"no domain is fine, where members share a node":     {[]any{node, sliceOf("n", gpus(2, "", 0)...)}, gangOf("g", 1, 2, scopes(v1alpha1.MemberNode, v1alpha1.GangAny)), "n ×1: 0 1"},
		"a selector": {[]any{node, sliceOf("n", gpu{domain: "d", product: "A"}, gpu{domain: "d", product: "B"})}, gangOf("g", 1, 1, func(g *placement.Gang) {
			g.Claim.Spec.Selectors = []resourceapi.DeviceSelector{cel(`device.attributes["gpu.switchyard.dev"].productName == "B"`)}
		}), "n d ×1: 1"},
		"only what is reserved for lost members": {[]any{node, four}, gangOf("g", 1, 1, func(g *placement.Gang) {
			g.Only = []placement.DeviceID{{Driver: driver, Pool: "n", Device: "gpu-2"}}
		}), "n n.0 ×1: 2"},
		"no pods yet: what the GangClaim says": {[]any{node, four}, gangOf("g", 2, 2, func(g *placement.Gang) { g.Pods = nil }), "n n.0 ×2: 0 1 2 3"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := planOf(t, clusterOf(t, test.cluster...), test.gang); got != test.want {
				t.Errorf("plan %q, want %q", got, test.want)
			}
		})
	}
}

func TestScopes(t *testing.T) {
	a, b := readyNode("a"), readyNode("b")
	preferred := func(g *placement.Gang) { g.Claim.Spec.Topology.Mode = v1alpha1.TopologyPreferred }
	placed := func(pool, device string) func(*placement.Gang) {
		return func(g *placement.Gang) {
			g.Placed = append(g.Placed, placement.DeviceID{Driver: driver, Pool: pool, Device: device})
		}
	}
	roots := sliceOf("a", gpu{pcie: "r0"}, gpu{pcie: "r1"}, gpu{pcie: "r1"}, gpu{})
	tests := map[string]struct {
		cluster []any
		gang    placement.Gang
		want    string
	}{
		"devices below one PCIe root": {[]any{a, roots}, gangOf("g", 1, 2, scopes(v1alpha1.MemberPCIeRoot, v1alpha1.GangAny)), "a ×1: 1 2"},
		"devices at one NUMA node": {
			[]any{a, sliceOf("a", append(gpus(1, "d", 0), gpus(2, "d", 1)...)...)},
			gangOf("g", 1, 2, scopes(v1alpha1.MemberNUMANode, v1alpha1.GangAny)), "a d ×1: 1 2",
		},
		"inside a domain, one NUMA node rather than two": {
			[]any{a, sliceOf("a", append(gpus(3, "d", 0), gpus(4, "d", 1)...)...)},
			gangOf("g", 1, 4), "a d ×1: 3 4 5 6",
		},
		"a fuller domain before an emptier one": {
			[]any{a, b, sliceOf("a", gpus(8, "a.0", 0)...), sliceOf("b", gpus(8, "b.0", 0)...), single("x", "b", 0), single("y", "a", 0, 1, 2)},
			gangOf("g", 1, 4), "a a.0 ×1: 3 4 5 6",
		},
		"no domain is broken while another is": {
			[]any{a, b, sliceOf("a", gpus(4, "a.0", 0)...), sliceOf("b", gpus(8, "b.0", 0)...), single("x", "b", 0)},
			gangOf("g", 1, 2), "b b.0 ×1: 1 2",
		},
		"Preferred gives up the gang's scope first": {
			[]any{a, b, sliceOf("a", gpus(2, "a.0", 0)...), sliceOf("b", gpus(2, "b.0", 0)...)},
			gangOf("g", 2, 2, scopes(v1alpha1.MemberNVSwitchDomain, v1alpha1.GangNode), preferred), "a a.0 ×1: 0 1; b b.0 ×1: 0 1",
		},
		"Preferred gives up the members' scope last": {
			[]any{a, sliceOf("a", append(gpus(1, "a.0", 0), gpus(1, "a.1", 0)...)...)},
			gangOf("g", 1, 2, preferred), "a ×1: 0 1",
		},
		"members that are placed bind the node": {
			[]any{a, b, sliceOf("a", gpus(1, "a.0", 0)...), sliceOf("b", gpus(3, "b.0", 0)...), single("x", "b", 0)},
			gangOf("g", 1, 1, scopes(v1alpha1.MemberNVSwitchDomain, v1alpha1.GangNode), placed("b", "gpu-0")), "b b.0 ×1: 1",
		},
		"members that are placed bind the domain": {
			[]any{a, sliceOf("a", append(gpus(1, "a.0", 0), gpus(3, "a.1", 0)...)...), single("x", "a", 1)},
			gangOf("g", 1, 1, scopes(v1alpha1.MemberNode, v1alpha1.GangNVSwitchDomain), placed("a", "gpu-1")), "a a.1 ×1: 2",
		},
		"members whose node publishes nothing now bind the others to it": {
			[]any{a, b, sliceOf("a", gpus(1, "a.0", 0)...)},
			gangOf("g", 1, 1, scopes(v1alpha1.MemberNVSwitchDomain, v1alpha1.GangNode), placed("b", "gpu-0")), "NoFeasibleDomain",
		},
		"members that are placed apart have no common scope": {
			[]any{a, b, hgx("a"), hgx("b")},
			gangOf("g", 1, 1, scopes(v1alpha1.MemberNVSwitchDomain, v1alpha1.GangNode), placed("a", "gpu-0"), placed("b", "gpu-0")), "NoFeasibleDomain",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c := clusterOf(t, test.cluster...)
			d := c.Plan(context.Background(), []placement.Gang{test.gang})[0]
			if got := describe(d); got != test.want {
				t.Errorf("plan %q, want %q", got, test.want)
			}
		})
	}
}

// partitions is a GPU with counters: whole, and as two halves.
func partitions(node string) []*resourceapi.ResourceSlice {
	consumes := func(n string) []resourceapi.DeviceCounterConsumption {
		return []resourceapi.DeviceCounterConsumption{{CounterSet: "gpu", Counters: map[string]resourceapi.Counter{"slices": {Value: resource.MustParse(n)}}}}
	}
	devices := sliceOf(node, gpu{}, gpu{id: "half-0"}, gpu{id: "half-1"}, gpu{id: "half-2"})
	devices.Spec.Devices[0].ConsumesCounters = consumes("2")
	for i := 1; i < 4; i++ {
		devices.Spec.Devices[i].ConsumesCounters = consumes("1")
		devices.Spec.Devices[i].Attributes["type"] = resourceapi.DeviceAttribute{StringValue: ptr.To("mig")}
	}
	devices.Spec.Pool.ResourceSliceCount = 2
	counters := sliceOf(node)
	counters.Name, counters.Spec.Pool.ResourceSliceCount = node+"-counters", 2
	counters.Spec.SharedCounters = []resourceapi.CounterSet{{Name: "gpu", Counters: map[string]resourceapi.Counter{"slices": {Value: resource.MustParse("2")}}}}
	return []*resourceapi.ResourceSlice{devices, counters}
}

func TestPartitionsOfAGPU(t *testing.T) {
	mig := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "mig"}, Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{
		cel(`device.driver == "gpu.switchyard.dev" && device.attributes["gpu.switchyard.dev"].?type.orValue("") == "mig"`),
	}}}
	onClass := func(g *placement.Gang) { g.Claim.Spec.DeviceClassName = "mig" }
	s := partitions("n")
	c := clusterOf(t, readyNode("n"), s[0], s[1], mig)
	loose := scopes(v1alpha1.MemberNode, v1alpha1.GangAny)
	if got := planOf(t, c, gangOf("g", 2, 1, loose, onClass)); got != "n ×2: 1 2" {
		t.Errorf("two of three overlapping partitions: %q", got)
	}
	if got := planOf(t, c, gangOf("g", 3, 1, loose, onClass)); got != "NoFeasibleDomain" {
		t.Errorf("three partitions where two fit: %q", got)
	}
	whole, half := gangOf("a", 1, 1, loose), gangOf("b", 1, 1, loose, onClass)
	if d := c.Plan(context.Background(), []placement.Gang{whole, half}); describe(d[0]) != "n ×1: 0" || describe(d[1]) != "NoFeasibleDomain" {
		t.Errorf("a GPU and a partition of it are planned for two gangs: %s and %s", describe(d[0]), describe(d[1]))
	}
	// What a gang keeps, a GPU with counters too, is for its own replacements.
	keeps := whole.Claim.DeepCopy()
	keeps.Status.Plan = &v1alpha1.GangPlan{Step: v1alpha1.StepHolding, Members: 1, Placements: []v1alpha1.GangPlacement{
		{Node: "n", Pool: "n", Devices: []v1alpha1.GangDevice{{Name: "gpu-0"}}, Members: 1},
	}}
	c.SetGang(keeps)
	if got := planOf(t, c, half); got != "NoFeasibleDomain" {
		t.Errorf("a partition of a GPU that another gang keeps: %s", got)
	}
	whole.Claim, whole.Only = keeps, []placement.DeviceID{{Driver: driver, Pool: "n", Device: "gpu-0"}}
	if got := planOf(t, c, whole); got != "n ×1: 0" {
		t.Errorf("a replacement is refused the GPU that is kept for it: %s", got)
	}
	c.DeleteGang(types.NamespacedName{Namespace: "ml", Name: "a"})
	c.SetClaim(single("x", "n", 3))
	d := c.Plan(context.Background(), []placement.Gang{gangOf("g", 1, 1, loose)})[0]
	if d.Refusal == nil || len(d.Refusal.Blocking) != 1 || d.Refusal.Blocking[0].Name != "x" {
		t.Errorf("the whole GPU while a partition is in use: %+v", d)
	}
	if got := c.Domains(); len(got) != 1 || got[0].InUse != 1 || got[0].Total != 1 {
		t.Errorf("domains %+v, want one GPU, in use", got)
	}
}

func TestHoldersAndStates(t *testing.T) {
	c := clusterOf(t, readyNode("n"), hgx("n"), single("x", "n", 0))
	c.SetRule(rule("r", "n", "gpu-1", resourceapi.DeviceTaint{Key: v1alpha1.ReservedTaintKey, Value: "uid-g", Effect: resourceapi.DeviceTaintEffectNoSchedule}))
	id := func(name string) placement.DeviceID {
		return placement.DeviceID{Driver: driver, Pool: "n", Device: name}
	}
	devices := []placement.DeviceID{id("gpu-0"), id("gpu-1"), id("gpu-9")}
	want := map[placement.DeviceID]placement.ClaimRef{id("gpu-0"): {Namespace: "web", Name: "x", UID: "uid-x", Pods: []types.NamespacedName{nameOf("x")}}}
	if diff := cmp.Diff(want, c.Holders(devices)); diff != "" {
		t.Errorf("holders differ: %s", diff)
	}
	states := c.DeviceStates(gangOf("g", 1, 1).Claim, devices)
	if s := states[id("gpu-0")]; s.Gone || s.Domain != "n.0" || s.ID != "n-0" || s.Node != "n" || len(s.Taints) != 0 {
		t.Errorf("gpu-0: %+v", s)
	}
	if s := states[id("gpu-1")]; len(s.Taints) != 1 || len(s.Tainted("uid-g")) != 0 || len(s.Tainted("uid-h")) != 1 {
		t.Errorf("gpu-1: %+v", s)
	}
	if !states[id("gpu-9")].Gone {
		t.Error("gpu-9 is not gone")
	}
	c.DeleteSlice("n-slice-0")
	c.DeleteSlice("n-slice-0")
	if !c.DeviceStates(gangOf("g", 1, 1).Claim, devices)[id("gpu-0")].Gone {
		t.Error("gpu-0 is there without its slice")
	}
	c.SetSlice(hgx("n"))
	if _, held := c.Holders(devices)[id("gpu-0")]; !held {
		t.Error("a device that left and returned is not held any more")
	}
	c.DeleteClaim(nameOf("x"))
	if got := c.Holders(devices); len(got) != 0 {
		t.Errorf("holders %v after the claim is gone", got)
	}
}

func TestDomains(t *testing.T) {
	c := clusterOf(t, readyNode("n"), hgx("n"), single("x", "n", 0), foreign(),
		rule("r", "n", "gpu-5", resourceapi.DeviceTaint{Key: "bad", Effect: resourceapi.DeviceTaintEffectNoExecute}))
	want := []fragmentation.Domain{{Name: "n.0", Node: "n", Total: 4, Free: 3, InUse: 1}, {Name: "n.1", Node: "n", Total: 4, Free: 3}}
	if diff := cmp.Diff(want, c.Domains()); diff != "" {
		t.Errorf("domains differ: %s", diff)
	}
}
