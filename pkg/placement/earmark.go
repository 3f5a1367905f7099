// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

const (
	// patience is how long a gang may keep all of its next best place from those behind it, however much
	// of the cluster that is.
	patience = 30 * time.Minute
	// patientShare is the part of the devices, one in so many, that all gangs which have waited for
	// longer may keep together.
	patientShare = 2
)

// earmark keeps the next best place of a gang from those behind it.
//
// A gang that needs more than its share and has waited for long keeps nothing: what it needs may never
// be free at once, and all others would wait with it. Part of a place would serve nobody.
func (p *planner) earmark(r *request, best outcome) {
	if since := r.claim.Status.WaitingSince; since != nil && p.clock.Since(since.Time) >= patience {
		need := r.members * r.perMember
		if (p.patient+need)*patientShare > r.view.selected() {
			return
		}
		p.patient += need
	}
	for d := range best.devices {
		if d.use.earmarked == nil {
			d.use.earmark(r.claim)
			p.marked = append(p.marked, d.id)
		}
	}
}

// selected is how many devices the class and the selectors select.
func (v *view) selected() int {
	n := 0
	for _, m := range v.matches {
		for _, selected := range m.all {
			if selected {
				n++
			}
		}
	}
	return n
}

// refused is a gang that got no place in this call of Plan.
type refused struct {
	request *request
	refusal *Refusal
}

// refusedBefore answers a gang that asks for exactly what a gang before it did not get: since then only
// less became free. It costs next to nothing, and it keeps nothing either, so that what is kept does not
// grow with the number of gangs: its turn comes when the other has its place.
func (p *planner) refusedBefore(r *request) *Refusal {
	for _, before := range p.refused[r.text()] {
		if before.request.needs.same(r.needs) {
			same := *before.refusal
			same.Message += fmt.Sprintf(" Gang %s/%s waits for the same and comes before.", before.request.claim.Namespace, before.request.claim.Name)
			return &same
		}
	}
	return nil
}

// soughtBefore reports whether room was sought, or is not wanted anyway, for a gang before this one that asks for exactly
// the same and lets at least as much be done for it. Its priority is at least as high: that is the order.
func (p *planner) soughtBefore(r *request) bool {
	return slices.ContainsFunc(p.refused[r.text()], func(before refused) bool {
		policy := before.request.claim.Spec.Defragmentation
		return before.request.needs.same(r.needs) && (policy == v1alpha1.DefragmentationEvict || policy == r.claim.Spec.Defragmentation)
	})
}

func (p *planner) remember(r *request, refusal *Refusal) {
	key := r.text()
	p.refused[key] = append(p.refused[key], refused{request: r, refusal: refusal})
}

// text is what the gang asks for but for what its pods need of their nodes.
func (r *request) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %q %d %d %v", r.class.Name, r.selectors, r.members, r.perMember, r.claim.Spec.Topology)
	for _, t := range r.claim.Spec.Tolerations {
		fmt.Fprintf(&b, " %q %q %q %q", t.Key, t.Operator, t.Value, t.Effect)
	}
	return b.String()
}

func (n needs) same(other needs) bool {
	return n.company.same(other.company) && slices.Equal(n.requests, other.requests) && slices.EqualFunc(n.kinds, other.kinds, func(a, b podKind) bool { return sameKind(a.spec, b.spec) })
}
