// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/test/harness/fleet"
)

var update = flag.Bool("update", false, "write the golden files")

var testTime = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// testConnection reads from a fake API server.
type testConnection struct{ reader client.Reader }

func (testConnection) addFlags(cmd *cobra.Command)                   { newKubeconfig().addFlags(cmd) }
func (c testConnection) open(context.Context) (client.Reader, error) { return c.reader, nil }
func (testConnection) namespace() (string, error)                    { return "ml", nil }
func (testConnection) clock() clock.PassiveClock                     { return clocktesting.NewFakePassiveClock(testTime) }

// testCluster are objects by kind and name; a later one replaces an earlier one.
type testCluster []client.Object

func (c testCluster) with(objects ...client.Object) testCluster {
	list := append(testCluster{}, c...)
	for _, o := range objects {
		for i, old := range list {
			if fmt.Sprintf("%T", old) == fmt.Sprintf("%T", o) && keyOf(old) == keyOf(o) {
				list = append(list[:i:i], list[i+1:]...)
				break
			}
		}
		list = append(list, o)
	}
	return list
}

// without leaves out the objects of a namespace and name.
func (c testCluster) without(namespace, name string) testCluster {
	var list testCluster
	for _, o := range c {
		if o.GetNamespace() != namespace || o.GetName() != name {
			list = append(list, o)
		}
	}
	return list
}

func (c testCluster) connection(t *testing.T, funcs interceptor.Funcs) connection {
	t.Helper()
	scheme, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	builder := fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(funcs)
	for _, o := range c {
		copied, ok := o.DeepCopyObject().(client.Object)
		if !ok {
			t.Fatalf("%T is no object", o)
		}
		builder = builder.WithObjects(copied)
	}
	return testConnection{builder.Build()}
}

// run runs a command line on the cluster.
func (c testCluster) run(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	return runOn(t, c.connection(t, interceptor.Funcs{}), args...)
}

func runOn(t *testing.T, c connection, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	cmd := newCommand(c)
	var out, errs bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	cmd.SetArgs(args)
	err = cmd.ExecuteContext(t.Context())
	return out.String(), errs.String(), err
}

// golden compares what a command line prints on the cluster with a file of testdata.
func (c testCluster) golden(t *testing.T, file string, args ...string) {
	t.Helper()
	got, _, err := c.run(t, args...)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join("testdata", file)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("output differs (-want +got):\n%s", diff)
	}
}

// inventories makes what a profile publishes once: it is the slow part.
var inventories sync.Map

func slicesOf(t *testing.T, node, profile string) []*resourceapi.ResourceSlice {
	t.Helper()
	key := node + "/" + profile
	if _, is := inventories.Load(key); !is {
		inventory, err := fleet.Inventory(context.Background(), node, profile)
		if err != nil {
			t.Fatal(err)
		}
		inventories.Store(key, fleet.Slices(inventory))
	}
	value, _ := inventories.Load(key)
	list, ok := value.([]resourceapi.ResourceSlice)
	if !ok {
		t.Fatal("not slices")
	}
	var copies []*resourceapi.ResourceSlice
	for i := range list {
		copies = append(copies, list[i].DeepCopy())
	}
	return copies
}

// gpuNode is a node with the GPUs of a profile.
func gpuNode(t *testing.T, name, profile string) testCluster {
	t.Helper()
	c := testCluster{&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}},
		Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{
				corev1.ResourceCPU:    resource.MustParse("64"),
				corev1.ResourceMemory: resource.MustParse("512Gi"),
				corev1.ResourcePods:   resource.MustParse("110"),
			},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}}
	if profile != "" {
		for _, s := range slicesOf(t, name, profile) {
			c = append(c, s)
		}
	}
	return c
}

func gpuClass() *resourceapi.DeviceClass {
	return &resourceapi.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.DriverName},
		Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: `device.driver == "gpu.switchyard.dev" && device.attributes["gpu.switchyard.dev"].?type.orValue("") == "gpu"`,
		}}}},
	}
}

// pendingPod is a pod with a claim from a template, that kube-scheduler cannot place.
func pendingPod(namespace, name, template string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("pod-" + name), CreationTimestamp: metav1.NewTime(testTime.Add(-3 * time.Minute))},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")},
			}}},
			ResourceClaims: []corev1.PodResourceClaim{{Name: "gpus", ResourceClaimTemplateName: &template}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
			Message: "0/2 nodes are available: 2 cannot allocate all claims.",
		}}},
	}
}

