// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build integration

package gangs

import (
	"fmt"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/test/harness/controlplane"
)

// Another scheduler sees the fence too. (Two schedulers that allocate at the same moment give the same device away
// twice, since neither knows what the other is about to write: so all the singles are one's.)
func TestASecondSchedulerKeepsOutOfTheFence(t *testing.T) {
	e := newEnv(t, stock, "a100-2x4")
	binaries, err := controlplane.Binaries(t.Context(), localcluster, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	second, err := e.plane.StartSecondScheduler(binaries, "second-scheduler", "-v=4")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := second.Err(); err != nil {
			t.Error(err)
		}
		second.Kill()
	}()
	bySecond := func(pod *corev1.Pod) { pod.Spec.SchedulerName = "second-scheduler" }
	first := e.single("early", 1, inDomain(e.nodes[0], 0))
	e.running(first)
	gang := e.gang("train", 1, 4)
	pods := e.members("train", 1)
	e.diesAt("TouchRules")
	var singles []*corev1.Pod
	for i := range 8 {
		name := fmt.Sprintf("single-%d", i)
		e.template(name, 1)
		singles = append(singles, e.pod(name, name, bySecond))
		e.create(singles[i])
	}
	e.start()
	e.running(pods...)
	e.together(pods, 4)
	e.reaches(gang, v1alpha1.StepHolding)
	started := 0
	e.eventually("three singles have what was left", func() error {
		started = 0
		for _, single := range singles {
			if e.get(single); single.Spec.NodeName != "" {
				started++
			}
		}
		if started < 3 {
			return fmt.Errorf("%d are bound", started)
		}
		return nil
	})
	if started != 3 {
		t.Errorf("%d singles are bound, and 3 GPUs were left", started)
	}
}

// startsOnTwoNodes starts the controller, and wants a gang of two such pods on a node each by its first plan.
func (e *env) startsOnTwoNodes(change func(*corev1.Pod)) {
	e.t.Helper()
	gang := e.gang("train", 2, 4)
	pods := e.members("train", 2, change)
	e.start()
	e.running(pods...)
	e.together(pods, 4)
	e.reaches(gang, v1alpha1.StepHolding)
	if gang.Status.Attempts != 1 || pods[0].Spec.NodeName == pods[1].Spec.NodeName {
		e.t.Errorf("the gang runs on %s and %s at attempt %d: %s", pods[0].Spec.NodeName, pods[1].Spec.NodeName, gang.Status.Attempts, describe(gang))
	}
}

// As the pods of a Job for each zone: no node suits both.
func TestMembersThatWantDifferentNodesGetThem(t *testing.T) {
	e := newEnv(t, stock, "a100-2x4", "a100-2x4", "a100-2x4")
	e.startsOnTwoNodes(func(pod *corev1.Pod) {
		pod.Spec.NodeSelector[corev1.LabelHostname] = map[string]string{"train-0": e.nodes[2], "train-1": e.nodes[1]}[pod.Name]
	})
}

// Without foresight both members would be planned onto the two domains of one node, and the scheduler would keep the
// second one off for ever.
func TestMembersWithAntiAffinityGetANodeEach(t *testing.T) {
	e := newEnv(t, stock, "a100-2x4", "a100-2x4", "a100-2x4")
	apart := func(pod *corev1.Pod) {
		pod.Labels = map[string]string{"app": "train"}
		pod.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
				TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: pod.Labels},
			}},
		}}
	}
	// A pod of no gang that the members keep away from.
	other := e.pod("other", "other", apart, func(pod *corev1.Pod) { pod.Spec.NodeSelector[corev1.LabelHostname] = e.nodes[0] })
	e.template("other", 1)
	e.create(other)
	e.running(other)

	e.startsOnTwoNodes(apart)
	third := e.gang("late", 1, 4)
	e.members("late", 1, apart)
	condition := e.waits(third, "NodesFull")
	if !strings.Contains(condition.Message, "anti-affinity") {
		t.Errorf("the gang that has no node left waits with %q", condition.Message)
	}
	e.delete(other)
	e.reaches(third, v1alpha1.StepHolding)
}

