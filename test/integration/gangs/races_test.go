// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build integration

package gangs

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/test/harness/fleet"
)

// plannedDomain is the domain of a plan with one placement.
func plannedDomain(t *testing.T, gang *v1alpha1.GangClaim) string {
	t.Helper()
	if gang.Status.Plan == nil || len(gang.Status.Plan.Placements) != 1 {
		t.Fatalf("want a plan with one placement: %s", describe(gang))
	}
	return gang.Status.Plan.Placements[0].Domain
}

// domainNumber is n of "<node>.<n>".
func domainNumber(t *testing.T, domain string) (n int) {
	t.Helper()
	if _, err := fmt.Sscanf(domain[strings.LastIndexByte(domain, '.'):], ".%d", &n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestASingleIsAllocatedBetweenPlanAndFence(t *testing.T) {
	e := newEnv(t, stock, "a100-2x4")
	gang := e.gang("train", 1, 4)
	pods := e.members("train", 1)
	e.diesAt("StatusFencing")
	e.get(gang)
	planned := plannedDomain(t, gang)
	e.running(e.single("single", 1, inDomain(e.nodes[0], domainNumber(t, planned))))
	e.start()
	e.running(pods...)
	e.together(pods, 4)
	if now := e.domainsOf(pods[0]); slices.Contains(now, planned) {
		t.Errorf("the member is in %v, where a single has a device", now)
	}
}

func TestASingleIsAllocatedBetweenPlanAndFenceAndNothingElseIsFree(t *testing.T) {
	e := newEnv(t, stock, "a100-2x4")
	gang := e.gang("train", 2, 4)
	pods := e.members("train", 2)
	e.diesAt("StatusFencing")
	single := e.single("single", 1)
	e.running(single)
	e.start()
	e.waits(gang, "NoFeasibleDomain")
	e.delete(single)
	e.running(pods...)
	e.together(pods, 4)
}

// Fences hold: what comes after them gets none of the devices.
func TestSinglesCannotTakeFencedDevices(t *testing.T) {
	e := newEnv(t, stock, "a100-2x4")
	gang := e.gang("train", 2, 4)
	pods := e.members("train", 2)
	e.diesAt("TouchRules")
	var singles []*corev1.Pod
	for i := range 8 {
		singles = append(singles, e.single(fmt.Sprintf("single-%d", i), 1))
	}
	e.start()
	e.running(pods...)
	e.together(pods, 4)
	e.reaches(gang, v1alpha1.StepHolding)
	for _, single := range singles {
		if e.get(single); single.Spec.NodeName != "" {
			t.Errorf("pod %s runs on devices of the gang", single.Name)
		}
	}
}

// patchSlice changes the one slice of a node.
func (e *env) patchSlice(node string, change func(*resourceapi.ResourceSlice)) {
	e.t.Helper()
	e.eventually("the slice of node "+node+" is changed", func() error {
		var list resourceapi.ResourceSliceList
		if err := e.client.List(e.t.Context(), &list); err != nil {
			return err
		}
		for i := range list.Items {
			if slice := &list.Items[i]; slice.Spec.Pool.Name == node {
				change(slice)
				return e.client.Update(e.t.Context(), slice)
			}
		}
		return errors.New("there is none")
	})
}

func TestAPlannedGPUIsLostBeforeTheRelease(t *testing.T) {
	e := newEnv(t, stock, "a100-2x4")
	gang := e.gang("train", 1, 4)
	pods := e.members("train", 1)
	e.diesAt("StatusQuiescing")
	e.get(gang)
	planned := plannedDomain(t, gang)
	lost := gang.Status.Plan.Placements[0].Devices[0].Name
	e.patchSlice(e.nodes[0], func(slice *resourceapi.ResourceSlice) {
		for i := range slice.Spec.Devices {
			if d := &slice.Spec.Devices[i]; d.Name == lost {
				d.Taints = []resourceapi.DeviceTaint{{Key: "gpu.switchyard.dev/unhealthy", Value: "Lost", Effect: resourceapi.DeviceTaintEffectNoSchedule}}
			}
		}
	})
	e.start()
	e.running(pods...)
	e.together(pods, 4)
	if now := e.domainsOf(pods[0]); slices.Contains(now, planned) {
		t.Errorf("the member is in %v, where a GPU was lost", now)
	}
}

func TestAPlannedDomainIsRelabelled(t *testing.T) {
	e := newEnv(t, stock, "a100-2x4")
	e.gang("train", 2, 4)
	pods := e.members("train", 2)
	e.diesAt("StatusQuiescing")
	e.patchSlice(e.nodes[0], func(slice *resourceapi.ResourceSlice) {
		for i := range slice.Spec.Devices {
			a := slice.Spec.Devices[i].Attributes["nvswitchDomain"]
			renamed := strings.Replace(*a.StringValue, ".0", ".7", 1)
			slice.Spec.Devices[i].Attributes["nvswitchDomain"] = resourceapi.DeviceAttribute{StringValue: &renamed}
		}
	})
	e.start()
	e.running(pods...)
	e.together(pods, 4)
}

func TestThePlannedNodeIsLost(t *testing.T) {
	e := newEnv(t, stock, "hgx-h100", "hgx-h100")
	gang := e.gang("train", 1, 8)
	pods := e.members("train", 1)
	e.diesAt("StatusReleasing")
	e.get(gang)
	lost := gang.Status.Plan.Placements[0].Node
	status, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Reason: "NodeStatusUnknown", LastTransitionTime: metav1.Now(),
	}}}})
	if err != nil {
		t.Fatal(err)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: lost}}
	if err := e.client.Status().Patch(t.Context(), node, client.RawPatch(types.StrategicMergePatchType, status)); err != nil {
		t.Fatal(err)
	}
	taint := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"taints":[{"key":"node.kubernetes.io/unreachable","effect":"NoSchedule"}]}}`))
	if err := e.client.Patch(t.Context(), node, taint); err != nil {
		t.Fatal(err)
	}
	e.start()
	e.running(pods...)
	if pods[0].Spec.NodeName == lost {
		t.Error("the member runs on the node that was lost")
	}
}

func TestAMemberIsDeletedWhileTheGangIsReleased(t *testing.T) {
	for _, verb := range []string{"StatusQuiescing", "CreateTemplate", "DeleteTemplate", "StatusStarting"} {
		t.Run(verb, func(t *testing.T) {
			e := newEnv(t, stock, "a100-2x4")
			e.plane.kubelet.Hold(func(pod *corev1.Pod) bool { return pod.Namespace == e.namespace && pod.Name == "train-1" })
			t.Cleanup(func() { e.plane.kubelet.Hold(nil) })
			e.gang("train", 2, 4)
			pods := e.members("train", 2)
			e.diesAt(verb)
			e.delete(pods[1])
			e.eventually("the member is gone", func() error {
				if e.get(pods[1]) {
					return errors.New("it is there")
				}
				return nil
			})
			e.plane.kubelet.Hold(nil)
			e.start()
			pods[1] = e.pod("train-1", "train")
			e.create(pods[1])
			e.running(pods...)
			e.together(pods, 4)
		})
	}
}

func TestAQuotaThatAdmitsFewerClaims(t *testing.T) {
	e := newEnv(t, stock, "a100-2x4")
	quota := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: "claims"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"count/resourceclaims.resource.k8s.io": resource.MustParse("1")}},
	}
	e.create(quota)
	e.eventually("the quota counts", func() error {
		if e.get(quota); len(quota.Status.Hard) == 0 {
			return errors.New("its status is empty")
		}
		return nil
	})
	e.start()
	gang := e.gang("train", 2, 4)
	pods := e.members("train", 2)
	e.waits(gang, "QuotaExceeded")
	e.eventually("the quota is raised", func() error {
		e.get(quota)
		quota.Spec.Hard["count/resourceclaims.resource.k8s.io"] = resource.MustParse("2")
		return e.client.Update(t.Context(), quota)
	})
	e.running(pods...)
	e.together(pods, 4)
}

func TestCPUIsShortWhereGPUsAreFree(t *testing.T) {
	e := newEnv(t, stock)
	e.addNode(fleet.Node{Profile: "a100-2x4", CPU: "1500m"})
	e.start()
	gang := e.gang("train", 2, 4)
	pods := e.members("train", 2)
	e.waits(gang, "NodesFull")
	node := e.addNode(fleet.Node{Profile: "a100-2x4"})
	e.running(pods...)
	e.together(pods, 4)
	for _, pod := range pods {
		t.Logf("pod %s is on %s; the roomy node is %s", pod.Name, pod.Spec.NodeName, node)
	}
}

func TestAForgedTolerationIsRefused(t *testing.T) {
	e := newEnv(t, stock)
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: "forged"}}
	claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: v1alpha1.DriverName, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
		Tolerations: []resourceapi.DeviceToleration{{Key: v1alpha1.ReservedTaintKey, Operator: resourceapi.DeviceTolerationOpExists}},
	}}}
	err := e.client.Create(t.Context(), claim)
	if !apierrors.IsInvalid(err) && !apierrors.IsForbidden(err) {
		t.Errorf("creating it = %v, want a refusal", err)
	}
}

func TestADomainWithTheLongestNameThereIs(t *testing.T) {
	e := newEnv(t, stock)
	node := fleet.Node{Profile: "a100-2x4", Name: e.namespace + strings.Repeat("x", 62-len(e.namespace)), Labels: map[string]string{envLabel: e.namespace}}
	if err := fleet.Add(t.Context(), e.plane.Client(), node); err != nil {
		t.Fatal(err)
	}
	e.nodes = append(e.nodes, node.Name)
	e.start()
	e.gang("train", 2, 4)
	pods := e.members("train", 2)
	e.running(pods...)
	e.together(pods, 4)
}

func TestTheDeviceClassIsDeletedAfterThePlan(t *testing.T) {
	e := newEnv(t, stock, "a100-2x4")
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: e.namespace}}
	class.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: `device.driver == "gpu.switchyard.dev"`}}}
	e.create(class.DeepCopy())
	gang := e.gang("train", 2, 4, func(g *v1alpha1.GangClaim) { g.Spec.DeviceClassName = e.namespace })
	pods := e.members("train", 2)
	e.diesAt("StatusQuiescing")
	e.delete(class)
	e.start()
	e.waits(gang, "NoSuchClass")
	e.create(class.DeepCopy())
	e.running(pods...)
	e.together(pods, 4)
	e.delete(class)
}

// What the controller relies on where it says which object it means.
func TestThePatchOfAnObjectThatWasReplacedIsRefused(t *testing.T) {
	e := newEnv(t, stock)
	pod := e.pod("one", "")
	pod.Spec.ResourceClaims, pod.Spec.Containers[0].Resources = nil, corev1.ResourceRequirements{}
	e.create(pod)
	err := e.client.Patch(t.Context(), pod, client.RawPatch(types.MergePatchType,
		[]byte(`{"metadata":{"uid":"of-another","annotations":{"a":"b"}}}`)))
	var status apierrors.APIStatus
	if apierrors.IsConflict(err) {
		return
	}
	if !apierrors.IsInvalid(err) || !errors.As(err, &status) || status.Status().Details.Causes[0].Field != "metadata.uid" {
		t.Errorf("the patch = %v, want a conflict or that metadata.uid is wrong", err)
	}
}

// Someone puts a template of their own where the gang's is about to be, and takes it away again.
func TestTheTemplateIsReplacedWhileClaimsAreMade(t *testing.T) {
	e := newEnv(t, stock, "a100-2x4")
	gang := e.gang("train", 2, 4)
	pods := e.members("train", 2)
	e.diesAt("StatusReleasing")
	foreign := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: "train"}}
	foreign.Spec.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: v1alpha1.DriverName, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 4,
	}}}
	e.create(foreign)
	e.eventually("a member has a claim of the foreign template", func() error {
		if e.get(pods[0]); len(claimNames(pods[0])) == 0 {
			return errors.New("it has none")
		}
		return nil
	})
	e.start()
	e.eventually("the gang is not started on it", func() error {
		if e.get(gang); gang.Status.Plan != nil && gang.Status.Plan.Step == v1alpha1.StepReleasing {
			return errors.New(describe(gang))
		}
		return nil
	})
	t.Log(describe(gang))
	// The controller may have deleted it.
	if err := client.IgnoreNotFound(e.client.Delete(t.Context(), foreign)); err != nil {
		t.Fatal(err)
	}
	e.running(pods...)
	e.together(pods, 4)
}

// The scheduler may be allocating it at that moment.
func TestAMembersClaimIsDeletedWhileItIsAllocated(t *testing.T) {
	e := newEnv(t, stock, "a100-2x4")
	gang := e.gang("train", 2, 4)
	e.job("train", 2)
	e.diesAt("CreateTemplate")
	var claims resourceapi.ResourceClaimList
	e.eventually("a claim is there", func() error {
		if err := e.client.List(t.Context(), &claims, client.InNamespace(e.namespace)); err != nil {
			return err
		}
		if len(claims.Items) == 0 {
			return errors.New("there is none")
		}
		return nil
	})
	e.delete(&claims.Items[0])
	e.start()
	pods := e.jobRuns("train", 2)
	e.together(pods, 4)
	e.reaches(gang, v1alpha1.StepHolding)
}
