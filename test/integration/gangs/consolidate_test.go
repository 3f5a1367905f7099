// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build integration

package gangs

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/controller"
	"github.com/switchyard-dev/switchyard/test/harness/fleet"
)

// suggesting runs a controller that looks every second for what is worth moving, and returns its metrics.
func (e *env) suggesting() *prometheus.Registry {
	e.t.Helper()
	registry := prometheus.NewRegistry()
	e.start(mayMove, func(config *controller.Config) {
		config.Registry = registry
		config.Consolidation = &controller.Consolidation{Interval: time.Second, Moves: 4}
	})
	return registry
}

// rounds waits until searches have had the result twice from now on: one may have begun before.
func (e *env) rounds(registry *prometheus.Registry, result string) {
	e.t.Helper()
	before := counted(e.t, registry, "switchyard_consolidation_rounds_total", result)
	e.eventually("searches say "+result, func() error {
		if now := counted(e.t, registry, "switchyard_consolidation_rounds_total", result); now < before+2 {
			return fmt.Errorf("%v times, before %v", now, before)
		}
		return nil
	})
}

// counted is the value of the counter or gauge with the only label value; 0 when there is none.
func counted(t *testing.T, registry *prometheus.Registry, name, label string) float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			if family.GetName() == name && (label == "" || metric.GetLabel()[0].GetValue() == label) {
				return metric.GetCounter().GetValue() + metric.GetGauge().GetValue()
			}
		}
	}
	return 0
}

// suggested waits until the metrics suggest so many evictions, for so many gangs of 4.
func (e *env) suggested(registry *prometheus.Registry, evictions, gangs float64) {
	e.t.Helper()
	e.eventually("the metrics say what is suggested", func() error {
		moves, gain := counted(e.t, registry, "switchyard_consolidation_suggested_evictions", ""), counted(e.t, registry, "switchyard_consolidation_suggested_runnable_gangs", "4")
		if moves != evictions || gain != gangs {
			return fmt.Errorf("%v evictions for %v gangs of 4, want %v for %v", moves, gain, evictions, gangs)
		}
		return nil
	})
}

// suggestions are the pods of the namespace that an Event calls worth moving.
func (e *env) suggestions() map[string]bool {
	e.t.Helper()
	events, err := e.plane.Client().CoreV1().Events(e.namespace).List(e.t.Context(), metav1.ListOptions{})
	if err != nil {
		e.t.Fatal(err)
	}
	pods := map[string]bool{}
	for _, event := range events.Items {
		if event.Reason == "WorthMoving" {
			pods[event.InvolvedObject.Name] = true
		}
	}
	return pods
}

func TestConsolidationSuggestsOneMoveAndEvictsNobody(t *testing.T) {
	e := newEnv(t, stock, "a100-2x4")
	first, second := e.oneInEachDomain(movable)
	registry := e.suggesting()
	e.rounds(registry, "MovesFound")
	var pods map[string]bool
	e.eventually("a pod hears of it", func() error {
		if pods = e.suggestions(); len(pods) == 0 {
			return fmt.Errorf("there is no Event")
		}
		return nil
	})
	if len(pods) != 1 || !pods[first.Name] && !pods[second.Name] {
		t.Errorf("worth moving are %v, of %s and %s", pods, first.Name, second.Name)
	}
	e.suggested(registry, 1, 1)
	e.alive(first, second)

	// A gang that waits comes first.
	gang := e.gang("train", 1, 4)
	members := e.members("train", 1)
	e.waits(gang, "NoFeasibleDomain")
	e.rounds(registry, "GangsWait")
	e.suggested(registry, 0, 0)
	e.alive(first, second)
	e.ends("s0")
	e.running(members...)
	e.rounds(registry, "NoMoves")
}

