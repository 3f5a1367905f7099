// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package defrag_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/defrag"
	"github.com/switchyard-dev/switchyard/pkg/demand"
	"github.com/switchyard-dev/switchyard/pkg/fragmentation"
)

// optedIn labels a pod as one that may be moved.
func optedIn(pod *corev1.Pod, _ *resourceapi.ResourceClaim) {
	pod.Labels[v1alpha1.MovableLabel] = "true"
}

func (l *lab) consolidate(most int) *defrag.Consolidation {
	return l.maker.Consolidate(context.Background(), l.Cluster, most, demand.Mix{})
}

// twoDomains has a pod in each domain of four of a node.
func twoDomains(with ...func(*corev1.Pod, *resourceapi.ResourceClaim)) *lab {
	l := newLab()
	l.node("n", 4, 4)
	l.single("a", "n", 0, append(with, optedIn)...)
	l.single("b", "n", 4, append(with, optedIn)...)
	return l
}

func TestConsolidationMakesADomainWhole(t *testing.T) {
	got := twoDomains().consolidate(4)
	if !got.Found() || moves(got.Moves) != "a n.0/gpu-0 > n.1/gpu-5" || got.Domain != "n.0" || got.Cost != "1 pod, importance 32, lost work 3" {
		t.Fatalf("got %+v", got)
	}
	if want := []defrag.Gain{{2, 2, 3}, {4, 0, 1}, {8, 0, 0}}; !slices.Equal(got.Gain, want) {
		t.Errorf("gain %v, want %v", got.Gain, want)
	}
	if want := "evict 1 pod: web/a (n.0/gpu-0 → n.1/gpu-5, priority 0). Domain n.0 is whole then: runnable gangs more: 1 of 2, 1 of 4"; got.Message != want {
		t.Errorf("says %q, want %q", got.Message, want)
	}
	if why := got.Moves[0].Why; why != "label switchyard.dev/movable=true" {
		t.Errorf("why: %s", why)
	}
}

func TestConsolidationMovesOnlyWhoMayBeMoved(t *testing.T) {
	for rule, test := range map[string]struct {
		change func(*lab)
		reason string
	}{
		"who has not opted in stays, however low its priority": {func(l *lab) {
			never := func(pod *corev1.Pod, _ *resourceapi.ResourceClaim) { pod.Spec.Priority = ptr.To(int32(-100)) }
			l.single("a", "n", 0, never)
			l.single("b", "n", 4, never)
		}, defrag.NotOptedIn},
		"a bare pod stays, opted in or not": {func(l *lab) {
			bare := func(pod *corev1.Pod, _ *resourceapi.ResourceClaim) { pod.OwnerReferences = nil }
			l.single("a", "n", 0, optedIn, bare)
			l.single("b", "n", 4, optedIn, bare)
		}, defrag.NotReplaced},
		"a budget that allows none": {func(l *lab) { l.maker.SetBudget(budget("infer", 0)) }, defrag.DisruptionBudget},
		"a pod that takes long to end": {func(l *lab) {
			slow := func(pod *corev1.Pod, _ *resourceapi.ResourceClaim) {
				pod.Spec.TerminationGracePeriodSeconds = ptr.To(int64(3600))
			}
			l.single("a", "n", 0, optedIn, slow)
			l.single("b", "n", 4, optedIn, slow)
		}, defrag.LongGracePeriod},
		"a replacement of a pod that was evicted a while ago": {func(l *lab) {
			evicted := gang("g", 1, 4)
			evicted.Claim.Status.Evictions = []v1alpha1.GangEviction{{
				Namespace: "web", Pod: "x", OwnerUID: "rs-infer", Time: metav1.NewMicroTime(now.Add(-10 * time.Minute)), Outcome: v1alpha1.EvictionSucceeded,
			}}
			l.maker.SetGang(evicted.Claim)
		}, defrag.CoolingDown},
		"a pod of several GPUs": {func(l *lab) {
			two := func(_ *corev1.Pod, c *resourceapi.ResourceClaim) {
				more := c.Status.Allocation.Devices.Results[0]
				more.Device += "-none"
				c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, more)
			}
			l.single("a", "n", 0, optedIn, two)
			l.single("b", "n", 4, optedIn, two)
		}, defrag.SeveralDevices},
		"a pod that no node suits any more": {func(l *lab) {
			full := func(pod *corev1.Pod, _ *resourceapi.ResourceClaim) {
				pod.Spec.NodeSelector = map[string]string{"gone": "yes"}
			}
			l.single("a", "n", 0, optedIn, full)
			l.single("b", "n", 4, optedIn, full)
		}, defrag.NoPlaceElsewhere},
	} {
		t.Run(rule, func(t *testing.T) {
			l := twoDomains()
			test.change(l)
			got := l.consolidate(4)
			if got.Found() || len(got.Moves) > 0 || got.Reason != defrag.ReasonNoMoves {
				t.Fatalf("got %+v", got)
			}
			if len(got.RuledOut) != 1 || got.RuledOut[0].Reason != test.reason || !strings.Contains(got.Message, test.reason) {
				t.Errorf("ruled out are %+v, want %s; said %s", got.RuledOut, test.reason, got.Message)
			}
		})
	}
}

