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
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/defrag"
	"github.com/switchyard-dev/switchyard/pkg/gang"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// protected is the reply where a disruption budget is in the way.
func protected() error {
	err := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{Type: policyv1.DisruptionBudgetCause})
	return err
}

func TestVictimsAreEvictedOneAfterTheOtherAfterADryRunOfAll(t *testing.T) {
	for _, test := range []struct {
		rule    string
		reply   func(pod string, dryRun bool) error
		asked   []string // "a?" is a dry run
		refused types.UID
		evicted []types.UID
		fails   bool
	}{
		{
			rule: "all are evicted", reply: func(string, bool) error { return nil },
			asked: []string{"a?", "b?", "c?", "a", "b", "c"}, evicted: []types.UID{"a", "b", "c"},
		},
		{
			rule: "a refusal in the dry run: none is", refused: "b", fails: true,
			reply: func(pod string, _ bool) error {
				if pod == "b" {
					return protected()
				}
				return nil
			},
			asked: []string{"a?", "b?"},
		},
		{
			rule: "a refusal midway: the rest is left alone", refused: "b", evicted: []types.UID{"a"}, fails: true,
			reply: func(pod string, dryRun bool) error {
				if pod == "b" && !dryRun {
					return protected()
				}
				return nil
			},
			asked: []string{"a?", "b?", "c?", "a", "b"},
		},
		{
			rule: "a policy that forbids it is a refusal", refused: "a", fails: true,
			reply: func(string, bool) error {
				return apierrors.NewForbidden(corev1.Resource("pods"), "a", errors.New("a policy is against it"))
			},
			asked: []string{"a?"},
		},
		{
			rule: "two budgets for one pod are a refusal", refused: "a", fails: true,
			reply: func(string, bool) error {
				return apierrors.NewInternalError(errors.New("this pod has more than one PodDisruptionBudget"))
			},
			asked: []string{"a?"},
		},
		{
			rule: "a server that is busy is tried again", fails: true,
			reply: func(string, bool) error { return apierrors.NewTooManyRequests("slow down", 1) }, asked: []string{"a?"},
		},
		{
			rule: "a server that does not answer is tried again", fails: true,
			reply: func(string, bool) error { return apierrors.NewTimeoutError("timeout", 1) }, asked: []string{"a?"},
		},
		{
			rule: "a pod that is gone is done",
			reply: func(pod string, _ bool) error {
				if pod == "b" {
					return apierrors.NewNotFound(corev1.Resource("pods"), "b")
				}
				return nil
			},
			asked: []string{"a?", "b?", "c?", "a", "b", "c"}, evicted: []types.UID{"a", "b", "c"},
		},
	} {
		t.Run(test.rule, func(t *testing.T) {
			var asked []string
			api := fakeAPI(t, interceptor.Funcs{SubResourceCreate: func(_ context.Context, _ client.Client, subResource string, o, sub client.Object, _ ...client.SubResourceCreateOption) error {
				eviction, ok := sub.(*policyv1.Eviction)
				if subResource != "eviction" || !ok || string(*eviction.DeleteOptions.Preconditions.UID) != o.GetName() {
					t.Errorf("asked for %s with %+v", subResource, sub)
				}
				dryRun := len(eviction.DeleteOptions.DryRun) > 0
				asked = append(asked, o.GetName()+map[bool]string{true: "?"}[dryRun])
				return test.reply(o.GetName(), dryRun)
			}})
			var action gang.EvictVictims
			for _, name := range []string{"a", "b", "c"} {
				action.Pods = append(action.Pods, gang.Ref{Namespace: "web", Name: name, UID: types.UID(name)})
			}
			reply, err := newApplier(api).evictVictims(t.Context(), action)
			if (err != nil) != test.fails {
				t.Errorf("error %v", err)
			}
			if !slices.Equal(asked, test.asked) {
				t.Errorf("asked %v, want %v", asked, test.asked)
			}
			if reply.Refused != test.refused || !slices.Equal(reply.Evicted, test.evicted) || (reply.Message != "") != (test.refused != "") {
				t.Errorf("replied %+v", reply)
			}
		})
	}
}

