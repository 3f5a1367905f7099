// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build integration

package gangs

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/controller"
	"github.com/switchyard-dev/switchyard/test/harness/fleet"
)

// Profiles of an A30: a quarter, and all of it.
const (
	quarter = "1g.6gb"
	all     = "4g.24gb"
)

// partitioned is a test with a node of two A30 in MIG mode: 13 partitions each, four quarters among them at a time.
func partitioned(t *testing.T) *env {
	t.Helper()
	e := newEnv(t, stock)
	e.addNode(fleet.Node{Profile: "a30-pcie", MIG: true})
	return e
}

// ofProfile selects partitions of a profile.
func ofProfile(profile string) resourceapi.DeviceSelector {
	return resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{
		Expression: fmt.Sprintf(`device.attributes["%s"].profile == "%s"`, v1alpha1.DriverName, profile),
	}}
}

// wholes is a gang of members that get all of a GPU each, or as many as they want.
func wholes(g *v1alpha1.GangClaim) {
	g.Spec.DeviceClassName = "mig." + v1alpha1.DriverName
	g.Spec.Selectors = []resourceapi.DeviceSelector{ofProfile(all)}
}

// quarterService runs a pod with a quarter of a GPU by a ReplicaSet.
func (e *env) quarterService(name string) *corev1.Pod {
	e.t.Helper()
	return e.serviceWith(name, movable, resourceapi.ExactDeviceRequest{
		DeviceClassName: "mig." + v1alpha1.DriverName, Selectors: []resourceapi.DeviceSelector{ofProfile(quarter)},
	})
}

// quarterPod is a pod of someone who wants a quarter of a GPU, and no gang.
func (e *env) quarterPod(name string) *corev1.Pod {
	e.t.Helper()
	template := &resourceapi.ResourceClaimTemplate{}
	template.Namespace, template.Name = e.namespace, name
	template.Spec.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: "mig." + v1alpha1.DriverName, Selectors: []resourceapi.DeviceSelector{ofProfile(quarter)}, Count: 1,
	}}}
	e.create(template)
	pod := e.pod(name, name)
	e.create(pod)
	return pod
}

// gpusOf are the GPUs that the devices of a pod are of.
func (e *env) gpusOf(pod *corev1.Pod) []string {
	e.t.Helper()
	var gpus []string
	for _, d := range devicesOf(e.claimOf(pod)) {
		if gpu, _, _ := strings.Cut(d, "-mig-"); !slices.Contains(gpus, gpu) {
			gpus = append(gpus, gpu)
		}
	}
	return gpus
}

// unschedulable waits until kube-scheduler has said that there is no place for the pod.
func (e *env) unschedulable(pod *corev1.Pod) {
	e.t.Helper()
	e.eventually("there is no place for pod "+pod.Name, func() error {
		e.get(pod)
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
				return nil
			}
		}
		return fmt.Errorf("it is %s on %q: %v", pod.Status.Phase, pod.Spec.NodeName, pod.Status.Conditions)
	})
}

// Two quarters of each GPU are in use: two pods move, and a GPU is whole.
func TestPartitionsAreConsolidatedAndTheGangStarts(t *testing.T) {
	e := partitioned(t)
	names := []string{"s0", "s1", "s2", "s3", "s4", "s5"}
	pods := map[string]*corev1.Pod{}
	for _, name := range names {
		pods[name] = e.quarterService(name)
	}
	// Devices are given GPU by GPU.
	if a, b := e.gpusOf(pods["s3"]), e.gpusOf(pods["s4"]); slices.Equal(a, b) {
		t.Fatalf("the fourth and the fifth quarter are both of %v", a)
	}
	e.ends("s1")
	e.ends("s2")
	e.start(mayMove)
	gang := e.gang("train", 1, 1, evictWish, wholes)
	members := e.members("train", 1)
	e.running(members...)
	e.together(members, 1)
	got := e.gpusOf(members[0])
	moved := 0
	for _, name := range []string{"s0", "s3", "s4", "s5"} {
		now := e.serves(name, "")
		if now.Name != pods[name].Name {
			moved++
		}
		if gpus := e.gpusOf(now); slices.Equal(gpus, got) {
			t.Errorf("the pod of %s is on the gang's GPU %v", name, gpus)
		}
	}
	if moved != 2 {
		t.Errorf("%d pods moved, want 2", moved)
	}
	e.eventually("both evictions count as of use", func() error {
		if got := e.outcomes(gang); !slices.Equal(got, []v1alpha1.EvictionOutcome{v1alpha1.EvictionSucceeded, v1alpha1.EvictionSucceeded}) {
			return fmt.Errorf("the status tells of %v", got)
		}
		return nil
	})
	e.devicesOnce()
}

