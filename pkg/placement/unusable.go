// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// UnusableNodes returns the names of those nodes of a plan with which it does not work out any more. nodes has them by name, nil
// where one is gone. A node that is not Ready is one. The others are, where the gang's pods that wait cannot all get a node, those
// that do not suit all of them: apart from what is free there, by cordon, taints of effect NoSchedule and NoExecute, node
// selectors and required affinity. Pods that are ending or have ended do not ask.
func UnusableNodes(plan *v1alpha1.GangPlan, nodes map[string]*corev1.Node, pods []*corev1.Pod) map[string]bool {
	unusable, left := map[string]bool{}, map[string]int{}
	for name, node := range nodes {
		if node == nil || !ready(node) {
			unusable[name] = true
		}
	}
	for _, p := range plan.Placements {
		left[p.Node] += int(p.Members)
	}
	var kinds []podKind
	var waiting []int // by kind
	for _, p := range pods {
		switch {
		case p.DeletionTimestamp != nil || Ended(p):
		case p.Spec.NodeName != "":
			left[p.Spec.NodeName]--
		default:
			at := slices.IndexFunc(kinds, func(k podKind) bool { return sameKind(k.spec, &p.Spec) })
			if at < 0 {
				at = len(kinds)
				kinds, waiting = append(kinds, kindOf(p)), append(waiting, 0)
			}
			waiting[at]++
		}
	}
	suits := make([]map[string]bool, len(kinds))
	for i := range kinds {
		suits[i] = map[string]bool{}
		for name, node := range nodes {
			suits[i][name] = !unusable[name] && suitsKind(node, &kinds[i]) == ""
		}
	}
	if seated(suits, waiting, left) {
		return unusable
	}
	for name := range nodes {
		if slices.ContainsFunc(suits, func(s map[string]bool) bool { return !s[name] }) {
			unusable[name] = true
		}
	}
	return unusable
}

// seated reports whether all pods can get a seat: so many of each kind, on nodes that suit it and have seats left.
func seated(suits []map[string]bool, pods []int, left map[string]int) bool {
	on := make([]map[string]int, len(pods)) // how many of each kind are on which node
	var seat func(kind int, tried map[string]bool) bool
	seat = func(kind int, tried map[string]bool) bool {
		for name, ok := range suits[kind] {
			if !ok || tried[name] {
				continue
			}
			tried[name] = true
			if left[name] > 0 {
				left[name]--
				on[kind][name]++
				return true
			}
			for other := range on { // who sits there may move
				if on[other][name] > 0 && seat(other, tried) {
					on[other][name]--
					on[kind][name]++
					return true
				}
			}
		}
		return false
	}
	for kind := range pods {
		on[kind] = map[string]int{}
	}
	for kind, n := range pods {
		for range n {
			if !seat(kind, map[string]bool{}) {
				return false
			}
		}
	}
	return true
}
