// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

func podOf(name, node string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "web", Name: name}, Spec: corev1.PodSpec{NodeName: node, Priority: ptr.To(int32(7))}}
}

func cpus(n *corev1.Node, count string) *corev1.Node {
	n.Status.Allocatable[corev1.ResourceCPU] = resource.MustParse(count)
	return n
}

func quota(name corev1.ResourceName, hard, used string) *corev1.ResourceQuota {
	return &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "q"}, Status: corev1.ResourceQuotaStatus{
		Hard: corev1.ResourceList{name: resource.MustParse(hard)}, Used: corev1.ResourceList{name: resource.MustParse(used)},
	}}
}

func TestRefusals(t *testing.T) {
	a, b := readyNode("node-a"), readyNode("node-b")
	fenced := &resourceapi.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: "fence"}, Spec: resourceapi.DeviceTaintRuleSpec{
		DeviceSelector: &resourceapi.DeviceTaintSelector{Driver: ptr.To(driver), Pool: ptr.To("node-a")},
		Taint:          resourceapi.DeviceTaint{Key: v1alpha1.ReservedTaintKey, Value: "other", Effect: resourceapi.DeviceTaintEffectNoSchedule},
	}}
	selector := func(expression string) func(*placement.Gang) {
		return func(g *placement.Gang) { g.Claim.Spec.Selectors = []resourceapi.DeviceSelector{cel(expression)} }
	}
	tests := map[string]struct {
		cluster []any
		gang    placement.Gang
		reason  placement.Reason
		message string
	}{
		"who stands in the way of the next best place": {
			[]any{a, b, sliceOf("node-a", gpus(4, "node-a.0", 0)...), hgx("node-b"), single("infer-7", "node-b", 6), podOf("infer-7", "node-b"), single("x", "node-b", 0, 1)},
			gangOf("g", 2, 4), placement.ReasonNoFeasibleDomain,
			"needs 2 × 4 GPUs, each 4 in one NVSwitch domain; found 1 (node-a.0). Next best: node-b.1 has 3 free; pod web/infer-7 (1 GPU, priority 7) stands in the way.",
		},
		"two places with their pods": {
			[]any{b, hgx("node-b"), single("y", "node-b", 1), single("x", "node-b", 4, 5)},
			gangOf("g", 2, 4), placement.ReasonNoFeasibleDomain,
			"needs 2 × 4 GPUs, each 4 in one NVSwitch domain; found none. Next best: node-b.0 has 3 free, node-b.1 has 2 free; pods web/x (2 GPUs), web/y (1 GPU) stand in the way.",
		},
		"what never fits": {
			[]any{a, hgx("node-a")},
			gangOf("g", 1, 8), placement.ReasonNoFeasibleDomain,
			"needs 8 GPUs in one NVSwitch domain; found none. It will never fit here: the largest NVSwitch domain on a node has 4 of them.",
		},
		"what may fit when all slices are there": {
			[]any{a, hgx("node-a"), func() any { s := hgx("node-b"); s.Spec.Pool.ResourceSliceCount++; return s }()},
			gangOf("g", 1, 8), placement.ReasonNoFeasibleDomain,
			"found none. Now the largest NVSwitch domain on a node has 4 of them. Not counted, since their slices are being updated: node-b.",
		},
		"more members than the cluster holds": {
			[]any{a, hgx("node-a")},
			gangOf("g", 3, 4), placement.ReasonNoFeasibleDomain,
			"found 2 (node-a.0, node-a.1). Even with all of them free there would be a place for 2 only.",
		},
		"reserved for another gang": {
			[]any{a, hgx("node-a"), fenced},
			gangOf("g", 1, 1), placement.ReasonNoFeasibleDomain,
			"needs 1 GPU; found none. Next best: node-a.0 has 0 free; 1 GPU kept for other gangs.",
		},
		"CPU is short": {
			[]any{cpus(readyNode("node-a"), "1"), hgx("node-a")},
			gangOf("g", 2, 4), placement.ReasonNodesFull,
			"Enough is free, but the pods do not fit: node-a: cpu: 2 × 1 requested, 1 left.",
		},
		"the node is cordoned": {
			[]any{func() any { n := readyNode("node-a"); n.Spec.Unschedulable = true; return n }(), hgx("node-a")},
			gangOf("g", 1, 4), placement.ReasonNodesFull, "node-a: it is cordoned",
		},
		"the node has a taint": {
			[]any{func() any {
				n := readyNode("node-a")
				n.Spec.Taints = []corev1.Taint{{Key: "team", Value: "x", Effect: corev1.TaintEffectNoSchedule}}
				return n
			}(), hgx("node-a")},
			gangOf("g", 1, 4), placement.ReasonNodesFull, "node-a: the pods do not tolerate its taint team=x:NoSchedule",
		},
		"the node is not ready": {
			[]any{func() any { n := readyNode("node-a"); n.Status.Conditions = nil; return n }(), hgx("node-a")},
			gangOf("g", 1, 4), placement.ReasonNodesFull, "node-a: it is not Ready",
		},
		"there is no Node": {[]any{hgx("node-a")}, gangOf("g", 1, 4), placement.ReasonNodesFull, "node-a: there is no such Node"},
		"one member's selector excludes the node": {
			[]any{a, hgx("node-a")},
			gangOf("g", 2, 4, func(g *placement.Gang) { g.Pods[1].Spec.NodeSelector = map[string]string{"zone": "x"} }),
			placement.ReasonNodesFull, "node-a: the pods' node selector or affinity excludes it",
		},
		"no such class": {nil, gangOf("g", 1, 1, func(g *placement.Gang) { g.Claim.Spec.DeviceClassName = "x" }), placement.ReasonNoSuchClass, "spec.deviceClassName: there is no DeviceClass x"},
		"a selector that does not compile": {
			[]any{a, hgx("node-a")}, gangOf("g", 1, 1, selector("device.")), placement.ReasonSelectorFails, "spec.selectors[0].cel.expression does not compile",
		},
		"a selector that errs on a device of the class": {
			[]any{a, hgx("node-a")},
			gangOf("g", 1, 1, selector(`device.attributes["gpu.switchyard.dev"].nosuch == "x"`)),
			placement.ReasonSelectorFails, "spec.selectors[0].cel.expression fails on device gpu-0 of pool node-a (gpu.switchyard.dev)",
		},
		"an empty selector": {
			[]any{a, hgx("node-a")},
			gangOf("g", 1, 1, func(g *placement.Gang) { g.Claim.Spec.Selectors = []resourceapi.DeviceSelector{{}} }),
			placement.ReasonSelectorFails, "spec.selectors[0].cel.expression is empty",
		},
		"a class whose selector errs on another driver's device": {
			[]any{a, hgx("node-a"), &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: driver}, Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{cel(`device.attributes["gpu.switchyard.dev"].type == "gpu"`)}}}, foreign()},
			gangOf("g", 1, 1), placement.ReasonSelectorFails, "DeviceClass gpu.switchyard.dev: spec.selectors[0].cel.expression fails on device nic-0 of pool network (nic.example.com)",
		},
		"two devices with one id": {
			[]any{a, sliceOf("node-a", gpu{domain: "d", id: "same"}, gpu{domain: "d", id: "same"})},
			gangOf("g", 1, 1), placement.ReasonNoFeasibleDomain,
			`Not counted: device gpu-0 of pool node-a and device gpu-1 of pool node-a have the same attribute id "same"`,
		},
		"a quota of claims": {
			[]any{a, hgx("node-a"), quota("count/resourceclaims.resource.k8s.io", "3", "2")},
			gangOf("g", 2, 1), placement.ReasonQuotaExceeded,
			"ResourceQuota q leaves 1 of count/resourceclaims.resource.k8s.io, 2 are needed",
		},
		"a quota of devices": {
			[]any{a, hgx("node-a"), quota("gpu.switchyard.dev.deviceclass.resource.k8s.io/devices", "4", "0")},
			gangOf("g", 2, 4), placement.ReasonQuotaExceeded,
			"ResourceQuota q leaves 4 of gpu.switchyard.dev.deviceclass.resource.k8s.io/devices, 8 are needed",
		},
		"nonsense": {nil, gangOf("g", 1, 0), placement.ReasonNotSupported, "spec.devicesPerMember 0"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			d := clusterOf(t, test.cluster...).Plan(context.Background(), []placement.Gang{test.gang})[0]
			if d.Refusal == nil {
				t.Fatalf("planned: %s", describe(d))
			}
			if d.Refusal.Reason != test.reason || !strings.Contains(d.Refusal.Message, test.message) {
				t.Errorf("%s: %s\nwant %s: %s", d.Refusal.Reason, d.Refusal.Message, test.reason, test.message)
			}
			if advised, errs := strings.Contains(d.Refusal.Message, "optional access"), strings.Contains(test.message, "fails on device"); advised != errs {
				t.Errorf("advises optional access: %t, for a selector that errs on a device: %t", advised, errs)
			}
		})
	}
}

