// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unique"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	resourcehelpers "k8s.io/component-helpers/resource"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2" //nolint:depguard // the helpers take a logger; nothing is logged
)

// amounts are quantities of resources: millicores of CPU, else units.
type amounts map[corev1.ResourceName]int64

// mostAmount is what a larger amount counts as: no node has as much, and sums over a node's pods do not overflow. A pod may
// request anything.
const mostAmount = 1 << 50

func amount(name corev1.ResourceName, q resource.Quantity) int64 {
	if name == corev1.ResourceCPU {
		return min(q.MilliValue(), mostAmount)
	}
	return min(q.Value(), mostAmount)
}

func amountsOf(list corev1.ResourceList) amounts {
	a := make(amounts, len(list))
	for name, q := range list {
		a[name] = amount(name, q)
	}
	return a
}

// node is a node, what its pods take, and its devices. It is there while any of them is.
type node struct {
	pools []*pool
	// open says that the node is Ready, not cordoned and has no taints: it suits pods that say nothing about nodes.
	open   bool
	stocks stocks
	name   string
	object *corev1.Node
	pods   int
	// loose stands for the domain of devices that have none.
	loose domain
}

// pod is a pod and what it takes of its node.
type pod struct {
	object   *corev1.Pod
	node     string // empty when it takes nothing
	requests amounts
	// extended are the resources that a pod without a node requests of which a DeviceClass may be behind (KEP-5004).
	extended []corev1.ResourceName
}

// SetNode adds or replaces a Node.
func (c *Cluster) SetNode(object *corev1.Node) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	n := c.node(object.Name)
	n.object = object
	n.open = ready(object) && !object.Spec.Unschedulable && len(object.Spec.Taints) == 0
	n.stocks.setAllocatable(amountsOf(object.Status.Allocatable))
}

// DeleteNode removes a Node by name.
func (c *Cluster) DeleteNode(name string) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if n := c.nodes[name]; n != nil {
		n.object, n.open = nil, false
		n.stocks.setAllocatable(nil)
		c.forgetNode(n)
	}
}

func (c *Cluster) node(name string) *node {
	n := c.nodes[name]
	if n == nil {
		n = &node{name: name}
		c.nodes[name] = n
		at, _ := slices.BinarySearchFunc(c.sortedNodes, name, compareName)
		c.sortedNodes = slices.Insert(c.sortedNodes, at, n)
	}
	return n
}

func (c *Cluster) forgetNode(n *node) {
	if n.object != nil || n.pods > 0 || len(n.pools) > 0 {
		return
	}
	delete(c.nodes, n.name)
	if at, ok := slices.BinarySearchFunc(c.sortedNodes, n.name, compareName); ok {
		c.sortedNodes = slices.Delete(c.sortedNodes, at, at+1)
	}
}

func compareName(n *node, name string) int { return cmp.Compare(n.name, name) }

// SetPod adds or replaces a Pod.
func (c *Cluster) SetPod(object *corev1.Pod) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	key := types.NamespacedName{Namespace: object.Namespace, Name: object.Name}
	c.deletePod(key)
	p := &pod{object: object}
	c.pods[key] = p
	for template := range templates(object) {
		if c.byTemplate[template] == nil {
			c.byTemplate[template] = map[types.NamespacedName]*pod{}
		}
		c.byTemplate[template][key] = p
	}
	switch {
	case Ended(object):
	case object.Spec.NodeName == "":
		c.unbound[key] = p
		for name := range podRequests(object) {
			if strings.Contains(string(name), "/") {
				p.extended = append(p.extended, name)
			}
		}
	default:
		p.node, p.requests = object.Spec.NodeName, podRequests(object)
		n := c.node(p.node)
		n.pods++
		n.stocks.request(p.requests, 1)
		c.repel(p, 1)
	}
}

// DeletePod removes a Pod.
func (c *Cluster) DeletePod(key types.NamespacedName) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.deletePod(key)
}

