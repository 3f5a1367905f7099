// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"slices"
	"strings"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// verified is the proof: in this one observation every member of the gang has its devices, on the plan or
// on those it kept, and its node. A member whose pod has no node may still lose its allocation, or wait for
// a volume while the others would run.
func (v *view) verified() bool {
	if v.foreignTemplate() {
		return false
	}
	return len(v.proven()) == int(v.plan.Members)-v.settledOfPlan() && v.complete(v.proven())
}

// proven are newcomers whose claim was allocated on the plan as planned and who have their node, as many
// as the plan places.
func (v *view) proven() []member {
	if why := claimsAreAsPlanned(v); !why.ok {
		return nil
	}
	return filter(v.chosen(), func(m member) bool { return v.onPlan(m) && m.bound() })
}

// complete says whether these members and those that have a place already are the whole gang. Replacements
// for a gang that runs need not be: if yet another member was lost, that is a matter of its own.
func (v *view) complete(placed []member) bool {
	if v.wasReleased() && len(v.settled) > 0 {
		return true
	}
	kept := v.kept()
	if len(filter(kept, member.bound)) < len(kept) {
		return false
	}
	return len(v.settled)+len(kept)+len(placed)+len(v.finished()) >= int(v.Claim.Spec.Members)
}

// Unplaced are the nodes on which kube-scheduler had not put as many members as planned when time was up, sorted; nil unless
// the decision gives the plan up because of that. A scheduler that was only slow, and has not said that a member fits nowhere, is
// none of the nodes' fault.
func Unplaced(o Observation, d Decision) []string {
	was, is := o.Claim.Status.Plan, d.Status.Plan
	if was == nil || is == nil || was.Hash != is.Hash || was.Step != v1alpha1.StepReleasing || is.Step != v1alpha1.StepTakingBack ||
		!strings.HasPrefix(is.Reason, ReasonVerifyTimeout+":") {
		return nil
	}
	v := look(o)
	if !slices.ContainsFunc(v.chosen(), func(m member) bool { return !m.bound() && (m.allocated() || m.unschedulable()) }) {
		return nil
	}
	missing := map[string]int{}
	for _, p := range was.Placements {
		missing[p.Node] += int(p.Members)
	}
	for _, m := range slices.Concat(v.proven(), filter(v.settled, v.ofPlan)) {
		missing[m.pod.Spec.NodeName]--
	}
	var nodes []string
	for node, members := range missing {
		if members > 0 {
			nodes = append(nodes, node)
		}
	}
	slices.Sort(nodes)
	return nodes
}
