// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// company is what required inter-pod affinity, anti-affinity and host ports, of the pods of a gang and of others, and the
// pods' persistent volumes mean for a gang.
type company struct {
	// apart says why no two pods of the gang may share a node; empty when they may.
	apart string
	// shunned are the nodes on which some pod of the gang may not run, because of who runs there or does not or where its
	// volumes are, and why.
	shunned map[*node]string
	// seats are how many of the pods can be on a node, by their volumes and kinds.
	seats map[*node]int
	// together are the node labels by which all of the pods have to be in one place.
	together []string
	// bounds are how many of the pods places may have, and limits how many they are to have as long as that is possible.
	bounds, limits []bound
}

func (c company) same(other company) bool {
	return c.apart == other.apart && maps.Equal(c.shunned, other.shunned) && maps.Equal(c.seats, other.seats) && slices.Equal(c.together, other.together) &&
		slices.EqualFunc(c.bounds, other.bounds, bound.same) && slices.EqualFunc(c.limits, other.limits, bound.same)
}

// shun notes a node, unless it is already.
func (c *company) shun(n *node, why string) {
	if c.shunned == nil {
		c.shunned = map[*node]string{}
	}
	if _, ok := c.shunned[n]; !ok {
		c.shunned[n] = why
	}
}

// term is a required term of inter-pod affinity or anti-affinity.
type term struct {
	selector   labels.Selector
	namespaces []string // sorted; nil: all
	key        string   // of the node label that tells places apart
}

// termsOf reads a pod's terms. Those with a selector of namespaces other than the empty one, which selects all, are
// left out: the labels of namespaces are not known.
func termsOf(pod *corev1.Pod, required []corev1.PodAffinityTerm) []term {
	var terms []term
	for i := range required {
		t := term{key: required[i].TopologyKey}
		selector, err := metav1.LabelSelectorAsSelector(required[i].LabelSelector)
		switch named := required[i].NamespaceSelector; {
		case err != nil || named != nil && len(named.MatchLabels)+len(named.MatchExpressions) > 0:
			continue
		case named != nil:
		case len(required[i].Namespaces) > 0:
			t.namespaces = slices.Sorted(slices.Values(required[i].Namespaces))
		default:
			t.namespaces = []string{pod.Namespace}
		}
		t.selector = selector
		terms = append(terms, t)
	}
	return terms
}

func attractions(pod *corev1.Pod) []term {
	if pod.Spec.Affinity == nil || pod.Spec.Affinity.PodAffinity == nil {
		return nil
	}
	return termsOf(pod, pod.Spec.Affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution)
}

func repulsions(pod *corev1.Pod) []term {
	if pod.Spec.Affinity == nil || pod.Spec.Affinity.PodAntiAffinity == nil {
		return nil
	}
	return termsOf(pod, pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution)
}

func (t term) selects(pod *corev1.Pod) bool {
	return (t.namespaces == nil || slices.Contains(t.namespaces, pod.Namespace)) && t.selector.Matches(labels.Set(pod.Labels))
}

// text is equal for terms that say the same.
func (t term) text() string { return fmt.Sprintf("%s %q %s", t.key, t.namespaces, t.selector) }

func sameTerm(a, b term) bool { return a.text() == b.text() }

// keysOf are the node labels by which terms tell places apart.
func keysOf(terms []term) map[string]bool {
	keys := map[string]bool{}
	for _, t := range terms {
		keys[t.key] = true
	}
	return keys
}

// repulsion is a term of anti-affinity that running pods have: equal ones are one, as pods of one owner are many.
type repulsion struct {
	term
	nodes map[string]int // how many such pods each node has
}

// repel adds a running pod's anti-affinity, or takes it away.
func (c *Cluster) repel(p *pod, by int) {
	for _, t := range repulsions(p.object) {
		text := t.text()
		r := c.repulsions[text]
		if r == nil {
			r = &repulsion{term: t, nodes: map[string]int{}}
			c.repulsions[text] = r
		}
		if r.nodes[p.node] += by; r.nodes[p.node] == 0 {
			delete(r.nodes, p.node)
		}
		if len(r.nodes) == 0 {
			delete(c.repulsions, text)
		}
	}
}

// places are values of node labels, by key and value, with a reason each.
type places map[string]map[string]string

// add adds the place of a node.
func (p places) add(n *node, key, why string) {
	value, ok := n.label(key)
	if !ok {
		return
	}
	if p[key] == nil {
		p[key] = map[string]string{}
	}
	// Whatever the order in which pods are looked at, the reason is the same.
	if known, ok := p[key][value]; !ok || why < known {
		p[key][value] = why
	}
}

// of returns the reason of the place where a node is, and whether it is listed.
func (p places) of(n *node, key string) (why string, ok bool) {
	value, labelled := n.label(key)
	if !labelled {
		return "", false
	}
	why, ok = p[key][value]
	return why, ok
}

// label returns a label of the node; a nil node has none.
func (n *node) label(key string) (value string, ok bool) {
	if n == nil || n.object == nil {
		return "", false
	}
	value, ok = n.object.Labels[key]
	return value, ok
}

