// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package model

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/defrag"
	"github.com/switchyard-dev/switchyard/pkg/gang"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

const (
	settleTime    = 20 * time.Millisecond
	conflictDelay = 20 * time.Millisecond
	sweepInterval = 30 * time.Second
	sweepAgain    = 200 * time.Millisecond
)

// controller is pkg/controller without an API server: the same caches, the same triggers, the same planner
// in front of placement.Cluster, the same order of writes. Each write is an event of its own, so that
// everything else may happen between two of them, and the controller may be killed there.
type controller struct {
	w       *world
	id      int
	cache   *cache
	cluster *placement.Cluster
	maker   *defrag.Maker
	planner *planner
	// stale says that another one leads: it does not know.
	stale bool
	dead  bool

	queued map[key]time.Time // gangs to be looked at, and when
	busy   map[key]bool
	again  map[key]bool // to be looked at again when it is not busy any more
	looks  bool
	supply bool
	usage  bool

	sweepDue  time.Time
	sweepBusy bool
}

func newController(w *world) *controller {
	w.controllers++
	c := &controller{
		w: w, id: w.controllers, cluster: placement.NewClusterAt(worldClock{w}), queued: map[key]time.Time{}, busy: map[key]bool{}, again: map[key]bool{},
	}
	c.maker = defrag.NewMaker(moveLimits(), worldClock{w})
	c.planner = &planner{c: c, waiting: map[types.UID]*question{}, taken: map[types.UID]*v1alpha1.GangClaim{}}
	c.cache = newCache(w, c.seen)
	c.cache.start()
	c.sweepSoon(0)
	return c
}

// crash kills the leader: all that it had in memory is gone. Another one starts after a while.
func (w *world) crash(down time.Duration) {
	old := w.leader
	old.stop()
	w.checker.disturb()
	w.after(down, func() {
		if w.leader == old {
			w.leader = newController(w)
			w.checker.disturb()
			w.logf("controller %d starts", w.leader.id)
		}
	})
}

// loseLease has another controller start while the old one goes on for a while on what it knows.
func (w *world) loseLease() {
	old := w.leader
	if old.dead {
		return
	}
	old.stale, old.cache.frozen = true, true
	w.leader = newController(w)
	w.checker.disturb()
	w.after(w.between(100*time.Millisecond, 8*time.Second), func() {
		old.stop()
		w.checker.disturb()
		w.logf("controller %d ends", old.id)
	})
}

func (c *controller) stop() {
	c.dead = true
	c.cache.stop()
}

// after is world.after, unless the controller is killed before.
func (c *controller) after(d time.Duration, do func()) {
	c.w.after(d, func() {
		if !c.dead {
			do()
		}
	})
}

// seen feeds the planner's cluster and the queue.
func (c *controller) seen(ch change) {
	switch o := ch.object().(type) {
	case *v1alpha1.GangClaim:
		c.enqueue(ch.key, 0)
		if ch.after == nil {
			c.maker.SetGang(o)
			c.planner.gone(o)
			c.sweepSoon(0)
		} else {
			c.maker.SetGang(o)
			c.planner.observe(o)
		}
		return
	case *corev1.Pod:
		if ch.after == nil {
			c.cluster.DeletePod(ch.key)
		} else {
			c.cluster.SetPod(o)
		}
		for _, ref := range o.Spec.ResourceClaims {
			c.enqueue(key{Namespace: o.Namespace, Name: *ref.ResourceClaimTemplateName}, 0)
		}
		c.usage = true
	case *resourceapi.ResourceClaim:
		if ch.after == nil {
			c.cluster.DeleteClaim(ch.key)
		} else {
			c.cluster.SetClaim(o)
		}
		c.enqueueGang(gangOf(o))
		c.usage = true
	case *resourceapi.ResourceClaimTemplate:
		c.enqueue(ch.key, 0)
		return
	case *resourceapi.DeviceTaintRule:
		before, _ := ch.before.(*resourceapi.DeviceTaintRule)
		c.enqueueGang(gangOf(o))
		if ch.after != nil && before != nil && equality.Semantic.DeepEqual(before.Spec, o.Spec) {
			return
		}
		if ch.after == nil {
			c.cluster.DeleteRule(ch.key.Name)
		} else {
			c.cluster.SetRule(o)
		}
		c.supply = true
	default:
		c.seenSupply(ch)
	}
	c.planner.changed()
	c.look()
}

// seenSupply feeds devices, nodes, classes and quotas.
func (c *controller) seenSupply(ch change) {
	switch o := ch.object().(type) {
	case *corev1.Node:
		if ch.after == nil {
			c.cluster.DeleteNode(ch.key.Name)
		} else {
			c.cluster.SetNode(o)
		}
	case *resourceapi.ResourceSlice:
		c.cluster.SetSlice(o)
	case *resourceapi.DeviceClass:
		if ch.after == nil {
			c.cluster.DeleteClass(ch.key.Name)
		} else {
			c.cluster.SetClass(o)
		}
	case *corev1.ResourceQuota:
		if ch.after == nil {
			c.cluster.DeleteQuota(ch.key)
		} else {
			c.cluster.SetQuota(o)
		}
		return
	case *policyv1.PodDisruptionBudget:
		switch {
		case c.w.fault == budgetsBroken:
		case ch.after == nil:
			c.maker.DeleteBudget(ch.key)
		default:
			c.maker.SetBudget(o)
		}
		return
	}
	c.supply = true
}

