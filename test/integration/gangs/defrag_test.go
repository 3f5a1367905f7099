// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build integration

package gangs

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/controller"
	"github.com/switchyard-dev/switchyard/pkg/defrag"
)

// movable labels the pods of a service as pods that may be moved.
var movable = map[string]string{v1alpha1.MovableLabel: "true"}

// mayMove configures a controller that moves pods at once.
func mayMove(config *controller.Config) {
	config.Defrag = defrag.DefaultLimits()
	config.Defrag.After = 0
}

// service runs a pod with one GPU by a ReplicaSet, waits until it runs, and returns the pod.
func (e *env) service(name string, labels map[string]string) *corev1.Pod {
	e.t.Helper()
	return e.serviceWith(name, labels, resourceapi.ExactDeviceRequest{DeviceClassName: v1alpha1.DriverName})
}

// serviceWith does the same with one device of any kind.
func (e *env) serviceWith(name string, labels map[string]string, request resourceapi.ExactDeviceRequest) *corev1.Pod {
	e.t.Helper()
	request.Count = 1
	e.create(&resourceapi.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: name},
		Spec: resourceapi.ResourceClaimTemplateSpec{Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
			Requests: []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &request}},
		}}},
	})
	of := map[string]string{"service": name}
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"service": name}}, Spec: e.podSpec(name)}
	maps.Copy(template.Labels, labels)
	e.create(&appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: name},
		Spec:       appsv1.ReplicaSetSpec{Replicas: ptr.To[int32](1), Selector: &metav1.LabelSelector{MatchLabels: of}, Template: template},
	})
	return e.serves(name, "")
}

// serves waits until the service has a pod that runs, other than the one named, and returns it.
func (e *env) serves(name, not string) *corev1.Pod {
	e.t.Helper()
	var found *corev1.Pod
	e.eventually("service "+name+" runs", func() error {
		var pods corev1.PodList
		if err := e.client.List(e.t.Context(), &pods, client.InNamespace(e.namespace), client.MatchingLabels{"service": name}); err != nil {
			return err
		}
		for i := range pods.Items {
			if p := &pods.Items[i]; p.Name != not && p.DeletionTimestamp == nil && p.Status.Phase == corev1.PodRunning {
				found = p
				return nil
			}
		}
		return fmt.Errorf("it has %d pods", len(pods.Items))
	})
	return found
}

// ends removes a service and waits until its pod is gone.
func (e *env) ends(name string) {
	e.t.Helper()
	e.delete(&appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: name}}, client.PropagationPolicy(metav1.DeletePropagationBackground))
	e.eventually("service "+name+" is gone", func() error {
		var pods corev1.PodList
		if err := e.client.List(e.t.Context(), &pods, client.InNamespace(e.namespace), client.MatchingLabels{"service": name}); err != nil {
			return err
		}
		if len(pods.Items) > 0 {
			return fmt.Errorf("it has %d pods", len(pods.Items))
		}
		return nil
	})
}

// oneInEachDomain has a service in each domain of node 0: GPUs 0 and 4. Devices are given in their order.
func (e *env) oneInEachDomain(labels map[string]string) (first, second *corev1.Pod) {
	e.t.Helper()
	var pods []*corev1.Pod
	for i := range 5 {
		pods = append(pods, e.service(fmt.Sprintf("s%d", i), labels))
	}
	for _, name := range []string{"s1", "s2", "s3"} {
		e.ends(name)
	}
	first, second = pods[0], pods[4]
	if a, b := e.domainsOf(first), e.domainsOf(second); slices.Equal(a, b) {
		e.t.Fatalf("both services are in %v", a)
	}
	return first, second
}

// evictWish is a gang that may have pods evicted.
func evictWish(g *v1alpha1.GangClaim) { g.Spec.Defragmentation = v1alpha1.DefragmentationEvict }

// room waits until the condition RoomCanBeMade has the reason.
func (e *env) room(gang *v1alpha1.GangClaim, reason string) {
	e.t.Helper()
	e.eventually(fmt.Sprintf("RoomCanBeMade of gang %s says %s", gang.Name, reason), func() error {
		e.get(gang)
		if c := meta.FindStatusCondition(gang.Status.Conditions, v1alpha1.ConditionRoomCanBeMade); c == nil || c.Reason != reason {
			return errors.New(describe(gang))
		}
		return nil
	})
}

// outcomes are those of the evictions that the GangClaim tells of.
func (e *env) outcomes(gang *v1alpha1.GangClaim) []v1alpha1.EvictionOutcome {
	e.t.Helper()
	e.get(gang)
	var list []v1alpha1.EvictionOutcome
	for _, eviction := range gang.Status.Evictions {
		list = append(list, eviction.Outcome)
	}
	return list
}

