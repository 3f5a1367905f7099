// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package model

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/gang"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// play is a whole run: users and failures for so many steps; then quiet, in which every gang that fits must
// run; then gangs end one after the other, so that those that wait get their turn; then all is deleted, and
// nothing may be left.
func play(o options) *world {
	w := newWorld(o)
	w.users.begin()
	for w.err == nil && w.done < w.steps && w.next(w.now.Add(time.Hour)) {
	}
	w.heal()
	w.run(15 * time.Second)
	w.settleAll()
	w.run(3 * time.Minute)
	for range 12 {
		w.mustProgress()
		if w.err != nil || !w.finishOne() {
			break
		}
		w.run(90 * time.Second)
	}
	w.allCounted()
	w.deleteAll()
	w.run(2 * time.Minute)
	w.nothingLeft()
	return w
}

// heal ends all failures, and has users want what can be had: as many pods as members, no pods of others.
func (w *world) heal() {
	if w.err != nil {
		return
	}
	w.quiet = true
	w.checker.disturb()
	w.logf("quiet")
	if w.leader.dead {
		w.leader = newController(w)
	}
	for _, s := range list[*resourceapi.ResourceSlice](&w.api.objects) {
		_, _ = update(w.api, keyOf(s), preconditions{}, func(s *resourceapi.ResourceSlice) {
			for i := range s.Spec.Devices {
				s.Spec.Devices[i].Taints = nil
			}
		})
		for w.users.returnNode() != "" {
		}
	}
	_ = remove[*resourceapi.DeviceClass](w.api, key{Name: driver}, preconditions{})
	w.must(create(w.api, newClass()))
	_ = remove[*resourceapi.DeviceTaintRule](w.api, key{Name: "operator"}, preconditions{})
	w.unprotect()
	_ = remove[*corev1.ResourceQuota](w.api, key{Namespace: namespace, Name: "quota"}, preconditions{})
	for _, g := range list[*v1alpha1.GangClaim](&w.api.objects) {
		_, _ = update(w.api, keyOf(g), preconditions{}, func(g *v1alpha1.GangClaim) {
			g.Generation++
			g.Spec.SchedulingTimeout = &metav1.Duration{}
		})
		w.settleWorkloads(g)
	}
}

// settleAll has users delete pods that have claims of something else, as the conditions tell them to.
func (w *world) settleAll() {
	if w.err != nil {
		return
	}
	for _, g := range list[*v1alpha1.GangClaim](&w.api.objects) {
		for _, claim := range list[*resourceapi.ResourceClaim](&w.api.objects) {
			pod := w.checker.podOf(claim)
			if pod != nil && *pod.Spec.ResourceClaims[0].ResourceClaimTemplateName == g.Name && gangOf(claim) != g.UID {
				_ = remove[*corev1.Pod](w.api, keyOf(pod), preconditions{})
			}
		}
		w.settleWorkloads(g)
	}
}

// settleWorkloads leaves one workload for a gang, of as many pods as it has members.
func (w *world) settleWorkloads(g *v1alpha1.GangClaim) {
	found := false
	for _, l := range w.workloads.sorted() {
		if l.template != g.Name {
			continue
		}
		if found || l.keeper == bare || l.twice || l.replicas != int(g.Spec.Members) || !w.serves(g, l) {
			w.workloads.drop(l)
			continue
		}
		found = true
		l.surge = 0
		w.workloads.soon(l.name)
	}
	// Pods that belong to no workload any more, or succeeded in an earlier life.
	for _, p := range list[*corev1.Pod](&w.api.objects) {
		if *p.Spec.ResourceClaims[0].ResourceClaimTemplateName == g.Name && w.workloads.all[p.Labels[workloadLabel]] == nil {
			_ = remove[*corev1.Pod](w.api, keyOf(p), preconditions{})
		}
	}
	if !found && g.DeletionTimestamp == nil {
		w.workloads.add(workload{keeper: job, template: g.Name, replicas: int(g.Spec.Members), cpu: 100})
	}
}

// serves says whether the pods of a workload are enough for a gang: those that succeeded count only if they
// did so in this run of this gang, and its status still knows.
func (w *world) serves(g *v1alpha1.GangClaim, l *workload) bool {
	active, finished := 0, 0
	for _, p := range w.workloads.pods(l.name) {
		switch {
		case !over(p):
			active++
		case p.Status.Phase == corev1.PodSucceeded && slices.Contains(g.Status.Started, p.UID):
			finished++
		}
	}
	return active+finished >= int(g.Spec.Members)
}

// state is what the condition Running says in one word.
func state(g *v1alpha1.GangClaim) string {
	for _, c := range g.Status.Conditions {
		if c.Type == v1alpha1.ConditionRunning {
			return c.Reason
		}
	}
	return ""
}

// waits says whether a gang waits for a place.
func waits(g *v1alpha1.GangClaim) bool {
	switch state(g) {
	case gang.StateRunning, gang.StateCompleted:
		return false
	default:
		return true
	}
}

