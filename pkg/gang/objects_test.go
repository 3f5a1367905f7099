// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func testGang() (*v1alpha1.GangClaim, *v1alpha1.GangPlan) {
	claim := &v1alpha1.GangClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "g", UID: "gang-uid"},
		Spec: v1alpha1.GangClaimSpec{
			Members: 2, DevicesPerMember: 2, DeviceClassName: "gpu.switchyard.dev",
			Topology: v1alpha1.GangTopology{Member: v1alpha1.MemberNVSwitchDomain, Gang: v1alpha1.GangNode, Mode: v1alpha1.TopologyPreferred},
			Config: []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: resourceapi.DeviceConfiguration{
				Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: "d", Parameters: runtime.RawExtension{Raw: []byte(`{"b": 1, "a": 2}`)}},
			}}},
			Tolerations: []resourceapi.DeviceToleration{{Key: "k"}},
		},
	}
	plan := &v1alpha1.GangPlan{
		Hash: "0123456789abcdef", Attempt: 1, Members: 2, MemberScope: v1alpha1.MemberNode, GangScope: v1alpha1.GangAny,
		Placements: []v1alpha1.GangPlacement{
			{Node: "a", Pool: "a", Domain: "a.0", Members: 1, WholeDomain: true, WholePool: true, Devices: devicesNamed("gpu-0", "gpu-1")},
			{Node: "b", Pool: "b", Members: 1, Devices: devicesNamed("gpu-4", "gpu-7")},
		},
	}
	return claim, plan
}

func devicesNamed(names ...string) []v1alpha1.GangDevice {
	var out []v1alpha1.GangDevice
	for _, n := range names {
		out = append(out, v1alpha1.GangDevice{Name: n, ID: "id-" + n})
	}
	return out
}

func TestRulesAreOneForAWholePoolElseOneForADevice(t *testing.T) {
	claim, plan := testGang()
	var got []string
	for _, r := range Rules(claim, plan) {
		s := r.Spec.DeviceSelector
		got = append(got, fmt.Sprintf("%s %s/%s/%s %s=%s:%s [%s]", r.Name, *s.Driver, *s.Pool, ptr.Deref(s.Device, "*"), r.Spec.Taint.Key,
			r.Spec.Taint.Value, r.Spec.Taint.Effect, r.Annotations[DevicesAnnotation]))
		if r.Labels[v1alpha1.GangLabel] != "gang-uid" || r.Labels[v1alpha1.PlanLabel] != plan.Hash || r.Annotations[v1alpha1.GangClaimAnnotation] != "ml/g" {
			t.Errorf("%s has labels %v and annotations %v", r.Name, r.Labels, r.Annotations)
		}
	}
	const name, taint = "switchyard-gang-uid-0123456789abcdef-", "switchyard.dev/reserved=gang-uid:NoSchedule"
	want := []string{
		name + "0 gpu.switchyard.dev/a/* " + taint + " [gpu-0,gpu-1]",
		name + "1 gpu.switchyard.dev/b/gpu-4 " + taint + " []",
		name + "2 gpu.switchyard.dev/b/gpu-7 " + taint + " []",
	}
	if !slices.Equal(got, want) {
		t.Errorf("rules are\n%s", strings.Join(got, "\n"))
	}
}

