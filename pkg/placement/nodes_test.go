// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/switchyard-dev/switchyard/pkg/placement"
)

func TestNodeSuits(t *testing.T) {
	toleration := func(key string) corev1.Toleration {
		return corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists}
	}
	for name, tt := range map[string]struct {
		change func(*corev1.Node, *corev1.Pod)
		want   bool
	}{
		"a Ready node suits a pod that asks for nothing": {func(*corev1.Node, *corev1.Pod) {}, true},
		"a node that is not Ready suits none": {func(n *corev1.Node, _ *corev1.Pod) {
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}
		}, false},
		"a cordoned node does not": {func(n *corev1.Node, _ *corev1.Pod) { n.Spec.Unschedulable = true }, false},
		"unless the pod tolerates that": {func(n *corev1.Node, p *corev1.Pod) {
			n.Spec.Unschedulable = true
			p.Spec.Tolerations = []corev1.Toleration{toleration(corev1.TaintNodeUnschedulable)}
		}, true},
		"a taint that keeps pods off does": {func(n *corev1.Node, _ *corev1.Pod) {
			n.Spec.Taints = []corev1.Taint{{Key: "broken", Effect: corev1.TaintEffectNoExecute}}
		}, false},
		"unless it is tolerated": {func(n *corev1.Node, p *corev1.Pod) {
			n.Spec.Taints = []corev1.Taint{{Key: "broken", Effect: corev1.TaintEffectNoExecute}}
			p.Spec.Tolerations = []corev1.Toleration{toleration("broken")}
		}, true},
		"a taint that only advises does not": {func(n *corev1.Node, _ *corev1.Pod) {
			n.Spec.Taints = []corev1.Taint{{Key: "slow", Effect: corev1.TaintEffectPreferNoSchedule}}
		}, true},
		"a node selector excludes nodes without the label": {func(_ *corev1.Node, p *corev1.Pod) {
			p.Spec.NodeSelector = map[string]string{"zone": "a"}
		}, false},
		"and suits those with it": {func(n *corev1.Node, p *corev1.Pod) {
			n.Labels = map[string]string{"zone": "a"}
			p.Spec.NodeSelector = map[string]string{"zone": "a"}
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			node := &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}
			pod := &corev1.Pod{}
			tt.change(node, pod)
			if got := placement.NodeSuits(node, pod); got != tt.want {
				t.Errorf("NodeSuits is %v, want %v", got, tt.want)
			}
		})
	}
	if placement.NodeSuits(nil, &corev1.Pod{}) {
		t.Error("a node that does not exist suits a pod")
	}
}