// foreign is another driver's slice, reached from all nodes.
func foreign() *resourceapi.ResourceSlice {
	return &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "network"}, Spec: resourceapi.ResourceSliceSpec{
		Driver: "nic.example.com", AllNodes: ptr.To(true), Pool: resourceapi.ResourcePool{Name: "network", ResourceSliceCount: 1},
		Devices: []resourceapi.Device{{Name: "nic-0"}},
	}}
}

func TestABlockedGangIsNotStarved(t *testing.T) {
	big := gangOf("big", 1, 4, func(g *placement.Gang) { g.Priority = 1 })
	small := gangOf("small", 1, 2)
	c := clusterOf(t, readyNode("node-a"), hgx("node-a"), single("x", "node-a", 0), single("y", "node-a", 4, 5))
	decisions := c.Plan(context.Background(), []placement.Gang{small, big})
	if got := describe(decisions[0]); got != "NoFeasibleDomain" || decisions[0].Gang != big.Claim.UID {
		t.Errorf("first %s of %s", got, decisions[0].Gang)
	}
	if blocking := decisions[0].Refusal.Blocking; len(blocking) != 1 || blocking[0].Name != "x" {
		t.Errorf("blocking %v, want web/x", blocking)
	}
	if got := describe(decisions[1]); got != "node-a node-a.1 ×1: 6 7" {
		t.Errorf("the small gang is planned on %q, want what the big one does not wait for", got)
	}
	c.SetClaim(single("z", "node-a", 6))
	d := c.Plan(context.Background(), []placement.Gang{small, big})[1]
	if d.Refusal == nil || d.Refusal.Reason != placement.ReasonBehindOthers || !strings.Contains(d.Refusal.Message, "kept for gang ml/big, which comes before") {
		t.Errorf("the small gang: %+v", d)
	}
	if got := planOf(t, c, small); got != "node-a node-a.0 ×1: 1 2" {
		t.Errorf("alone it is planned on %q", got)
	}
}