func TestRulesOfSiblingsComeAfterThoseOfPlannedDevices(t *testing.T) {
	claim, plan := testGang()
	for i := range plan.Placements {
		for j := range plan.Placements[i].Devices {
			d := &plan.Placements[i].Devices[j]
			d.Siblings = []string{d.Name + "-mig-0", d.Name + "-mig-1"}
		}
	}
	plan.Placements[1].Devices[1].Siblings = nil
	var got []string
	rules := Rules(claim, plan)
	for _, r := range rules {
		got = append(got, fmt.Sprintf("%s %s/%s [%s]", r.Name[len("switchyard-gang-uid-0123456789abcdef-"):], *r.Spec.DeviceSelector.Pool,
			ptr.Deref(r.Spec.DeviceSelector.Device, "*"), r.Annotations[DevicesAnnotation]))
	}
	want := []string{"0 a/* [gpu-0,gpu-1]", "1 b/gpu-4 []", "2 b/gpu-7 []", "3 b/gpu-4-mig-0 [gpu-4]", "4 b/gpu-4-mig-1 [gpu-4]"}
	if !slices.Equal(got, want) {
		t.Errorf("rules are %v, want %v", got, want)
	}
	// What they keep is no place for a replacement.
	var reserved []string
	for _, d := range look(Observation{Claim: claim, Rules: rules}).reserved() {
		reserved = append(reserved, d.Pool+"/"+d.Device)
	}
	if want := []string{"a/gpu-0", "a/gpu-1", "b/gpu-4", "b/gpu-7"}; !slices.Equal(reserved, want) {
		t.Errorf("reserved are %v, want %v", reserved, want)
	}
	// A fence without one of them is not complete.
	claim.Status.Plan = plan
	if f := look(Observation{Claim: claim, Rules: rules[:4]}).fenceFor(plan); len(f.create) != 1 || *f.create[0].Spec.DeviceSelector.Device != "gpu-4-mig-1" {
		t.Errorf("to be made are %v", f.create)
	}
	if len(ReservedDevices(plan)) != 10 || ReservedDevices(nil) != nil {
		t.Errorf("reserved are %v", ReservedDevices(plan))
	}
}

func TestAPodThatIsMovedFromAPartitionIsWaitedFor(t *testing.T) {
	claim, plan := testGang()
	plan.Placements[1].Devices[0].Siblings = []string{"gpu-4-mig-0"}
	plan.Moves = []v1alpha1.GangMove{{PodUID: "pod", ClaimUID: "claim"}}
	claim.Status.Plan = plan
	holders := map[placement.DeviceID]Holder{{Driver: v1alpha1.DriverName, Pool: "b", Device: "gpu-4-mig-0"}: {UID: "claim"}}
	if left := Unreleased(Observation{Claim: claim, Holders: holders}); len(left) != 1 {
		t.Errorf("%d moves are not released, want 1", len(left))
	}
	if left := Unreleased(Observation{Claim: claim}); len(left) != 0 {
		t.Errorf("%d moves are not released, want none", len(left))
	}
}

func TestAPlannedGPUThatIsPartitionedSinceIsAProblem(t *testing.T) {
	claim, plan := testGang()
	p := plan.Placements[1]
	state := placement.DeviceState{Node: "b", ID: p.Devices[0].ID, Unfenced: true}
	if got := Problem(claim, p, p.Devices[0], state, false, false); got != DevicePartitioned || !strings.Contains(got.describe(), "counters") {
		t.Errorf("the problem is %q: it %s", got, got.describe())
	}
}

func TestReservedDevicesAreThoseOfThePlanAndOfRulesOfEarlierPlans(t *testing.T) {
	claim, plan := testGang()
	rules := Rules(claim, plan)
	rules[2].Spec.Taint.Effect = resourceapi.DeviceTaintEffectNone // reserves nothing any more
	claim.Status.Plan = &v1alpha1.GangPlan{Placements: []v1alpha1.GangPlacement{{Pool: "c", Devices: devicesNamed("gpu-9")}}}
	var got []string
	for _, d := range look(Observation{Claim: claim, Rules: rules}).reserved() {
		got = append(got, d.Pool+"/"+d.Device)
	}
	if want := []string{"a/gpu-0", "a/gpu-1", "b/gpu-4", "c/gpu-9"}; !slices.Equal(got, want) {
		t.Errorf("reserved are %v, want %v", got, want)
	}
}

func TestTemplateIsOwnedAndItsClaimsCarryTheLabels(t *testing.T) {
	claim, plan := testGang()
	template := Template(claim, plan)
	owner := metav1.GetControllerOf(template)
	if owner == nil || owner.UID != "gang-uid" || owner.Kind != "GangClaim" || owner.APIVersion != "switchyard.dev/v1alpha1" {
		t.Errorf("the owner is %+v", owner)
	}
	if template.Name != "g" || template.Namespace != "ml" || template.Spec.Labels[v1alpha1.PlanLabel] != plan.Hash ||
		template.Annotations[v1alpha1.GangClaimAnnotation] != "ml/g" || template.Spec.Annotations[v1alpha1.GangClaimAnnotation] != "ml/g" {
		t.Errorf("the template is %+v", template)
	}
}

