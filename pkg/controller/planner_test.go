// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/fragmentation"
	"github.com/switchyard-dev/switchyard/pkg/gang"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// fakeCluster has a number of devices, and plans one for each gang.
type fakeCluster struct {
	mu       sync.Mutex
	devices  int
	message  string // of refusals
	during   func() // what happens while it plans; called without lock
	takes    time.Duration
	runs     [][]types.UID
	reserved map[types.NamespacedName][]string
}

func newFakeCluster(devices int) *fakeCluster {
	return &fakeCluster{devices: devices, reserved: map[types.NamespacedName][]string{}}
}

func (c *fakeCluster) Plan(_ context.Context, gangs []placement.Gang) []placement.Decision {
	c.mu.Lock()
	defer c.mu.Unlock()
	var run []types.UID
	taken := map[string]bool{}
	for key := range c.reserved {
		for _, d := range c.reserved[key] {
			taken[d] = true
		}
	}
	var decisions []placement.Decision
	slices.SortFunc(gangs, func(a, b placement.Gang) int { return int(b.Priority - a.Priority) })
	for _, g := range gangs {
		run = append(run, g.Claim.UID)
		decision := placement.Decision{Gang: g.Claim.UID, Refusal: &placement.Refusal{Reason: placement.ReasonNoFeasibleDomain, Message: c.message}}
		for i := range c.devices {
			if d := strconv.Itoa(i); !taken[d] {
				taken[d] = true
				decision = placement.Decision{Gang: g.Claim.UID, Plan: planOf(d)}
				break
			}
		}
		decisions = append(decisions, decision)
	}
	c.runs = append(c.runs, run)
	during, takes := c.during, c.takes
	c.during = nil
	c.mu.Unlock()
	defer c.mu.Lock()
	if during != nil {
		during()
	}
	<-time.After(takes)
	return decisions
}

func planOf(device string) *v1alpha1.GangPlan {
	return &v1alpha1.GangPlan{
		Step:       v1alpha1.StepFencing,
		Placements: []v1alpha1.GangPlacement{{Devices: []v1alpha1.GangDevice{{Name: device}}}},
	}
}

func (c *fakeCluster) SetGang(gang *v1alpha1.GangClaim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.reserved, keyOf(gang))
	if gang.Status.Plan != nil {
		c.reserved[keyOf(gang)] = []string{gang.Status.Plan.Placements[0].Devices[0].Name}
	}
}

func (c *fakeCluster) Domains() []fragmentation.Domain { return nil }

func (c *fakeCluster) DeleteGang(key types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.reserved, key)
}

func (c *fakeCluster) has(t *testing.T, gang *v1alpha1.GangClaim, want ...string) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if got := c.reserved[keyOf(gang)]; !slices.Equal(got, want) {
		t.Errorf("reserved for gang %s is %v, want %v", gang.Name, got, want)
	}
}

func gangNamed(name string) *v1alpha1.GangClaim {
	return &v1alpha1.GangClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name, UID: types.UID(name), ResourceVersion: "10"}}
}

func ask(gang *v1alpha1.GangClaim, priority int32, pods ...string) placement.Gang {
	g := placement.Gang{Claim: gang, Priority: priority}
	for _, pod := range pods {
		g.Pods = append(g.Pods, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(pod)}})
	}
	return g
}

// plannerTest runs a planner in a bubble of synctest.
type plannerTest struct {
	*planner
	cluster *fakeCluster

	mu       sync.Mutex
	answered []string
}

func runPlanner(t *testing.T, devices int) *plannerTest {
	t.Helper()
	p := &plannerTest{cluster: newFakeCluster(devices)}
	p.planner = newPlanner(p.cluster, clock.RealClock{}, func(key types.NamespacedName) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.answered = append(p.answered, key.Name)
	}, func(time.Duration, int) {})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { p.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return p
}

// settle lets the planner do all that it has to do, and returns whom it has answered since.
func (p *plannerTest) settle() []string {
	timer := time.NewTimer(time.Second)
	<-timer.C
	synctest.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	answered := p.answered
	p.answered = nil
	slices.Sort(answered)
	return answered
}

func (p *plannerTest) mustAsk(t *testing.T, g placement.Gang) placement.Decision {
	t.Helper()
	answer, ok := p.Ask(g)
	if !ok {
		t.Fatalf("gang %s has no answer", g.Claim.Name)
	}
	return answer
}

func TestPlannerPlansAllThatWaitInOneRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := runPlanner(t, 1)
		low, high := gangNamed("low"), gangNamed("high")
		for range 3 { // as events come
			for _, g := range []placement.Gang{ask(low, 1), ask(high, 2)} {
				if _, ok := p.Ask(g); ok {
					t.Fatal("answered before planning")
				}
			}
		}
		if got := p.settle(); !slices.Equal(got, []string{"high", "low"}) {
			t.Errorf("answered %v, want both", got)
		}
		if len(p.cluster.runs) != 1 {
			t.Errorf("planned %d times, want once", len(p.cluster.runs))
		}
		if p.mustAsk(t, ask(high, 2)).Plan == nil || p.mustAsk(t, ask(low, 1)).Plan != nil {
			t.Error("want a plan for the gang of high priority alone")
		}
	})
}

func TestPlannerReservesAPlanFromTheMomentItIsTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := runPlanner(t, 1)
		first, second := gangNamed("first"), gangNamed("second")
		p.Ask(ask(first, 0))
		p.settle()
		if p.mustAsk(t, ask(first, 0)).Plan == nil {
			t.Fatal("no plan")
		}
		p.cluster.has(t, first, "0")

		p.Ask(ask(second, 9))
		p.settle()
		if p.mustAsk(t, ask(second, 9)).Plan != nil {
			t.Error("the device was planned twice")
		}

		// The cache shows the state before the plan was written: no reason to give it away.
		p.Observe(first)
		written := first.DeepCopy()
		written.ResourceVersion, written.Status.Plan = "11", planOf("0")
		p.Committed(written)
		p.Observe(first)
		p.cluster.has(t, first, "0")

		taken := written.DeepCopy()
		taken.ResourceVersion, taken.Status.Plan = "12", nil
		p.Observe(taken)
		p.cluster.has(t, first)
		if got := p.settle(); !slices.Equal(got, []string{"second"}) {
			t.Errorf("answered %v, want the gang for which there is a place now", got)
		}
	})
}

func TestPlannerTakesAPlanBackThatCouldNotBeWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := runPlanner(t, 1)
		claim := gangNamed("a")
		p.Ask(ask(claim, 0))
		p.settle()
		p.mustAsk(t, ask(claim, 0))
		p.GiveBack(claim)
		p.cluster.has(t, claim)
		p.Ask(ask(claim, 0))
		p.settle()
		if p.mustAsk(t, ask(claim, 0)).Plan == nil {
			t.Error("no plan at the second try")
		}
	})
}

func TestPlannerAnswersForThePodsThatThereAre(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := runPlanner(t, 1)
		claim := gangNamed("a")
		p.Ask(ask(claim, 0, "pod-1"))
		p.settle()
		if _, ok := p.Ask(ask(claim, 0, "pod-2")); ok {
			t.Error("the answer is for a pod that is gone")
		}
		if got := p.settle(); !slices.Equal(got, []string{"a"}) {
			t.Errorf("answered %v, want the gang anew", got)
		}
	})
}

// A pod that waits is given a toleration or other requests: nothing else may change for long.
func TestPlannerPlansAnewWhenAPodHasChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := runPlanner(t, 0)
		question := ask(gangNamed("a"), 0, "pod")
		p.Ask(question)
		p.settle()
		changed := ask(question.Claim, 0, "pod")
		changed.Pods[0].Generation++
		if _, ok := p.Ask(changed); ok {
			t.Error("the answer is for the pod as it was")
		}
		if got := p.settle(); !slices.Equal(got, []string{"a"}) {
			t.Errorf("answered %v, want the gang anew", got)
		}
	})
}

func TestPlannerTellsARefusalOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := runPlanner(t, 0)
		claim := gangNamed("a")
		p.Ask(ask(claim, 0))
		p.settle()
		for range 5 {
			p.Changed()
			if got := p.settle(); len(got) > 0 {
				t.Errorf("answered %v, and nothing is new", got)
			}
		}
		if len(p.cluster.runs) != 6 {
			t.Errorf("planned %d times, want at each change", len(p.cluster.runs))
		}
	})
}

// What is free changes with every pod of the cluster: a gang that waits hears of it now and then, and of the last.
func TestPlannerTellsAChangedRefusalOnceInAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := runPlanner(t, 0)
		claim := gangNamed("a")
		p.Ask(ask(claim, 0))
		p.settle()
		told := 0
		for i := range 100 { // seconds
			p.cluster.mu.Lock()
			p.cluster.message = strconv.Itoa(i)
			p.cluster.mu.Unlock()
			p.Changed()
			if told += len(p.settle()); i == 8 && told != 1 {
				t.Errorf("told %d times in 8 s, want once, after %s", told, retellAfter)
			}
		}
		if told < 3 || told > 5 { // after 5, 15, 35 and 75 s
			t.Errorf("told %d times in 100 s, want it half as often each time", told)
		}
		for range 66 {
			told += len(p.settle())
		}
		if last := p.mustAsk(t, ask(claim, 0)).Refusal.Message; last != "99" || told > 6 {
			t.Errorf("told %d times, the last was %q", told, last)
		}
	})
}