// companyOf finds out what pods say about each other, as kube-scheduler's plugins InterPodAffinity and NodePorts do. Any pod
// of the gang may be scheduled to any of its nodes, so all must suit. Pods that are planned and not bound are not seen.
func (c *Cluster) companyOf(pods []*corev1.Pod) company {
	own, wanted, ports := distinct(pods, repulsions), distinct(pods, attractions), hostPortsOf(pods)
	if len(own)+len(wanted)+len(ports)+len(c.repulsions) == 0 {
		return company{}
	}
	away := places{}
	for _, r := range c.repulsions {
		if !slices.ContainsFunc(pods, r.selects) {
			continue
		}
		for name := range r.nodes {
			away.add(c.nodes[name], r.key, fmt.Sprintf("a pod that runs there keeps these pods away: its anti-affinity to %s", r.selector))
		}
	}
	for _, t := range own {
		for key, p := range c.pods {
			if p.node != "" && t.selects(p.object) {
				away.add(c.nodes[p.node], t.key, fmt.Sprintf("the pods' anti-affinity keeps them away from pod %s", key))
			}
		}
	}
	var result company
	switch {
	case apart(pods, corev1.LabelHostname):
		result.apart = "the pods' anti-affinity lets no two of them share a node"
	case clash(pods):
		result.apart = "the pods take the same host port, so no two of them can share a node"
	}
	for _, key := range slices.Sorted(maps.Keys(keysOf(own))) {
		if key != corev1.LabelHostname && apart(pods, key) {
			result.bounds = append(result.bounds, bound{key: key, most: 1})
		}
	}
	keys := slices.Sorted(maps.Keys(away))
	for _, n := range c.sortedNodes {
		for _, key := range keys {
			if why, ok := away.of(n, key); ok {
				result.shun(n, why)
			}
		}
	}
	var looked [][]term
	for _, p := range pods {
		terms := attractions(p)
		if len(terms) == 0 || slices.ContainsFunc(looked, func(o []term) bool { return slices.EqualFunc(terms, o, sameTerm) }) {
			continue
		}
		looked = append(looked, terms)
		c.nearTo(pods, terms, &result)
	}
	c.besidePorts(ports, result.shun)
	return result
}

// nearTo shuns the nodes where no pod runs that all the terms of a pod's affinity select, and those without a label by
// which a term tells places apart. Where nobody runs yet that the terms select and one of the gang's own pods would be the
// first, any other node will do, but all must be in the place of the first.
func (c *Cluster) nearTo(pods []*corev1.Pod, terms []term, result *company) {
	all := func(pod *corev1.Pod) bool {
		return !slices.ContainsFunc(terms, func(t term) bool { return !t.selects(pod) })
	}
	near := places{}
	for _, p := range c.pods {
		if p.node == "" || !all(p.object) {
			continue
		}
		for _, t := range terms {
			near.add(c.nodes[p.node], t.key, "")
		}
	}
	// As for kube-scheduler, pods on nodes without the labels are nobody.
	first := len(near) == 0 && slices.ContainsFunc(pods, all)
	for _, n := range c.sortedNodes {
		for _, t := range terms {
			_, labelled := n.label(t.key)
			_, ok := near.of(n, t.key)
			switch {
			case !labelled:
				result.shun(n, fmt.Sprintf("it has no label %s, by which the pods' affinity goes", t.key))
			case !ok && !first:
				result.shun(n, fmt.Sprintf("no pod runs there that the pods' affinity asks for: %s", t.selector))
			}
		}
	}
	// A pod that neither says so nor is asked for may be elsewhere: such gangs are left to the scheduler.
	if first && !slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return !all(p) && !slices.EqualFunc(attractions(p), terms, sameTerm) }) {
		result.together = slices.Compact(slices.Sorted(slices.Values(append(result.together, slices.Collect(maps.Keys(keysOf(terms)))...))))
	}
}

// apart reports whether anti-affinity lets no two of the pods share a place, by a node label. That is told only of pods that
// all say the same of each other, as those of one template do.
func apart(pods []*corev1.Pod, key string) bool {
	if len(pods) < 2 {
		return false
	}
	ofKey := func(pod *corev1.Pod) map[string]term {
		terms := map[string]term{}
		for _, t := range repulsions(pod) {
			if t.key == key {
				terms[t.text()] = t
			}
		}
		return terms
	}
	common := ofKey(pods[0])
	if len(common) == 0 {
		return false
	}
	spared := 0
	for _, p := range pods {
		terms := ofKey(p)
		if len(terms) != len(common) {
			return false
		}
		selected := false
		for text, t := range common {
			if _, ok := terms[text]; !ok {
				return false
			}
			selected = selected || t.selects(p)
		}
		if !selected {
			spared++
		}
	}
	// Of two of which neither is selected, both may share a place.
	return spared < 2
}

// distinct are the terms of the pods, each once.
func distinct(pods []*corev1.Pod, of func(*corev1.Pod) []term) []term {
	var terms []term
	seen := map[string]bool{}
	for _, p := range pods {
		for _, t := range of(p) {
			if text := t.text(); !seen[text] {
				seen[text] = true
				terms = append(terms, t)
			}
		}
	}
	return terms
}