func TestConsolidationLeavesPodsThatHaveNotOptedIn(t *testing.T) {
	e := newEnv(t, stock, "a100-2x4")
	first, second := e.oneInEachDomain(nil)
	registry := e.suggesting()
	e.rounds(registry, "NoMoves")
	if told := e.suggestions(); len(told) > 0 {
		t.Errorf("worth moving are %v", told)
	}
	e.alive(first, second)
}

// eightOrFour has the services a and b on a node with a domain of eight, c in the first domain of four of another, and
// one that may not be moved in the second.
func (e *env) eightOrFour() (a, b, c *corev1.Pod) {
	e.t.Helper()
	// Devices are given in their order; fillers keep the rest from the next service.
	a, b = e.service("a", movable), e.service("b", movable)
	fillers := []*corev1.Pod{e.single("rest-of-eight", 6)}
	e.running(fillers...)
	e.addNode(fleet.Node{Profile: "a100-2x4"})
	c = e.service("c", movable)
	fillers = append(fillers, e.single("rest-of-four", 3))
	e.running(fillers[1])
	stays := e.service("stays", nil)
	if four, other := e.domainsOf(c), e.domainsOf(stays); slices.Equal(four, other) || !slices.Equal(four, e.domainsOf(fillers[1])) {
		e.t.Fatalf("the services are in %v and %v", four, other)
	}
	for _, filler := range fillers {
		e.delete(filler)
	}
	e.eventually("their claims are gone", func() error {
		var claims resourceapi.ResourceClaimList
		if err := e.client.List(e.t.Context(), &claims, client.InNamespace(e.namespace)); err != nil {
			return err
		}
		if len(claims.Items) != 4 {
			return fmt.Errorf("there are %d claims", len(claims.Items))
		}
		return nil
	})
	return a, b, c
}

// wants makes claims for so many GPUs that nobody uses yet.
func (e *env) wants(gpus int64, claims int) []*resourceapi.ResourceClaim {
	e.t.Helper()
	var list []*resourceapi.ResourceClaim
	for i := range claims {
		claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: fmt.Sprintf("wants-%d", i)}}
		claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpus", Exactly: &resourceapi.ExactDeviceRequest{
			DeviceClassName: v1alpha1.DriverName, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: gpus,
		}}}
		e.create(claim)
		list = append(list, claim)
	}
	return list
}

func TestConsolidationMakesRoomForWhatIsAskedForOfLate(t *testing.T) {
	e := newEnv(t, stock, "hgx-h100")
	a, b, c := e.eightOrFour()
	registry := e.suggesting()
	told := func(pods ...*corev1.Pod) {
		t.Helper()
		e.eventually("pods hear of it", func() error {
			suggestions := e.suggestions()
			for _, pod := range pods {
				if !suggestions[pod.Name] {
					return fmt.Errorf("only %v do", suggestions)
				}
			}
			return nil
		})
	}
	suggests := func(evictions, eights float64) {
		t.Helper()
		e.eventually("the metrics say what is suggested", func() error {
			moves, gain := counted(t, registry, "switchyard_consolidation_suggested_evictions", ""), counted(t, registry, "switchyard_consolidation_suggested_runnable_gangs", "8")
			if moves != evictions || gain != eights {
				return fmt.Errorf("%v evictions for %v gangs of 8, want %v for %v", moves, gain, evictions, eights)
			}
			return nil
		})
	}
	// Nobody has asked for gangs: two more, of 2 and of 4, for one move are the most.
	suggests(1, 0)
	told(c)

	wanted := e.wants(8, 6)
	suggests(2, 1)
	told(a, b)
	e.eventually("all six are counted", func() error {
		if n := counted(t, registry, "switchyard_consolidation_asked_for_requests", "8"); n < 5.9 || n > 6 {
			return fmt.Errorf("%v requests for eight are", n)
		}
		return nil
	})

	// What was there for a moment hardly counts.
	for _, claim := range wanted {
		e.delete(claim)
	}
	suggests(1, 0)
	e.alive(a, b, c)
}