func TestSpecsAreComparedAsTheAPIServerStoresThem(t *testing.T) {
	claim, plan := testGang()
	ours := placement.ClaimSpec(claim, plan)
	for name, c := range map[string]struct {
		change func(*resourceapi.ResourceClaimSpec)
		same   bool
	}{
		"defaults are filled in": {func(s *resourceapi.ResourceClaimSpec) {
			for i := range s.Devices.Requests[0].Exactly.Tolerations {
				s.Devices.Requests[0].Exactly.Tolerations[i].Operator = resourceapi.DeviceTolerationOpEqual
			}
			s.Devices.Requests[0].Exactly.AllocationMode = ""
		}, true},
		"JSON is written anew": {func(s *resourceapi.ResourceClaimSpec) {
			s.Devices.Config[0].Opaque.Parameters.Raw = []byte(`{"a":2,"b":1}`)
		}, true},
		"JSON says something else": {func(s *resourceapi.ResourceClaimSpec) {
			s.Devices.Config[0].Opaque.Parameters.Raw = []byte(`{"a":3,"b":1}`)
		}, false},
		"another count":            {func(s *resourceapi.ResourceClaimSpec) { s.Devices.Requests[0].Exactly.Count = 1 }, false},
		"another selector":         {func(s *resourceapi.ResourceClaimSpec) { s.Devices.Requests[0].Exactly.Selectors = nil }, false},
		"alternatives":             {func(s *resourceapi.ResourceClaimSpec) { s.Devices.Requests[0].Exactly = nil }, false},
		"configuration is no JSON": {func(s *resourceapi.ResourceClaimSpec) { s.Devices.Config[0].Opaque.Parameters.Raw = []byte("x") }, false},
		"configuration is empty":   {func(s *resourceapi.ResourceClaimSpec) { s.Devices.Config[0].Opaque = nil }, false},
	} {
		other := *ours.DeepCopy()
		c.change(&other)
		if got := sameSpec(ours, other); got != c.same {
			t.Errorf("%s: same is %t", name, got)
		}
	}
	one := resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
		Exactly: &resourceapi.ExactDeviceRequest{},
	}}}}
	counted := *one.DeepCopy()
	counted.Devices.Requests[0].Exactly.Count = 1
	if !sameSpec(one, counted) {
		t.Error("a count of 1 is the default")
	}
}

func TestWellFormedClaimsMayKeepTheirPlace(t *testing.T) {
	claim, plan := testGang()
	required := claim.DeepCopy()
	required.Spec.Topology.Mode = v1alpha1.TopologyRequired
	scoped := plan.DeepCopy()
	scoped.MemberScope = v1alpha1.MemberNVSwitchDomain
	for name, c := range map[string]struct {
		gang   *v1alpha1.GangClaim
		plan   *v1alpha1.GangPlan
		change func(*resourceapi.ResourceClaim)
		want   bool
	}{
		"Preferred: whatever scope there was":    {claim, plan, nil, true},
		"Required: the scope that was asked for": {required, scoped, nil, true},
		"Required: not another":                  {required, plan, nil, false},
		"being deleted":                          {claim, plan, func(c *resourceapi.ResourceClaim) { c.DeletionTimestamp = &metav1.Time{Time: noon} }, false},
		"two requests": {claim, plan, func(c *resourceapi.ResourceClaim) {
			c.Spec.Devices.Requests = append(c.Spec.Devices.Requests, c.Spec.Devices.Requests[0])
		}, false},
		"another class": {claim, plan, func(c *resourceapi.ResourceClaim) { c.Spec.Devices.Requests[0].Exactly.DeviceClassName = "x" }, false},
		"another count": {claim, plan, func(c *resourceapi.ResourceClaim) { c.Spec.Devices.Requests[0].Exactly.Count = 1 }, false},
		"alternatives":  {claim, plan, func(c *resourceapi.ResourceClaim) { c.Spec.Devices.Requests[0].Exactly = nil }, false},
	} {
		got := &resourceapi.ResourceClaim{Spec: placement.ClaimSpec(c.gang, c.plan)}
		if c.change != nil {
			c.change(got)
		}
		if look(Observation{Claim: c.gang}).wellFormed(got) != c.want {
			t.Errorf("%s: want %t", name, c.want)
		}
	}
}