func TestGangsDoNotShareWhatIsLeft(t *testing.T) {
	g := []placement.Gang{gangOf("b", 1, 4), gangOf("a", 1, 4)}
	c := clusterOf(t, cpus(readyNode("node-a"), "1"), hgx("node-a"))
	if got := []string{describe(c.Plan(context.Background(), g)[0]), describe(c.Plan(context.Background(), g)[1])}; !slices.Equal(got, []string{"node-a node-a.0 ×1: 0 1 2 3", "NodesFull"}) {
		t.Errorf("one CPU, two gangs: %q", got)
	}
	c = clusterOf(t, readyNode("node-a"), hgx("node-a"), quota("count/resourceclaims.resource.k8s.io", "1", "0"))
	if got := describe(c.Plan(context.Background(), g)[1]); got != "QuotaExceeded" {
		t.Errorf("a quota of one claim, two gangs: %q", got)
	}
}

// The claims of a plan that was committed a moment ago are made after its fence: until then no quota counts them. Two gangs of
// which each is given some of its claims both fail.
func TestQuotaIsKeptForClaimsThatAreNotMadeYet(t *testing.T) {
	const claims = "count/resourceclaims.resource.k8s.io"
	a, b := gangOf("a", 1, 4), gangOf("b", 1, 4)
	c := clusterOf(t, readyNode("node-a"), hgx("node-a"), quota(claims, "1", "0"))
	member := a.Pods[0]
	member.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpus", ResourceClaimTemplateName: ptr.To("a")}}
	c.SetPod(member)
	committed := a.Claim.DeepCopy()
	committed.Status.Plan = c.Plan(context.Background(), []placement.Gang{a})[0].Plan
	c.SetGang(committed)
	if got := planOf(t, c, b); got != "QuotaExceeded" {
		t.Errorf("a quota of one claim, which the gang before will make: %q", got)
	}
	if got := planOf(t, c, a); got != "node-a node-a.0 ×1: 0 1 2 3" {
		t.Errorf("the gang's own claim keeps it from its place: %q", got)
	}
	c.SetQuota(quota(claims, "2", "1"))
	has := member.DeepCopy()
	has.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "gpus", ResourceClaimName: ptr.To("claim")}}
	c.SetPod(has)
	if got := planOf(t, c, b); got != "node-a node-a.1 ×1: 4 5 6 7" {
		t.Errorf("the claim is made and counted, another is left: %q", got)
	}
}

