// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// TestNodesOfOnePodAreThoseOfAPairwiseLook compares with the rules of kube-scheduler's plugin, pod by pod, while pods come, go,
// move their labels and end.
func TestNodesOfOnePodAreThoseOfAPairwiseLook(t *testing.T) {
	keys := []string{corev1.LabelHostname, zone, "rack"}
	apps := []string{"a", "b", "c"}
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		var nodes []*corev1.Node
		var objects []any
		for i := range 4 {
			n := inZone(readyNode(fmt.Sprintf("node-%d", i)), fmt.Sprintf("zone-%d", r.IntN(2)))
			if r.IntN(2) == 0 {
				n.Labels["rack"] = []string{"", "r"}[r.IntN(2)]
			}
			nodes = append(nodes, n)
			objects = append(objects, n, hgx(n.Name))
		}
		c := clusterOf(t, objects...)
		terms := func(chance int) (list []corev1.PodAffinityTerm) {
			for r.IntN(chance) == 0 {
				list = append(list, near(keys[r.IntN(len(keys))], apps[r.IntN(len(apps))], [][]string{nil, {"ml"}, {"web", "ml"}}[r.IntN(3)]...))
			}
			return list
		}
		pods := map[string]*corev1.Pod{}
		for step := range 12 {
			name := fmt.Sprintf("p%d", r.IntN(5))
			if pods[name] != nil && r.IntN(3) == 0 {
				c.DeletePod(types.NamespacedName{Namespace: pods[name].Namespace, Name: name})
				delete(pods, name)
			} else {
				p := running([]string{"ml", "web"}[r.IntN(2)], apps[r.IntN(len(apps))], nodes[r.IntN(len(nodes))].Name, with(terms(4), terms(2)))
				p.Name = name
				if old := pods[name]; old != nil {
					p.Namespace = old.Namespace
				}
				if r.IntN(5) == 0 {
					ended(p)
				}
				pods[name] = p
				c.SetPod(p)
			}
			g := gangOf("g", 1, 4, app(apps[r.IntN(len(apps))]))
			g.Pods[0].Spec.Affinity = with(terms(3), terms(3))
			for _, n := range nodes {
				only := gangOf("g", 1, 4)
				only.Pods[0] = g.Pods[0].DeepCopy()
				only.Pods[0].Spec.NodeSelector = map[string]string{corev1.LabelHostname: n.Name}
				got := c.Plan(context.Background(), []placement.Gang{only})[0].Plan != nil
				if want := companySuits(n, only.Pods[0], pods, nodes); got != want {
					t.Fatalf("seed %d, step %d: pod %v with %+v on node %v: planned %v, want %v", seed, step, g.Pods[0].Labels, g.Pods[0].Spec.Affinity, n.Labels, got, want)
				}
			}
		}
	}
}

