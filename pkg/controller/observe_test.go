// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/gang"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// start is when the tests begin; timestamps of objects have whole seconds.
var start = time.Unix(1_800_000_000, 0)

// fakeAPI is an API server with the controller's indexes. live counts the lists of claims in it.
func fakeAPI(t *testing.T, funcs interceptor.Funcs, objects ...client.Object) client.WithWatch {
	t.Helper()
	scheme, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(&v1alpha1.GangClaim{}).
		WithIndex(&corev1.Pod{}, podsByTemplate, templatesOf).
		WithIndex(&resourceapi.ResourceClaim{}, byGang, gangOf).
		WithIndex(&resourceapi.ResourceClaim{}, claimsByPod, podOf).
		WithIndex(&resourceapi.DeviceTaintRule{}, byGang, gangOf).
		WithInterceptorFuncs(funcs).Build()
}

func gpu() *resourceapi.ResourceSlice {
	return &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "slice"},
		Spec: resourceapi.ResourceSliceSpec{
			Driver: v1alpha1.DriverName, NodeName: ptr.To("node"), Pool: resourceapi.ResourcePool{Name: "node", ResourceSliceCount: 1},
			Devices: []resourceapi.Device{{Name: "gpu-0", Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				"type": {StringValue: ptr.To("gpu")}, "id": {StringValue: ptr.To("id-0")}, "nvswitchDomain": {StringValue: ptr.To("node.0")},
			}}},
		},
	}
}

func gpuClaim(name string, allocated bool) *resourceapi.ResourceClaim {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name, UID: types.UID(name)}}
	claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: v1alpha1.DriverName, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
	}}}
	if allocated {
		claim.Status.Allocation = &resourceapi.AllocationResult{}
		claim.Status.Allocation.Devices.Results = []resourceapi.DeviceRequestAllocationResult{
			{Driver: v1alpha1.DriverName, Pool: "node", Device: "gpu-0"},
		}
	}
	return claim
}

func gpuPod(name string, created time.Time) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(created)},
		Spec:       corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &name}}},
	}
}

func readyNode() *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node"},
		Status:     corev1.NodeStatus{Allocatable: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("10")}, Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
	}
}

// plannedGang has a plan on the GPU.
func plannedGang(step v1alpha1.GangStep) *v1alpha1.GangClaim {
	claim := gangNamed("gang")
	claim.ResourceVersion = ""
	claim.Spec = v1alpha1.GangClaimSpec{
		Members: 1, DevicesPerMember: 1, DeviceClassName: v1alpha1.DriverName,
		Topology: v1alpha1.GangTopology{Member: v1alpha1.MemberNode, Gang: v1alpha1.GangAny},
	}
	claim.Status.Plan = &v1alpha1.GangPlan{
		Members: 1, Hash: "hash", Step: step, StepSince: metav1.NewMicroTime(start),
		Placements: []v1alpha1.GangPlacement{{Node: "node", Pool: "node", Devices: []v1alpha1.GangDevice{{Name: "gpu-0", ID: "id-0"}}}},
	}
	return claim
}

// What kube-scheduler decided before it saw the fence may be in the API server and not in the cache. It
// is looked for there before each release.
func TestTheAPIServerIsAskedBeforeARelease(t *testing.T) {
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.DriverName}}
	late := gpuClaim("late", true)
	for name, test := range map[string]struct {
		step  v1alpha1.GangStep
		pods  []*corev1.Pod // with unallocated claims of the same name
		after time.Duration
		asked bool
	}{
		"no rival: asked":                                 {step: v1alpha1.StepQuiescing, asked: true},
		"a rival that is not decided on: not yet":         {step: v1alpha1.StepQuiescing, pods: []*corev1.Pod{gpuPod("rival", start.Add(-time.Minute))}},
		"a rival made after the fence is none: asked":     {step: v1alpha1.StepQuiescing, pods: []*corev1.Pod{gpuPod("later", start.Add(time.Second))}, after: 2 * time.Second, asked: true},
		"a rival of both kinds: not yet":                  {step: v1alpha1.StepQuiescing, pods: []*corev1.Pod{gpuPod("rival", start.Add(-time.Minute)), gpuPod("later", start.Add(time.Second))}, after: 2 * time.Second},
		"the time for quiescing is over, rival or not":    {step: v1alpha1.StepQuiescing, pods: []*corev1.Pod{gpuPod("rival", start.Add(-time.Minute))}, after: gang.QuiesceFor, asked: true},
		"before quiescing nothing is released: not asked": {step: v1alpha1.StepFencing},
		"after the release it is too late: not asked":     {step: v1alpha1.StepReleasing},
	} {
		t.Run(name, func(t *testing.T) {
			claim := plannedGang(test.step)
			cluster := placement.NewCluster()
			cluster.SetSlice(gpu())
			cluster.SetClass(class)
			for _, pod := range test.pods {
				cluster.SetPod(pod)
				cluster.SetClaim(gpuClaim(pod.Name, false))
			}
			asked := 0
			o := &observer{
				cached: fakeAPI(t, interceptor.Funcs{}, class, readyNode()), cluster: cluster, clock: clocktesting.NewFakePassiveClock(start.Add(test.after)),
				live: fakeAPI(t, interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
					asked++
					return c.List(ctx, list, options...)
				}}, late),
			}
			observation, err := o.observe(t.Context(), claim)
			if err != nil {
				t.Fatal(err)
			}
			if (asked > 0) != test.asked {
				t.Errorf("the API server was asked %d times, want that it was: %t", asked, test.asked)
			}
			want := map[placement.DeviceID]gang.Holder{}
			if test.asked {
				want[placement.DeviceID{Driver: v1alpha1.DriverName, Pool: "node", Device: "gpu-0"}] = gang.Holder{Claim: keyOf(late), UID: late.UID}
			}
			if diff := cmp.Diff(want, observation.Holders, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("holders (-want +got):\n%s", diff)
			}
			if released := gang.Undecided(observation); len(released) == 0 && test.step == v1alpha1.StepQuiescing && asked == 0 {
				t.Error("the gang would be released without a look at the API server")
			}
		})
	}
}

