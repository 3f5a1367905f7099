// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/pkg/placement"
)

const zone = corev1.LabelTopologyZone

func inZone(node *corev1.Node, name string) *corev1.Node {
	node.Labels[zone] = name
	return node
}

// near is a term for pods with the label app.
func near(key, app string, namespaces ...string) corev1.PodAffinityTerm {
	return corev1.PodAffinityTerm{TopologyKey: key, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}, Namespaces: namespaces}
}

func with(affinity, anti []corev1.PodAffinityTerm) *corev1.Affinity {
	a := &corev1.Affinity{}
	if affinity != nil {
		a.PodAffinity = &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: affinity}
	}
	if anti != nil {
		a.PodAntiAffinity = &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: anti}
	}
	return a
}

// app gives the members a label and, where terms are given, anti-affinity to others.
func app(name string, anti ...corev1.PodAffinityTerm) func(*placement.Gang) {
	return func(g *placement.Gang) {
		for _, p := range g.Pods {
			p.Labels = map[string]string{"app": name, "rank": p.Name}
			p.Spec.Affinity = with(nil, anti)
		}
	}
}

// port gives the members a host port.
func port(ip string, number int32) func(*placement.Gang) {
	return func(g *placement.Gang) {
		for _, p := range g.Pods {
			p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostIP: ip, HostPort: number, ContainerPort: number}}
		}
	}
}

func listening(pod *corev1.Pod, number int32) *corev1.Pod {
	pod.Spec.Containers = []corev1.Container{{Name: "c", Ports: []corev1.ContainerPort{{HostPort: number, ContainerPort: number, Protocol: corev1.ProtocolTCP}}}}
	return pod
}

func running(namespace, app, node string, affinity *corev1.Affinity) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: app + "-on-" + node, UID: types.UID(namespace + app + node), Labels: map[string]string{"app": app}},
		Spec:       corev1.PodSpec{NodeName: node, Affinity: affinity},
	}
}

func ended(pod *corev1.Pod) *corev1.Pod {
	pod.Status.Phase = corev1.PodSucceeded
	return pod
}

// decidesOn wants a plan, or a part of what a refusal with NodesFull says.
func decidesOn(t *testing.T, c *placement.Cluster, g placement.Gang, want string) {
	t.Helper()
	decision := c.Plan(context.Background(), []placement.Gang{g})[0]
	switch {
	case decision.Refusal == nil && describe(decision) != want:
		t.Errorf("planned on %q, want %q", describe(decision), want)
	case decision.Refusal != nil && (decision.Refusal.Reason != placement.ReasonNodesFull || !strings.Contains(decision.Refusal.Message, want)):
		t.Errorf("refused with %s: %s; want %q", decision.Refusal.Reason, decision.Refusal.Message, want)
	}
}

