// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package gang_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/gang"
	"github.com/switchyard-dev/switchyard/pkg/gang/gangtest"
)

// scenario is a story of a gang, to be told with the controller killed after each of its writes.
type scenario struct {
	name string
	// world is how it begins.
	world func() *gangtest.World
	// events are what happens, each once the one before has come true.
	events []event
	// job says that a Job makes a pod anew that was evicted.
	job bool
	// end must come true and stay.
	end func(*gangtest.World) bool
}

type event struct {
	when func(*gangtest.World) bool
	do   func(*gangtest.World)
}

func scenarios() []scenario {
	return []scenario{
		{
			name:  "a gang of owned pods starts, and its fence goes",
			world: func() *gangtest.World { return gangWorld("job") },
			end:   all(running("g", 2), noRules, noTemplates),
		},
		{
			name:  "a gang of bare pods starts",
			world: func() *gangtest.World { return gangWorld("") },
			end:   all(running("g", 2), noRules),
		},
		{
			name:   "a member that fails while the fence is held is replaced on its devices",
			world:  func() *gangtest.World { return gangWorld("job") },
			events: []event{{running("g", 2), replace("p0", "q0")}},
			end:    all(running("g", 2), noRules),
		},
		{
			name:   "two members that fail one after the other are replaced on their devices",
			world:  func() *gangtest.World { return gangWorld("job") },
			events: []event{{running("g", 2), replace("p0", "q0")}, {all(running("g", 2), step("g", v1alpha1.StepHolding)), replace("p1", "q1")}},
			end:    all(running("g", 2), noRules),
		},
		{
			name:   "a member that fails after the fence went is replaced",
			world:  func() *gangtest.World { return gangWorld("job") },
			events: []event{{all(running("g", 2), noRules), replace("p0", "q0")}},
			end:    all(running("g", 2), noRules),
		},
		{
			name:  "CPU is short on the planned node: taken back, and planned elsewhere",
			world: func() *gangtest.World { return gangWorld("job") },
			events: []event{
				{step("g", v1alpha1.StepQuiescing), full("a", true)},
			},
			job: true,
			end: all(running("g", 2), noRules),
		},
		{
			name:  "half of the members are allocated when CPU gets short: bare pods keep their place",
			world: func() *gangtest.World { return gangWorld("") },
			events: []event{
				{step("g", v1alpha1.StepQuiescing), func(w *gangtest.World) { w.Schedule = one }},
				{step("g", v1alpha1.StepTakingBack), func(w *gangtest.World) { w.Schedule = gangtest.Greedy; full("a", false)(w) }},
			},
			end: all(running("g", 2), noRules),
		},
		{
			name:  "half of the members are allocated when CPU gets short: owned pods are evicted",
			world: func() *gangtest.World { return gangWorld("job") },
			events: []event{
				{step("g", v1alpha1.StepQuiescing), func(w *gangtest.World) { w.Schedule = one }},
				{step("g", v1alpha1.StepTakingBack), func(w *gangtest.World) { w.Schedule = gangtest.Greedy }},
			},
			job: true,
			end: all(running("g", 2), noRules),
		},
		{
			name:  "a planned device is taken between plan and release",
			world: func() *gangtest.World { return gangWorld("job") },
			events: []event{{step("g", v1alpha1.StepFencing), func(w *gangtest.World) {
				w.AddSingle("single", 1)
				w.Allocate(w.ClaimOf(w.Pods["single"]).Name, w.Devices[:1])
			}}},
			end: all(running("g", 2), noRules),
		},
		{
			name:  "a planned device is lost before the release",
			world: func() *gangtest.World { return gangWorld("job") },
			events: []event{{
				step("g", v1alpha1.StepQuiescing),
				func(w *gangtest.World) { w.Devices[1].Problem = gang.DeviceGone },
			}},
			end: all(running("g", 2), noRules),
		},
		{
			name:   "the GangClaim is deleted while it is released",
			world:  func() *gangtest.World { return gangWorld("job") },
			events: []event{{step("g", v1alpha1.StepReleasing), func(w *gangtest.World) { w.DeleteGang("g") }}},
			end:    all(gone("g"), noRules, noTemplates),
		},
		{
			name:   "the GangClaim is deleted while its members run: they go on",
			world:  func() *gangtest.World { return gangWorld("job") },
			events: []event{{running("g", 2), func(w *gangtest.World) { w.DeleteGang("g") }}},
			end:    all(gone("g"), noRules, noTemplates, podsRun(2)),
		},
		{
			name:   "the status is wiped while the plan is released",
			world:  func() *gangtest.World { return gangWorld("job") },
			events: []event{{step("g", v1alpha1.StepReleasing), wipe}},
			job:    true,
			end:    all(running("g", 2), noRules),
		},
		{
			name:   "the status is wiped while the members run",
			world:  func() *gangtest.World { return gangWorld("job") },
			events: []event{{running("g", 2), wipe}},
			end:    all(running("g", 2), noRules),
		},
		{
			name:  "the GangClaim is replaced by one with another UID while it is released",
			world: func() *gangtest.World { return gangWorld("job") },
			events: []event{{step("g", v1alpha1.StepReleasing), func(w *gangtest.World) {
				delete(w.Gangs, "g")
				w.AddGang("g", 2, 4)
			}}},
			job: true,
			end: all(running("g", 2), noRules),
		},
		{
			name:   "a surge pod names the template while it exists",
			world:  func() *gangtest.World { return gangWorld("job") },
			events: []event{{step("g", v1alpha1.StepReleasing), func(w *gangtest.World) { w.AddPod("surge", "g", "other") }}},
			end:    all(running("g", 2), noRules, holds("surge", 0)),
		},
		{
			name:   "rules are deleted and changed by someone while the plan is fenced",
			world:  func() *gangtest.World { return gangWorld("job") },
			events: []event{{step("g", v1alpha1.StepQuiescing), breakRules}},
			end:    all(running("g", 2), noRules),
		},
		{
			name:  "all members succeed",
			world: func() *gangtest.World { return gangWorld("job") },
			events: []event{{running("g", 2), func(w *gangtest.World) {
				w.EndPod("p0", corev1.PodSucceeded)
				w.EndPod("p1", corev1.PodSucceeded)
			}}},
			end: all(completed("g"), noRules, noTemplates),
		},
		{
			name:  "one member succeeded, the other fails while the fence is held, and is replaced",
			world: func() *gangtest.World { return gangWorld("job") },
			events: []event{{running("g", 2), func(w *gangtest.World) {
				w.EndPod("p0", corev1.PodSucceeded)
				replace("p1", "q1")(w)
			}}},
			end: all(running1, noRules),
		},
		{
			name:  "one member succeeded, the other fails after the fence went, and is replaced later",
			world: func() *gangtest.World { return gangWorld("job") },
			events: []event{
				{running("g", 2), func(w *gangtest.World) { w.EndPod("p0", corev1.PodSucceeded) }},
				{noRules, func(w *gangtest.World) { w.EndPod("p1", corev1.PodFailed) }},
				{state(gang.StateDegraded), func(w *gangtest.World) { w.AddPod("q1", "g", "job") }},
			},
			end: all(running1, noRules),
		},
		{
			name:  "one member succeeded, the other failed, the gang is completed, and then comes the replacement",
			world: func() *gangtest.World { return gangWorld("job") },
			events: []event{
				{running("g", 2), func(w *gangtest.World) { w.EndPod("p0", corev1.PodSucceeded) }},
				{noRules, func(w *gangtest.World) { w.EndPod("p1", corev1.PodFailed) }},
				{completed("g"), func(w *gangtest.World) { w.AddPod("q1", "g", "job") }},
			},
			end: all(running1, noRules),
		},
		{
			name:  "a gang that has ended is started again by new pods",
			world: func() *gangtest.World { return gangWorld("job") },
			events: []event{{running("g", 2), func(w *gangtest.World) {
				w.EndPod("p0", corev1.PodSucceeded)
				w.EndPod("p1", corev1.PodSucceeded)
			}}, {completed("g"), func(w *gangtest.World) {
				w.AddPod("r0", "g", "again")
				w.AddPod("r1", "g", "again")
			}}},
			end: all(running("g", 2), noRules),
		},
		{
			name: "two gangs of which each fits alone run one after the other",
			world: func() *gangtest.World {
				w := gangtest.NewWorld(gangtest.Node("a", 2, 4)...)
				for _, g := range []string{"g", "h"} {
					w.AddGang(g, 2, 4)
					w.AddPod(g+"0", g, "job")
					w.AddPod(g+"1", g, "job")
				}
				return w
			},
			events: []event{{either(running("g", 2), running("h", 2)), func(w *gangtest.World) {
				for _, p := range gangtest.Sorted(w.Pods) {
					if p.Status.Phase == corev1.PodRunning {
						w.EndPod(p.Name, corev1.PodSucceeded)
					}
				}
			}}},
			end: either(all(completed("g"), running("h", 2)), all(completed("h"), running("g", 2))),
		},
	}
}

