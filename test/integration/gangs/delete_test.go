// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build integration

package gangs

import (
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// The GangClaim is deleted when the controller has just written that step, and a new one finds that out.
func TestGangClaimDeletedInEveryState(t *testing.T) {
	for _, verb := range []string{"AddFinalizer", "StatusFencing", "CreateRules", "StatusQuiescing", "StatusReleasing", "CreateTemplate", "DeleteTemplate", "StatusStarting"} {
		t.Run(verb, func(t *testing.T) {
			e := newEnv(t, stock, "a100-2x4")
			gang := e.gang("train", 2, 4)
			// Members that were allocated and have not started are evicted, which needs an owner.
			e.job("train", 2)
			e.diesAt(verb)
			e.get(gang)
			e.delete(gang)
			e.start()
			e.eventually("the GangClaim is gone", func() error {
				if e.get(gang) {
					return errors.New(describe(gang))
				}
				return nil
			})
			e.nothing(gang)
			// The devices are free for others.
			e.running(e.single("single", 8))
		})
	}
}

func TestGangClaimDeletedWhileItsMembersRun(t *testing.T) {
	e := newEnv(t, stock, "a100-2x4")
	e.start()
	gang := e.gang("train", 1, 4)
	pods := e.members("train", 1)
	e.running(pods...)
	e.reaches(gang, v1alpha1.StepHolding)
	e.delete(gang)
	e.eventually("the GangClaim and its fence are gone", func() error {
		var rules resourceapi.DeviceTaintRuleList
		if err := e.client.List(t.Context(), &rules, client.MatchingLabels{v1alpha1.GangLabel: string(gang.UID)}); err != nil {
			return err
		}
		if e.get(gang) || len(rules.Items) > 0 {
			return errors.New("it is there, or its rules are")
		}
		return nil
	})
	if e.get(pods[0]); pods[0].Status.Phase != corev1.PodRunning || pods[0].DeletionTimestamp != nil {
		t.Errorf("the member is %s, ending %t; it should run on", pods[0].Status.Phase, pods[0].DeletionTimestamp != nil)
	}
}

// The members are allowed to start, or run: the GangClaim and its fence go, the members stay.
func TestGangClaimDeletedAsItsMembersStart(t *testing.T) {
	for _, verb := range []string{"MarkReady", "StatusHolding", "StatusUnfencing"} {
		t.Run(verb, func(t *testing.T) {
			e := newEnv(t, stock, "a100-2x4")
			gang := e.gang("train", 2, 4, func(g *v1alpha1.GangClaim) { g.Spec.RestartGracePeriod = &metav1.Duration{Duration: time.Second} })
			pods := e.members("train", 2)
			e.diesAt(verb)
			e.get(gang)
			e.delete(gang)
			e.start()
			e.eventually("the GangClaim and its fence are gone", func() error {
				var rules resourceapi.DeviceTaintRuleList
				if err := e.client.List(t.Context(), &rules, client.MatchingLabels{v1alpha1.GangLabel: string(gang.UID)}); err != nil {
					return err
				}
				if e.get(gang) || len(rules.Items) > 0 {
					return fmt.Errorf("it is there, or its %d rules are", len(rules.Items))
				}
				return nil
			})
			e.running(pods...)
			e.together(pods, 4)
		})
	}
}

// A bare pod is lost when it is evicted, so it is not: its owner, a person, is told.
func TestGangClaimDeletedWhileBareMembersAreAllocated(t *testing.T) {
	e := newEnv(t, stock, "a100-2x4")
	gang := e.gang("train", 2, 4)
	pods := e.members("train", 2)
	e.diesAt("CreateTemplate")
	for _, pod := range pods {
		e.eventually("pod "+pod.Name+" is bound", func() error {
			if e.get(pod); pod.Spec.NodeName == "" {
				return errors.New("it is not")
			}
			return nil
		})
	}
	e.delete(gang)
	e.start()
	e.eventually("the GangClaim is gone", func() error {
		if e.get(gang) {
			return errors.New(describe(gang))
		}
		return nil
	})
	e.event(pods[0], "GangClaimGone")
	for _, pod := range pods {
		if e.get(pod); pod.DeletionTimestamp != nil || pod.Status.Phase != corev1.PodPending {
			t.Errorf("pod %s is %s, ending %t", pod.Name, pod.Status.Phase, pod.DeletionTimestamp != nil)
		}
		e.delete(pod)
	}
	e.nothing(gang)
	e.running(e.single("single", 8))
}

// Someone takes the finalizer off: nobody but the sweeper knows of the objects any more.
func TestObjectsOfAGangClaimThatIsGoneAreSwept(t *testing.T) {
	e := newEnv(t, stock, "a100-2x4")
	gang := e.gang("train", 2, 4)
	pods := e.members("train", 2)
	e.diesAt("CreateTemplate")
	e.eventually("the GangClaim is without its finalizer", func() error {
		e.get(gang)
		gang.Finalizers = nil
		return e.client.Update(t.Context(), gang)
	})
	e.delete(gang)
	e.start()
	for _, pod := range pods {
		// They may have been allocated meanwhile, and are nobody's to evict: they have no controller.
		e.delete(pod, client.GracePeriodSeconds(0))
	}
	e.nothing(gang)
}

func TestGangClaimReplacedByOneOfTheSameName(t *testing.T) {
	e := newEnv(t, stock, "a100-2x4")
	old := e.gang("train", 2, 4)
	e.members("train", 2)
	e.diesAt("StatusReleasing")
	e.eventually("the GangClaim is gone", func() error {
		if !e.get(old) {
			return nil
		}
		old.Finalizers = nil
		return errors.Join(e.client.Update(t.Context(), old), client.IgnoreNotFound(e.client.Delete(t.Context(), old)), errors.New("it is there"))
	})
	e.gang("train", 2, 4)
	e.start()
	pods := []*corev1.Pod{e.pod("train-0", "train"), e.pod("train-1", "train")}
	e.running(pods...)
	e.together(pods, 4)
	e.nothing(old)
}

// Whoever wipes the status takes the plan from the gang; members that run must not suffer.
func TestStatusWiped(t *testing.T) {
	wipe := func(e *env, gang *v1alpha1.GangClaim) {
		t.Helper()
		if err := e.client.Status().Patch(t.Context(), gang, client.RawPatch(types.JSONPatchType,
			[]byte(`[{"op":"replace","path":"/status","value":{}}]`))); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("before the release: planned anew", func(t *testing.T) {
		e := newEnv(t, stock, "a100-2x4")
		gang := e.gang("train", 2, 4)
		pods := e.members("train", 2)
		e.diesAt("StatusQuiescing")
		wipe(e, gang)
		e.start()
		e.running(pods...)
		e.together(pods, 4)
	})
	t.Run("between template and claims: started all the same", func(t *testing.T) {
		e := newEnv(t, stock, "a100-2x4")
		gang := e.gang("train", 2, 4)
		pods := e.members("train", 2)
		e.diesAt("CreateTemplate")
		wipe(e, gang)
		e.start()
		e.running(pods...)
		e.together(pods, 4)
	})
	t.Run("while the members run: they run on", func(t *testing.T) {
		e := newEnv(t, stock, "a100-2x4")
		e.start()
		gang := e.gang("train", 2, 4)
		pods := e.members("train", 2)
		e.running(pods...)
		e.reaches(gang, v1alpha1.StepHolding)
		wipe(e, gang)
		e.eventually("the GangClaim has a status again", func() error {
			if e.get(gang); len(gang.Status.Conditions) == 0 {
				return errors.New("it has none")
			}
			return nil
		})
		for _, pod := range pods {
			if e.get(pod); pod.Status.Phase != corev1.PodRunning || pod.DeletionTimestamp != nil {
				t.Errorf("pod %s is %s, ending %t", pod.Name, pod.Status.Phase, pod.DeletionTimestamp != nil)
			}
		}
	})
}