func TestConsolidationTakesAllPodsOfADomainOrNone(t *testing.T) {
	l := newLab()
	l.node("n", 4, 4)
	l.single("a0", "n", 0, optedIn)
	l.single("a1", "n", 1, optedIn)
	for i := range 2 {
		l.single(fmt.Sprint("b", i), "n", 4+i)
	}
	if got := l.consolidate(1); got.Found() {
		t.Errorf("with one move: %+v", got)
	}
	if got := l.consolidate(2); moves(got.Moves) != "a0 n.0/gpu-0 > n.1/gpu-6, a1 n.0/gpu-1 > n.1/gpu-7" {
		t.Errorf("with two moves: %+v", got)
	}
	// A budget for one of them is none for the domain.
	l.maker.SetBudget(budget("infer", 1))
	if got := l.consolidate(2); got.Found() || got.RuledOut[0].Reason != defrag.NotOptedIn || len(got.RuledOut) != 2 || got.RuledOut[1].Reason != defrag.DisruptionBudget {
		t.Errorf("with a budget for one: %+v", got)
	}
}

func TestConsolidationBreaksNoWholeDomain(t *testing.T) {
	l := newLab()
	l.node("n", 4, 4)
	l.single("a", "n", 0, optedIn)
	if got := l.consolidate(4); got.Found() || got.RuledOut[0].Reason != defrag.NoPlaceElsewhere {
		t.Errorf("got %+v", got)
	}
}

func TestConsolidationPrefersTheMostGangsForEachEviction(t *testing.T) {
	l := newLab()
	l.node("eight", 8)
	l.node("four", 4)
	l.node("rest", 4)
	l.single("in-four", "four", 0, optedIn)
	l.single("in-eight", "eight", 0, optedIn)
	for i := range 3 {
		l.single(fmt.Sprint("stays", i), "rest", i)
	}
	if got := l.consolidate(4); got.Domain != "eight.0" || moves(got.Moves) != "in-eight eight.0/gpu-0 > rest.0/gpu-3" {
		t.Errorf("got %+v", got)
	}
}

func TestConsolidationThatLowersTheGangsOfAnySizeIsNone(t *testing.T) {
	l := newLab()
	l.node("six", 6)
	l.node("five", 5)
	l.single("a", "six", 0, optedIn)
	l.single("b", "five", 0)
	// six.0 would gain a gang of 2, and five.0, with four free, lose one of 2 and one of 4.
	if got := l.consolidate(4); got.Found() || got.Reason != defrag.ReasonNoMoves {
		t.Errorf("got %+v", got)
	}
	l.single("c", "five", 1) // with three free it would lose none
	if got := l.consolidate(4); got.Domain != "six.0" {
		t.Errorf("got %+v", got)
	}
}

func TestConsolidationEndsWhenItIsInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	l := twoDomains()
	if got := l.maker.Consolidate(ctx, l.Cluster, 4, demand.Mix{}); got.Reason != defrag.ReasonPlanning || got.Message == "" {
		t.Errorf("got %+v", got)
	}
}

func TestConsolidationGivesUpAfterAWhile(t *testing.T) {
	l := newLab()
	for n := range 20 {
		node := fmt.Sprintf("n%02d", n)
		l.node(node, 4)
		l.single("pod-"+node, node, 0, optedIn, func(pod *corev1.Pod, _ *resourceapi.ResourceClaim) {
			pod.Spec.NodeSelector = map[string]string{"gone": "yes"}
		})
	}
	if got := l.consolidate(4); got.Reason != defrag.ReasonGivenUp || !strings.Contains(got.Message, "16 domains were tried") {
		t.Errorf("got %+v", got)
	}
}