// gangWorld is two nodes of two domains of four, and a gang of 2 × 4 whose pods exist.
func gangWorld(owner string) *gangtest.World {
	w := gangtest.NewWorld(append(gangtest.Node("a", 2, 4), gangtest.Node("b", 2, 4)...)...)
	w.AddGang("g", 2, 4)
	w.AddPod("p0", "g", owner)
	w.AddPod("p1", "g", owner)
	return w
}

type predicate = func(*gangtest.World) bool

func all(of ...predicate) predicate {
	return func(w *gangtest.World) bool {
		for _, p := range of {
			if !p(w) {
				return false
			}
		}
		return true
	}
}

func either(a, b predicate) predicate {
	return func(w *gangtest.World) bool { return a(w) || b(w) }
}

func running(name string, n int) predicate {
	return func(w *gangtest.World) bool {
		g := w.Gangs[name]
		return g != nil && g.Status.Ready == fmt.Sprintf("%d/%d", n, n) && is(g, v1alpha1.ConditionRunning)
	}
}

// running1 says whether the gang goes on with one member, as the other has succeeded.
func running1(w *gangtest.World) bool {
	return w.Gangs["g"].Status.Ready == "1/2" && is(w.Gangs["g"], v1alpha1.ConditionRunning)
}

func completed(name string) predicate {
	return func(w *gangtest.World) bool { return is(w.Gangs[name], v1alpha1.ConditionCompleted) }
}