// alive checks that the pods were not evicted.
func (e *env) alive(pods ...*corev1.Pod) {
	e.t.Helper()
	for _, pod := range pods {
		uid := pod.UID
		if !e.get(pod) || pod.UID != uid || pod.DeletionTimestamp != nil {
			e.t.Errorf("pod %s was evicted", pod.Name)
		}
	}
}

func TestDefragmentationMovesOnePodAndTheGangStarts(t *testing.T) {
	e := newEnv(t, stock, "a100-2x4")
	first, second := e.oneInEachDomain(movable)
	e.start(mayMove)
	gang := e.gang("train", 1, 4, evictWish)
	members := e.members("train", 1)
	e.running(members...)
	e.together(members, 4)
	// Whichever was moved, its replacement runs beside the gang's domain, where the other one is.
	for name, was := range map[string]*corev1.Pod{"s0": first, "s4": second} {
		now := e.serves(name, "")
		if got := e.domainsOf(now); slices.Equal(got, e.domainsOf(members[0])) {
			t.Errorf("the pod of %s (before: %s) is in the gang's domain %v", name, was.Name, got)
		}
	}
	e.eventually("the eviction counts as of use", func() error {
		if got := e.outcomes(gang); !slices.Equal(got, []v1alpha1.EvictionOutcome{v1alpha1.EvictionSucceeded}) {
			return fmt.Errorf("the status tells of %v", got)
		}
		return nil
	})
	evicted := first
	if gang.Status.Evictions[0].Pod == second.Name {
		evicted = second
	}
	e.event(evicted, "EvictedForGang")
	e.event(gang, "Moving")
}

func TestDefragmentationPlanReportsAndMovesNothing(t *testing.T) {
	e := newEnv(t, stock, "a100-2x4")
	first, second := e.oneInEachDomain(movable)
	e.start(mayMove)
	gang := e.gang("train", 1, 4, func(g *v1alpha1.GangClaim) { g.Spec.Defragmentation = v1alpha1.DefragmentationPlan })
	e.members("train", 1)
	e.room(gang, defrag.ReasonMovesFound)
	moves := gang.Status.Defragmentation.Moves
	if len(moves) != 1 || moves[0].Pod != first.Name && moves[0].Pod != second.Name || moves[0].From.Domain == moves[0].To.Domain {
		t.Errorf("moves %+v", moves)
	}
	e.event(gang, defrag.ReasonMovesFound)
	e.alive(first, second)
	if gang.Status.Plan != nil || len(gang.Status.Evictions) > 0 {
		t.Errorf("status %+v", gang.Status)
	}
}

func TestDefragmentationLeavesPodsOfTheSamePriority(t *testing.T) {
	e := newEnv(t, stock, "a100-2x4")
	first, second := e.oneInEachDomain(nil)
	e.start(mayMove)
	gang := e.gang("train", 1, 4, evictWish)
	e.members("train", 1)
	e.room(gang, defrag.ReasonNoMoves)
	if out := gang.Status.Defragmentation.RuledOut; len(out) != 1 || out[0].Reason != defrag.PriorityNotLower || out[0].Pods != 2 {
		t.Errorf("ruled out %+v", out)
	}
	e.alive(first, second)
}

func TestDefragmentationHeedsDisruptionBudgets(t *testing.T) {
	e := newEnv(t, stock, "a100-2x4")
	first, second := e.oneInEachDomain(movable)
	budget := e.budget("all", movable)
	e.eventually("the budget is looked at", func() error {
		if e.get(budget); budget.Status.ObservedGeneration < budget.Generation {
			return errors.New("it is not")
		}
		return nil
	})
	e.start(mayMove)
	gang := e.gang("train", 1, 4, evictWish)
	members := e.members("train", 1)
	e.room(gang, defrag.ReasonNoMoves)
	if out := gang.Status.Defragmentation.RuledOut; len(out) != 1 || out[0].Reason != defrag.DisruptionBudget {
		t.Errorf("ruled out %+v", out)
	}
	e.alive(first, second)
	// Once it is gone the gang starts.
	e.delete(budget)
	e.running(members...)
}

// budget allows no pod with the labels to be evicted.
func (e *env) budget(name string, of map[string]string) *policyv1.PodDisruptionBudget {
	e.t.Helper()
	budget := budgetOf(e.namespace, name, of)
	e.create(budget)
	return budget
}

func budgetOf(namespace, name string, of map[string]string) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: ptr.To(intstr.FromInt32(0)), Selector: &metav1.LabelSelector{MatchLabels: of}},
	}
}

