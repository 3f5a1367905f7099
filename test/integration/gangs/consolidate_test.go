// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build integration

package gangs

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/switchyard-dev/switchyard/pkg/controller"
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