func is(g *v1alpha1.GangClaim, conditionType string) bool {
	for _, c := range g.Status.Conditions {
		if c.Type == conditionType {
			return c.Status == "True"
		}
	}
	return false
}

func step(name string, s v1alpha1.GangStep) predicate {
	return func(w *gangtest.World) bool {
		g := w.Gangs[name]
		return g != nil && g.Status.Plan != nil && g.Status.Plan.Step == s
	}
}

func gone(name string) predicate {
	return func(w *gangtest.World) bool { return w.Gangs[name] == nil }
}

func noRules(w *gangtest.World) bool     { return len(w.Rules) == 0 }
func noTemplates(w *gangtest.World) bool { return len(w.Templates) == 0 }

func podsRun(n int) predicate {
	return func(w *gangtest.World) bool {
		count := 0
		for _, p := range w.Pods {
			if p.Status.Phase == corev1.PodRunning {
				count++
			}
		}
		return count == n
	}
}

func holds(pod string, n int) predicate {
	return func(w *gangtest.World) bool {
		c := w.ClaimOf(w.Pods[pod])
		return n == 0 && c == nil || c != nil && len(gangtest.DevicesOf(c)) == n
	}
}

func replace(old, by string) func(*gangtest.World) {
	return func(w *gangtest.World) {
		w.EndPod(old, corev1.PodFailed)
		w.AddPod(by, "g", "job")
	}
}

func full(node string, is bool) func(*gangtest.World) {
	return func(w *gangtest.World) { w.NodeFull[node] = is }
}

// one lets the scheduler place only the first member.
func one(w *gangtest.World) {
	func() {
		for _, d := range w.Allocated() {
			if d.Labels[v1alpha1.GangLabel] != "" {
				return
			}
		}
		for _, d := range w.Devices {
			if d.Domain == "a.1" {
				defer func(problem gang.DeviceProblem) { d.Problem = problem }(d.Problem)
				d.Problem = gang.DeviceTainted
			}
		}
		gangtest.Greedy(w)
	}()
}

// respawn is a Job of two: it replaces pods that fail, are deleted, or were evicted.
func respawn(w *gangtest.World) {
	live := 0
	for _, p := range w.Pods {
		if p.DeletionTimestamp == nil && p.Status.Phase != corev1.PodFailed {
			live++
		}
	}
	for ; live < 2; live++ {
		w.AddPod(fmt.Sprintf("again-%d", len(w.Pods)+w.Writes), "g", "job")
	}
}

func wipe(w *gangtest.World) {
	w.UpdateGang("g", func(g *v1alpha1.GangClaim) { g.Status = v1alpha1.GangClaimStatus{} })
}

func breakRules(w *gangtest.World) {
	for i, r := range gangtest.Sorted(w.Rules) {
		if i%2 == 1 {
			delete(w.Rules, r.Name)
			continue
		}
		r = r.DeepCopy()
		r.Spec.Taint.Effect = resourceapi.DeviceTaintEffectNone
		w.Bump(r)
		w.Rules[r.Name] = r
	}
}

// tell plays a scenario with the controller killed after its n-th write, and returns how many there were.
func (s scenario) tell(t *testing.T, crashAfter int) int {
	t.Helper()
	w := s.world()
	w.CrashAfter = crashAfter
	next := 0
	ok, err := w.Run(20*time.Minute, func() bool {
		if s.job {
			respawn(w)
		}
		if next < len(s.events) {
			if s.events[next].when(w) {
				s.events[next].do(w)
				next++
			}
			return false
		}
		return s.end(w)
	})
	if err != nil {
		t.Fatalf("crash after write %d: %v", crashAfter, err)
	}
	if !ok {
		for _, g := range w.Gangs {
			t.Logf("%s: plan %+v", g.Name, g.Status.Plan)
			for _, c := range g.Status.Conditions {
				t.Logf("%s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message)
			}
		}
		t.Fatalf("crash after write %d: event %d of %d happened, and the end did not come", crashAfter, next, len(s.events))
	}
	if err := w.DoublyAllocated(); err != nil {
		t.Fatal(err)
	}
	return w.Writes
}

func TestEveryScenarioEndsWhereverTheControllerIsKilled(t *testing.T) {
	for _, s := range scenarios() {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			writes := s.tell(t, 0)
			for n := 1; n <= writes; n++ {
				s.tell(t, n)
			}
		})
	}
}

func TestCrashIsReported(t *testing.T) {
	w := gangWorld("job")
	w.CrashAfter = 1
	if _, err := w.Reconcile("g"); !errors.Is(err, gangtest.ErrCrashed) {
		t.Errorf("the first write returned %v", err)
	}
}