func (c *Cluster) deletePod(key types.NamespacedName) {
	p := c.pods[key]
	if p == nil {
		return
	}
	delete(c.pods, key)
	delete(c.unbound, key)
	for template := range templates(p.object) {
		delete(c.byTemplate[template], key)
		if len(c.byTemplate[template]) == 0 {
			delete(c.byTemplate, template)
		}
	}
	if p.node == "" {
		return
	}
	n := c.nodes[p.node]
	n.pods--
	n.stocks.request(p.requests, -1)
	c.repel(p, -1)
	c.forgetNode(n)
}

// templates calls yield for the ResourceClaimTemplates that the pod names.
func templates(pod *corev1.Pod) func(yield func(types.NamespacedName) bool) {
	return func(yield func(types.NamespacedName) bool) {
		for _, ref := range pod.Spec.ResourceClaims {
			if ref.ResourceClaimTemplateName != nil && !yield(types.NamespacedName{Namespace: pod.Namespace, Name: *ref.ResourceClaimTemplateName}) {
				return
			}
		}
	}
}

// Ended says that the containers of the pod have stopped for good: it has neither resources nor devices any more.
func Ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// podRequests is what a pod takes of its node, as kube-scheduler counts it.
func podRequests(pod *corev1.Pod) amounts {
	requests := amountsOf(resourcehelpers.PodRequests(pod, resourcehelpers.PodResourcesOptions{
		UseStatusResources: true,
		InPlacePodLevelResourcesVerticalScalingEnabled: true,
	}))
	requests[corev1.ResourcePods] = 1
	return requests
}

// needs is what the nodes of a gang must offer: enough for each of its pods, since any of them may be
// scheduled to any of the nodes.
type needs struct {
	kinds    []podKind
	anywhere bool // all kinds are
	requests []need
	company
}

// need is the most that a pod of the gang requests of a resource.
type need struct {
	name  resourceName
	value int64
}

// podKind is what pods say about nodes.
type podKind struct {
	spec        *corev1.PodSpec
	affinity    nodeaffinity.RequiredNodeAffinity
	anywhere    bool // no selector, no required affinity
	tolerations []corev1.Toleration
}

// needsOf gathers what the pods ask of a node. Resources that a DeviceClass stands for are left to the
// scheduler: no node has them.
func (c *Cluster) needsOf(pods []*corev1.Pod) needs {
	most := amounts{corev1.ResourcePods: 1}
	var n needs
	for _, p := range pods {
		for name, value := range podRequests(p) {
			most[name] = max(most[name], value)
		}
		if !slices.ContainsFunc(n.kinds, func(k podKind) bool { return sameKind(k.spec, &p.Spec) }) {
			n.kinds = append(n.kinds, kindOf(p))
		}
	}
	for name, value := range most {
		if value > 0 && c.classOfResource(name) == nil {
			n.requests = append(n.requests, need{unique.Make(name), value})
		}
	}
	slices.SortFunc(n.requests, func(a, b need) int { return cmp.Compare(a.name.Value(), b.name.Value()) })
	if len(pods) == 0 {
		n.kinds = []podKind{{spec: &corev1.PodSpec{}, anywhere: true}}
	}
	n.anywhere = !slices.ContainsFunc(n.kinds, func(k podKind) bool { return !k.anywhere })
	return n
}

func kindOf(p *corev1.Pod) podKind {
	return podKind{
		spec:        &p.Spec,
		affinity:    nodeaffinity.GetRequiredNodeAffinity(p),
		anywhere:    len(p.Spec.NodeSelector) == 0 && (p.Spec.Affinity == nil || p.Spec.Affinity.NodeAffinity == nil),
		tolerations: p.Spec.Tolerations,
	}
}

func sameKind(a, b *corev1.PodSpec) bool {
	return reflect.DeepEqual(a.NodeSelector, b.NodeSelector) &&
		reflect.DeepEqual(a.Affinity, b.Affinity) &&
		reflect.DeepEqual(a.Tolerations, b.Tolerations)
}