func TestPlanIsDescribedWithWhatWasGivenUp(t *testing.T) {
	claim, plan := testGang()
	const want = "2 members of 2 devices: 1 on a in a.0, 1 on b; a member's devices share a Node only; the members share Any only"
	if got := describePlan(claim, plan); got != want {
		t.Errorf("got %q", got)
	}
	if got := domains(plan); got != "a.0,b" {
		t.Errorf("domains are %q", got)
	}
	plan.Step = v1alpha1.StepTakingBack
	if got := domains(plan); got != "-" {
		t.Errorf("domains of a plan that is taken back are %q", got)
	}
}

func TestMessagesNameAtMostFivePods(t *testing.T) {
	var list []member
	for i := range 7 {
		list = append(list, member{pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("p", i)}}})
	}
	if got := names(list); got != "pods p0, p1, p2, p3, p4 and 2 more" {
		t.Errorf("got %q", got)
	}
}

func TestThousandsOfPodsGetNoEventEach(t *testing.T) {
	claim, _ := testGang()
	claim.Finalizers = []string{Finalizer}
	var pods []*corev1.Pod
	for i := range 3000 {
		name := fmt.Sprintf("pod-%d", i)
		pods = append(pods, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name, UID: types.UID(name)},
			Spec:       corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{{Name: "gpus", ResourceClaimTemplateName: &claim.Name}}},
		})
	}
	d := Decide(Observation{Now: noon, Claim: claim, Pods: pods})
	if c := condition(d.Status.Conditions, v1alpha1.ConditionPlanned); c == nil || c.Reason != ReasonTooManyMembers {
		t.Fatalf("got %+v, want %s", c, ReasonTooManyMembers)
	}
	if len(d.Events) < 3 || len(d.Events) > 260 {
		t.Errorf("%d Events for %d pods", len(d.Events), len(pods))
	}
}

func TestTimesHaveDefaults(t *testing.T) {
	claim, plan := testGang()
	if schedulingTimeout(claim) != 10*time.Minute || restartGracePeriod(claim) != 5*time.Minute {
		t.Error("defaults are not those of the API")
	}
	plan.Members = 128
	if VerifyDeadline(plan) != 35600*time.Millisecond {
		t.Errorf("the deadline of 128 members is %s", VerifyDeadline(plan))
	}
}