func TestPodsThatKeepAwayFromEachOther(t *testing.T) {
	const host = corev1.LabelHostname
	one := []any{inZone(readyNode("node-a"), "x"), hgx("node-a")}
	two := append(slices.Clone(one), inZone(readyNode("node-b"), "x"), hgx("node-b"))
	three := append(slices.Clone(two), inZone(readyNode("node-c"), "y"), hgx("node-c"))
	onOwn := func(g *placement.Gang) { app("train", near(host, "train"))(g) }
	for name, test := range map[string]struct {
		cluster []any
		more    []any
		gang    placement.Gang
		want    string // a plan, or a part of the refusal
	}{
		"members without anti-affinity share a node": {two, nil, gangOf("g", 2, 4, app("train")), "node-a node-a.0 ×1: 0 1 2 3; node-a node-a.1 ×1: 4 5 6 7"},
		"members with anti-affinity to each other get a node each": {
			two, nil, gangOf("g", 2, 4, onOwn), "node-a node-a.0 ×1: 0 1 2 3; node-b node-b.0 ×1: 0 1 2 3",
		},
		"more members than nodes": {
			two, nil, gangOf("g", 3, 2, onOwn), "node-a: the pods' anti-affinity lets no two of them share a node",
		},
		"anti-affinity to others says nothing of members": {two, nil, gangOf("g", 2, 4, app("train", near(host, "web"))), "node-a node-a.0 ×1: 0 1 2 3; node-a node-a.1 ×1: 4 5 6 7"},
		"members that keep away from each other's zone": {
			three, nil, gangOf("g", 2, 4, app("train", near(zone, "train"))), "node-a node-a.0 ×1: 0 1 2 3; node-c node-c.0 ×1: 0 1 2 3",
		},
		"more members than zones": {
			three, nil, gangOf("g", 3, 4, app("train", near(zone, "train"))), "lets too few of them share a value of label " + zone,
		},
		"one member without anti-affinity may join another": {
			one, nil, gangOf("g", 2, 4, onOwn, func(g *placement.Gang) { g.Pods[1].Spec.Affinity = nil }), "node-a node-a.0 ×1: 0 1 2 3; node-a node-a.1 ×1: 4 5 6 7",
		},
		"a leader that nobody keeps away from is still kept off by workers": {
			one, nil, gangOf("g", 2, 4, onOwn, func(g *placement.Gang) { g.Pods[0].Labels["app"] = "leader" }), "lets no two of them share a node",
		},
		"two that nobody selects": {
			one, nil, gangOf("g", 2, 4, onOwn, func(g *placement.Gang) { g.Pods[0].Labels, g.Pods[1].Labels = nil, nil }), "node-a node-a.0 ×1: 0 1 2 3; node-a node-a.1 ×1: 4 5 6 7",
		},
		"a pod that the members keep away from": {
			two, []any{running("ml", "web", "node-a", nil)}, gangOf("g", 1, 4, app("train", near(host, "web"))), "node-b node-b.0 ×1: 0 1 2 3",
		},
		"everywhere": {
			two,
			[]any{running("ml", "web", "node-a", nil), running("ml", "web", "node-b", nil)},
			gangOf("g", 1, 4, app("train", near(host, "web"))),
			"node-a: the pods' anti-affinity keeps them away from pod ml/web-on-node-a",
		},
		"in the same zone": {
			three, []any{running("ml", "web", "node-b", nil)}, gangOf("g", 1, 4, app("train", near(zone, "web"))), "node-c node-c.0 ×1: 0 1 2 3",
		},
		"one that has ended": {
			two, []any{ended(running("ml", "web", "node-a", nil))}, gangOf("g", 1, 4, app("train", near(host, "web"))), "node-a node-a.0 ×1: 0 1 2 3",
		},
		"one of another namespace": {
			two, []any{running("web", "web", "node-a", nil)}, gangOf("g", 1, 4, app("train", near(host, "web"))), "node-a node-a.0 ×1: 0 1 2 3",
		},
		"one of a namespace that is named": {
			two, []any{running("web", "web", "node-a", nil)}, gangOf("g", 1, 4, app("train", near(host, "web", "web"))), "node-b node-b.0 ×1: 0 1 2 3",
		},
		"one of any namespace": {
			two, []any{running("web", "web", "node-a", nil)}, gangOf("g", 1, 4, app("train", func() corev1.PodAffinityTerm {
				term := near(host, "web")
				term.NamespaceSelector = &metav1.LabelSelector{}
				return term
			}())), "node-b node-b.0 ×1: 0 1 2 3",
		},
		"namespaces by their labels are left to the scheduler": {
			two, []any{running("ml", "web", "node-a", nil)}, gangOf("g", 1, 4, app("train", func() corev1.PodAffinityTerm {
				term := near(host, "web")
				term.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "x"}}
				return term
			}())), "node-a node-a.0 ×1: 0 1 2 3",
		},
		"a pod that keeps away from members": {
			two, []any{running("ml", "web", "node-a", with(nil, []corev1.PodAffinityTerm{near(host, "train")}))}, gangOf("g", 1, 4, app("train")), "node-b node-b.0 ×1: 0 1 2 3",
		},
		"which is all there is": {
			one,
			[]any{running("ml", "web", "node-a", with(nil, []corev1.PodAffinityTerm{near(host, "train")}))},
			gangOf("g", 1, 4, app("train")),
			"node-a: a pod that runs there keeps these pods away: its anti-affinity to app=train",
		},
		"members with a host port get a node each": {
			two, nil, gangOf("g", 2, 4, port("", 29500)), "node-a node-a.0 ×1: 0 1 2 3; node-b node-b.0 ×1: 0 1 2 3",
		},
		"more of them than nodes": {two, nil, gangOf("g", 3, 2, port("", 29500)), "node-a: the pods take the same host port, so no two of them can share a node"},
		"a host port of one member": {
			one, nil, gangOf("g", 2, 4, port("", 29500), func(g *placement.Gang) { g.Pods[0].Spec.Containers[0].Ports = nil }), "node-a node-a.0 ×1: 0 1 2 3; node-a node-a.1 ×1: 4 5 6 7",
		},
		"host ports that differ": {
			one, nil, gangOf("g", 2, 4, port("", 29500), func(g *placement.Gang) { g.Pods[0].Spec.Containers[0].Ports[0].HostPort = 29501 }), "node-a node-a.0 ×1: 0 1 2 3; node-a node-a.1 ×1: 4 5 6 7",
		},
		"a host port of two addresses": {
			one, nil, gangOf("g", 2, 4, port("10.0.0.1", 29500), func(g *placement.Gang) { g.Pods[0].Spec.Containers[0].Ports[0].HostIP = "10.0.0.2" }), "node-a node-a.0 ×1: 0 1 2 3; node-a node-a.1 ×1: 4 5 6 7",
		},
		"a host port that a pod has": {
			two, []any{listening(running("web", "web", "node-a", nil), 29500)}, gangOf("g", 1, 4, port("10.0.0.1", 29500)), "node-b node-b.0 ×1: 0 1 2 3",
		},
		"everywhere, in a sidecar": {
			one,
			[]any{listening(running("web", "web", "node-a", nil), 29500)},
			gangOf("g", 1, 4, port("", 29500), func(g *placement.Gang) {
				spec := &g.Pods[0].Spec
				spec.InitContainers = []corev1.Container{{Name: "proxy", Ports: spec.Containers[0].Ports, RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways)}}
				spec.Containers[0].Ports = nil
			}), "node-a: pod web/web-on-node-a has host port 29500",
		},
		"another protocol": {
			one,
			[]any{listening(running("web", "web", "node-a", nil), 29500)},
			gangOf("g", 1, 4, port("", 29500), func(g *placement.Gang) { g.Pods[0].Spec.Containers[0].Ports[0].Protocol = corev1.ProtocolUDP }), "node-a node-a.0 ×1: 0 1 2 3",
		},
		"a label that nodes do not have tells no places apart": {
			two, []any{running("ml", "web", "node-a", nil)}, gangOf("g", 1, 4, app("train", near("rack", "web"))), "node-a node-a.0 ×1: 0 1 2 3",
		},
	} {
		t.Run(name, func(t *testing.T) {
			decidesOn(t, clusterOf(t, slices.Concat(test.cluster, test.more)...), test.gang, test.want)
		})
	}
}

