// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package gang_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/defrag"
	"github.com/switchyard-dev/switchyard/pkg/gang"
	"github.com/switchyard-dev/switchyard/pkg/gang/gangtest"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// moving plans as FirstFit, and where that has no place as if the singles were gone, with moves.
func moving(w *gangtest.World, g placement.Gang) placement.Decision {
	d := gangtest.FirstFit(w, g)
	if d.Plan != nil {
		return d
	}
	type single struct{ pod, claim string }
	singles := map[placement.DeviceID]single{}
	held := w.Claims
	w.Claims = map[string]*resourceapi.ResourceClaim{}
	for name, c := range held {
		owner := metav1.GetControllerOf(c)
		if c.Labels[v1alpha1.GangLabel] == "" && owner != nil && w.Pods[owner.Name] != nil && w.Pods[owner.Name].DeletionTimestamp == nil {
			for _, d := range gangtest.DevicesOf(c) {
				singles[d] = single{owner.Name, name}
			}
			continue
		}
		w.Claims[name] = c
	}
	with := gangtest.FirstFit(w, g)
	w.Claims = held
	if with.Plan == nil {
		return d
	}
	report := &v1alpha1.GangDefragmentation{Reason: defrag.ReasonMoving, Message: "evict pods"}
	for _, id := range gang.PlannedDevices(with.Plan) {
		s, ok := singles[id]
		if !ok {
			continue
		}
		report.Moves = append(report.Moves, v1alpha1.GangMove{
			Namespace: gangtest.Namespace, Pod: s.pod, PodUID: w.Pods[s.pod].UID, Claim: s.claim, ClaimUID: w.Claims[s.claim].UID,
			OwnerUID: "job-singles", From: v1alpha1.GangMovePlace{Node: id.Pool, Pool: id.Pool, Device: id.Device},
			To: v1alpha1.GangMovePlace{Node: "b", Pool: "b", Device: "gpu-7"}, Why: "priority 0 is lower than 100", GracePeriodSeconds: 30,
		})
	}
	with.Plan.Moves, with.Room = report.Moves, report
	if g.Claim.Spec.Defragmentation != v1alpha1.DefragmentationEvict {
		report.Reason = defrag.ReasonMovesFound
		d.Room = report
		return d
	}
	return with
}

// occupied is two nodes of two domains of four, with a single in each domain of node a and one in each of node b, and a
// gang of 2 × 4 that may have them moved.
func occupied(policy v1alpha1.DefragmentationPolicy) *gangtest.World {
	w := gangtest.NewWorld(append(gangtest.Node("a", 2, 4), gangtest.Node("b", 2, 4)...)...)
	w.Plan = moving
	for i := range 4 {
		name := fmt.Sprintf("s%d", i)
		w.AddSingle(name, 1)
		w.Allocate(w.ClaimOf(w.Pods[name]).Name, w.Devices[4*i:4*i+1])
		w.UpdatePod(name, func(p *corev1.Pod) {
			p.Spec.NodeName, p.Status.Phase = w.Devices[4*i].Node, corev1.PodRunning
		})
	}
	w.AddGang("g", 2, 4, func(g *v1alpha1.GangClaim) { g.Spec.Defragmentation = policy })
	w.AddPod("p0", "g", "job")
	w.AddPod("p1", "g", "job")
	return w
}

// remake is the controller of the singles: there are four.
func remake(w *gangtest.World) {
	live := 0
	for _, p := range w.Pods {
		if p.OwnerReferences[0].UID == "job-singles" && p.DeletionTimestamp == nil {
			live++
		}
	}
	for ; live < 4; live++ {
		w.AddSingle(fmt.Sprintf("again-%d", len(w.Pods)+w.Writes), 1)
	}
}

// settled says whether it is known what came of all evictions: while a plan is taken back it may still be saved.
func settled(w *gangtest.World) bool {
	return !slices.ContainsFunc(w.Gangs["g"].Status.Evictions, func(e v1alpha1.GangEviction) bool { return e.Outcome == v1alpha1.EvictionMade })
}

// counted checks that every eviction is in the status, and none is open.
func counted(t *testing.T, w *gangtest.World, outcome v1alpha1.EvictionOutcome) {
	t.Helper()
	for _, name := range w.Evicted {
		if !slices.ContainsFunc(w.Gangs["g"].Status.Evictions, func(e v1alpha1.GangEviction) bool { return e.Pod == name && e.Outcome == outcome }) {
			t.Errorf("the eviction of %s is not counted as %s: %+v", name, outcome, w.Gangs["g"].Status.Evictions)
		}
	}
}