// Who has a partition of a planned GPU is a holder, to the cache and to the API server, and who wants one a rival.
func TestWhoHasOrWantsASiblingIsObserved(t *testing.T) {
	claim := plannedGang(v1alpha1.StepQuiescing)
	claim.Status.Plan.Placements[0].Devices[0].Siblings = []string{"gpu-0-mig-0"}
	sibling := placement.DeviceID{Driver: v1alpha1.DriverName, Pool: "node", Device: "gpu-0-mig-0"}
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.DriverName}}
	slice := gpu()
	slice.Spec.Devices = append(slice.Spec.Devices, resourceapi.Device{Name: sibling.Device})
	has := gpuClaim("has", true)
	has.Status.Allocation.Devices.Results[0].Device = sibling.Device
	wants := gpuClaim("wants", false)
	wants.Spec.Devices.Requests[0].Exactly.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
		Expression: fmt.Sprintf("!has(device.attributes[%q].id)", v1alpha1.DriverName),
	}}}
	cluster := placement.NewCluster()
	cluster.SetSlice(slice)
	cluster.SetClass(class)
	cluster.SetClaim(has)
	api := fakeAPI(t, interceptor.Funcs{}, class, readyNode(), has)
	o := &observer{cached: api, live: api, cluster: cluster, clock: clocktesting.NewFakePassiveClock(start)}
	for name, pods := range map[string]int{"nobody wants it: the API server is asked": 0, "someone does: the cache says who has it": 1} {
		t.Run(name, func(t *testing.T) {
			if pods > 0 {
				cluster.SetPod(gpuPod("wants", start.Add(-time.Minute)))
				cluster.SetClaim(wants)
				defer cluster.DeletePod(keyOf(wants))
			}
			observation, err := o.observe(t.Context(), claim)
			if err != nil {
				t.Fatal(err)
			}
			if len(observation.Rivals) != pods || observation.Holders[sibling].Claim != keyOf(has) {
				t.Errorf("rivals %v, holders %v", observation.Rivals, observation.Holders)
			}
		})
	}
}

func TestAnInvalidFieldIsNamed(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*v1alpha1.GangClaim)
		says   string
	}{
		"a valid gang": {change: func(*v1alpha1.GangClaim) {}},
		"configuration that the node plugin would refuse": {
			change: func(claim *v1alpha1.GangClaim) {
				claim.Spec.Config = []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: resourceapi.DeviceConfiguration{
					Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: v1alpha1.DriverName, Parameters: runtime.RawExtension{Raw: []byte(`{"kind":"Unheard"}`)}},
				}}}
			},
			says: "spec.config[0].opaque.parameters",
		},
		"a name that is too long for a label": {
			change: func(claim *v1alpha1.GangClaim) { claim.Name = strings.Repeat("x", 64) }, says: "metadata.name",
		},
	} {
		t.Run(name, func(t *testing.T) {
			claim := plannedGang(v1alpha1.StepFencing)
			claim.Status.Plan = nil
			test.change(claim)
			api := fakeAPI(t, interceptor.Funcs{})
			o := &observer{cached: api, live: api, cluster: placement.NewCluster(), clock: clocktesting.NewFakePassiveClock(start)}
			observation, err := o.observe(t.Context(), claim)
			if err != nil {
				t.Fatal(err)
			}
			if (observation.Invalid == "") != (test.says == "") || !strings.Contains(observation.Invalid, test.says) {
				t.Errorf("invalid is %q, want it to name %q", observation.Invalid, test.says)
			}
		})
	}
}

func TestPriorityIsBoundedByThePods(t *testing.T) {
	pod := func(priority int32) *corev1.Pod {
		p := member("gang-0")
		p.Spec.Priority = &priority
		return p
	}
	ended := pod(-100)
	ended.Status.Phase = corev1.PodSucceeded
	for name, test := range map[string]struct {
		class string
		pods  []*corev1.Pod
		want  int32
	}{
		"without a class it is the lowest of the pods":        {"", []*corev1.Pod{pod(7), pod(5)}, 5},
		"a class does not lift it: pods are subject to quota": {"high", []*corev1.Pod{pod(7), pod(5)}, 5},
		"a class lowers it":                          {"low", []*corev1.Pod{pod(7), pod(5)}, 1},
		"a class that does not exist counts as none": {"none", []*corev1.Pod{pod(7)}, 7},
		"pods that have ended do not count":          {"", []*corev1.Pod{ended, pod(7)}, 7},
	} {
		t.Run(name, func(t *testing.T) {
			o := &observer{cached: fakeAPI(t, interceptor.Funcs{},
				&schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "high"}, Value: 1000},
				&schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "low"}, Value: 1})}
			observation := gang.Observation{Claim: gangNamed("gang"), Pods: test.pods}
			observation.Claim.Spec.PriorityClassName = test.class
			if err := o.priority(t.Context(), &observation); err != nil || observation.Priority != test.want {
				t.Errorf("priority = %d, %v, want %d", observation.Priority, err, test.want)
			}
		})
	}
}
