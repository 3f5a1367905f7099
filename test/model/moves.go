// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package model

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/defrag"
	"github.com/switchyard-dev/switchyard/pkg/gang"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// slowLabel is on pods that take long to end.
const slowLabel = "slow"

// stuck is a finalizer that someone forgot.
const stuck = "example.com/stuck"

// moveLimits let pods be moved soon and often.
func moveLimits() defrag.Limits {
	l := defrag.DefaultLimits()
	l.After, l.PerHour, l.PerNamespaceHour, l.Cooldown = time.Second, 1000, 1000, 5*time.Minute
	return l
}

// victim is a pod that was evicted for a gang.
type victim struct {
	gang types.UID
	name string
}

// decide asks the planner, with room where the run is about that.
func (p *planner) decide(gangs []placement.Gang) []placement.Decision {
	if !p.c.w.moves {
		return p.c.cluster.Plan(context.Background(), gangs)
	}
	decisions := p.c.cluster.PlanWithRoom(context.Background(), gangs, p.c.maker)
	if !p.roomDue && slices.ContainsFunc(decisions, func(d placement.Decision) bool { return d.Room != nil && d.Plan == nil }) {
		p.roomDue = true
		p.c.after(10*time.Second, func() {
			p.roomDue = false
			p.changed()
		})
	}
	return decisions
}

func (c *controller) gatherMoves(o *gang.Observation, plan *v1alpha1.GangPlan) {
	o.Moves = map[types.UID]gang.MovedPod{}
	for _, m := range plan.Moves {
		var moved gang.MovedPod
		if pod := get[*corev1.Pod](&c.cache.objects, key{Namespace: m.Namespace, Name: m.Pod}); pod != nil && pod.UID == m.PodUID {
			moved.Pod = pod
		}
		if claim := get[*resourceapi.ResourceClaim](&c.cache.objects, key{Namespace: m.Namespace, Name: m.Claim}); claim != nil && claim.UID == m.ClaimUID {
			moved.Claim = claim
		}
		o.Moves[m.PodUID] = moved
	}
}

// reply ends a decision: what the API server said to evictions, of which it may have refused one.
type reply struct{ gang.EvictionReply }

func (r *reply) Error() string { return r.Message }

// evictVictims asks for all, then evicts one after the other.
func (c *controller) evictVictims(g *v1alpha1.GangClaim, a gang.EvictVictims, done func(error)) {
	said := gang.EvictionReply{}
	var ask func(i int, dryRun bool)
	ask = func(i int, dryRun bool) {
		switch {
		case i < len(a.Pods):
		case dryRun:
			ask(0, false)
			return
		case len(said.Evicted) > 0:
			done(&reply{said})
			return
		default:
			done(nil)
			return
		}
		c.after(c.w.writeTime(), func() {
			c.w.checker.acts(c, g, a)
			evicted, why := c.w.evict(c, g, a.Pods[i], dryRun)
			if why != "" {
				c.logf("pod %s is not evicted: %s", a.Pods[i].Name, why)
				said.Refused, said.Message = a.Pods[i].UID, why
				done(&reply{said})
				return
			}
			if evicted {
				c.logf("pod %s is evicted for gang %s", a.Pods[i].Name, g.Name)
				c.mine(pods)
				said.Evicted = append(said.Evicted, a.Pods[i].UID)
			}
			ask(i+1, dryRun)
		})
	}
	ask(0, true)
}

// replied decides anew with what the API server said.
func (t *turn) replied(r *reply) {
	claim := t.g
	if t.written != nil {
		claim = t.written
	}
	o := t.o
	o.Claim, o.Evictions, o.Placement = claim, &r.EvictionReply, nil
	again := &turn{c: t.c, name: t.name, g: claim, o: o, decision: gang.Decision{Status: gang.Decide(o).Status, RequeueAfter: conflictDelay}}
	again.begin()
}

// evict is the Eviction API. It says whether the pod was evicted, or why not.
func (w *world) evict(by *controller, g *v1alpha1.GangClaim, r gang.Ref, dryRun bool) (evicted bool, why string) {
	pod, err := find[*corev1.Pod](w.api, refKey(r), preconditions{uid: r.UID})
	if err != nil || pod.DeletionTimestamp != nil {
		return false, ""
	}
	if w.fault != budgetsBroken {
		for _, b := range list[*policyv1.PodDisruptionBudget](&w.api.objects) {
			if covers(b, pod) && pod.Status.Phase == corev1.PodRunning && w.healthy(b) <= b.Spec.MinAvailable.IntValue() {
				return false, "the disruption budget " + b.Name + " does not allow it"
			}
		}
	}
	if w.chance(0.03) {
		return false, "an admission webhook is against it"
	}
	if dryRun {
		return false, ""
	}
	w.checker.evicted(by, g, pod)
	_ = remove[*corev1.Pod](w.api, keyOf(pod), preconditions{})
	return true, ""
}