func TestPodsAreMovedAndTheGangStartsWhereverTheControllerIsKilled(t *testing.T) {
	for crash, writes := 0, 1; crash <= writes; crash++ {
		w := occupied(v1alpha1.DefragmentationEvict)
		w.Grace, w.CrashAfter = 20*time.Second, crash
		ok, err := w.Run(20*time.Minute, func() bool {
			remake(w)
			return running("g", 2)(w)
		})
		if err != nil || !ok {
			t.Fatalf("crash after write %d: %v; %+v", crash, err, w.Gangs["g"].Status)
		}
		if crash == 0 {
			writes = w.Writes
		}
		if slices.Sort(w.Evicted); !slices.Equal(w.Evicted, []string{"s0", "s1"}) {
			t.Errorf("crash after write %d: evicted %v", crash, w.Evicted)
		}
		counted(t, w, v1alpha1.EvictionSucceeded)
		if n := len(w.Gangs["g"].Status.Evictions); n != 2 {
			t.Errorf("crash after write %d: %d evictions in the status", crash, n)
		}
		if err := w.DoublyAllocated(); err != nil {
			t.Error(err)
		}
		told := strings.Join(told(w.Events), "\n")
		if crash == 0 && (!strings.Contains(told, "EvictedForGang") || !strings.Contains(told, "Moving")) {
			t.Errorf("told: %s", told)
		}
	}
}

func TestTheFirstRefusalStopsTheMovesAndGivesTheDevicesBack(t *testing.T) {
	for _, test := range []struct {
		rule    string
		refuse  func(*corev1.Pod, bool) string
		evicted []string
	}{
		{"in the dry run nothing is evicted", func(p *corev1.Pod, _ bool) string {
			if p.Name == "s1" {
				return "the disruption budget needs 1 healthy pod"
			}
			return ""
		}, nil},
		{"midway what was evicted counts as evicted in vain", func(p *corev1.Pod, dryRun bool) string {
			if p.Name == "s1" && !dryRun {
				return "the disruption budget needs 1 healthy pod"
			}
			return ""
		}, []string{"s0"}},
	} {
		t.Run(test.rule, func(t *testing.T) {
			for crash, writes := 0, 1; crash <= writes; crash++ {
				w := occupied(v1alpha1.DefragmentationEvict)
				w.Refuse, w.CrashAfter = test.refuse, crash
				refused := func() bool {
					return slices.ContainsFunc(w.Gangs["g"].Status.Evictions, func(e v1alpha1.GangEviction) bool {
						return e.Pod == "s1" && e.Outcome == v1alpha1.EvictionRefused
					})
				}
				ok, err := w.Run(20*time.Minute, func() bool {
					if refused() {
						w.Plan = gangtest.FirstFit // a refused pod is left alone for a while
					}
					return refused() && noRules(w) && settled(w)
				})
				if err != nil || !ok {
					t.Fatalf("crash after write %d: %v %+v", crash, err, w.Gangs["g"].Status)
				}
				if crash == 0 {
					writes = w.Writes
				}
				if !slices.Equal(w.Evicted, test.evicted) {
					t.Errorf("crash after write %d: evicted %v, want %v", crash, w.Evicted, test.evicted)
				}
				counted(t, w, v1alpha1.EvictionFailed)
			}
		})
	}
}

func TestMovesThatAreNotRightAnyMoreAreNotMade(t *testing.T) {
	w := occupied(v1alpha1.DefragmentationEvict)
	w.Blocked = "pod s0 has no place elsewhere any more"
	seen := false
	ok, err := w.Run(20*time.Minute, func() bool {
		if p := w.Gangs["g"].Status.Plan; p != nil && p.Step == v1alpha1.StepTakingBack {
			seen = seen || strings.Contains(p.Reason, "MovesOutdated: pod s0 has no place")
			w.Plan = gangtest.FirstFit
		}
		return seen && noRules(w)
	})
	if err != nil || !ok || len(w.Evicted) > 0 {
		t.Fatalf("%t %v, evicted %v", seen, err, w.Evicted)
	}
}