func TestWhatTheAPIServerSaysToEvictionsIsDecidedOnAtOnce(t *testing.T) {
	for _, test := range []struct {
		rule string
		b    error    // the reply to the eviction of b
		want []string // nothing else of the plan exists, so that it is over at once
		err  bool
	}{
		{"a refusal gives the plan up, and what was evicted before is counted", protected(), []string{"a Failed", "b Refused"}, false},
		{"what was evicted before another error is counted", errors.New("broken pipe"), []string{"a Failed"}, true},
		{"all that were evicted are counted", nil, []string{"a Failed", "b Failed"}, false},
	} {
		t.Run(test.rule, func(t *testing.T) {
			claim := gangNamed("g")
			claim.Finalizers = []string{gang.Finalizer}
			since := metav1.NewMicroTime(start)
			claim.Status.Plan = &v1alpha1.GangPlan{
				Hash: "hash", Members: 1, Step: v1alpha1.StepEvicting, StepSince: since, EvictingSince: &since,
				Moves: []v1alpha1.GangMove{{Namespace: "web", Pod: "a", PodUID: "a"}, {Namespace: "web", Pod: "b", PodUID: "b"}},
			}
			r := newReconciler(t, interceptor.Funcs{SubResourceCreate: func(_ context.Context, _ client.Client, _ string, o, eviction client.Object, _ ...client.SubResourceCreateOption) error {
				if o.GetName() == "b" && len(eviction.(*policyv1.Eviction).DeleteOptions.DryRun) == 0 {
					return test.b
				}
				return nil
			}}, claim)
			claim = stored(t, r.client, claim)
			there := gang.MovedPod{Pod: &corev1.Pod{}} // the cache does not show it yet
			observation := gang.Observation{Now: start.Add(time.Second), Claim: claim, Moves: map[types.UID]gang.MovedPod{"a": there, "b": there}}
			_, err := r.evict(t.Context(), observation, gang.EvictVictims{Pods: []gang.Ref{{Namespace: "web", Name: "a", UID: "a"}, {Namespace: "web", Name: "b", UID: "b"}}}, 0)
			if (err != nil) != test.err {
				t.Fatal(err)
			}
			now := stored(t, r.client, gangNamed("g")).Status
			var got []string
			for _, e := range now.Evictions {
				got = append(got, e.Pod+" "+string(e.Outcome))
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("counted %+v, want %v; plan %+v", now.Evictions, test.want, now.Plan)
			}
		})
	}
}

func TestEvictionsAreCountedOnceForEachOutcome(t *testing.T) {
	m := newMetrics(prometheus.NewRegistry(), "test")
	entry := func(pod string, outcome v1alpha1.EvictionOutcome) v1alpha1.GangEviction {
		return v1alpha1.GangEviction{Namespace: "web", Pod: pod, Time: metav1.NewMicroTime(start), Outcome: outcome}
	}
	at := gangNamed("g")
	for _, list := range [][]v1alpha1.GangEviction{
		{entry("a", v1alpha1.EvictionMade)},
		{entry("a", v1alpha1.EvictionMade), entry("b", v1alpha1.EvictionMade)},
		{entry("a", v1alpha1.EvictionSucceeded), entry("b", v1alpha1.EvictionSucceeded)},
		{entry("a", v1alpha1.EvictionSucceeded), entry("b", v1alpha1.EvictionSucceeded)},
		{entry("b", v1alpha1.EvictionSucceeded), entry("c", v1alpha1.EvictionFailed), entry("d", v1alpha1.EvictionRefused)},
	} {
		next := at.DeepCopy()
		next.Status.Evictions = list
		m.observeStatus(at, next)
		at = next
	}
	for outcome, want := range map[v1alpha1.EvictionOutcome]float64{
		v1alpha1.EvictionMade: 3, v1alpha1.EvictionSucceeded: 2, v1alpha1.EvictionFailed: 1, v1alpha1.EvictionRefused: 1,
	} {
		if got := testutil.ToFloat64(m.evictions.WithLabelValues(string(outcome))); got != want {
			t.Errorf("%s: %v, want %v", outcome, got, want)
		}
	}
	if got := testutil.ToFloat64(m.unblocked); got != 1 {
		t.Errorf("unblocked: %v", got)
	}
}

func TestMovedPodsAreReadByUID(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "web", Name: "a", UID: "a"}}
	other := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "web", Name: "b", UID: "another"}}
	o := &observer{cached: fakeAPI(t, interceptor.Funcs{}, pod, other)}
	observation := gang.Observation{Claim: gangNamed("g")}
	plan := &v1alpha1.GangPlan{Moves: []v1alpha1.GangMove{
		{Namespace: "web", Pod: "a", PodUID: "a", Claim: "none"}, {Namespace: "web", Pod: "b", PodUID: "b", Claim: "none"},
	}}
	if err := o.moves(t.Context(), &observation, plan); err != nil {
		t.Fatal(err)
	}
	if observation.Moves["a"].Pod == nil || observation.Moves["b"].Pod != nil || observation.Moves["a"].Claim != nil {
		t.Errorf("read %+v", observation.Moves)
	}
}

func TestMovesAreLookedForAgainWhileAGangWaitsForThem(t *testing.T) {
	clk := clocktesting.NewFakeClock(start)
	looked := make(chan struct{}, 10)
	searched := 0
	r := &rooms{
		Cluster: placement.NewClusterAt(clk), maker: defrag.NewMaker(defrag.DefaultLimits(), clk), clock: clk,
		observe: func(time.Duration) { searched++ }, lookAgain: func() { looked <- struct{}{} },
	}
	r.SetClass(&resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpus"}})
	g := placement.Gang{Claim: gangNamed("g")}
	g.Claim.Spec = v1alpha1.GangClaimSpec{Members: 1, DevicesPerMember: 1, DeviceClassName: "gpus"}
	if r.Plan(t.Context(), []placement.Gang{g}); searched != 0 || clk.HasWaiters() {
		t.Errorf("a gang that wants nothing moved: %d searches", searched)
	}
	g.Claim.Spec.Defragmentation = v1alpha1.DefragmentationEvict
	for range 2 {
		if d := r.Plan(t.Context(), []placement.Gang{g})[0]; d.Room == nil {
			t.Fatalf("decided %+v", d)
		}
	}
	clk.Step(roomAgainAfter)
	<-looked
	if searched != 2 || len(looked) != 0 {
		t.Errorf("%d searches, looked again %d times more", searched, len(looked))
	}
}