// Members of another gang that wait for a node may request more than numbers hold: the node is full, not empty.
func TestHugeRequestsFillANode(t *testing.T) {
	other := gangOf("other", 2, 1)
	c := clusterOf(t, readyNode("node-a"), hgx("node-a"))
	committed := other.Claim.DeepCopy()
	committed.Status.Plan = c.Plan(context.Background(), []placement.Gang{other})[0].Plan
	c.SetGang(committed)
	for _, pod := range other.Pods {
		pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpus", ResourceClaimTemplateName: ptr.To("other")}}
		pod.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("5P")
		c.SetPod(pod)
	}
	if got := planOf(t, c, gangOf("g", 1, 1)); got != "NodesFull" {
		t.Errorf("planned %q", got)
	}
}

func TestPlanningIsInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	c := clusterOf(t, readyNode("node-a"), hgx("node-a"))
	if got := describe(c.Plan(ctx, []placement.Gang{gangOf("g", 1, 4)})[0]); got != "PlanningInterrupted" {
		t.Errorf("decision %q", got)
	}
	if got := planOf(t, c, gangOf("g", 1, 4)); got != "node-a node-a.0 ×1: 0 1 2 3" {
		t.Errorf("after that %q", got)
	}
}

func TestFieldCase25_APairWhoseOtherPairIsBroken(t *testing.T) {
	c := clusterOf(t, readyNode("n"), sliceOf("n", append(gpus(2, "n.0", 0), gpus(2, "n.1", 0)...)...), single("x", "n", 0))
	if got := planOf(t, c, gangOf("g", 1, 2)); got != "n n.1 ×1: 2 3" {
		t.Errorf("plan %q", got)
	}
}

func TestFieldCase26_AFabricSpansNodes(t *testing.T) {
	c := clusterOf(t, readyNode("a"), readyNode("b"), readyNode("c"),
		sliceOf("a", gpus(4, "rack-1", 0)...), sliceOf("b", gpus(4, "rack-1", 0)...), sliceOf("c", gpus(4, "rack-2", 0)...), single("x", "a", 0), single("z", "c", 0))
	g := gangOf("g", 2, 3, scopes(v1alpha1.MemberNVSwitchDomain, v1alpha1.GangNVSwitchDomain))
	if got := planOf(t, c, g); got != "a rack-1 ×1: 1 2 3; b rack-1 ×1: 0 1 2" {
		t.Errorf("plan %q", got)
	}
	whole := c.Plan(context.Background(), []placement.Gang{gangOf("w", 1, 4, scopes(v1alpha1.MemberNVSwitchDomain, v1alpha1.GangAny))})[0].Plan.Placements[0]
	if whole.Node != "b" || whole.WholeDomain || !whole.WholePool {
		t.Errorf("a domain's part on one node: %+v", whole)
	}
	c.DeleteClaim(nameOf("x"))
	for _, p := range c.Plan(context.Background(), []placement.Gang{gangOf("w", 2, 4, scopes(v1alpha1.MemberNVSwitchDomain, v1alpha1.GangNVSwitchDomain))})[0].Plan.Placements {
		if !p.WholeDomain {
			t.Errorf("the plan has the whole fabric, %+v says otherwise", p)
		}
	}
}

func TestFieldCase28_EightFreeAsSixAndTwo(t *testing.T) {
	c := clusterOf(t, readyNode("n"), sliceOf("n", append(gpus(8, "n.0", 0), gpus(8, "n.1", 1)...)...),
		single("x", "n", 0, 1), single("y", "n", 8, 9, 10, 11, 12, 13))
	d := c.Plan(context.Background(), []placement.Gang{gangOf("g", 1, 8)})[0]
	want := "needs 8 GPUs in one NVSwitch domain; found none. Next best: n.0 has 6 free; pod web/x (2 GPUs) stands in the way."
	if d.Refusal == nil || d.Refusal.Message != want {
		t.Errorf("decision %+v, want %s", d, want)
	}
}