func covers(b *policyv1.PodDisruptionBudget, pod *corev1.Pod) bool {
	return b.Spec.Selector.MatchLabels[workloadLabel] == pod.Labels[workloadLabel]
}

// healthy counts the pods of a budget that run.
func (w *world) healthy(b *policyv1.PodDisruptionBudget) int {
	n := 0
	for _, p := range list[*corev1.Pod](&w.api.objects) {
		if covers(b, p) && p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil {
			n++
		}
	}
	return n
}

// newDisruptionController keeps the status of disruption budgets, a little late.
func (w *world) newDisruptionController() {
	w.api.watchers = append(w.api.watchers, func(ch change) {
		switch o := ch.object().(type) {
		case *corev1.Pod:
			for _, b := range list[*policyv1.PodDisruptionBudget](&w.api.objects) {
				if covers(b, o) {
					w.budgetSoon(keyOf(b))
				}
			}
		case *policyv1.PodDisruptionBudget:
			if ch.before == nil {
				w.budgetSoon(ch.key)
			}
		}
	})
}

func (w *world) budgetSoon(name key) {
	w.after(w.between(5*time.Millisecond, 300*time.Millisecond), func() {
		b := get[*policyv1.PodDisruptionBudget](&w.api.objects, name)
		if b == nil {
			return
		}
		allowed := int32(max(w.healthy(b)-b.Spec.MinAvailable.IntValue(), 0))
		if b.Status.DisruptionsAllowed == allowed && b.Status.ObservedGeneration == b.Generation {
			return
		}
		_, _ = update(w.api, name, preconditions{}, func(b *policyv1.PodDisruptionBudget) {
			b.Status.DisruptionsAllowed, b.Status.ObservedGeneration = allowed, b.Generation
		})
	})
}

// moveFactor is how many times as frequent an operation is in a run with moves: there must be devices that are used
// and work.
func moveFactor(operation string) int {
	switch operation {
	case "lose a GPU", "relabel a GPU", "lose a node", "cordon", "delete a node", "change the class", "taint a device", "set a quota":
		return 1
	case "create singles":
		return 8
	case "finish a workload", "delete a workload":
		return 2
	default:
		return 4
	}
}

// moveOperations are what users do in runs with moves.
var moveOperations = []operation{
	{"protect pods", 4, (*users).protect},
	{"stick a pod", 1, (*users).stick},
	{"unstick pods", 4, (*users).unstick},
}

// protect has a disruption budget come or go.
func (u *users) protect() string {
	if b := one[*policyv1.PodDisruptionBudget](u, nil); b != nil && u.w.rand.IntN(2) == 0 {
		_ = remove[*policyv1.PodDisruptionBudget](u.w.api, keyOf(b), preconditions{})
		return "removes the disruption budget " + b.Name
	}
	var singles []*workload
	for _, l := range u.w.workloads.sorted() {
		if l.template[0] == 's' {
			singles = append(singles, l)
		}
	}
	l, ok := pick(u.w, singles)
	if !ok {
		return ""
	}
	b := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "budget-" + l.name},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: ptr.To(intstr.FromInt32(int32(u.w.rand.IntN(3)))), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{workloadLabel: l.name}},
		},
	}
	if _, err := create(u.w.api, b); err != nil {
		return ""
	}
	return fmt.Sprintf("wants %d pods of workload %s to stay", b.Spec.MinAvailable.IntValue(), l.name)
}

// stick puts a finalizer on a pod that runs.
func (u *users) stick() string {
	p := one(u, func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning && len(p.Finalizers) == 0 })
	if p == nil {
		return ""
	}
	_, _ = update(u.w.api, keyOf(p), preconditions{}, func(p *corev1.Pod) { p.Finalizers = []string{stuck} })
	return "puts a finalizer on pod " + p.Name
}

func (u *users) unstick() string {
	u.w.unstick()
	return "takes finalizers off pods"
}

func (w *world) unstick() {
	for _, p := range list[*corev1.Pod](&w.api.objects) {
		if len(p.Finalizers) > 0 {
			_, _ = update(w.api, keyOf(p), preconditions{}, func(p *corev1.Pod) { p.Finalizers = nil })
		}
	}
}