// The same of host ports and of a topology spread that must be kept.
func TestMembersThatCannotShareANodeGetOneEach(t *testing.T) {
	for name, change := range map[string]func(*corev1.Pod){
		"host port": func(pod *corev1.Pod) {
			pod.Spec.HostNetwork = true
			pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 29500}}
		},
		"spread": func(pod *corev1.Pod) {
			pod.Labels = map[string]string{"app": "train"}
			pod.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
				MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: &metav1.LabelSelector{MatchLabels: pod.Labels},
			}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, stock, "a100-2x4", "a100-2x4")
			e.startsOnTwoNodes(change)
		})
	}
}

// What kube-scheduler goes by is not all foreseen: here that another namespace's labels select pods to keep away from. The gang
// fails once on the node that comes first, and is planned on another.
func TestAGangIsPlannedElsewhereAfterItFailed(t *testing.T) {
	e := newEnv(t, stock, "a100-2x4", "a100-2x4")
	e.template("other", 1)
	other := e.pod("other", "other", func(pod *corev1.Pod) {
		pod.Labels = map[string]string{"app": "other"}
		pod.Spec.NodeSelector[corev1.LabelHostname] = e.nodes[0]
	})
	e.create(other)
	e.running(other)
	gang := e.gang("train", 1, 4)
	pods := e.members("train", 1, func(pod *corev1.Pod) {
		pod.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
				TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: other.Labels},
				NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: e.namespace}},
			}},
		}}
	})
	e.start()
	e.running(pods...)
	e.reaches(gang, v1alpha1.StepHolding)
	if gang.Status.Attempts != 2 || pods[0].Spec.NodeName != e.nodes[1] {
		t.Errorf("the gang runs on %s at attempt %d: %s", pods[0].Spec.NodeName, gang.Status.Attempts, describe(gang))
	}
}

// zones puts the nodes into zones.
func (e *env) zones(names ...string) {
	e.t.Helper()
	for i, name := range names {
		patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, corev1.LabelTopologyZone, e.namespace+"-"+name)
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: e.nodes[i]}}
		if err := e.client.Patch(e.t.Context(), node, client.RawPatch(types.StrategicMergePatchType, []byte(patch))); err != nil {
			e.t.Fatal(err)
		}
	}
}

// By a label that several nodes share: first come two nodes of which either is in a zone of its own.
func TestMembersThatWantToBeTogetherGetOneZone(t *testing.T) {
	e := newEnv(t, stock, "a100-2x4", "a100-2x4", "a100-2x4")
	e.zones("x", "y", "y")
	gang := e.gang("train", 4, 4)
	pods := e.members("train", 4, func(pod *corev1.Pod) {
		pod.Labels = map[string]string{"app": "train"}
		pod.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
				TopologyKey: corev1.LabelTopologyZone, LabelSelector: &metav1.LabelSelector{MatchLabels: pod.Labels},
			}},
		}}
	})
	e.start()
	e.running(pods...)
	e.together(pods, 4)
	e.reaches(gang, v1alpha1.StepHolding)
	for _, pod := range pods {
		if gang.Status.Attempts != 1 || pod.Spec.NodeName == e.nodes[0] {
			t.Errorf("pod %s runs on %s at attempt %d: %s", pod.Name, pod.Spec.NodeName, gang.Status.Attempts, describe(gang))
		}
	}
}

// And the other way round: first come two nodes of one zone.
func TestMembersThatKeepToOtherZonesGetOneEach(t *testing.T) {
	for name, change := range map[string]func(*corev1.Pod){
		"anti-affinity": func(pod *corev1.Pod) {
			pod.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
					TopologyKey: corev1.LabelTopologyZone, LabelSelector: &metav1.LabelSelector{MatchLabels: pod.Labels},
				}},
			}}
		},
		"spread": func(pod *corev1.Pod) {
			pod.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
				MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: &metav1.LabelSelector{MatchLabels: pod.Labels},
			}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, stock, "a100-2x4", "a100-2x4", "a100-2x4")
			e.zones("x", "x", "y")
			e.startsOnTwoNodes(func(pod *corev1.Pod) {
				pod.Labels = map[string]string{"app": "train"}
				change(pod)
			})
		})
	}
}