func TestPodsThatWantToBeNearOthers(t *testing.T) {
	three := []any{
		inZone(readyNode("node-a"), "x"), hgx("node-a"), inZone(readyNode("node-b"), "y"), hgx("node-b"), inZone(readyNode("node-c"), "y"), hgx("node-c"),
	}
	wants := func(terms ...corev1.PodAffinityTerm) func(*placement.Gang) {
		return func(g *placement.Gang) {
			app("train")(g)
			for _, p := range g.Pods {
				p.Spec.Affinity = with(terms, nil)
			}
		}
	}
	for name, test := range map[string]struct {
		more []any
		gang placement.Gang
		want string
	}{
		"on its node":                 {[]any{running("ml", "cache", "node-c", nil)}, gangOf("g", 1, 4, wants(near(corev1.LabelHostname, "cache"))), "node-c node-c.0 ×1: 0 1 2 3"},
		"in its zone":                 {[]any{running("ml", "cache", "node-c", nil)}, gangOf("g", 1, 4, wants(near(zone, "cache"))), "node-b node-b.0 ×1: 0 1 2 3"},
		"it is nowhere":               {nil, gangOf("g", 1, 4, wants(near(zone, "cache"))), "node-a: no pod runs there that the pods' affinity asks for: app=cache"},
		"by a label that no node has": {nil, gangOf("g", 1, 4, wants(near("rack", "train"))), "node-a: it has no label rack, by which the pods' affinity goes"},
		"two that no pod is both of": {
			[]any{running("ml", "cache", "node-a", nil), running("ml", "web", "node-a", nil)},
			gangOf("g", 1, 4, wants(near(zone, "cache"), near(zone, "web"))), "no pod runs there that the pods' affinity asks for",
		},
		"each other, the first of them anywhere": {nil, gangOf("g", 2, 4, wants(near(zone, "train"))), "node-a node-a.0 ×1: 0 1 2 3; node-a node-a.1 ×1: 4 5 6 7"},
		"each other, in the zone that has room for all": {
			nil, gangOf("g", 4, 4, wants(near(zone, "train"))),
			"node-b node-b.0 ×1: 0 1 2 3; node-b node-b.1 ×1: 4 5 6 7; node-c node-c.0 ×1: 0 1 2 3; node-c node-c.1 ×1: 4 5 6 7",
		},
		"each other, and no zone has room for all": {
			nil, gangOf("g", 5, 4, wants(near(zone, "train"))), "the pods' affinity to each other wants all of them at nodes with one value of label " + zone,
		},
		"a leader, in whose zone they have to be": {
			nil, gangOf("g", 5, 4, wants(near(zone, "lead")), func(g *placement.Gang) { g.Pods[4].Labels["app"], g.Pods[4].Spec.Affinity = "lead", nil }),
			"wants all of them at nodes with one value of label " + zone,
		},
		"each other, but one has no part in that": {
			nil, gangOf("g", 5, 4, wants(near(zone, "train")), func(g *placement.Gang) { g.Pods[4].Labels["app"], g.Pods[4].Spec.Affinity = "lead", nil }),
			"node-a node-a.0 ×1: 0 1 2 3; node-a node-a.1 ×1: 4 5 6 7; node-b node-b.0 ×1: 0 1 2 3; node-b node-b.1 ×1: 4 5 6 7; node-c node-c.0 ×1: 0 1 2 3",
		},
		"each other, where one runs already that is in no zone": {
			[]any{readyNode("node-d"), running("ml", "train", "node-d", nil)}, gangOf("g", 1, 4, wants(near(zone, "train"))), "node-a node-a.0 ×1: 0 1 2 3",
		},
		"each other, where some run already": {
			[]any{running("ml", "train", "node-b", nil)}, gangOf("g", 1, 4, wants(near(zone, "train"))), "node-b node-b.0 ×1: 0 1 2 3",
		},
	} {
		t.Run(name, func(t *testing.T) {
			decidesOn(t, clusterOf(t, slices.Concat(three, test.more)...), test.gang, test.want)
		})
	}
}