// claimOf is the claim that a pod got from its template, for a number of GPUs that share the attribute, if that is set.
func claimOf(pod *corev1.Pod, count int64, share string) *resourceapi.ResourceClaim {
	name := pod.Name + "-gpus"
	pod.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "gpus", ResourceClaimName: &name}}
	claim := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: name, UID: types.UID("claim-" + name), CreationTimestamp: pod.CreationTimestamp,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID, Controller: ptr.To(true)}},
		},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
			Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: v1alpha1.DriverName, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count},
		}}}},
	}
	if share != "" {
		claim.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: ptr.To(resourceapi.FullyQualifiedName(share))}}
	}
	return claim
}

// running is a pod of a ReplicaSet on a node that has the GPUs of the indexes, with its claim.
func running(t *testing.T, namespace, name, node string, gpus testCluster, indexes ...int64) testCluster {
	t.Helper()
	pod := pendingPod(namespace, name, "one-gpu")
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: name, UID: types.UID("rs-" + name), Controller: ptr.To(true)}}
	pod.Spec.NodeName, pod.Status.Phase, pod.Status.Conditions = node, corev1.PodRunning, nil
	claim := claimOf(pod, int64(len(indexes)), "")
	claim.Status.Allocation = &resourceapi.AllocationResult{}
	claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: name, UID: pod.UID}}
	for _, index := range indexes {
		claim.Status.Allocation.Devices.Results = append(claim.Status.Allocation.Devices.Results, resourceapi.DeviceRequestAllocationResult{
			Request: "gpu", Driver: v1alpha1.DriverName, Pool: node, Device: deviceAt(t, gpus, node, index),
		})
	}
	return testCluster{pod, claim}
}

// deviceAt is the name of a node's GPU.
func deviceAt(t *testing.T, c testCluster, node string, index int64) string {
	t.Helper()
	for _, o := range c {
		if slice, is := o.(*resourceapi.ResourceSlice); is && slice.Spec.Pool.Name == node {
			for _, d := range slice.Spec.Devices {
				if at := d.Attributes["index"].IntValue; at != nil && *at == index {
					return d.Name
				}
			}
		}
	}
	t.Fatalf("node %s has no GPU %d", node, index)
	return ""
}

// waitingGang is a gang that has no place, with its pods.
func waitingGang(name string, members, perMember int32, change ...func(*v1alpha1.GangClaim)) testCluster {
	gang := &v1alpha1.GangClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name, UID: types.UID("uid-" + name), CreationTimestamp: metav1.NewTime(testTime.Add(-3 * time.Minute))},
		Spec: v1alpha1.GangClaimSpec{
			Members: members, DevicesPerMember: perMember, DeviceClassName: v1alpha1.DriverName,
			Topology: v1alpha1.GangTopology{Member: v1alpha1.MemberNVSwitchDomain, Gang: v1alpha1.GangAny, Mode: v1alpha1.TopologyRequired},
		},
		Status: v1alpha1.GangClaimStatus{
			Ready: fmt.Sprintf("0/%d", members), Domains: "-", WaitingSince: ptr.To(metav1.NewMicroTime(testTime.Add(-2 * time.Minute))),
			Conditions: []metav1.Condition{
				{Type: v1alpha1.ConditionPlanned, Status: metav1.ConditionFalse, Reason: "NoFeasibleDomain", Message: "needs 2 × 4 GPUs, each 4 in one NVSwitch domain; found 1 (node-a.0)."},
				{Type: v1alpha1.ConditionRunning, Status: metav1.ConditionFalse, Reason: "Waiting", Message: "needs 2 × 4 GPUs"},
			},
		},
	}
	for _, c := range change {
		c(gang)
	}
	cluster := testCluster{gang}
	for i := range members {
		pod := pendingPod("ml", fmt.Sprintf("%s-%d", name, i), name)
		pod.Spec.Priority = ptr.To[int32](100)
		pod.Status.Conditions[0].Message = fmt.Sprintf(`waiting for ResourceClaimTemplate "ml/%s" not found`, name)
		cluster = append(cluster, pod)
	}
	return cluster
}

// journey is the cluster of the guide: a gang of 2 × 4 that has a place for one member.
func journey(t *testing.T) testCluster {
	t.Helper()
	c := testCluster{gpuClass()}.with(gpuNode(t, "node-a", "hgx-h100")...).with(gpuNode(t, "node-b", "a100-2x4")...)
	c = c.with(running(t, "ml", "train", "node-a", c, 0, 1, 2, 3)...)
	c = c.with(running(t, "web", "infer-1", "node-b", c, 0)...)
	c = c.with(running(t, "web", "infer-3", "node-b", c, 2)...)
	c = c.with(running(t, "web", "infer-7", "node-b", c, 6)...)
	return c.with(waitingGang("llama-tp4", 2, 4)...)
}

func mustFail(t *testing.T, c connection, want string, args ...string) {
	t.Helper()
	out, _, err := runOn(t, c, args...)
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
	if out != "" {
		t.Errorf("it printed %q", out)
	}
}
