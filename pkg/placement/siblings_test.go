// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// anyClass selects GPUs and partitions of this driver.
func anyClass() *resourceapi.DeviceClass {
	class := gpuClass()
	class.Name, class.Spec.Selectors = "any", []resourceapi.DeviceSelector{cel(`device.driver == "gpu.switchyard.dev"`)}
	return class
}

func onClass(name string) func(*placement.Gang) {
	return func(g *placement.Gang) { g.Claim.Spec.DeviceClassName = name }
}

// anywhere asks for devices of one node.
var anywhere = scopes(v1alpha1.MemberNode, v1alpha1.GangAny)

// reservedBy says what a plan reserves: "gpu-0 (mig-0-0 mig-0-1)", with "pool" where it is all of it.
func reservedBy(plan *v1alpha1.GangPlan) string {
	var list []string
	for _, p := range plan.Placements {
		for _, d := range p.Devices {
			text := d.Name
			if len(d.Siblings) > 0 {
				text += " (" + strings.Join(d.Siblings, " ") + ")"
			}
			list = append(list, text)
		}
		if p.WholePool {
			list = append(list, "pool")
		}
	}
	return strings.Join(list, ", ")
}

func TestAPlanNamesWhatCannotBeAllocatedBesidesItsDevices(t *testing.T) {
	for name, test := range map[string]struct {
		gang placement.Gang
		want string
	}{
		"a GPU excludes its partitions":                       {gangOf("g", 1, 1), "gpu-0 (mig-0-0 mig-0-1)"},
		"all GPUs and their partitions are the pool":          {gangOf("g", 2, 1), "gpu-0 (mig-0-0 mig-0-1), gpu-1 (mig-1-0 mig-1-1), pool"},
		"a partition excludes its GPU, and no other":          {gangOf("g", 1, 1, anywhere, onClass("mig")), "mig-0-0 (gpu-0)"},
		"what two partitions exclude is listed with the one":  {gangOf("g", 2, 1, anywhere, onClass("mig")), "mig-0-0 (gpu-0), mig-0-1"},
		"partitions that leave others free are not the pool":  {gangOf("g", 3, 1, anywhere, onClass("mig")), "mig-0-0 (gpu-0), mig-0-1, mig-1-0 (gpu-1)"},
		"all partitions and the GPUs that they are of are it": {gangOf("g", 4, 1, anywhere, onClass("mig")), "mig-0-0 (gpu-0), mig-0-1, mig-1-0 (gpu-1), mig-1-1, pool"},
	} {
		t.Run(name, func(t *testing.T) {
			c := clusterOf(t, append(partitioned("node-a"), migClass())...)
			d := c.Plan(context.Background(), []placement.Gang{test.gang})[0]
			if d.Plan == nil {
				t.Fatalf("no plan: %+v", d.Refusal)
			}
			if got := reservedBy(d.Plan); got != test.want {
				t.Errorf("reserved are %s, want %s", got, test.want)
			}
		})
	}
	c := clusterOf(t, readyNode("n"), hgx("n"))
	if d := c.Plan(context.Background(), []placement.Gang{gangOf("g", 1, 4)})[0]; reservedBy(d.Plan) != "gpu-0, gpu-1, gpu-2, gpu-3" {
		t.Errorf("without counters %s are reserved", reservedBy(d.Plan))
	}
}

func TestADeviceWithMoreSiblingsThanAPlanCanNameIsNotPlanned(t *testing.T) {
	for extra, want := range map[int]string{0: "node-a node-a.0 ×1: 0", 1: "node-a node-a.0 ×1: 1"} {
		objects := partitioned("node-a")
		s := objects[0].(*resourceapi.ResourceSlice)
		for i := range v1alpha1.MaxSiblings - 2 + extra {
			more := *s.Spec.Devices[2].DeepCopy() // a partition of the first GPU
			more.Name, more.Attributes["id"] = fmt.Sprintf("more-%d", i), resourceapi.DeviceAttribute{StringValue: ptr.To(fmt.Sprintf("more-%d", i))}
			s.Spec.Devices = append(s.Spec.Devices, more)
		}
		c := clusterOf(t, objects...)
		if got := planOf(t, c, gangOf("g", 1, 1)); got != want {
			t.Errorf("with %d more than are allowed: %s, want %s", extra, got, want)
		}
	}
}

