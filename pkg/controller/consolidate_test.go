// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/defrag"
	"github.com/switchyard-dev/switchyard/pkg/demand"
)

// worth is a suggestion to move pods of namespace ml.
func worth(pods ...string) *defrag.Consolidation {
	c := &defrag.Consolidation{Reason: defrag.ReasonMovesFound, Message: "evict it", Gain: []defrag.Gain{{Size: 2}, {Size: 4, Before: 1, After: 2}}}
	for _, name := range pods {
		c.Moves = append(c.Moves, v1alpha1.GangMove{Namespace: "ml", Pod: name, PodUID: types.UID(name)})
	}
	return c
}

// consolidates is a consolidator that finds what it is told, on a cluster with pods a and b.
type consolidates struct {
	*consolidator

	found    *defrag.Consolidation
	searches int
	during   func()
	recorder *fakeRecorder
}

func newConsolidates(t *testing.T, funcs interceptor.Funcs, objects ...client.Object) *consolidates {
	t.Helper()
	c := &consolidates{found: worth("a"), recorder: &fakeRecorder{}, during: func() {}}
	clk := clocktesting.NewFakeClock(start)
	for _, name := range []string{"a", "b"} {
		pod := gpuPod(name, start)
		pod.UID = types.UID(name)
		objects = append(objects, pod)
	}
	c.consolidator = &consolidator{
		Consolidation: Consolidation{Interval: time.Minute, Moves: 3},
		reader:        fakeAPI(t, funcs, objects...), waits: func() bool { return false }, synced: func() bool { return true },
		events: newEventSender(c.recorder, clk), metrics: newMetrics(prometheus.NewRegistry(), ""), clock: clk,
		search: func(_ context.Context, most int) *defrag.Consolidation {
			if most != 3 {
				t.Errorf("searched for %d moves", most)
			}
			c.searches++
			c.during()
			return c.found
		},
	}
	return c
}

func (c *consolidates) rounds(result string) float64 {
	return testutil.ToFloat64(c.metrics.consolidations.WithLabelValues(result))
}

func (c *consolidates) mustRound(t *testing.T, wantAgain bool) {
	t.Helper()
	if again, err := c.round(t.Context()); err != nil || again != wantAgain {
		t.Errorf("round = %t, %v, want %t", again, err, wantAgain)
	}
}

func TestASuggestionIsToldOnce(t *testing.T) {
	c := newConsolidates(t, interceptor.Funcs{})
	c.mustRound(t, false)
	c.mustRound(t, false)
	text := "WorthMoving: No gang waits, and nothing is evicted. It would be worth it to evict it"
	if !slices.Equal(c.recorder.shown, []string{text}) || len(c.recorder.series) != 1 {
		t.Errorf("told %q, %v", c.recorder.shown, c.recorder.series)
	}
	if c.rounds(defrag.ReasonMovesFound) != 2 || testutil.ToFloat64(c.metrics.suggestedMoves) != 1 || testutil.ToFloat64(c.metrics.suggestedGain.WithLabelValues("4")) != 1 {
		t.Error("the metrics do not say so")
	}
	c.found = worth("a", "b", "gone")
	c.found.Message = "evict them"
	c.mustRound(t, false)
	if len(c.recorder.shown) != 3 {
		t.Errorf("told %q of another suggestion", c.recorder.shown)
	}
	c.found = &defrag.Consolidation{Reason: defrag.ReasonNoMoves}
	c.mustRound(t, false)
	if testutil.ToFloat64(c.metrics.suggestedMoves) != 0 || testutil.ToFloat64(c.metrics.suggestedGain.WithLabelValues("4")) != 0 {
		t.Error("the metrics still suggest something")
	}
}

func TestAPodThatCameUnderTheNameIsToldNothing(t *testing.T) {
	c := newConsolidates(t, interceptor.Funcs{})
	c.found.Moves[0].PodUID = "another"
	c.mustRound(t, false)
	if len(c.recorder.shown) > 0 {
		t.Errorf("told %q", c.recorder.shown)
	}
}

