// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"encoding/json"
	"fmt"
	"runtime"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/demand"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// decoded is the object as it comes from the API server: nothing in it is shared with another one.
func decoded[T any, P interface {
	*T
	client.Object
}](t *testing.T, object P) P {
	t.Helper()
	data, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	fresh := P(new(T))
	if err := json.Unmarshal(data, fresh); err != nil {
		t.Fatal(err)
	}
	return fresh
}

// TestMemory holds what a large cluster needs in the cache and in the planner's index.
func TestMemory(t *testing.T) {
	const (
		nodes, gpusPerNode, claims = 1000, 8, 10000
		limit                      = 250 << 20
		// processBase is what the process has without any object: code, clients, informers' goroutines.
		processBase = 60 << 20
	)
	managed := []metav1.ManagedFieldsEntry{{Manager: "kubelet", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1"}}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)

	shared := &sharer{}
	stripped := func(object client.Object) {
		if _, err := shared.strip(object); err != nil {
			t.Fatal(err)
		}
	}
	cluster := placement.NewCluster()
	asked := demand.NewTracker(demand.DefaultHalfLife, clock.RealClock{})
	var cache []client.Object
	for n := range nodes {
		name := fmt.Sprintf("gpu-node-%04d", n)
		node := decoded(t, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name, corev1.LabelTopologyZone: "a"}, ManagedFields: managed},
			Status: corev1.NodeStatus{
				Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("192"), corev1.ResourceMemory: resource.MustParse("2Ti")},
				Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			},
		})
		stripped(node)
		cluster.SetNode(node)
		slice := &resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: name + "-gpus", UID: types.UID(name)},
			Spec: resourceapi.ResourceSliceSpec{
				Driver: v1alpha1.DriverName, NodeName: &name,
				Pool: resourceapi.ResourcePool{Name: name, Generation: 1, ResourceSliceCount: 1},
			},
		}
		for g := range gpusPerNode {
			attributes := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				"type": {StringValue: ptr.To("gpu")}, "id": {StringValue: ptr.To(fmt.Sprintf("%04d%04d", n, g))},
				"nvswitchDomain": {StringValue: ptr.To(fmt.Sprintf("%s.%d", name, g/4))},
			}
			for i := range 14 { // as many as a real one has
				attributes[resourceapi.QualifiedName(fmt.Sprintf("attribute%d", i))] = resourceapi.DeviceAttribute{StringValue: ptr.To("a value of some length")}
			}
			slice.Spec.Devices = append(slice.Spec.Devices, resourceapi.Device{Name: fmt.Sprintf("gpu-%d", g), Attributes: attributes})
		}
		slice = decoded(t, slice)
		stripped(slice)
		cluster.SetSlice(slice)
		cache = append(cache, node, slice)
	}
	for c := range claims {
		name := fmt.Sprintf("train-%05d", c)
		pod := decoded(t, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name, UID: types.UID("pod-" + name), Labels: map[string]string{"app": "train", "batch.kubernetes.io/job-name": "train"}, ManagedFields: managed, OwnerReferences: []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: name, UID: types.UID("job-" + name), Controller: ptr.To(true)}}},
			Spec: corev1.PodSpec{
				NodeName:       fmt.Sprintf("gpu-node-%04d", c%nodes),
				ResourceClaims: []corev1.PodResourceClaim{{Name: "gpus", ResourceClaimTemplateName: ptr.To("train")}},
				Containers: []corev1.Container{{
					Name: "work", Image: "registry.example.com/train:1", Command: []string{"torchrun", "--nnodes=8"},
					Env:       []corev1.EnvVar{{Name: "NCCL_DEBUG", Value: "INFO"}},
					Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("64Gi")}},
				}},
			},
			Status: corev1.PodStatus{Phase: corev1.PodRunning},
		})
		stripped(pod)
		cluster.SetPod(pod)
		asked.SetPod(pod)
		claim := &resourceapi.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name, UID: types.UID("claim-" + name), ManagedFields: managed, OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: name, UID: pod.UID, Controller: ptr.To(true)}}},
			Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
				Name: "gpus", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: v1alpha1.DriverName, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1},
			}}}},
		}
		if c < nodes*gpusPerNode {
			pool := fmt.Sprintf("gpu-node-%04d", c%nodes)
			claim.Status = resourceapi.ResourceClaimStatus{
				ReservedFor: []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: name, UID: types.UID("pod-" + name)}},
				Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{{
					Request: "gpus", Driver: v1alpha1.DriverName, Pool: pool, Device: fmt.Sprintf("gpu-%d", c/nodes),
				}}}},
			}
		}
		claim = decoded(t, claim)
		stripped(claim)
		cluster.SetClaim(claim)
		asked.SetClaim(claim)
		cache = append(cache, pod, claim)
	}

	runtime.GC()
	runtime.ReadMemStats(&after)
	used := int64(after.HeapAlloc) - int64(before.HeapAlloc)
	t.Logf("%d nodes with %d GPUs each and %d claims and pods need %d MiB", nodes, gpusPerNode, claims, used>>20)
	if used+processBase > limit {
		t.Errorf("%d MiB for objects and %d MiB for the rest are more than %d MiB", used>>20, processBase>>20, limit>>20)
	}
	runtime.KeepAlive(cache)
	runtime.KeepAlive(cluster)
	runtime.KeepAlive(asked)
}