func TestWhoWantsOrHasAPartitionOfAPlannedGPU(t *testing.T) {
	c := clusterOf(t, append(partitioned("node-a"), migClass())...)
	g := gangOf("g", 1, 1)
	plan := c.Plan(context.Background(), []placement.Gang{g})[0].Plan
	planned, reserved := placement.PlannedDevices(plan), placement.ReservedDevices(plan)
	if len(planned) != 1 || len(reserved) != 3 || reserved[0] != planned[0] {
		t.Fatalf("planned are %v, reserved %v", planned, reserved)
	}
	waiting := single("m", "node-a")
	waiting.Spec.Devices.Requests[0].Exactly.DeviceClassName, waiting.Spec.Devices.Requests[0].Exactly.Count = "mig", 1
	waiting.Status = resourceapi.ResourceClaimStatus{}
	pod := podOf("m", "")
	pod.Namespace = waiting.Namespace
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "c", ResourceClaimName: ptr.To("m")}}
	c.SetClaim(waiting)
	c.SetPod(pod)
	if rivals := c.Rivals(reserved, g.Claim.UID); len(rivals) != 1 || rivals[0].Pod.Name != "m" {
		t.Errorf("rivals are %v, want the pod that wants a partition", rivals)
	}
	onPartition(c, "m", "node-a", "mig-0-1")
	if holders := c.Holders(reserved); len(holders) != 1 || holders[reserved[2]].Name != "m" {
		t.Errorf("holders are %v, want the claim that has a partition", holders)
	}
}

func TestAPlannedGPUThatCanBePartitionedSinceIsNotFenced(t *testing.T) {
	bare := sliceOf("node-a", gpus(2, "node-a.0", 0)...)
	c := clusterOf(t, readyNode("node-a"), bare)
	g := gangOf("g", 1, 1)
	g.Claim.Status.Plan = c.Plan(context.Background(), []placement.Gang{g})[0].Plan
	state := func() placement.DeviceState {
		devices := placement.PlannedDevices(g.Claim.Status.Plan)
		return c.DeviceStates(g.Claim, devices)[devices[0]]
	}
	if state().Unfenced {
		t.Error("a GPU without partitions is not fenced as a whole")
	}
	objects := partitioned("node-a")
	set(t, c, objects[0])
	set(t, c, objects[1])
	if !state().Unfenced {
		t.Error("the partitions that are published now are not of the plan, and nobody says so")
	}
	g.Claim.Status.Plan = c.Plan(context.Background(), []placement.Gang{g})[0].Plan
	if state().Unfenced {
		t.Error("a plan with all siblings is said to lack some")
	}
}

func TestAGangBehindGetsNoPartitionOfAGPUThatIsWaitedFor(t *testing.T) {
	c := clusterOf(t, append(partitioned("node-a"), migClass())...)
	onPartition(c, "m0", "node-a", "mig-0-0")
	onPartition(c, "m1", "node-a", "mig-1-0")
	first, second := gangOf("a", 1, 1), gangOf("b", 1, 1, anywhere, onClass("mig"))
	if d := c.Plan(context.Background(), []placement.Gang{first, second}); describe(d[0]) != "NoFeasibleDomain" || reservedBy(d[1].Plan) != "mig-1-1 (gpu-1)" {
		t.Errorf("%s and %s", describe(d[0]), describe(d[1]))
	}
	// Both GPUs are waited for: a partition of neither is given to the other.
	first = gangOf("a", 2, 1)
	if d := c.Plan(context.Background(), []placement.Gang{first, second}); describe(d[1]) != "BehindOthers" {
		t.Errorf("the gang behind: %s", describe(d[1]))
	}
}

func TestOfBusyDevicesThatExcludeEachOtherOneIsTheNextBestPlace(t *testing.T) {
	c := clusterOf(t, append(partitioned("node-a"), anyClass(), migClass())...)
	for i, device := range []string{"mig-0-0", "mig-0-1", "mig-1-0", "mig-1-1"} {
		onPartition(c, fmt.Sprintf("m%d", i), "node-a", device)
	}
	d := c.Plan(context.Background(), []placement.Gang{gangOf("g", 3, 1, anywhere, onClass("any"))})[0]
	if d.Refusal == nil || len(d.Refusal.Blocking) != 0 {
		t.Errorf("three devices of two GPUs: %+v", d)
	}
	d = c.Plan(context.Background(), []placement.Gang{gangOf("g", 2, 1, anywhere, onClass("any"))})[0]
	if d.Refusal == nil || len(d.Refusal.Blocking) != 4 {
		t.Errorf("two devices of two GPUs: %+v", d)
	}
}

func TestNobodyMovesForAGangThatGetsAPart(t *testing.T) {
	c := clusterOf(t, append(partitioned("node-a"), migClass())...)
	for i, device := range []string{"mig-0-0", "mig-0-1", "mig-1-0"} {
		onPartition(c, fmt.Sprintf("m%d", i), "node-a", device)
	}
	var parts []string
	m := &pricer{c: c, price: func(r placement.Resident) bool {
		if r.ForPart {
			parts = append(parts, r.Pod.Name)
		}
		return r.SharesCounters && !r.ForPart
	}}
	if got := m.members(gangOf("g", 2, 1, anywhere, onClass("mig"))); got != 1 || !slices.Contains(parts, "m0") {
		t.Errorf("%d members have a place, by moving %v", got, parts)
	}
	parts = nil
	if got := m.members(gangOf("g", 1, 1)); got != 1 || len(parts) > 0 {
		t.Errorf("for a whole GPU %d members have a place, and %v have a part", got, parts)
	}
}

