// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

const driver = v1alpha1.DriverName

// gpuClass is the DeviceClass that is installed.
func gpuClass() *resourceapi.DeviceClass {
	return &resourceapi.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: driver},
		Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{cel(
			`device.driver == "gpu.switchyard.dev" && device.attributes["gpu.switchyard.dev"].?type.orValue("") == "gpu"`)}},
	}
}

func cel(expression string) resourceapi.DeviceSelector {
	return resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}
}

// gpu is one GPU of a node in a test.
type gpu struct {
	domain, pcie, product string
	numa                  int64 // -1 for none
	id                    string
	taints                []resourceapi.DeviceTaint
}

// gpus are count GPUs in one domain at one NUMA node.
func gpus(count int, domain string, numa int64) []gpu {
	list := make([]gpu, count)
	for i := range list {
		list[i] = gpu{domain: domain, numa: numa}
	}
	return list
}

// sliceOf publishes GPUs as gpu-0, gpu-1 … of the node, in this order.
func sliceOf(node string, list ...gpu) *resourceapi.ResourceSlice {
	s := &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: node + "-slice-0"},
		Spec: resourceapi.ResourceSliceSpec{
			Driver:   driver,
			NodeName: ptr.To(node),
			Pool:     resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1},
		},
	}
	for i, g := range list {
		attributes := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}
		text := func(name resourceapi.QualifiedName, value string) {
			if value != "" {
				attributes[name] = resourceapi.DeviceAttribute{StringValue: ptr.To(value)}
			}
		}
		id := g.id
		if id == "" {
			id = fmt.Sprintf("%s-%d", node, i)
		}
		text("type", "gpu")
		text("id", id)
		text("productName", g.product)
		text("nvswitchDomain", g.domain)
		text("resource.kubernetes.io/pcieRoot", g.pcie)
		if g.numa >= 0 {
			attributes["resource.kubernetes.io/numaNode"] = resourceapi.DeviceAttribute{IntValue: ptr.To(g.numa)}
		}
		s.Spec.Devices = append(s.Spec.Devices, resourceapi.Device{
			Name:       fmt.Sprintf("gpu-%d", i),
			Attributes: attributes,
			Capacity:   map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: resource.MustParse("80Gi")}},
			Taints:     g.taints,
		})
	}
	return s
}

// hgx is a node's slice with two domains of four GPUs, one at each of two NUMA nodes.
func hgx(node string) *resourceapi.ResourceSlice {
	return sliceOf(node, append(gpus(4, node+".0", 0), gpus(4, node+".1", 1)...)...)
}

func readyNode(name string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}},
		Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{
				corev1.ResourceCPU:    resource.MustParse("64"),
				corev1.ResourceMemory: resource.MustParse("512Gi"),
				corev1.ResourcePods:   resource.MustParse("110"),
			},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
}

// single is a claim of one pod that has devices of a node.
func single(name, node string, devices ...int) *resourceapi.ResourceClaim {
	claim := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "web", Name: name, UID: types.UID("uid-" + name)},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
			Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: driver, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: int64(len(devices))},
		}}}},
		Status: resourceapi.ResourceClaimStatus{
			Allocation:  &resourceapi.AllocationResult{},
			ReservedFor: []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: name, UID: types.UID("pod-" + name)}},
		},
	}
	for _, d := range devices {
		claim.Status.Allocation.Devices.Results = append(claim.Status.Allocation.Devices.Results, resourceapi.DeviceRequestAllocationResult{
			Request: "gpu", Driver: driver, Pool: node, Device: fmt.Sprintf("gpu-%d", d),
		})
	}
	return claim
}

// gangOf is a gang of members × perMember devices; with applies changes to it.
func gangOf(name string, members, perMember int32, with ...func(*placement.Gang)) placement.Gang {
	g := placement.Gang{Claim: &v1alpha1.GangClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name, UID: types.UID("uid-" + name), CreationTimestamp: metav1.NewTime(time.Unix(1_700_000_000, 0))},
		Spec: v1alpha1.GangClaimSpec{
			Members: members, DevicesPerMember: perMember, DeviceClassName: driver,
			Topology: v1alpha1.GangTopology{Member: v1alpha1.MemberNVSwitchDomain, Gang: v1alpha1.GangAny, Mode: v1alpha1.TopologyRequired},
		},
	}}
	for i := range members {
		g.Pods = append(g.Pods, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: fmt.Sprintf("%s-%d", name, i), UID: types.UID(fmt.Sprintf("pod-%s-%d", name, i))},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")},
			}}}},
		})
	}
	for _, change := range with {
		change(&g)
	}
	return g
}

func scopes(member v1alpha1.MemberScope, gang v1alpha1.GangScope) func(*placement.Gang) {
	return func(g *placement.Gang) {
		g.Claim.Spec.Topology.Member, g.Claim.Spec.Topology.Gang = member, gang
	}
}

// clusterOf has the class and what it is given.
func clusterOf(t testing.TB, objects ...any) *placement.Cluster {
	t.Helper()
	c := placement.NewCluster()
	c.SetClass(gpuClass())
	for _, o := range objects {
		set(t, c, o)
	}
	return c
}

func set(t testing.TB, c *placement.Cluster, object any) {
	t.Helper()
	switch o := object.(type) {
	case *resourceapi.ResourceSlice:
		c.SetSlice(o)
	case *resourceapi.ResourceClaim:
		c.SetClaim(o)
	case *resourceapi.DeviceClass:
		c.SetClass(o)
	case *resourceapi.DeviceTaintRule:
		c.SetRule(o)
	case *corev1.Node:
		c.SetNode(o)
	case *corev1.Pod:
		c.SetPod(o)
	case *corev1.ResourceQuota:
		c.SetQuota(o)
	case *corev1.PersistentVolumeClaim:
		c.SetVolumeClaim(o)
	case *corev1.PersistentVolume:
		c.SetVolume(o)
	case *storagev1.StorageClass:
		c.SetStorageClass(o)
	case *v1alpha1.GangClaim:
		c.SetGang(o)
	default:
		t.Fatalf("no setter for %T", object)
	}
}

// planOf plans one gang and describes the result: "node-a.0 gpu-0 gpu-1, node-b.0 …", or the reason.
func planOf(t testing.TB, c *placement.Cluster, g placement.Gang) string {
	t.Helper()
	return describe(c.Plan(context.Background(), []placement.Gang{g})[0])
}

func describe(d placement.Decision) string {
	if d.Refusal != nil {
		return string(d.Refusal.Reason)
	}
	text := ""
	for i, p := range d.Plan.Placements {
		if i > 0 {
			text += "; "
		}
		text += p.Node
		if p.Domain != "" {
			text += " " + p.Domain
		}
		text += fmt.Sprintf(" ×%d:", p.Members)
		for _, device := range p.Devices {
			text += " " + device.Name[len("gpu-"):]
		}
	}
	return text
}

func nameOf(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "web", Name: name}
}

// expensive costs several 100,000 units of CEL on each device, and says then.
func expensive(then string) resourceapi.DeviceSelector {
	list := "[" + strings.Repeat("1, ", 39) + "1]"
	return cel(fmt.Sprintf(`%s.all(a, %s.all(b, %s.all(c, c == a))) && %s`, list, list, list, then))
}