// A partition of a planned GPU is not given to anyone while the fence is there, although nobody has the GPU.
func TestAFenceCoversThePartitionsOfAPlannedGPU(t *testing.T) {
	for _, last := range []string{"StatusQuiescing", "StatusReleasing"} {
		t.Run(last, func(t *testing.T) {
			e := partitioned(t)
			gang := e.gang("train", 1, 1, wholes)
			members := e.members("train", 1)
			e.diesAt(last)
			e.get(gang)
			siblings := gang.Status.Plan.Placements[0].Devices[0].Siblings
			if rules := e.fence(gang); len(siblings) != 13 || len(rules) != 14 {
				t.Errorf("%d rules, and %d siblings: %v; want one for each of the 13 partitions, and one for the GPU", len(rules), len(siblings), siblings)
			}
			var others []*corev1.Pod
			for i := range 4 {
				others = append(others, e.quarterPod(fmt.Sprintf("other-%d", i)))
			}
			e.running(others...) // on the other GPU
			late := e.quarterPod("late")
			e.unschedulable(late)
			e.start()
			e.running(members...)
			for _, pod := range others {
				if slices.Equal(e.gpusOf(pod), e.gpusOf(members[0])) {
					t.Errorf("pod %s is on the gang's GPU", pod.Name)
				}
			}
			e.devicesOnce()
			// When the gang has gone it gets its quarter.
			e.delete(gang)
			e.delete(members[0])
			e.running(late)
		})
	}
}

// Someone is given a partition before kube-scheduler sees the fence: the gang is planned on the other GPU.
func TestAPartitionIsAllocatedBehindAFenceThatTheSchedulerMissed(t *testing.T) {
	for _, last := range []string{"StatusQuiescing", "StatusReleasing"} {
		t.Run(last, func(t *testing.T) {
			e := partitioned(t)
			gang := e.gang("train", 1, 1, wholes)
			members := e.members("train", 1)
			e.diesAt(last)
			e.setFence(gang, resourceapi.DeviceTaintEffectNone)
			other := e.quarterPod("other")
			e.running(other) // on the first GPU, which is planned
			e.setFence(gang, resourceapi.DeviceTaintEffectNoSchedule)
			e.start()
			e.running(append(members, other)...)
			if slices.Equal(e.gpusOf(other), e.gpusOf(members[0])) {
				t.Errorf("the gang and the pod are both on %v", e.gpusOf(other))
			}
			e.devicesOnce()
		})
	}
}

// A controller that is alone with two gangs fences each GPU once.
func TestTwoGangsTakeAGPUEachThatCanBePartitioned(t *testing.T) {
	e := partitioned(t)
	e.start(func(config *controller.Config) { config.Workers = 2 })
	e.gang("a", 1, 1, wholes)
	e.gang("b", 1, 1, wholes)
	pods := append(e.members("a", 1), e.members("b", 1)...)
	e.running(pods...)
	if slices.Equal(e.gpusOf(pods[0]), e.gpusOf(pods[1])) {
		t.Errorf("both gangs are on %v", e.gpusOf(pods[0]))
	}
}
