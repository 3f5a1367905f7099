// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// planner is pkg/controller's: all gangs that wait are planned together, and what a plan takes is taken
// before it is written.
type planner struct {
	c       *controller
	waiting map[types.UID]*question
	taken   map[types.UID]*v1alpha1.GangClaim
	due     bool
	// roomDue says that moves are looked for again although nothing has changed.
	roomDue bool
	// wrote is the version of the last write to each kind.
	wrote [kinds]int64
}

type question struct {
	gang        placement.Gang
	asked       string
	answer      *placement.Decision
	answeredFor string
}

func (p *planner) changed() {
	if p.due {
		return
	}
	p.due = true
	p.c.after(settleTime, func() {
		p.due = false
		p.plan()
	})
}

func (p *planner) ask(g placement.Gang) (placement.Decision, bool) {
	asked := fmt.Sprintf("%d %d %v %t %v", g.Claim.Generation, g.Priority, g.Placed, g.Only != nil, g.Only)
	for _, pod := range g.Pods {
		asked += " " + string(pod.UID)
	}
	q := p.waiting[g.Claim.UID]
	if q == nil {
		q = &question{}
		p.waiting[g.Claim.UID] = q
	}
	q.gang = g
	if q.asked != asked {
		q.asked = asked
		p.changed()
	}
	if q.answer == nil || q.answeredFor != asked {
		return placement.Decision{}, false
	}
	answer := *q.answer
	if answer.Plan != nil {
		reserved := g.Claim.DeepCopy()
		reserved.Status.Plan = answer.Plan
		p.taken[g.Claim.UID] = reserved
		p.set(reserved)
		delete(p.waiting, g.Claim.UID)
	}
	return answer, true
}

func (p *planner) set(g *v1alpha1.GangClaim) {
	if p.c.w.fault != noReservation {
		p.c.cluster.SetGang(g)
	}
}

func (p *planner) forget(uid types.UID) {
	if p.waiting[uid] != nil {
		delete(p.waiting, uid)
		p.changed()
	}
}

func (p *planner) committed(written *v1alpha1.GangClaim) {
	if p.taken[written.UID] != nil {
		p.taken[written.UID] = written
		p.set(reservation(written))
	}
}

func (p *planner) giveBack(before *v1alpha1.GangClaim) {
	if p.taken[before.UID] != nil {
		delete(p.taken, before.UID)
		p.set(reservation(before))
		p.changed()
	}
}

func (p *planner) observe(g *v1alpha1.GangClaim) {
	if taken := p.taken[g.UID]; taken != nil && versionOf(g) < versionOf(taken) {
		return
	}
	delete(p.taken, g.UID)
	p.set(reservation(g))
	p.changed()
}

func (p *planner) gone(g *v1alpha1.GangClaim) {
	delete(p.taken, g.UID)
	delete(p.waiting, g.UID)
	p.c.cluster.DeleteGang(keyOf(g))
	p.changed()
}

// plan answers all questions, and brings up the gangs with a new answer.
func (p *planner) plan() {
	var gangs []placement.Gang
	for _, uid := range slices.Sorted(maps.Keys(p.waiting)) {
		gangs = append(gangs, p.waiting[uid].gang)
	}
	if len(gangs) == 0 {
		return
	}
	for _, d := range p.decide(gangs) {
		q := p.waiting[d.Gang]
		same := q.answer != nil && q.answer.Plan == nil && d.Plan == nil && q.answer.Refusal.Message == d.Refusal.Message &&
			equality.Semantic.DeepEqual(q.answer.Room, d.Room)
		if d.Refusal != nil && d.Refusal.Reason == placement.ReasonInterrupted {
			p.changed() // it goes on where it stopped
		}
		news := q.answeredFor != q.asked || !same
		q.answer, q.answeredFor = &d, q.asked
		if news {
			p.c.enqueue(keyOf(q.gang.Claim), 0)
		}
	}
}

// reservation is a GangClaim whose plan takes devices from others.
func reservation(g *v1alpha1.GangClaim) *v1alpha1.GangClaim {
	if plan := g.Status.Plan; plan == nil || plan.Step != v1alpha1.StepUnfencing {
		return g
	}
	open := *g
	open.Status.Plan = nil
	return &open
}

func versionOf(g *v1alpha1.GangClaim) int64 {
	var n int64
	_, _ = fmt.Sscan(g.ResourceVersion, &n)
	return n
}
