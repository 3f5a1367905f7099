// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package defrag_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/defrag"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// now is when all tests take place.
var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// lab is a cluster and a maker that follow the same objects.
type lab struct {
	*placement.Cluster
	maker  *defrag.Maker
	limits defrag.Limits
	clock  *clocktesting.FakePassiveClock
	pods   map[string]*corev1.Pod
	claims map[string]*resourceapi.ResourceClaim
}

func newLab(change ...func(*defrag.Limits)) *lab {
	limits := defrag.DefaultLimits()
	for _, c := range change {
		c(&limits)
	}
	clk := clocktesting.NewFakePassiveClock(now)
	l := &lab{
		Cluster: placement.NewClusterAt(clk), maker: defrag.NewMaker(limits, clk), limits: limits, clock: clk,
		pods: map[string]*corev1.Pod{}, claims: map[string]*resourceapi.ResourceClaim{},
	}
	l.SetClass(&resourceapi.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.DriverName},
		Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: `device.driver == "gpu.switchyard.dev" && device.attributes["gpu.switchyard.dev"].?type.orValue("") == "gpu"`,
		}}}},
	})
	return l
}

// node adds a node with domains of so many GPUs: gpu-0, gpu-1 ... across them.
func (l *lab) node(name string, domains ...int) { l.nodeWith(name, nil, domains...) }

// nodeWith changes the slice before it is published.
func (l *lab) nodeWith(name string, change func(*resourceapi.ResourceSlice), domains ...int) {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}},
		Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("64"), corev1.ResourcePods: resource.MustParse("110")},
			Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
	l.SetNode(n)
	s := &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: name + "-0"},
		Spec: resourceapi.ResourceSliceSpec{
			Driver: v1alpha1.DriverName, NodeName: ptr.To(name),
			Pool: resourceapi.ResourcePool{Name: name, Generation: 1, ResourceSliceCount: 1},
		},
	}
	for d, size := range domains {
		for range size {
			i := len(s.Spec.Devices)
			s.Spec.Devices = append(s.Spec.Devices, resourceapi.Device{
				Name: fmt.Sprintf("gpu-%d", i),
				Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
					"type": {StringValue: ptr.To("gpu")}, "id": {StringValue: ptr.To(fmt.Sprintf("%s-%d", name, i))},
					"nvswitchDomain": {StringValue: ptr.To(fmt.Sprintf("%s.%d", name, d))},
				},
			})
		}
	}
	if change != nil {
		change(s)
	}
	l.SetSlice(s)
}

// single runs a pod of a ReplicaSet on one GPU; with changes pod and claim before they are stored.
func (l *lab) single(name, node string, gpu int, with ...func(*corev1.Pod, *resourceapi.ResourceClaim)) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "web", Name: name, UID: types.UID("pod-" + name), Labels: map[string]string{"app": "infer"},
			CreationTimestamp: metav1.NewTime(now.Add(-4 * time.Minute)),
			OwnerReferences:   []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "infer", UID: "rs-infer", Controller: ptr.To(true)}},
		},
		Spec: corev1.PodSpec{
			NodeName: node, Priority: ptr.To(int32(0)),
			ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: ptr.To("one-gpu")}},
			Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")},
			}}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
	claim := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "web", Name: name, UID: types.UID("claim-" + name)},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
			Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{
				DeviceClassName: v1alpha1.DriverName, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
			},
		}}}},
		Status: resourceapi.ResourceClaimStatus{
			Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{{
				Request: "gpu", Driver: v1alpha1.DriverName, Pool: node, Device: fmt.Sprintf("gpu-%d", gpu),
			}}}},
			ReservedFor: []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: name, UID: pod.UID}},
		},
	}
	for _, c := range with {
		c(pod, claim)
	}
	l.pods[name], l.claims[name] = pod, claim
	l.SetPod(pod)
	l.SetClaim(claim)
}

// remove lets a pod end.
func (l *lab) remove(name string) {
	key := types.NamespacedName{Namespace: l.pods[name].Namespace, Name: name}
	l.DeletePod(key)
	l.DeleteClaim(key)
}

// budget is a PodDisruptionBudget over the pods with app=infer.
func budget(name string, allowed int32) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "web", Name: name, Generation: 1},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "infer"}}},
		Status:     policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 1, DisruptionsAllowed: allowed},
	}
}

// gang is one of members × perMember GPUs, with priority 100, that has waited for an hour and may evict.
func gang(name string, members, perMember int32, with ...func(*placement.Gang)) placement.Gang {
	g := placement.Gang{Priority: 100, Claim: &v1alpha1.GangClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name, UID: types.UID("gang-" + name), CreationTimestamp: metav1.NewTime(now.Add(-time.Hour))},
		Spec: v1alpha1.GangClaimSpec{
			Members: members, DevicesPerMember: perMember, DeviceClassName: v1alpha1.DriverName,
			Topology:        v1alpha1.GangTopology{Member: v1alpha1.MemberNVSwitchDomain, Gang: v1alpha1.GangAny, Mode: v1alpha1.TopologyRequired},
			Defragmentation: v1alpha1.DefragmentationEvict,
		},
		Status: v1alpha1.GangClaimStatus{WaitingSince: ptr.To(metav1.NewMicroTime(now.Add(-20 * time.Minute)))},
	}}
	for i := range members {
		g.Pods = append(g.Pods, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: fmt.Sprintf("%s-%d", name, i), UID: types.UID(fmt.Sprintf("pod-%s-%d", name, i))},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")},
			}}}},
		})
	}
	for _, change := range with {
		change(&g)
	}
	return g
}

func (l *lab) plan(gangs ...placement.Gang) []placement.Decision {
	return l.PlanWithRoom(context.Background(), gangs, l.maker)
}

// one plans one gang.
func (l *lab) one(t *testing.T, g placement.Gang) placement.Decision {
	t.Helper()
	return l.plan(g)[0]
}

// moves says what a decision would move: "infer-7 node-b.1/gpu-6 > node-b.0/gpu-1, ...".
func moves(list []v1alpha1.GangMove) string {
	text := ""
	for i, m := range list {
		if i > 0 {
			text += ", "
		}
		text += fmt.Sprintf("%s %s/%s > %s/%s", m.Pod, m.From.Domain, m.From.Device, m.To.Domain, m.To.Device)
	}
	return text
}