func TestGangsThatWaitOrStartComeFirst(t *testing.T) {
	starting := gangNamed("starts")
	starting.Status.Plan = &v1alpha1.GangPlan{Step: v1alpha1.StepReleasing}
	running := gangNamed("runs")
	running.Status.Plan = &v1alpha1.GangPlan{Step: v1alpha1.StepHolding}
	for rule, test := range map[string]struct {
		gangs    []client.Object
		waits    bool
		during   bool
		searches int
		told     bool
	}{
		"a gang waits":                           {waits: true},
		"a gang starts":                          {gangs: []client.Object{starting}},
		"a gang runs":                            {gangs: []client.Object{running}, searches: 1, told: true},
		"a gang that comes during the search":    {during: true, searches: 1},
		"no gang at all: the search takes place": {searches: 1, told: true},
	} {
		t.Run(rule, func(t *testing.T) {
			c := newConsolidates(t, interceptor.Funcs{}, test.gangs...)
			waits := test.waits
			c.waits = func() bool { return waits }
			c.during = func() { waits = test.during }
			c.mustRound(t, false)
			if c.searches != test.searches || (len(c.recorder.shown) > 0) != test.told || (c.rounds(resultGangsWait) == 1) == test.told {
				t.Errorf("searched %d times, told %q", c.searches, c.recorder.shown)
			}
		})
	}
}

func TestAnInterruptedSearchIsMadeAgainSoon(t *testing.T) {
	c := newConsolidates(t, interceptor.Funcs{})
	c.found = &defrag.Consolidation{Reason: defrag.ReasonPlanning}
	c.mustRound(t, true)
	c.synced = func() bool { return false }
	c.mustRound(t, true)
	if c.searches != 1 {
		t.Errorf("searched %d times: not before everything is known", c.searches)
	}
}

func TestConsolidationGoesOnAfterErrors(t *testing.T) {
	fails := true
	c := newConsolidates(t, interceptor.Funcs{List: func(ctx context.Context, api client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
		if fails {
			return errors.New("gone")
		}
		return api.List(ctx, list, opts...)
	}})
	if _, err := c.round(t.Context()); err == nil || c.searches > 0 {
		t.Errorf("round: %v, %d searches", err, c.searches)
	}
	fails = false
	clk := c.clock.(*clocktesting.FakeClock)
	ctx, cancel := context.WithCancel(t.Context())
	searched := make(chan struct{})
	c.during = func() { searched <- struct{}{} }
	done := make(chan struct{})
	go func() { defer close(done); c.Run(ctx) }()
	for _, pause := range []time.Duration{roomAgainAfter, time.Minute} {
		for !clk.HasWaiters() {
			select {
			case <-t.Context().Done():
				t.Fatal("it does not wait")
			default:
			}
		}
		clk.Step(pause)
		<-searched
	}
	cancel()
	<-done
}

func TestTheMetricsSayWhatIsAskedFor(t *testing.T) {
	c := newConsolidates(t, interceptor.Funcs{})
	c.found.Mix = demand.Mix{Owners: 4, Requests: []demand.Request{
		{Size: 1, Requests: 9}, {Size: 3, Requests: 1}, {Size: 4, Requests: 2}, {Product: "A100", Size: 4, Requests: 0.5}, {Size: 16, Requests: 1}, {Size: 17, Requests: 1}, {Size: 2048, Requests: 2},
	}}
	c.mustRound(t, false)
	want := map[string]float64{"1": 9, "2": 0, "4": 3.5, "8": 0, "16": 1, "more": 3}
	for size, requests := range want {
		if got := testutil.ToFloat64(c.metrics.askedFor.WithLabelValues(size)); got != requests {
			t.Errorf("%v requests of size %s, want %v", got, size, requests)
		}
	}
	if n := testutil.CollectAndCount(c.metrics.askedFor); n != len(want) {
		t.Errorf("%d series, want %d", n, len(want))
	}
	if got := testutil.ToFloat64(c.metrics.askedForHistory); got != 0.5 {
		t.Errorf("the weight is %v", got)
	}
	// A search that did not take place changes nothing, one after which nothing is asked for does.
	c.waits = func() bool { return true }
	c.mustRound(t, false)
	if got := testutil.ToFloat64(c.metrics.askedFor.WithLabelValues("1")); got != 9 {
		t.Errorf("while a gang waits: %v", got)
	}
	c.waits = func() bool { return false }
	c.found.Mix = demand.Mix{}
	c.mustRound(t, false)
	if got := testutil.ToFloat64(c.metrics.askedFor.WithLabelValues("1")); got != 0 {
		t.Errorf("later: %v", got)
	}
}