func TestAWishThatIsTakenBackInTimeMovesNothing(t *testing.T) {
	w := occupied(v1alpha1.DefragmentationEvict)
	seen := false
	ok, err := w.Run(20*time.Minute, func() bool {
		g := w.Gangs["g"]
		if p := g.Status.Plan; p != nil && p.Step == v1alpha1.StepQuiescing && g.Spec.Defragmentation == v1alpha1.DefragmentationEvict {
			w.UpdateGang("g", func(g *v1alpha1.GangClaim) { g.Spec.Defragmentation = v1alpha1.DefragmentationPlan })
		}
		if p := g.Status.Plan; p != nil && p.Step == v1alpha1.StepTakingBack {
			seen = seen || p.Reason == "MovesOutdated: spec.defragmentation is Plan now"
		}
		return seen && noRules(w)
	})
	if err != nil || !ok || len(w.Evicted) > 0 {
		t.Fatalf("%t %v, evicted %v", seen, err, w.Evicted)
	}
}

// untilEvicting runs until the plan is about to evict.
func untilEvicting(t *testing.T, w *gangtest.World) {
	t.Helper()
	ok, err := w.Run(5*time.Minute, func() bool {
		p := w.Gangs["g"].Status.Plan
		return p != nil && p.Step == v1alpha1.StepEvicting
	})
	if err != nil || !ok || len(w.Evicted) > 0 {
		t.Fatalf("not about to evict: %v, evicted %v, %+v", err, w.Evicted, w.Gangs["g"].Status.Plan)
	}
}

func evicts(d gang.Decision) bool {
	return slices.ContainsFunc(d.Actions, func(a gang.Action) bool { return a.Verb() == "EvictVictims" })
}

func TestNobodyIsEvictedFirstWhereItWouldBeInVain(t *testing.T) {
	for _, test := range []struct {
		rule   string
		change func(*gangtest.World)
		step   v1alpha1.GangStep
		reason string
	}{
		{"nothing has changed", func(*gangtest.World) {}, v1alpha1.StepEvicting, ""},
		{"a rule of the fence is gone: it is made anew", func(w *gangtest.World) {
			for name := range w.Rules {
				delete(w.Rules, name)
				break
			}
		}, v1alpha1.StepFencing, ""},
		{"no eviction went through for so long that the grace periods would not fit", func(w *gangtest.World) {
			w.Now = w.Now.Add(gang.FirstEvictionFor)
		}, v1alpha1.StepTakingBack, "EvictionTimeout: no pod could be evicted within 30s"},
		{"the wish was taken back", func(w *gangtest.World) {
			w.UpdateGang("g", func(g *v1alpha1.GangClaim) { g.Spec.Defragmentation = v1alpha1.DefragmentationPlan })
		}, v1alpha1.StepTakingBack, "MovesOutdated: spec.defragmentation is Plan now"},
		{"a pod has no place elsewhere any more", func(w *gangtest.World) { w.Blocked = "pod s0 has no place" }, v1alpha1.StepTakingBack, "MovesOutdated: pod s0 has no place"},
	} {
		t.Run(test.rule, func(t *testing.T) {
			w := occupied(v1alpha1.DefragmentationEvict)
			untilEvicting(t, w)
			test.change(w)
			d := gang.Decide(w.Observe("g"))
			if p := d.Status.Plan; p == nil || p.Step != test.step || p.Reason != test.reason {
				t.Errorf("plan %+v, want step %s, %q", p, test.step, test.reason)
			}
			if want := test.step == v1alpha1.StepEvicting; evicts(d) != want {
				t.Errorf("evicts: %t", !want)
			}
		})
	}
}

func TestNobodyElseIsEvictedUntilTheFenceIsWholeAgain(t *testing.T) {
	w := occupied(v1alpha1.DefragmentationEvict)
	untilEvicting(t, w)
	w.Gangs["g"].Status.Plan.Moves[0].EvictedAt = &metav1.MicroTime{Time: w.Now}
	if !evicts(gang.Decide(w.Observe("g"))) {
		t.Fatal("nobody is evicted anyway")
	}
	for name := range w.Rules {
		delete(w.Rules, name)
		break
	}
	d := gang.Decide(w.Observe("g"))
	if evicts(d) || d.Status.Plan.Step != v1alpha1.StepEvicting || !slices.ContainsFunc(d.Actions, func(a gang.Action) bool { return a.Verb() == "CreateRules" }) {
		t.Errorf("decided %+v in step %s", d.Actions, d.Status.Plan.Step)
	}
}

// evictStale has the pods evicted while the cache goes on to show them as they were.
func evictStale(t *testing.T, w *gangtest.World) []*corev1.Pod {
	t.Helper()
	untilEvicting(t, w)
	var pods []*corev1.Pod
	for _, m := range w.Gangs["g"].Status.Plan.Moves {
		pods = append(pods, w.Pods[m.Pod].DeepCopy())
		w.Evicted = append(w.Evicted, m.Pod)
		w.DeletePod(m.Pod)
	}
	return pods
}