func TestStampSaysWhatWasDoneAndWhen(t *testing.T) {
	annotations := map[string]string{v1alpha1.TouchedAnnotation: Stamp(StampTouched, noon)}
	if at, ok := stamped(annotations, StampTouched); !ok || !at.Equal(noon) {
		t.Errorf("read back: %s %t", at, ok)
	}
	for name, value := range map[string]string{"something else was done": Stamp(StampCreated, noon), "no time": "touched then", "empty": ""} {
		if _, ok := stamped(map[string]string{v1alpha1.TouchedAnnotation: value}, StampTouched); ok {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestOrphansGoGangByGangTemplateFirst(t *testing.T) {
	labels := func(uid string) map[string]string {
		return map[string]string{v1alpha1.GangLabel: uid, v1alpha1.PlanLabel: "h"}
	}
	template := func(uid string) *resourceapi.ResourceClaimTemplate {
		return &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Name: "t-" + uid, Labels: labels(uid)}}
	}
	claim := func(uid, name string) *resourceapi.ResourceClaim {
		return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels(uid)}}
	}
	rule := func(uid, stamp string, effect resourceapi.DeviceTaintEffect) *resourceapi.DeviceTaintRule {
		r := &resourceapi.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: "r-" + uid, Labels: labels(uid)}}
		r.Spec.Taint.Effect = effect
		r.Annotations = map[string]string{v1alpha1.TouchedAnnotation: stamp}
		return r
	}
	runs := claim("a", "runs")
	runs.Annotations = map[string]string{v1alpha1.ReadyAnnotation: "h"}
	held := claim("f", "held")
	held.Status.Allocation = &resourceapi.AllocationResult{}
	unowned := held.DeepCopy()
	held.OwnerReferences = []metav1.OwnerReference{{UID: "pod", Controller: ptr.To(true)}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "pod", OwnerReferences: held.OwnerReferences}}
	none := resourceapi.DeviceTaintEffectNone
	actions, after := Orphans(Labelled{
		Now:       noon,
		Templates: []*resourceapi.ResourceClaimTemplate{template("a"), template("alive"), {ObjectMeta: metav1.ObjectMeta{Name: "no label"}}},
		Claims:    []*resourceapi.ResourceClaim{runs, claim("a", "later"), claim("b", "c"), claim("alive", "c"), held, unowned},
		Rules: []*resourceapi.DeviceTaintRule{
			rule("a", "", none), rule("c", Stamp(StampCreated, noon), resourceapi.DeviceTaintEffectNoSchedule),
			rule("d", Stamp(StampNeutralized, noon.Add(-400*time.Millisecond)), none), rule("e", Stamp(StampNeutralized, noon.Add(-time.Second)), none),
			rule("alive", "", none),
		},
		Pods: []*corev1.Pod{pod},
	}, func(uid types.UID) bool { return uid == "alive" })
	var got []string
	for _, a := range actions {
		got = append(got, a.Verb())
	}
	want := []string{"DeleteTemplate", "DeleteClaims", "NeutralizeRules", "DeleteRules", "EvictPods"}
	if !slices.Equal(got, want) || after != 600*time.Millisecond {
		t.Errorf("actions are %v, again after %s", got, after)
	}
}

func TestVerbsNameTheActions(t *testing.T) {
	for _, a := range []Action{
		AddFinalizer{},
		RemoveFinalizer{},
		CreateRules{},
		RepairRules{},
		TouchRules{},
		NeutralizeRules{},
		DeleteRules{},
		CreateTemplate{},
		DeleteTemplate{},
		DeleteClaims{},
		TouchPods{},
		EvictPods{},
		MarkReady{},
	} {
		if got := fmt.Sprintf("%T", a); got != "gang."+a.Verb() {
			t.Errorf("%s says that it is %s", got, a.Verb())
		}
	}
}

func TestObservationIsNotChanged(t *testing.T) {
	claim, plan := testGang()
	plan.Step = v1alpha1.StepQuiescing
	claim.Status.Plan = plan
	before := claim.DeepCopy()
	Decide(Observation{Now: noon, Claim: claim})
	if !equality.Semantic.DeepEqual(claim, before) {
		t.Error("Decide changed the GangClaim that it was given")
	}
}

func TestManyPlacesAreListedInPart(t *testing.T) {
	claim, plan := testGang()
	plan.Placements = nil
	for i := range 256 {
		plan.Placements = append(plan.Placements, v1alpha1.GangPlacement{Node: fmt.Sprintf("n%d", i), Members: 1})
	}
	if got, want := domains(plan), "n0,n1,n2,n3,n4 and 251 more"; got != want {
		t.Errorf("domains are %q, want %q", got, want)
	}
	if got, want := describePlan(claim, plan), ": 1 on n0, 1 on n1, 1 on n2, 1 on n3, 1 on n4 and 251 more;"; !strings.Contains(got, want) {
		t.Errorf("the plan is %q, want %q in it", got, want)
	}
}

func TestTemplateWithLabelsOfAWebhookIsIntact(t *testing.T) {
	claim, plan := testGang()
	claim.Status.Plan = plan
	intact := func(change func(*resourceapi.ResourceClaimTemplate)) bool {
		template := Template(claim, plan)
		change(template)
		return look(Observation{Claim: claim, Template: template}).intactTemplate()
	}
	if !intact(func(t *resourceapi.ResourceClaimTemplate) { t.Spec.Labels["team"] = "ml" }) {
		t.Error("a label that was added changes the template")
	}
	if intact(func(t *resourceapi.ResourceClaimTemplate) { delete(t.Spec.Labels, v1alpha1.PlanLabel) }) {
		t.Error("a template without the label of the plan is intact")
	}
}