// look brings up the gangs with a plan, once for each burst of changes.
func (c *controller) look() {
	if c.looks || !c.supply && !c.usage {
		return
	}
	c.looks = true
	c.after(settleTime, func() {
		c.looks = false
		for _, g := range list[*v1alpha1.GangClaim](&c.cache.objects) {
			if p := g.Status.Plan; p != nil && (c.supply || p.Step == v1alpha1.StepQuiescing || p.Step == v1alpha1.StepEvicting) {
				c.enqueue(keyOf(g), 0)
			}
		}
		c.supply, c.usage = false, false
	})
}

func (c *controller) enqueueGang(uid types.UID) {
	if uid == "" {
		return
	}
	for _, g := range list[*v1alpha1.GangClaim](&c.cache.objects) {
		if g.UID == uid {
			c.enqueue(keyOf(g), 0)
		}
	}
}

// enqueue has a gang looked at after a while. The earliest of several counts.
func (c *controller) enqueue(name key, d time.Duration) {
	d += c.w.between(0, 2*time.Millisecond)
	due := c.w.now.Add(d)
	if earlier, ok := c.queued[name]; ok && !earlier.After(due) {
		return
	}
	c.queued[name] = due
	c.after(d, func() {
		if !c.queued[name].Equal(due) {
			return
		}
		delete(c.queued, name)
		if c.busy[name] {
			c.again[name] = true
			return
		}
		c.reconcile(name)
	})
}

// reconcile moves one gang on.
func (c *controller) reconcile(name key) {
	for k, version := range c.planner.wrote {
		c.cache.reach(kind(k), version)
	}
	g := get[*v1alpha1.GangClaim](&c.cache.objects, name)
	if g == nil {
		return
	}
	o := c.gather(g)
	if q, ok := gang.Plannable(o); ok {
		answer, answered := c.planner.ask(q)
		if !answered {
			return // the planner calls back
		}
		o.Placement = &answer
	} else {
		c.planner.forget(g.UID)
	}
	before := o.Claim.DeepCopy()
	d := gang.Decide(o)
	if !equality.Semantic.DeepEqual(before, o.Claim) {
		c.w.fail("gang.Decide changed what it was given")
	}
	if c.w.fault == eagerReady {
		d.Actions = append(d.Actions, eager(o)...)
	}
	c.busy[name] = true
	t := &turn{c: c, name: name, g: g, o: o, decision: d}
	t.begin()
}

// eager is the fault eagerReady.
func eager(o gang.Observation) []gang.Action {
	var a gang.MarkReady
	for _, claim := range o.Claims {
		if gangOf(claim) == o.Claim.UID && claim.Status.Allocation != nil && !isReady(claim.Labels, claim.Annotations) {
			a.Claims = append(a.Claims, gang.ReadyClaim{
				Ref:  gang.Ref{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID, ResourceVersion: claim.ResourceVersion},
				Plan: claim.Labels[v1alpha1.PlanLabel],
			})
		}
	}
	return []gang.Action{a}
}

func (c *controller) logf(format string, args ...any) {
	if c.w.trace != nil {
		c.w.logf("controller "+itoa(c.id)+": "+format, args...)
	}
}

// mine notes a write to a kind: what is read next is at least as new.
func (c *controller) mine(k kind) { c.planner.wrote[k] = c.w.api.version }

// sweepSoon has objects of gangs that are gone looked for after a while.
func (c *controller) sweepSoon(d time.Duration) {
	due := c.w.now.Add(d)
	c.sweepDue = due
	c.after(d, func() {
		if c.sweepBusy || !c.sweepDue.Equal(due) {
			return
		}
		c.sweepBusy = true
		actions, pause := c.sweep()
		t := &turn{c: c}
		t.act(actions, func(err error) {
			c.sweepBusy = false
			switch {
			case err != nil:
				pause = conflictDelay
			case len(actions) > 0 && pause == 0:
				pause = sweepAgain
			case pause == 0:
				pause = sweepInterval
			}
			c.sweepSoon(pause)
		})
	})
}

func (c *controller) sweep() ([]gang.Action, time.Duration) {
	for k, version := range c.planner.wrote {
		c.cache.reach(kind(k), version)
	}
	in := gang.Labelled{Now: c.w.now, Pods: list[*corev1.Pod](&c.cache.objects)}
	in.Templates = slices.DeleteFunc(list[*resourceapi.ResourceClaimTemplate](&c.cache.objects), func(t *resourceapi.ResourceClaimTemplate) bool { return !ofGang(t) })
	in.Claims = slices.DeleteFunc(list[*resourceapi.ResourceClaim](&c.cache.objects), func(t *resourceapi.ResourceClaim) bool { return !ofGang(t) })
	in.Rules = slices.DeleteFunc(list[*resourceapi.DeviceTaintRule](&c.cache.objects), func(t *resourceapi.DeviceTaintRule) bool { return !ofGang(t) })
	if c.w.fault == noSweep {
		return nil, 0
	}
	return gang.Orphans(in, func(uid types.UID) bool {
		for _, g := range list[*v1alpha1.GangClaim](&c.w.api.objects) { // live
			if g.UID == uid {
				return true
			}
		}
		return false
	})
}