func TestEvictionsAreCountedInWhateverStepTheyAreSeen(t *testing.T) {
	for rule, after := range map[string]func(*gangtest.World){
		"a member was lost, and the plan is being taken back": func(w *gangtest.World) { w.DeletePod("p0") },
		"the claims were seen to be free before the pods":     func(*gangtest.World) {},
	} {
		t.Run(rule, func(t *testing.T) {
			w := occupied(v1alpha1.DefragmentationEvict)
			pods := evictStale(t, w)
			w.StalePods = map[types.UID]*corev1.Pod{}
			for _, p := range pods {
				w.StalePods[p.UID] = p
			}
			w.RunCluster()
			after(w)
			left := func() bool {
				p := w.Gangs["g"].Status.Plan
				return p == nil || p.Step != v1alpha1.StepEvicting
			}
			// The controller, which was restarted, knows of no reply.
			if ok, err := w.Run(time.Minute, left); err != nil || !ok {
				t.Fatalf("%v %+v", err, w.Gangs["g"].Status.Plan)
			}
			w.StalePods = nil
			ok, err := w.Run(time.Minute, func() bool { return len(w.Gangs["g"].Status.Evictions) == 2 })
			if err != nil || !ok {
				t.Errorf("counted %+v", w.Gangs["g"].Status.Evictions)
			}
		})
	}
}

func TestAnEvictionIsAsOldAsTheDeletionOfItsPod(t *testing.T) {
	w := occupied(v1alpha1.DefragmentationEvict)
	untilEvicting(t, w)
	o := w.Observe("g")
	since := w.Gangs["g"].Status.Plan.EvictingSince.Time
	asked := metav1.NewTime(since.Add(3 * time.Second).Truncate(time.Second))
	list := o.Claim.Status.Plan.Moves
	first, second := o.Moves[list[0].PodUID], o.Moves[list[1].PodUID]
	ends := metav1.NewTime(asked.Add(30 * time.Second))
	first.Pod.DeletionTimestamp, first.Pod.DeletionGracePeriodSeconds = &ends, ptr.To(int64(30))
	second.Pod = nil
	o.Moves[list[1].PodUID] = second
	o.Now = since.Add(20 * time.Second)
	got := gang.Decide(o).Status.Evictions
	if len(got) != 2 || !got[0].Time.Equal(&metav1.MicroTime{Time: asked.Time}) || !got[1].Time.Equal(&metav1.MicroTime{Time: since}) {
		t.Errorf("evicted at %+v, want %s and %s", got, asked, since)
	}
}

func TestEvictionsAreOfUseWhenAMemberWasStarted(t *testing.T) {
	w := occupied(v1alpha1.DefragmentationEvict)
	starting := func() bool {
		p := w.Gangs["g"].Status.Plan
		return p != nil && p.Step == v1alpha1.StepStarting
	}
	w.Check = func(_ *gangtest.World, _ *v1alpha1.GangClaim, a gang.Action) error {
		if a != nil && a.Verb() == "MarkReady" {
			return gangtest.ErrCrashed
		}
		return nil
	}
	if ok, err := w.Run(5*time.Minute, starting); err != nil || !ok {
		t.Fatal(err, w.Gangs["g"].Status)
	}
	for _, e := range w.Gangs["g"].Status.Evictions {
		if e.Outcome != v1alpha1.EvictionMade {
			t.Errorf("%s %s before any member was started", e.Pod, e.Outcome)
		}
	}
	w.DeletePod("p0") // before it was started
	ok, err := w.Run(5*time.Minute, func() bool {
		return slices.ContainsFunc(w.Gangs["g"].Status.Evictions, func(e v1alpha1.GangEviction) bool { return e.Outcome != v1alpha1.EvictionMade })
	})
	if err != nil || !ok || w.Gangs["g"].Status.Evictions[0].Outcome != v1alpha1.EvictionFailed {
		t.Errorf("%v: counted %+v", err, w.Gangs["g"].Status.Evictions)
	}
}