// TestMembersOfOneTemplateAreBoundInAnyOrder compares with all ways to put the members on nodes: a plan must be one that
// kube-scheduler can bind in any order, and where there is one there must be a plan.
func TestMembersOfOneTemplateAreBoundInAnyOrder(t *testing.T) {
	keys := []string{corev1.LabelHostname, zone, "rack"}
	planned, refused := 0, 0
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 2))
		var nodes []*corev1.Node
		var objects []any
		for i := range 4 {
			n := inZone(readyNode(fmt.Sprintf("node-%d", i)), fmt.Sprintf("zone-%d", r.IntN(3)))
			if r.IntN(4) > 0 {
				n.Labels["rack"] = []string{"", "r", "s"}[r.IntN(3)]
			}
			nodes = append(nodes, n)
			objects = append(objects, n, hgx(n.Name))
		}
		c := clusterOf(t, objects...)
		others := map[string]*corev1.Pod{}
		for i := range r.IntN(3) {
			p := running("ml", []string{"a", "b"}[r.IntN(2)], nodes[r.IntN(len(nodes))].Name, nil)
			p.Name = fmt.Sprintf("p%d", i)
			others[p.Name] = p
			c.SetPod(p)
		}
		g := gangOf("g", int32(1+r.IntN(4)), 4, app("a"))
		var affinity, anti []corev1.PodAffinityTerm
		if r.IntN(2) == 0 {
			affinity = append(affinity, near(keys[r.IntN(len(keys))], "a"))
		}
		if r.IntN(2) == 0 {
			anti = append(anti, near(keys[r.IntN(len(keys))], []string{"a", "b"}[r.IntN(2)]))
		}
		for _, p := range g.Pods {
			p.Spec.Affinity = with(affinity, anti)
		}
		// A node has two domains, so two members.
		var inAnyOrder func(left map[*corev1.Node]int, pods map[string]*corev1.Pod) bool
		inAnyOrder = func(left map[*corev1.Node]int, pods map[string]*corev1.Pod) bool {
			for _, n := range nodes {
				if left[n] == 0 {
					continue
				}
				if !companySuits(n, g.Pods[0], pods, nodes) {
					return false
				}
				member := g.Pods[0].DeepCopy()
				member.Spec.NodeName = n.Name
				after := maps.Clone(pods)
				after[fmt.Sprintf("member %d", len(pods))] = member
				rest := maps.Clone(left)
				rest[n]--
				if !inAnyOrder(rest, after) {
					return false
				}
			}
			return true
		}
		var possible func(at, members int, take map[*corev1.Node]int) bool
		possible = func(at, members int, take map[*corev1.Node]int) bool {
			if members == 0 {
				return inAnyOrder(take, others)
			}
			for n := 0; at < len(nodes) && n <= min(2, members); n++ {
				take[nodes[at]] = n
				if possible(at+1, members-n, take) {
					return true
				}
				take[nodes[at]] = 0
			}
			return false
		}
		plan := c.Plan(context.Background(), []placement.Gang{g})[0].Plan
		want := possible(0, len(g.Pods), map[*corev1.Node]int{})
		if (plan != nil) != want {
			t.Fatalf("seed %d: %d members with affinity %v, anti-affinity %v: planned %v, want %v", seed, len(g.Pods), affinity, anti, plan != nil, want)
		}
		if plan == nil {
			refused++
			continue
		}
		planned++
		take := map[*corev1.Node]int{}
		for _, p := range plan.Placements {
			take[nodes[slices.IndexFunc(nodes, func(n *corev1.Node) bool { return n.Name == p.Node })]] += int(p.Members)
		}
		if !inAnyOrder(take, others) {
			t.Fatalf("seed %d: %d members with affinity %v, anti-affinity %v: cannot be bound as planned: %+v", seed, len(g.Pods), affinity, anti, plan.Placements)
		}
	}
	if planned < 50 || refused < 50 {
		t.Errorf("%d plans and %d refusals: too few of one to tell", planned, refused)
	}
}

// companySuits is what kube-scheduler's documentation says of required terms.
func companySuits(node *corev1.Node, pod *corev1.Pod, pods map[string]*corev1.Pod, nodes []*corev1.Node) bool {
	matches := func(owner *corev1.Pod, term corev1.PodAffinityTerm, other *corev1.Pod) bool {
		namespaces := term.Namespaces
		if len(namespaces) == 0 {
			namespaces = []string{owner.Namespace}
		}
		return slices.Contains(namespaces, other.Namespace) && other.Labels["app"] == term.LabelSelector.MatchLabels["app"]
	}
	together := func(key string, other *corev1.Pod) bool {
		for _, n := range nodes {
			if n.Name == other.Spec.NodeName {
				here, ok := node.Labels[key]
				there, too := n.Labels[key]
				return ok && too && here == there
			}
		}
		return false
	}
	labelled := func(key string, other *corev1.Pod) bool {
		return slices.ContainsFunc(nodes, func(n *corev1.Node) bool {
			_, ok := n.Labels[key]
			return ok && n.Name == other.Spec.NodeName
		})
	}
	var wanted []corev1.PodAffinityTerm
	if pod.Spec.Affinity.PodAffinity != nil {
		wanted = pod.Spec.Affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	}
	for _, term := range wanted {
		if _, ok := node.Labels[term.TopologyKey]; !ok {
			return false
		}
	}
	anti := func(p *corev1.Pod) []corev1.PodAffinityTerm {
		if p.Spec.Affinity == nil || p.Spec.Affinity.PodAntiAffinity == nil {
			return nil
		}
		return p.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	}
	all := func(other *corev1.Pod) bool {
		return !slices.ContainsFunc(wanted, func(term corev1.PodAffinityTerm) bool { return !matches(pod, term, other) })
	}
	anywhere := false
	found := make([]bool, len(wanted))
	for _, other := range pods {
		if placement.Ended(other) {
			continue
		}
		for _, term := range anti(pod) {
			if matches(pod, term, other) && together(term.TopologyKey, other) {
				return false
			}
		}
		for _, term := range anti(other) {
			if matches(other, term, pod) && together(term.TopologyKey, other) {
				return false
			}
		}
		if len(wanted) > 0 && all(other) {
			for i, term := range wanted {
				// On a node without the label it is in no place, and not counted.
				anywhere = anywhere || labelled(term.TopologyKey, other)
				found[i] = found[i] || together(term.TopologyKey, other)
			}
		}
	}
	if len(wanted) == 0 || !anywhere && all(pod) {
		return true
	}
	return !slices.Contains(found, false)
}
