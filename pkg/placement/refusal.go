// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// refusal says why a gang has no place, and keeps the next best one for it: the devices that would
// serve it once the fewest that are busy are given back. found is the most that has a place in the last scope.
func (p *planner) refusal(r *request, found outcome) *Refusal {
	all := slices.DeleteFunc(r.scopes(), r.scattered)
	if len(all) == 0 {
		return &Refusal{Reason: ReasonNoFeasibleDomain, Message: needsText(r) +
			"; the members that have their place are not in one " + string(r.scopes()[0].gang) + ", or their devices are not published now"}
	}
	s := all[len(all)-1]
	next := p.attempt(r, s)
	next.evict = true
	best := next.place()

	why := p.why(r, s)
	message := explanation{planner: p, request: r, attempt: next, found: found, best: best, why: why}
	refusal := &Refusal{Reason: why.reason, Found: int32(found.members), Message: message.text()}
	if best.members == r.members {
		refusal.Blocking = message.blocking()
		p.earmark(r, best)
	}
	return refusal
}

// cause is why a gang has no place, and where it would have one if it were not for that.
type cause struct {
	reason Reason
	would  outcome
}

// why finds the first thing that, looked past, gives the gang a place.
func (p *planner) why(r *request, s scope) cause {
	if len(p.marked) > 0 { // else no gang before it waits for anything
		past := p.attempt(r, s)
		past.pastEarmarks = true
		if would := past.place(); would.members == r.members {
			return cause{ReasonBehindOthers, would}
		}
	}
	anywhere := p.attempt(r, s)
	anywhere.anyNode = true
	if would := anywhere.place(); would.members == r.members {
		return cause{ReasonNodesFull, would}
	}
	return cause{reason: ReasonNoFeasibleDomain}
}

// holder is what keeps devices of the next best place: a pod, or a claim that no pod has.
type holder struct {
	name    types.NamespacedName
	pod     bool
	devices int
}

// holders lists who has busy devices of a place, by name, and how many of them are reserved for other
// gangs instead.
func (p *planner) holders(o outcome) (holders []holder, reserved int) {
	for d := range o.busy {
		claims := p.claimsOn(d)
		if len(claims) == 0 {
			reserved++
		}
		for _, held := range claims {
			names, pod := held.pods(), true
			if len(names) == 0 {
				names, pod = []types.NamespacedName{{Namespace: held.object.Namespace, Name: held.object.Name}}, false
			}
			for _, name := range names {
				at := slices.IndexFunc(holders, func(h holder) bool { return h.name == name && h.pod == pod })
				if at < 0 {
					holders = append(holders, holder{name: name, pod: pod})
					at = len(holders) - 1
				}
				holders[at].devices++
			}
		}
	}
	slices.SortFunc(holders, func(a, b holder) int {
		return cmp.Or(cmp.Compare(a.name.Namespace, b.name.Namespace), cmp.Compare(a.name.Name, b.name.Name))
	})
	return holders, reserved
}

// claimsOn are the claims that have the device, or another that shares its counters.
func (p *planner) claimsOn(d *device) []*claim {
	if len(d.use.claims) > 0 || len(d.api.ConsumesCounters) == 0 {
		return d.use.claims
	}
	var claims []*claim
	for other := range p.sharers(d) {
		for _, held := range other.use.claims {
			if !slices.Contains(claims, held) {
				claims = append(claims, held)
			}
		}
	}
	return claims
}