// What a gang is told stays what it was told: each change would be a write, and each write another look.
func TestPlannerGivesTheAnswerThatWasTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := runPlanner(t, 0)
		claim := gangNamed("a")
		p.Ask(ask(claim, 0))
		p.settle()
		p.cluster.mu.Lock()
		p.cluster.message = "newer"
		p.cluster.mu.Unlock()
		p.Changed()
		p.settle()
		if got := p.mustAsk(t, ask(claim, 0)).Refusal.Message; got != "" {
			t.Errorf("the refusal is %q before it was told", got)
		}
	})
}

// Pods that take devices give no gang a place: it hears of it, and no run is made for each of them.
func TestPlannerDoesNotPlanBecauseOfWhatWasTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := runPlanner(t, 0)
		p.Taken() // nobody waits
		p.Ask(ask(gangNamed("a"), 0))
		p.settle()
		p.cluster.message = "less is free"
		for range 4 {
			p.Taken()
			p.settle()
		}
		if len(p.cluster.runs) != 1 {
			t.Errorf("planned %d times, want only at the question", len(p.cluster.runs))
		}
		var told []string
		for range 3 {
			told = append(told, p.settle()...)
		}
		if len(p.cluster.runs) != 2 || len(told) != 1 {
			t.Errorf("planned %d times and told %v, want one more run that tells of what is left", len(p.cluster.runs), told)
		}
	})
}

func TestPlannerRestsLongerBeforeItLooksAtWhatPodsFree(t *testing.T) {
	const took = 100 * time.Millisecond
	for name, tc := range map[string]struct {
		change func(*plannerTest)
		after  time.Duration
	}{
		"what pods free":               {func(p *plannerTest) { p.Freed() }, usageRestFactor * took},
		"another node":                 {func(p *plannerTest) { p.Changed() }, restFactor * took},
		"another node after a release": {func(p *plannerTest) { p.Freed(); synctest.Wait(); p.Changed() }, restFactor * took},
		"what pods free long after":    {func(p *plannerTest) { p.settle(); <-time.After(time.Minute); p.Freed() }, time.Minute + time.Second + settleTime},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := runPlanner(t, 0)
				p.cluster.takes = took
				p.Ask(ask(gangNamed("a"), 0))
				<-time.After(settleTime + took)
				synctest.Wait()
				ended := time.Now()
				runs := func() int {
					p.cluster.mu.Lock()
					defer p.cluster.mu.Unlock()
					return len(p.cluster.runs)
				}
				tc.change(p)
				for runs() == 1 && time.Since(ended) < time.Hour {
					<-time.After(time.Millisecond)
				}
				if got := time.Since(ended); got < tc.after || got > tc.after+2*time.Millisecond {
					t.Errorf("planned after %s, want %s", got, tc.after)
				}
			})
		})
	}
}

// A run that began before a plan was handed out may have given its devices to another gang.
func TestPlannerDropsARunDuringWhichAPlanWasTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := runPlanner(t, 1)
		first, second := gangNamed("first"), gangNamed("second")
		p.Ask(ask(first, 0))
		p.settle()
		p.cluster.during = func() {
			if p.mustAsk(t, ask(first, 0)).Plan == nil {
				t.Error("no plan")
			}
		}
		p.Ask(ask(second, 9)) // goes first
		p.settle()
		p.cluster.has(t, first, "0")
		if p.mustAsk(t, ask(second, 9)).Plan != nil {
			t.Error("the device was planned twice")
		}
	})
}

func TestPlannerAnswersWhileItPlans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := runPlanner(t, 0)
		asked := make(chan struct{})
		p.cluster.during = func() { <-asked }
		p.Ask(ask(gangNamed("a"), 0))
		<-time.After(2 * settleTime) // it plans, and does not end
		p.Observe(gangNamed("b"))
		if _, ok := p.Ask(ask(gangNamed("b"), 0)); ok {
			t.Error("answered before planning")
		}
		close(asked)
		if got := p.settle(); !slices.Equal(got, []string{"a", "b"}) {
			t.Errorf("answered %v, want both", got)
		}
	})
}

func TestPlannerAsksAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := runPlanner(t, 0)
		p.Ask(ask(gangNamed("a"), 0))
		p.settle()
		p.AskAgain()
		if got := p.settle(); !slices.Equal(got, []string{"a"}) {
			t.Errorf("brought up %v, want the gang that waits", got)
		}
	})
}

func TestPlannerForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := runPlanner(t, 1)
		gone, other := gangNamed("gone"), gangNamed("other")
		p.Ask(ask(gone, 0))
		p.Ask(ask(other, -1))
		p.settle()
		p.Forget(keyOf(gone))
		if got := p.settle(); !slices.Equal(got, []string{"other"}) {
			t.Errorf("answered %v, want the gang that was behind", got)
		}
		p.mustAsk(t, ask(other, -1))
		p.Gone(other)
		p.cluster.has(t, other)
	})
}

// The reply to the write of a plan was lost, and the GangClaim was deleted while the API server was asked about it.
func TestPlannerKeepsNothingForAGangThatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := runPlanner(t, 1)
		claim := gangNamed("a")
		p.Ask(ask(claim, 0))
		p.settle()
		p.mustAsk(t, ask(claim, 0))
		if !p.Unsettled(claim.UID) {
			t.Fatal("the plan was not taken")
		}
		stored := claim.DeepCopy()
		stored.Status.Plan = planOf("0")
		p.Gone(claim)
		p.Settle(stored)
		p.cluster.has(t, claim)
		if p.Waits() {
			t.Error("the planner waits for a gang that is gone")
		}
	})
}

// Nodes on which kube-scheduler did not put members are avoided for a while, or until the gang has its place.
func TestPlannerAvoidsNodesThatFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := runPlanner(t, 0)
		claim, other := gangNamed("a"), gangNamed("b")
		asks := func(claim *v1alpha1.GangClaim, want ...string) {
			t.Helper()
			p.Ask(ask(claim, 0))
			if got := p.waiting[claim.UID].gang.Avoid; !slices.Equal(got, want) {
				t.Errorf("gang %s is asked for without nodes %q, want %q", claim.Name, got, want)
			}
		}
		wait := func(d time.Duration) { <-time.After(d) }

		p.Avoid(claim.UID, nil)
		asks(claim)
		p.Avoid(claim.UID, []string{"node-b"})
		wait(avoidTime / 2)
		p.Avoid(claim.UID, []string{"node-a"})
		asks(claim, "node-a", "node-b")
		asks(other)
		wait(avoidTime / 2)
		asks(claim, "node-a")

		claim.Status.Plan = planOf("0")
		p.Observe(claim)
		asks(claim, "node-a")
		claim = claim.DeepCopy()
		claim.Status.Plan.Step = v1alpha1.StepHolding
		p.Observe(claim)
		asks(claim)

		p.Avoid(claim.UID, []string{"node-a"})
		p.Gone(claim)
		if len(p.avoid) > 0 {
			t.Errorf("of gangs that are gone is kept %v", p.avoid)
		}
	})
}

func TestPlannerLetsGoOfDevicesOfAPlanThatIsBeingUnfenced(t *testing.T) {
	claim := gangNamed("a")
	claim.Status.Plan = planOf("0")
	claim.Status.Plan.Step = v1alpha1.StepUnfencing
	p := newPlanner(newFakeCluster(1), clock.RealClock{}, nil, nil)
	p.Observe(claim)
	p.cluster.(*fakeCluster).has(t, claim)
	if claim.Status.Plan == nil {
		t.Error("the GangClaim of the cache was changed")
	}
}

func TestPlannerLetsGoOfDevicesOfAPlanThatWasTakenBack(t *testing.T) {
	for reason, free := range map[string]bool{
		gang.StateTakingBack:  false, // its fence may still be up
		gang.ReasonBackingOff: true,
		gang.ReasonPlanning:   true,
	} {
		claim := gangNamed("a")
		claim.Status.Plan = planOf("0")
		claim.Status.Plan.Step = v1alpha1.StepTakingBack
		claim.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionPlanned, Status: metav1.ConditionFalse, Reason: reason}}
		c := newFakeCluster(1)
		newPlanner(c, clock.RealClock{}, nil, nil).Observe(claim)
		if free {
			c.has(t, claim)
		} else {
			c.has(t, claim, "0")
		}
	}
}

func TestPlannerPlansAnewWhenThePriorityHasChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := runPlanner(t, 1)
		first, second := gangNamed("first"), gangNamed("second")
		p.Ask(ask(first, 2))
		p.Ask(ask(second, 1))
		p.settle()
		p.Ask(ask(second, 3)) // a PriorityClass was replaced
		p.settle()
		if p.mustAsk(t, ask(second, 3)).Plan == nil || p.mustAsk(t, ask(first, 2)).Plan != nil {
			t.Error("the order is that of the priorities before")
		}
	})
}
