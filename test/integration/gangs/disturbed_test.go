// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build integration

package gangs

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/test/harness/fleet"
)

func TestADeploymentsSurgePodGetsNoClaim(t *testing.T) {
	e := newEnv(t, stock, "a100-2x4", "a100-2x4")
	e.start()
	gang := e.gang("serve", 2, 4)
	labels := map[string]string{"app": "serve"}
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: "serve"},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](2),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: e.podSpec("serve")},
		},
	}
	e.create(deployment)
	pods := func() []corev1.Pod {
		var list corev1.PodList
		if err := e.client.List(t.Context(), &list, client.InNamespace(e.namespace), client.MatchingLabels(labels)); err != nil {
			t.Fatal(err)
		}
		return list.Items
	}
	e.reaches(gang, v1alpha1.StepHolding)
	if err := e.client.Patch(t.Context(), deployment, client.RawPatch(types.MergePatchType,
		[]byte(`{"spec":{"template":{"metadata":{"annotations":{"version":"2"}}}}}`))); err != nil {
		t.Fatal(err)
	}
	var surge *corev1.Pod
	e.eventually("there is a surge pod", func() error {
		for _, pod := range pods() {
			if pod.Annotations["version"] == "2" {
				surge = &pod
				return nil
			}
		}
		return errors.New("there is none")
	})
	e.event(surge, "FailedResourceClaimCreation")
	if e.get(surge); len(claimNames(surge)) > 0 {
		t.Errorf("the surge pod has claims %v", claimNames(surge))
	}
	running := 0
	for _, pod := range pods() {
		if pod.Status.Phase == corev1.PodRunning {
			running++
		}
	}
	if running != 2 {
		t.Errorf("%d members run, want 2", running)
	}
}

// devicesOnce checks that no device is allocated for two claims.
func (e *env) devicesOnce() {
	e.t.Helper()
	var claims resourceapi.ResourceClaimList
	if err := e.client.List(e.t.Context(), &claims, client.InNamespace(e.namespace)); err != nil {
		e.t.Fatal(err)
	}
	holder := map[string]string{}
	for i := range claims.Items {
		for _, d := range devicesOf(&claims.Items[i]) {
			if other := holder[d]; other != "" {
				e.t.Errorf("device %s is allocated for claims %s and %s", d, other, claims.Items[i].Name)
			}
			holder[d] = claims.Items[i].Name
		}
	}
}

// The scheduler has decided on pods, and has not written it yet, when the gang is planned and fenced.
func TestAGangPlannedBehindABurstOfSingles(t *testing.T) {
	const burst = 150
	e := newEnv(t, stock, "a100-2x4", "a100-2x4")
	e.start()
	singles := []*corev1.Pod{e.single("single", 1)}
	for i := range burst {
		singles = append(singles, e.pod(fmt.Sprintf("burst-%d", i), "single"))
	}
	gang := e.gang("train", 2, 4)
	var writing sync.WaitGroup
	for _, pod := range singles[1:] {
		writing.Go(func() {
			if err := e.client.Create(t.Context(), pod); err != nil {
				t.Error(err)
			}
		})
	}
	// kube-controller-manager makes the members' claims after those of the burst, 20 writes a second: the gang may be taken
	// back meanwhile, and only pods with a controller give back what they have by then.
	e.job("train", 2)
	writing.Wait()
	// Of 150 claims at 20 writes a second, and plans that fail in between, after each of which the next waits longer.
	e.eventuallyWithin(3*patience, "the gang runs, or the singles have taken all", func() error {
		running := 0
		for _, pod := range singles {
			if e.get(pod); pod.Status.Phase == corev1.PodRunning {
				running++
			}
		}
		if e.get(gang); gang.Status.Ready == "2/2" && running == 8 || running == 16 {
			return nil
		}
		return fmt.Errorf("%d singles run; %s", running, describe(gang))
	})
	e.devicesOnce()
	for _, pod := range singles {
		e.delete(pod, client.GracePeriodSeconds(0))
	}
	e.together(e.jobRuns("train", 2), 4)
	e.devicesOnce()
}

func TestSlicesAreWrittenWhileTheGangIsReleased(t *testing.T) {
	e := newEnv(t, stock, "a100-2x4")
	e.gang("train", 2, 4)
	pods := e.members("train", 2)
	e.diesAt("StatusReleasing")
	e.patchSlice(e.nodes[0], func(slice *resourceapi.ResourceSlice) {
		slice.Spec.Pool.Generation++
		for i := range slice.Spec.Devices {
			slice.Spec.Devices[i].Attributes["driverVersion"] = resourceapi.DeviceAttribute{VersionValue: ptr.To("999.0.0")}
		}
	})
	e.start()
	e.running(pods...)
	e.together(pods, 4)
}

func TestAMemberIsPreempted(t *testing.T) {
	e := newEnv(t, stock)
	e.addNode(fleet.Node{Profile: "a100-2x4", CPU: "3500m"})
	class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: e.namespace}, Value: 1000}
	e.create(class)
	e.start()
	gang := e.gang("train", 2, 4)
	e.job("train", 2)
	before := e.jobRuns("train", 2)
	devices := map[types.UID][]string{}
	for _, pod := range before {
		devices[pod.UID] = devicesOf(e.claimOf(pod))
	}
	e.reaches(gang, v1alpha1.StepHolding)
	important := e.pod("important", "", func(pod *corev1.Pod) {
		pod.Spec.PriorityClassName = class.Name
		pod.Spec.ResourceClaims = nil
		pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")}}
	})
	e.create(important)
	e.running(important)
	e.eventually("one member runs and its gang is degraded", func() error {
		left := 0
		for _, pod := range e.podsOf("train") {
			if pod.Status.Phase == corev1.PodRunning {
				left++
			}
		}
		if e.get(gang); left != 1 || gang.Status.Ready != "1/2" {
			return fmt.Errorf("%d members run; %s", left, describe(gang))
		}
		return nil
	})
	e.delete(important)
	after := e.jobRuns("train", 2)
	var lost, got []string
	for _, pod := range before {
		if !slices.ContainsFunc(after, func(p *corev1.Pod) bool { return p.UID == pod.UID }) {
			lost = devices[pod.UID]
		}
	}
	for _, pod := range after {
		if devices[pod.UID] == nil {
			got = devicesOf(e.claimOf(pod))
		}
	}
	if !slices.Equal(lost, got) {
		t.Errorf("the replacement has %v, want the devices %v of the member that was preempted", got, lost)
	}
	e.delete(class)
}

// A member that nobody schedules must not let the others hold devices: they are given back at the deadline.
func TestNoMemberStaysAllocatedPastTheDeadline(t *testing.T) {
	e := newEnv(t, stock, "a100-2x4")
	e.start()
	gang := e.gang("train", 2, 4)
	first := e.job("train", 1)
	stuck := e.pod("stuck", "train", func(pod *corev1.Pod) { pod.Spec.SchedulerName = "nobody" })
	e.create(stuck)
	var allocated *corev1.Pod
	e.eventually("the other member is allocated", func() error {
		for _, pod := range e.podsOf(first.Name) {
			if pod.Spec.NodeName != "" {
				allocated = pod
				return nil
			}
		}
		return errors.New(describeAnew(e, gang))
	})
	e.eventually("it gave its devices back", func() error {
		if e.get(allocated) && allocated.DeletionTimestamp == nil && allocated.Status.Phase != corev1.PodFailed {
			return errors.New(describeAnew(e, gang))
		}
		return nil
	})
	if _, started := e.plane.kubelet.Started(allocated.UID); started {
		t.Error("it had started without the other one")
	}
}