// runnableGangs is how many gangs of each size find their devices.
func runnableGangs(l *lab) map[int]int {
	runnable := map[int]int{}
	for _, g := range fragmentation.Measure(l.Domains(), []int{1, 2, 3, 4, 5, 6, 7, 8}).Cluster.Gangs {
		runnable[g.Size] = g.Runnable
	}
	return runnable
}

// randomLab is a small cluster with pods of which most may be moved, and how many may be.
func randomLab(r *rand.Rand) (l *lab, most int) {
	l, most = newLab(), 1+r.IntN(4)
	for n := range 2 + r.IntN(3) {
		node, gpu := fmt.Sprintf("n%d", n), 0
		var sizes []int
		for range 1 + r.IntN(2) {
			sizes = append(sizes, 1+r.IntN(8))
		}
		l.node(node, sizes...)
		for _, size := range sizes {
			density := r.IntN(4)
			for range size {
				if r.IntN(4) < density {
					if r.IntN(5) > 0 {
						l.single(fmt.Sprintf("p%d-%d", n, gpu), node, gpu, optedIn)
					} else {
						l.single(fmt.Sprintf("p%d-%d", n, gpu), node, gpu)
					}
				}
				gpu++
			}
		}
	}
	return l, most
}

// Making the moves on random clusters, each to where it was suggested, does what was said.
func TestConsolidationKeepsItsPromises(t *testing.T) {
	found := 0
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 11))
		l, most := randomLab(r)
		mix := demand.Mix{}
		if seed%2 == 1 {
			mix = asked(1+r.IntN(8), 100*r.Float64(), "")
		}
		before := runnableGangs(l)
		got := l.maker.Consolidate(context.Background(), l.Cluster, most, mix)
		if !maps.Equal(before, runnableGangs(l)) {
			t.Fatalf("seed %d: the search left marks", seed)
		}
		if !got.Found() {
			continue
		}
		found++
		if len(got.Moves) == 0 || len(got.Moves) > most {
			t.Errorf("seed %d: %d moves, at most %d are allowed", seed, len(got.Moves), most)
		}
		taken := map[string]bool{}
		for _, m := range got.Moves {
			to := m.To.Node + "/" + m.To.Device
			if l.pods[m.Pod].Labels[v1alpha1.MovableLabel] != "true" || m.To.Node == "" || m.To.Domain == got.Domain || taken[to] {
				t.Errorf("seed %d: %+v", seed, m)
			}
			taken[to] = true
			l.remove(m.Pod)
		}
		for _, m := range got.Moves {
			var gpu int
			if _, err := fmt.Sscanf(m.To.Device, "gpu-%d", &gpu); err != nil {
				t.Fatal(err)
			}
			for _, claim := range l.claims {
				was := claim.Status.Allocation.Devices.Results[0]
				if was.Pool == m.To.Node && was.Device == m.To.Device && !slices.ContainsFunc(got.Moves, func(o v1alpha1.GangMove) bool { return o.Claim == claim.Name }) {
					t.Errorf("seed %d: %s is sent to where %s is", seed, m.Pod, claim.Name)
				}
			}
			l.single("new-"+m.Pod, m.To.Node, gpu)
		}
		after, more := runnableGangs(l), 0
		for _, g := range got.Gain {
			more += g.After - g.Before
			if g.After < g.Before || g != (defrag.Gain{Size: g.Size, Before: before[g.Size], After: after[g.Size]}) {
				t.Errorf("seed %d: gangs of %d: %d before, %d after; said %+v", seed, g.Size, before[g.Size], after[g.Size], g)
			}
		}
		if more == 0 {
			t.Errorf("seed %d: nothing is gained", seed)
		}
		for _, o := range l.Occupancies() {
			if o.Domain == got.Domain && len(o.Residents) > 0 {
				t.Errorf("seed %d: domain %s is not whole", seed, o.Domain)
			}
		}
	}
	if found < 100 {
		t.Errorf("something was to be moved in %d of 400 clusters only", found)
	}
}