func TestEvictionsOfWhichItIsNotKnownWhatCameOfThemAreKept(t *testing.T) {
	w := occupied(v1alpha1.DefragmentationEvict)
	untilEvicting(t, w)
	o := w.Observe("g")
	o.Claim.Status.Evictions = []v1alpha1.GangEviction{{Pod: "open", Outcome: v1alpha1.EvictionMade}}
	for range 255 {
		o.Claim.Status.Evictions = append(o.Claim.Status.Evictions, v1alpha1.GangEviction{Pod: "settled", Outcome: v1alpha1.EvictionFailed})
	}
	for uid := range o.Moves {
		o.Moves[uid] = gang.MovedPod{}
	}
	got := gang.Decide(o).Status.Evictions
	if len(got) != 256 || got[0].Pod != "open" || got[253].Pod != "settled" || got[255].Pod == "settled" {
		t.Errorf("%d are kept: %+v ... %+v", len(got), got[0], got[len(got)-1])
	}
}

func TestAFenceThatWaitsForAStuckPodExpires(t *testing.T) {
	w := occupied(v1alpha1.DefragmentationEvict)
	w.UpdatePod("s0", func(p *corev1.Pod) { p.Finalizers = []string{"example.com/stuck"} })
	start, fenced := w.Now, time.Time{}
	ok, err := w.Run(20*time.Minute, func() bool {
		if p := w.Gangs["g"].Status.Plan; p != nil && p.Step == v1alpha1.StepTakingBack && strings.HasPrefix(p.Reason, "EvictionTimeout: pod ml/s0 has not given its device back within 1m30s") && fenced.IsZero() {
			fenced = w.Now
			w.Plan = gangtest.FirstFit
		}
		return !fenced.IsZero() && noRules(w) && settled(w)
	})
	if err != nil || !ok {
		t.Fatalf("%v %+v", err, w.Gangs["g"].Status)
	}
	if took := fenced.Sub(start); took > 2*time.Minute {
		t.Errorf("the fence was given up after %s", took)
	}
	counted(t, w, v1alpha1.EvictionFailed)
}

func TestADeletedGangClaimCountsItsEvictionsAsInVain(t *testing.T) {
	w := occupied(v1alpha1.DefragmentationEvict)
	w.Grace = time.Hour
	var last v1alpha1.GangClaimStatus
	ok, err := w.Run(20*time.Minute, func() bool {
		g := w.Gangs["g"]
		if g != nil {
			last = *g.Status.DeepCopy()
			if len(w.Evicted) == 2 && g.DeletionTimestamp == nil {
				w.DeleteGang("g")
			}
		}
		return g == nil && noRules(w)
	})
	if err != nil || !ok {
		t.Fatalf("%v %+v", err, last)
	}
	if len(last.Evictions) != 2 || last.Evictions[0].Outcome != v1alpha1.EvictionFailed || last.Evictions[1].Outcome != v1alpha1.EvictionFailed {
		t.Errorf("counted %+v", last.Evictions)
	}
}

func TestPlanOnlyReports(t *testing.T) {
	w := occupied(v1alpha1.DefragmentationPlan)
	_, err := w.Run(time.Minute, func() bool { return false })
	if err != nil {
		t.Fatal(err)
	}
	s := w.Gangs["g"].Status
	c := find(s, v1alpha1.ConditionRoomCanBeMade)
	if s.Plan != nil || s.Defragmentation == nil || len(s.Defragmentation.Moves) != 2 || c.Status != "True" || c.Reason != defrag.ReasonMovesFound {
		t.Fatalf("status %+v", s)
	}
	if n := strings.Count(strings.Join(told(w.Events), "\n"), "g Normal MovesFound"); n != 1 {
		t.Errorf("told %d times: %v", n, told(w.Events))
	}
	// Without the wish it is not said any more.
	w.UpdateGang("g", func(g *v1alpha1.GangClaim) { g.Spec.Defragmentation = v1alpha1.DefragmentationNever })
	if _, err := w.Run(time.Minute, func() bool { return false }); err != nil {
		t.Fatal(err)
	}
	if s := w.Gangs["g"].Status; s.Defragmentation != nil || has(s, v1alpha1.ConditionRoomCanBeMade) {
		t.Errorf("status %+v", s)
	}
}

func TestTheDeadlineOfEvictionsFollowsTheLongestGracePeriod(t *testing.T) {
	plan := &v1alpha1.GangPlan{Moves: []v1alpha1.GangMove{{GracePeriodSeconds: 30}, {GracePeriodSeconds: 300}, {}}}
	if got := gang.EvictDeadline(plan); got != 6*time.Minute {
		t.Errorf("EvictDeadline = %s", got)
	}
}

func has(s v1alpha1.GangClaimStatus, conditionType string) bool {
	return slices.ContainsFunc(s.Conditions, func(c metav1.Condition) bool { return c.Type == conditionType })
}