// unprotect ends what keeps pods from being moved, and from ending.
func (w *world) unprotect() {
	w.unstick()
	for _, b := range list[*policyv1.PodDisruptionBudget](&w.api.objects) {
		_ = remove[*policyv1.PodDisruptionBudget](w.api, keyOf(b), preconditions{})
	}
}

// isMoving says whether pods are being moved for a plan, as long as that may take.
func (w *world) isMoving(p *v1alpha1.GangPlan) bool {
	return len(p.Moves) > 0 && w.now.Sub(p.StepSince.Time) < gang.EvictDeadline(p)+time.Second
}

// movesPlanned checks that the pods that are evicted are those that the plan moves, may be moved, and that its
// devices are fenced.
func (c *checker) movesPlanned(g *v1alpha1.GangClaim, of []gang.Ref) {
	if g == nil {
		return
	}
	p := g.Status.Plan
	if p == nil || p.Step != v1alpha1.StepEvicting {
		c.w.fail("pods are evicted for gang %s, which is not in step Evicting", g.Name)
		return
	}
	for d := range c.plans[p.Hash].reserved {
		if !c.fenced(d, g.UID) {
			c.w.fail("pods are evicted for gang %s while device %s of %s is not fenced", g.Name, d.name, d.pool)
		}
	}
	for _, r := range of {
		if !slices.ContainsFunc(p.Moves, func(m v1alpha1.GangMove) bool { return m.PodUID == r.UID }) {
			c.w.fail("pod %s is evicted for gang %s, whose plan does not say so", r.Name, g.Name)
		}
	}
}

// evicted checks an eviction: of a pod that its controller replaces, that is no member of a gang, that has opted in or has
// a lower priority, and that no disruption budget keeps.
func (c *checker) evicted(by *controller, g *v1alpha1.GangClaim, pod *corev1.Pod) {
	name := pod.Name
	switch {
	case metav1.GetControllerOfNoCopy(pod) == nil:
		c.w.fail("bare pod %s is evicted for gang %s", name, g.Name)
	case metav1.GetControllerOfNoCopy(pod).Kind == "Job" && pod.Labels[v1alpha1.MovableLabel] != "true":
		c.w.fail("pod %s of a Job is evicted for gang %s and has not opted in", name, g.Name)
	case ptr.Deref(pod.Spec.Priority, 0) >= 0 && pod.Labels[v1alpha1.MovableLabel] != "true":
		c.w.fail("pod %s is evicted for gang %s and has not opted in", name, g.Name)
	case pod.Spec.ResourceClaims[0].ResourceClaimTemplateName == nil || (*pod.Spec.ResourceClaims[0].ResourceClaimTemplateName)[0] != 's':
		c.w.fail("pod %s, a member of a gang, is evicted for gang %s", name, g.Name)
	}
	for _, b := range list[*policyv1.PodDisruptionBudget](&c.w.api.objects) {
		if covers(b, pod) && pod.Status.Phase == corev1.PodRunning && c.w.healthy(b) <= b.Spec.MinAvailable.IntValue() {
			c.w.fail("pod %s is evicted for gang %s against the disruption budget %s", name, g.Name, b.Name)
		}
	}
	// A controller that does not know that another one leads may evict for a plan that was given up meanwhile.
	if by == c.w.leader && !by.stale && !c.recently(3*time.Second) {
		c.victims[pod.UID] = victim{g.UID, name}
	}
}

// allCounted checks that every eviction is in the status of its gang, and that it is known what came of it.
func (w *world) allCounted() {
	if w.err != nil {
		return
	}
	for _, g := range list[*v1alpha1.GangClaim](&w.api.objects) {
		if w.checker.wiped[g.UID] {
			continue
		}
		for _, v := range w.checker.victims {
			if v.gang == g.UID && !slices.ContainsFunc(g.Status.Evictions, func(e v1alpha1.GangEviction) bool { return e.Pod == v.name && e.Outcome != v1alpha1.EvictionRefused }) {
				w.fail("pod %s was evicted for gang %s, whose status does not tell of it: %+v", v.name, g.Name, g.Status.Evictions)
			}
		}
		for _, e := range g.Status.Evictions {
			if p := g.Status.Plan; e.Outcome == v1alpha1.EvictionMade && (p == nil || !w.isMoving(p)) {
				w.fail("what came of the eviction of pod %s for gang %s is not told", e.Pod, g.Name)
			}
		}
	}
}
