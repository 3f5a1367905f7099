// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

func TestUnusableNodes(t *testing.T) {
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
			if got := !placement.UnusableNodes(planOn(1, "a"), map[string]*corev1.Node{"a": node}, []*corev1.Pod{pod})["a"]; got != tt.want {
				t.Errorf("usable is %v, want %v", got, tt.want)
			}
		})
	}
}

func planOn(members int32, nodes ...string) *v1alpha1.GangPlan {
	plan := &v1alpha1.GangPlan{}
	for _, name := range nodes {
		plan.Placements = append(plan.Placements, v1alpha1.GangPlacement{Node: name, Members: members})
	}
	return plan
}

// Those that wait have to get a node each.
func TestUnusableNodesOfSeveralPods(t *testing.T) {
	in := func(zone string, changes ...func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{}
		if zone != "" {
			p.Spec.NodeSelector = map[string]string{"zone": zone}
		}
		for _, change := range changes {
			change(p)
		}
		return p
	}
	on := func(node string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.NodeName = node } }
	ending := func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }
	ended := func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }
	tolerant := func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}} }
	cordoned := inZone(readyNode("b"), "b")
	cordoned.Spec.Unschedulable = true
	for name, tt := range map[string]struct {
		change *corev1.Node // of b; one without a name: gone
		pods   []*corev1.Pod
		want   string
	}{
		"nobody waits":                              {nil, nil, "map[]"},
		"nobody waits, and a node is gone":          {&corev1.Node{}, nil, "map[b:true]"},
		"nobody waits, and a node is not Ready":     {&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "b"}}, nil, "map[b:true]"},
		"nobody waits, and a node is cordoned":      {cordoned, nil, "map[]"},
		"they go anywhere":                          {nil, []*corev1.Pod{in(""), in("")}, "map[]"},
		"one of the nodes is cordoned":              {cordoned, []*corev1.Pod{in(""), in("")}, "map[b:true]"},
		"it is, and one of them has it":             {cordoned, []*corev1.Pod{in(""), in("", on("b"))}, "map[]"},
		"it is, and one of them has the other":      {cordoned, []*corev1.Pod{in(""), in("", on("a"))}, "map[b:true]"},
		"it is, and one of them tolerates that":     {cordoned, []*corev1.Pod{in("", tolerant), in("")}, "map[]"},
		"it is, and one that does not has ended":    {cordoned, []*corev1.Pod{in("", tolerant), in("", tolerant), in("", ended)}, "map[]"},
		"it is, and one that does not is ending":    {cordoned, []*corev1.Pod{in("", tolerant), in("", tolerant), in("", ending)}, "map[]"},
		"each wants its own":                        {nil, []*corev1.Pod{in("a"), in("b")}, "map[]"},
		"each wants its own, and one has it":        {nil, []*corev1.Pod{in("a"), in("b", on("b"))}, "map[]"},
		"each wants its own, and one is cordoned":   {cordoned, []*corev1.Pod{in("a"), in("b")}, "map[a:true b:true]"},
		"both want the same":                        {nil, []*corev1.Pod{in("a"), in("a")}, "map[b:true]"},
		"one that goes anywhere leaves the other's": {nil, []*corev1.Pod{in(""), in("a")}, "map[]"},
	} {
		t.Run(name, func(t *testing.T) {
			nodes := map[string]*corev1.Node{"a": inZone(readyNode("a"), "a"), "b": inZone(readyNode("b"), "b")}
			if tt.change != nil {
				nodes["b"] = tt.change
			}
			for name, n := range nodes {
				if n.Name == "" {
					nodes[name] = nil
				} else if n.Labels != nil {
					n.Labels["zone"] = name
				}
			}
			if got := fmt.Sprint(placement.UnusableNodes(planOn(1, "a", "b"), nodes, tt.pods)); got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
		})
	}
}
