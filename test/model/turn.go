// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package model

import (
	"errors"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/gang"
)

// turn is a decision being written.
type turn struct {
	c        *controller
	name     key
	g        *v1alpha1.GangClaim
	o        gang.Observation
	decision gang.Decision
	// written is the GangClaim as this turn wrote it, nil if it did not.
	written *v1alpha1.GangClaim
}

func (t *turn) begin() {
	c := t.c
	if c.w.fault == actionsFirst {
		t.act(t.decision.Actions, func(err error) { t.status(func() { t.end(err) }) })
		return
	}
	t.status(func() { t.act(t.decision.Actions, t.end) })
}

// status writes the status, and goes on if that worked.
func (t *turn) status(then func()) {
	c := t.c
	taken := t.o.Placement != nil && t.o.Placement.Plan != nil
	if equality.Semantic.DeepEqual(t.g.Status, t.decision.Status) {
		if taken {
			c.planner.committed(t.g)
		}
		then()
		return
	}
	if c.w.fault == movesForgotten {
		t.decision.Status.Evictions = nil
	}
	c.after(c.w.writeTime(), func() {
		when := preconditions{uid: t.g.UID, version: t.g.ResourceVersion}
		if c.w.fault == blindStatus {
			when.version = ""
		}
		written, err := update(c.w.api, t.name, when, func(g *v1alpha1.GangClaim) { g.Status = *t.decision.Status.DeepCopy() })
		if err != nil {
			if taken {
				c.planner.giveBack(t.g)
			}
			t.end(err)
			return
		}
		c.mine(gangClaims)
		t.written = written
		c.logf("gang %s: %s", t.name.Name, summary(written))
		if taken {
			c.planner.committed(written)
		}
		then()
	})
}

func summary(g *v1alpha1.GangClaim) string {
	var out strings.Builder
	if p := g.Status.Plan; p != nil {
		out.WriteString(string(p.Step) + " " + p.Hash + " " + p.Reason + " ")
		if p.Step == v1alpha1.StepFencing {
			for _, place := range p.Placements {
				for _, d := range place.Devices {
					out.WriteString(d.ID + " ")
				}
			}
		}
	}
	for _, c := range g.Status.Conditions {
		if c.Type == v1alpha1.ConditionPlanned && c.Status == metav1.ConditionFalse || c.Type == v1alpha1.ConditionRunning || c.Type == v1alpha1.ConditionRoomCanBeMade {
			out.WriteString("[" + c.Reason + ": " + c.Message + "] ")
		}
	}
	return out.String()
}

// act runs the actions in order; the first that fails ends them.
func (t *turn) act(actions []gang.Action, done func(error)) {
	if len(actions) == 0 {
		done(nil)
		return
	}
	t.c.apply(t.g, actions[0], func(err error) {
		if err != nil {
			done(err)
			return
		}
		t.act(actions[1:], done)
	})
}

func (t *turn) end(err error) {
	c := t.c
	if said, ok := errors.AsType[*reply](err); ok {
		t.replied(said)
		return
	}
	delete(c.busy, t.name)
	switch {
	case errors.Is(err, errConflict) || errors.Is(err, errNotFound):
		c.enqueue(t.name, conflictDelay)
	case err != nil:
		c.enqueue(t.name, 50*time.Millisecond)
	case t.decision.RequeueAfter > 0:
		c.enqueue(t.name, t.decision.RequeueAfter)
	}
	if c.again[t.name] {
		delete(c.again, t.name)
		c.enqueue(t.name, 0)
	}
}