func TestABudgetThatRefusesMidwayEndsTheMovesAndTheDevicesAreGivenBack(t *testing.T) {
	e := newEnv(t, stock, "a100-2x4", "a100-2x4")
	// While node 1 is full, the services come to node 0.
	full := []*corev1.Pod{e.single("full-0", 4, inDomain(e.nodes[1], 0)), e.single("full-1", 4, inDomain(e.nodes[1], 1))}
	e.running(full...)
	first, second := e.oneInEachDomain(movable)
	for _, pod := range full {
		e.delete(pod)
	}
	// A bare pod in each domain of node 1: the gang fits node 0 only, with both services moved.
	bare := []*corev1.Pod{e.single("bare-0", 1, inDomain(e.nodes[1], 0)), e.single("bare-1", 1, inDomain(e.nodes[1], 1))}
	e.running(bare...)
	var refuse sync.Once
	e.start(mayMove, func(config *controller.Config) {
		config.Wrote = func(verb string) (err error) {
			// After the first eviction, before the second.
			if verb == "EvictVictims" {
				refuse.Do(func() { err = e.client.Create(t.Context(), budgetOf(e.namespace, "late", movable)) })
			}
			return err
		}
	})
	gang := e.gang("train", 2, 4, evictWish)
	e.members("train", 2)
	e.eventually("both are told", func() error {
		if got := e.outcomes(gang); !slices.Equal(got, []v1alpha1.EvictionOutcome{v1alpha1.EvictionFailed, v1alpha1.EvictionRefused}) {
			return fmt.Errorf("the status tells of %v: %s", got, describe(gang))
		}
		return nil
	})
	e.nothing(gang)
	spared := first
	if gang.Status.Evictions[0].Pod == first.Name {
		spared = second
	}
	e.alive(spared)
	e.alive(bare...)
	e.serves("s0", "")
	e.serves("s4", "")
}

func TestOfTwoBlockedGangsOneHasPodsMovedAtATime(t *testing.T) {
	e := newEnv(t, stock, "a100-2x4", "a100-2x4")
	var services []*corev1.Pod
	for i := range 12 {
		services = append(services, e.service(fmt.Sprintf("s%d", i), movable))
	}
	// One stays in each domain that is used.
	kept := map[string]string{}
	for i, pod := range services {
		domain := e.domainsOf(pod)[0]
		if kept[domain] != "" {
			e.ends(fmt.Sprintf("s%d", i))
			continue
		}
		kept[domain] = pod.Name
	}
	if len(kept) < 3 {
		t.Fatalf("the services are in %v", kept)
	}
	e.start(mayMove)
	var members []*corev1.Pod
	gangs := []*v1alpha1.GangClaim{e.gang("a", 1, 4, evictWish), e.gang("b", 2, 4, evictWish)}
	members = append(members, e.members("a", 1)...)
	members = append(members, e.members("b", 2)...)
	e.running(members...)
	e.together(members, 4)
	for _, gang := range gangs {
		e.eventually("the evictions for gang "+gang.Name+" count as of use", func() error {
			for _, outcome := range e.outcomes(gang) {
				if outcome != v1alpha1.EvictionSucceeded {
					return fmt.Errorf("one came to %s", outcome)
				}
			}
			return nil
		})
	}
}

func TestAControllerThatDiesWhileItMovesPodsIsContinued(t *testing.T) {
	for _, verb := range []string{"StatusFencing", "StatusQuiescing", "StatusEvicting", "EvictVictims", "StatusReleasing"} {
		t.Run(verb, func(t *testing.T) {
			e := newEnv(t, stock, "a100-2x4")
			e.oneInEachDomain(movable)
			gang := e.gang("train", 1, 4, evictWish)
			members := e.members("train", 1)
			dies := make(chan struct{})
			var dead atomic.Bool
			r := e.start(mayMove, func(config *controller.Config) {
				config.Wrote = func(wrote string) error {
					if wrote != verb && !dead.Load() {
						return nil
					}
					if !dead.Swap(true) {
						close(dies)
					}
					return errCrash
				}
			})
			select {
			case <-dies:
			case <-time.After(patience):
				t.Fatalf("waited %v for the controller to write %s: %s", patience, verb, describe(gang))
			}
			if err := r.stop(); err != nil && !strings.Contains(err.Error(), "context canceled") {
				t.Fatal(err)
			}
			e.start(mayMove)
			e.running(members...)
			e.together(members, 4)
			e.eventually("the eviction counts as of use", func() error {
				if got := e.outcomes(gang); !slices.Equal(got, []v1alpha1.EvictionOutcome{v1alpha1.EvictionSucceeded}) {
					return fmt.Errorf("the status tells of %v", got)
				}
				return nil
			})
		})
	}
}