// suits says why some pod of the gang may not run on the node, now or later; empty when all may. What
// the node's pods take is not looked at, only who they are.
func (n *node) suits(needs needs) string {
	switch {
	case needs.shunned[n] != "":
		return needs.shunned[n]
	case n.open && needs.anywhere:
		return ""
	case n.object == nil:
		return "there is no such Node"
	case !ready(n.object):
		return "it is not Ready"
	}
	for i := range needs.kinds {
		if why := suitsKind(n.object, &needs.kinds[i]); why != "" {
			return why
		}
	}
	return ""
}

func suitsKind(n *corev1.Node, k *podKind) string {
	if n.Spec.Unschedulable && !corev1helpers.TolerationsTolerateTaint(klog.Background(), k.tolerations, &corev1.Taint{
		Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule,
	}, false) {
		return "it is cordoned"
	}
	if taint := k.untolerated(n); taint != nil {
		return fmt.Sprintf("the pods do not tolerate its taint %s", taint.ToString())
	}
	if !k.wants(n) {
		return "the pods' node selector or affinity excludes it"
	}
	return ""
}

// untolerated is a taint of the node that keeps the pods off, or nil.
func (k *podKind) untolerated(n *corev1.Node) *corev1.Taint {
	if len(n.Spec.Taints) == 0 {
		return nil
	}
	taint, untolerated := corev1helpers.FindMatchingUntoleratedTaint(klog.Background(), n.Spec.Taints, k.tolerations, keepsOff, false)
	if !untolerated {
		return nil
	}
	return &taint
}

// wants reports whether the pods' node selector and required affinity match the node.
func (k *podKind) wants(n *corev1.Node) bool {
	if k.anywhere {
		return true
	}
	match, err := k.affinity.Match(n)
	return err == nil && match
}

func keepsOff(t *corev1.Taint) bool {
	return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
}

func ready(n *corev1.Node) bool {
	for i := range n.Status.Conditions {
		if n.Status.Conditions[i].Type == corev1.NodeReady {
			return n.Status.Conditions[i].Status == corev1.ConditionTrue
		}
	}
	return false
}

// room is how many pods of the gang the node holds next to those that it has and those it is promised
// to, or, if empty, without any.
func (n *node) room(needs needs, promised amounts, empty bool) int {
	room := int64(needs.on(n, resourceMembersMax))
	if needs.apart != "" {
		room = min(room, 1)
	}
	if seats, ok := needs.seats[n]; ok {
		room = min(room, int64(seats))
	}
	for _, need := range needs.requests {
		stock := n.stocks.of(need.name)
		left := stock.allocatable
		if !empty {
			left -= stock.requested + promised[need.name.Value()]
		}
		room = min(room, max(left, 0)/need.value)
	}
	return int(room)
}

// shortage says why the node does not hold that many pods of the gang: which resource is missing, or is not enough for one.
func (n *node) shortage(needs needs, promised amounts, pods int) string {
	if needs.apart != "" && pods > 1 {
		return needs.apart
	}
	if seats, ok := needs.seats[n]; ok && pods > seats {
		return fmt.Sprintf("only %d of the pods can be there, by their node selectors, tolerations and PersistentVolumes", seats)
	}
	for _, need := range needs.requests {
		name, stock := need.name.Value(), n.stocks.of(need.name)
		left := max(stock.allocatable-stock.requested-promised[name], 0)
		if left < need.value*int64(pods) {
			return fmt.Sprintf("%s: %d × %s requested, %s left", name, pods, quantity(name, need.value), quantity(name, left))
		}
	}
	return ""
}

func quantity(name corev1.ResourceName, value int64) string {
	switch name {
	case corev1.ResourceCPU:
		return resource.NewMilliQuantity(value, resource.DecimalSI).String()
	case corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
		return resource.NewQuantity(value, resource.BinarySI).String()
	default:
		return resource.NewQuantity(value, resource.DecimalSI).String()
	}
}

// resourceMembersMax is more than a gang has members.
const resourceMembersMax = 1 << 16