// mustProgress checks, after a time of quiet, that every gang runs but those that the planner has no place for.
func (w *world) mustProgress() {
	if w.err != nil {
		return
	}
	cluster := w.snapshot()
	var waiting []placement.Gang
	names := map[string]*v1alpha1.GangClaim{}
	for _, g := range list[*v1alpha1.GangClaim](&w.api.objects) {
		if !waits(g) {
			continue
		}
		names[string(g.UID)] = g
		if p := g.Status.Plan; p != nil && p.Step != v1alpha1.StepTakingBack && p.Step != v1alpha1.StepUnfencing && p.Step != v1alpha1.StepHolding && !w.isMoving(p) {
			w.fail("gang %s is stuck in step %s: %s", g.Name, p.Step, summary(g))
			return
		}
		waiting = append(waiting, w.leaderGang(g))
	}
	// With the maker: what moves would take is kept from gangs behind.
	for _, d := range cluster.PlanWithRoom(context.Background(), waiting, w.leader.maker) {
		if d.Plan != nil && len(d.Plan.Moves) == 0 {
			g := names[string(d.Gang)]
			w.fail("gang %s does not run, and there is a place for it: %s", g.Name, summary(g))
			return
		}
	}
}

// leaderGang is what the planner is to be asked about a gang that waits.
func (w *world) leaderGang(g *v1alpha1.GangClaim) placement.Gang {
	out := placement.Gang{Claim: g}
	for _, p := range list[*corev1.Pod](&w.api.objects) {
		if *p.Spec.ResourceClaims[0].ResourceClaimTemplateName != g.Name || over(p) {
			continue
		}
		placed := false
		for _, claim := range list[*resourceapi.ResourceClaim](&w.api.objects) {
			if metav1.IsControlledBy(claim, p) && claim.Status.Allocation != nil {
				placed = true
				for d := range devicesOf(claim) {
					out.Placed = append(out.Placed, placement.DeviceID{Driver: driver, Pool: d.pool, Device: d.name})
				}
			}
		}
		if !placed {
			out.Pods = append(out.Pods, p)
		}
	}
	return out
}

// snapshot is the cluster as it is stored.
func (w *world) snapshot() *placement.Cluster {
	o, c := &w.api.objects, placement.NewClusterAt(worldClock{w})
	for _, x := range list[*resourceapi.DeviceClass](o) {
		c.SetClass(x)
	}
	for _, x := range list[*corev1.Node](o) {
		c.SetNode(x)
	}
	for _, x := range list[*resourceapi.ResourceSlice](o) {
		c.SetSlice(x)
	}
	for _, x := range list[*resourceapi.DeviceTaintRule](o) {
		c.SetRule(x)
	}
	for _, x := range list[*corev1.Pod](o) {
		c.SetPod(x)
	}
	for _, x := range list[*resourceapi.ResourceClaim](o) {
		c.SetClaim(x)
	}
	for _, x := range list[*v1alpha1.GangClaim](o) {
		c.SetGang(reservation(x))
	}
	return c
}

// finishOne ends a gang that runs, or all pods without a gang, and says whether any gang still waits.
func (w *world) finishOne() bool {
	waiting := false
	ended := false
	for _, g := range list[*v1alpha1.GangClaim](&w.api.objects) {
		if waits(g) {
			waiting = true
			continue
		}
		if !ended && state(g) == gang.StateRunning {
			ended = true
			w.logf("gang %s ends", g.Name)
			_ = remove[*v1alpha1.GangClaim](w.api, keyOf(g), preconditions{})
			for _, l := range w.workloads.sorted() {
				if l.template == g.Name {
					w.finish(l)
				}
			}
		}
	}
	if !ended {
		for _, l := range w.workloads.sorted() {
			if l.template[0] == 's' {
				w.finish(l)
			}
		}
	}
	return waiting
}

// deleteAll deletes what users made.
func (w *world) deleteAll() {
	if w.err != nil {
		return
	}
	w.logf("all is deleted")
	w.checker.disturb()
	for _, g := range list[*v1alpha1.GangClaim](&w.api.objects) {
		_ = remove[*v1alpha1.GangClaim](w.api, keyOf(g), preconditions{})
	}
	for _, l := range w.workloads.sorted() {
		w.workloads.drop(l)
	}
	for _, p := range list[*corev1.Pod](&w.api.objects) {
		_ = remove[*corev1.Pod](w.api, keyOf(p), preconditions{})
	}
}

// nothingLeft checks that nothing is left of gangs, at the API server and in the scheduler's mind.
func (w *world) nothingLeft() {
	if w.err != nil {
		return
	}
	for _, k := range []kind{gangClaims, claims, rules, pods} {
		for name := range w.api.objects[k] {
			w.fail("%T %s is left", w.api.objects[k][name], name.Name)
		}
	}
	for _, t := range list[*resourceapi.ResourceClaimTemplate](&w.api.objects) {
		if ofGang(t) {
			w.fail("template %s is left", t.Name)
		}
	}
	for _, rule := range w.scheduler.tracker {
		if rule.Spec.Taint.Effect != resourceapi.DeviceTaintEffectNone {
			w.fail("kube-scheduler still sees the taint of rule %s", rule.Name)
		}
	}
}
