// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"fmt"
	"maps"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
)

// spreadOf tells how many more of the pods each place can have for sure by topology spread that must be kept
// (whenUnsatisfiable: DoNotSchedule), in whatever order they come. kube-scheduler lets a place have maxSkew pods more than the
// eligible place that has fewest. That one may get more as the gang is placed, so more may be possible: a gang that has no
// place within these limits is placed without. Nodes without the label are shunned.
func (c *Cluster) spreadOf(pods []*corev1.Pod, result *company) {
	if len(pods) == 0 {
		return
	}
	// Only nodes with the labels of all constraints that must be kept count.
	countable := func(n *node) bool {
		return !slices.ContainsFunc(pods[0].Spec.TopologySpreadConstraints, func(c corev1.TopologySpreadConstraint) bool {
			_, ok := n.label(c.TopologyKey)
			return !ok && c.WhenUnsatisfiable == corev1.DoNotSchedule
		})
	}
	for i := range pods[0].Spec.TopologySpreadConstraints {
		constraint := &pods[0].Spec.TopologySpreadConstraints[i]
		selector, err := metav1.LabelSelectorAsSelector(constraint.LabelSelector)
		// The API server adds matchLabelKeys to the selector; of a key that it left alone the values may differ.
		if err != nil || constraint.WhenUnsatisfiable != corev1.DoNotSchedule || !spreadTogether(pods, constraint, selector) {
			continue
		}
		running := c.running(pods[0].Namespace, selector)
		counts := map[string]int{}
		for _, n := range c.sortedNodes {
			value, ok := n.label(constraint.TopologyKey)
			switch {
			case !ok && n.object != nil:
				result.shun(n, fmt.Sprintf("it has no label %s, by which the pods are spread", constraint.TopologyKey))
			case ok && countable(n) && eligibleForSpread(n, pods[0], constraint):
				counts[value] += running[n]
			}
		}
		fewest := 0
		if len(counts) >= int(ptr.Deref(constraint.MinDomains, 1)) {
			fewest = slices.Min(slices.Collect(maps.Values(counts)))
		}
		most := int(constraint.MaxSkew) + fewest
		for value, n := range counts {
			counts[value] = max(most-n, 0)
		}
		result.limits = append(result.limits, bound{key: constraint.TopologyKey, most: most, by: counts})
	}
}

// spreadTogether reports whether all the pods have the constraint and are counted by it, and want the same nodes.
func spreadTogether(pods []*corev1.Pod, constraint *corev1.TopologySpreadConstraint, selector labels.Selector) bool {
	for _, p := range pods {
		has := false
		for i := range p.Spec.TopologySpreadConstraints {
			has = has || reflect.DeepEqual(&p.Spec.TopologySpreadConstraints[i], constraint)
		}
		if !has || !selector.Matches(labels.Set(p.Labels)) || !sameKind(&p.Spec, &pods[0].Spec) {
			return false
		}
	}
	return true
}

// running counts the pods of a namespace that the selector matches by node, without those that are ending.
func (c *Cluster) running(namespace string, selector labels.Selector) map[*node]int {
	counts := map[*node]int{}
	for key, p := range c.pods {
		if p.node != "" && key.Namespace == namespace && p.object.DeletionTimestamp == nil && selector.Matches(labels.Set(p.object.Labels)) {
			counts[c.nodes[p.node]]++
		}
	}
	return counts
}

// eligibleForSpread reports whether a node's place counts as one that could have fewest pods.
func eligibleForSpread(n *node, pod *corev1.Pod, constraint *corev1.TopologySpreadConstraint) bool {
	kind := kindOf(pod)
	if ptr.Deref(constraint.NodeAffinityPolicy, corev1.NodeInclusionPolicyHonor) == corev1.NodeInclusionPolicyHonor && !kind.wants(n.object) {
		return false
	}
	return ptr.Deref(constraint.NodeTaintsPolicy, corev1.NodeInclusionPolicyIgnore) == corev1.NodeInclusionPolicyIgnore || kind.untolerated(n.object) == nil
}