// pricer looks for the cheapest place, and tries nothing.
type pricer struct {
	c     *placement.Cluster
	price func(placement.Resident) bool
	found int
}

func (p *pricer) Wanted(placement.Gang) bool { return true }

func (p *pricer) MakeRoom(_ context.Context, room *placement.Room) (*v1alpha1.GangPlan, *v1alpha1.GangDefragmentation) {
	p.found = room.Cheapest(func(r placement.Resident) (placement.Price, bool) { return placement.Price{Pods: 1}, p.price(r) }).Members
	return nil, nil
}

func (p *pricer) members(g placement.Gang) int {
	p.found = 0
	p.c.PlanWithRoom(context.Background(), []placement.Gang{g}, p)
	return p.found
}

// A part of a GPU that is in use is a better place than one of a whole GPU, wherever that is.
func TestAPodOnAPartitionIsSentToAGPUThatIsInUse(t *testing.T) {
	objects := append(append(append(partitioned("node-a"), partitioned("node-b")...), partitioned("node-c")...), migClass(), anyClass())
	c := clusterOf(t, objects...)
	m := &mover{c: c, stay: map[string]bool{}}
	put := func(name, node, device string) {
		onPartition(c, name, node, device)
		m.stay[name] = true
	}
	put("a0", "node-a", "mig-0-0")
	put("a1", "node-a", "mig-0-1")
	put("b0", "node-b", "mig-0-0")
	put("b1", "node-b", "mig-0-1")
	put("c0", "node-c", "mig-0-0")
	put("c1", "node-c", "mig-1-0")
	onPartition(c, "m", "node-a", "mig-1-0")
	// node-b has a whole GPU, which does not suit the gang: its pods do not run there.
	onA := func(g *placement.Gang) {
		for _, p := range g.Pods {
			p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "node-a"}
		}
	}
	decisions, said := m.room(gangOf("g", 1, 1, onA))
	if got := describe(decisions[0]); got != "node-a node-a.0 ×1: 1" || said != "m  > node-c/mig-0-1 " {
		t.Errorf("planned %s, said %s", got, said)
	}
}

// What a gang found is not planned when somebody was given a partition of it while the allocator was asked.
func TestAPartitionIsTakenWhileTheAllocatorIsAsked(t *testing.T) {
	c := clusterOf(t, append(partitioned("node-a"), migClass())...)
	ctx := &intrusion{Context: context.Background(), do: func() { onPartition(c, "late", "node-a", "mig-0-0") }}
	if got := describe(c.Plan(ctx, []placement.Gang{gangOf("g", 1, 1)})[0]); got != "node-a node-a.0 ×1: 1" {
		t.Errorf("planned %s", got)
	}
	if ctx.do != nil {
		t.Fatal("nothing happened while the allocator was asked")
	}
}

// intrusion does something when the allocator asks whether it is to go on: without the lock.
type intrusion struct {
	context.Context
	do func()
}

// Value is asked when the allocator makes a context of its own of this one.
func (i *intrusion) Value(key any) any {
	if do := i.do; do != nil {
		i.do = nil
		do()
	}
	return i.Context.Value(key)
}

func TestManyRulesOfAPoolWithPartitionsFindTheirDevices(t *testing.T) {
	c := clusterOf(t, append(partitioned("node-a"), migClass())...)
	fence := resourceapi.DeviceTaint{Key: v1alpha1.ReservedTaintKey, Value: "uid-a", Effect: resourceapi.DeviceTaintEffectNoSchedule}
	for _, device := range []string{"gpu-0", "mig-0-0", "mig-0-1", "gone"} {
		c.SetRule(rule("fence-"+device, "node-a", device, fence))
	}
	g := gangOf("g", 1, 1)
	if got := describe(c.Plan(context.Background(), []placement.Gang{g})[0]); got != "node-a node-a.0 ×1: 1" {
		t.Errorf("planned %s", got)
	}
	states := c.DeviceStates(g.Claim, []placement.DeviceID{{Driver: driver, Pool: "node-a", Device: "mig-0-1"}, {Driver: driver, Pool: "node-a", Device: "mig-1-1"}})
	for id, s := range states {
		if want := id.Device == "mig-0-1"; (len(s.Taints) == 1) != want {
			t.Errorf("%s has taints %v", id.Device, s.Taints)
		}
	}
}
