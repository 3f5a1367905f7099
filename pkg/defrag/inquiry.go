// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package defrag

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// inquiry is the search for moves for one gang, on the budgets and the history as they were at its start.
type inquiry struct {
	now     time.Time
	gang    placement.Gang
	limits  Limits
	budgets budgets
	recent  []v1alpha1.GangEviction
	// left is how many evictions the hour leaves, leftIn in a namespace.
	left   int
	leftIn func(namespace string) int

	// excluded are claims that came out to be in the way of a trial, by reason.
	excluded map[types.UID]verdict
	// owners are controllers none of whose pods has a place elsewhere.
	owners   map[types.UID]verdict
	ruledOut map[types.UID]ruledOut
}

// verdict is why a pod is not to be moved.
type verdict struct{ reason, why string }

// ruledOut is a pod that is not to be moved.
type ruledOut struct {
	verdict

	name string
}

// pricing answers placement.
func (q *inquiry) pricing(r placement.Resident) (placement.Price, bool) {
	v := q.judge(r)
	if v.reason == "" {
		return q.price(r), true
	}
	if _, known := q.ruledOut[r.Claim.UID]; !known {
		q.ruledOut[r.Claim.UID] = ruledOut{v, nameOf(r)}
	}
	return placement.Price{}, false
}

func nameOf(r placement.Resident) string {
	if r.Pod == nil {
		return "claim " + r.Claim.Namespace + "/" + r.Claim.Name
	}
	return r.Pod.Namespace + "/" + r.Pod.Name
}

// judge says why a resident is not to be moved; its reason is empty when it may be.
func (q *inquiry) judge(r placement.Resident) verdict {
	for _, rule := range rules {
		if why := rule.broken(q, r); why != "" {
			return verdict{rule.reason, why}
		}
	}
	if v, is := q.excluded[r.Claim.UID]; is {
		return v
	}
	return q.owners[metav1.GetControllerOfNoCopy(r.Pod).UID]
}

// exclude rules a victim out. When it was the only one of its controller that was to be moved, its siblings, which
// do not differ, would fare no better.
func (q *inquiry) exclude(victim placement.Resident, all []placement.Resident, v verdict) {
	owner := metav1.GetControllerOfNoCopy(victim.Pod).UID
	siblings := 0
	for _, r := range all {
		if metav1.GetControllerOfNoCopy(r.Pod).UID == owner {
			siblings++
		}
	}
	if siblings == 1 {
		q.owners[owner] = v
		return
	}
	q.excluded[victim.Claim.UID] = v
}

// together excludes victims that may each be moved, but not with the others: of a budget, those that cost the
// most. It says whether there were any.
func (q *inquiry) together(victims []placement.Resident) bool {
	cheapest := slices.Clone(victims)
	slices.SortStableFunc(cheapest, func(a, b placement.Resident) int {
		x, y := q.price(a), q.price(b)
		return cmp.Or(cmp.Compare(x.Rank, y.Rank), cmp.Compare(x.Work, y.Work))
	})
	inBudget, inNamespace, found := map[*budget]int{}, map[string]int{}, false
	for _, r := range cheapest {
		var v verdict
		for _, b := range q.budgets.of(r.Pod) {
			if inBudget[b]++; inBudget[b] > b.allowed() {
				v = verdict{DisruptionBudget, fmt.Sprintf("is in PodDisruptionBudget %s, which allows %d at a time", b.object.Name, b.allowed())}
			}
		}
		if inNamespace[r.Pod.Namespace]++; inNamespace[r.Pod.Namespace] > q.leftIn(r.Pod.Namespace) {
			v = verdict{EvictionBudget, fmt.Sprintf("is in a namespace of which %d pods may be evicted in an hour", q.limits.PerNamespaceHour)}
		}
		if v.reason != "" {
			q.excluded[r.Claim.UID] = v
			found = true
		}
	}
	return found
}

// summary lists who was ruled out, by reason, the most frequent first.
func (q *inquiry) summary() []v1alpha1.GangRuledOut {
	byReason := map[string]*v1alpha1.GangRuledOut{}
	examples := map[string]ruledOut{}
	for _, r := range q.ruledOut {
		s := byReason[r.reason]
		if s == nil {
			s = &v1alpha1.GangRuledOut{Reason: r.reason}
			byReason[r.reason] = s
			examples[r.reason] = r
		}
		s.Pods++
		if r.name < examples[r.reason].name {
			examples[r.reason] = r
		}
	}
	var list []v1alpha1.GangRuledOut
	for reason, s := range byReason {
		s.Example = examples[reason].name + " " + examples[reason].why
		list = append(list, *s)
	}
	slices.SortFunc(list, func(a, b v1alpha1.GangRuledOut) int {
		return cmp.Or(-cmp.Compare(a.Pods, b.Pods), cmp.Compare(a.Reason, b.Reason))
	})
	return list
}
