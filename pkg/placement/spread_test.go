// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement_test

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// spread makes the members keep a topology spread.
func spread(change ...func(*corev1.TopologySpreadConstraint)) func(*placement.Gang) {
	return func(g *placement.Gang) {
		for _, p := range g.Pods {
			p.Labels = map[string]string{"app": "train", "rank": p.Name}
			constraint := corev1.TopologySpreadConstraint{
				MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.DoNotSchedule,
				LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "train"}},
			}
			for _, c := range change {
				c(&constraint)
			}
			p.Spec.TopologySpreadConstraints = append(p.Spec.TopologySpreadConstraints, constraint)
		}
	}
}

func overZones(c *corev1.TopologySpreadConstraint) { c.TopologyKey = zone }

// zones are two nodes in zones.
func zones(a, b string) []any {
	return []any{inZone(readyNode("node-a"), a), hgx("node-a"), inZone(readyNode("node-b"), b), hgx("node-b")}
}

func TestMembersAreSpread(t *testing.T) {
	two := []any{readyNode("node-a"), hgx("node-a"), readyNode("node-b"), hgx("node-b")}
	const (
		packed = "node-a node-a.0 ×1: 0 1 2 3; node-a node-a.1 ×1: 4 5 6 7"
		apart  = "node-a node-a.0 ×1: 0 1 2 3; node-b node-b.0 ×1: 0 1 2 3"
		onB    = "node-b node-b.0 ×1: 0 1 2 3"
		all    = packed + "; node-b node-b.0 ×1: 0 1 2 3; node-b node-b.1 ×1: 4 5 6 7"
	)
	tainted := readyNode("node-c")
	tainted.Spec.Taints = []corev1.Taint{{Key: "x", Effect: corev1.TaintEffectNoSchedule}}
	unlabelled := readyNode("node-c")
	delete(unlabelled.Labels, corev1.LabelHostname)
	ending := running("ml", "train", "node-a", nil)
	ending.DeletionTimestamp = ptr.To(metav1.Now())
	onGPUs := func(g *placement.Gang) {
		for _, p := range g.Pods {
			p.Spec.NodeSelector = map[string]string{"gpu": "yes"}
		}
	}
	labelled := func() []any {
		a, b := readyNode("node-a"), readyNode("node-b")
		a.Labels["gpu"], b.Labels["gpu"] = "yes", "yes"
		return []any{a, hgx("node-a"), b, hgx("node-b"), readyNode("cpu-only")}
	}()
	for name, test := range map[string]struct {
		cluster []any
		gang    placement.Gang
		want    string
	}{
		"without":                        {two, gangOf("g", 2, 4), packed},
		"a skew of one":                  {two, gangOf("g", 2, 4, spread()), apart},
		"a skew of two":                  {two, gangOf("g", 2, 4, spread(func(c *corev1.TopologySpreadConstraint) { c.MaxSkew = 2 })), packed},
		"the smaller of two skews":       {two, gangOf("g", 2, 4, spread(func(c *corev1.TopologySpreadConstraint) { c.MaxSkew = 2 }), spread()), apart},
		"if possible":                    {two, gangOf("g", 2, 4, spread(func(c *corev1.TopologySpreadConstraint) { c.WhenUnsatisfiable = corev1.ScheduleAnyway })), packed},
		"over zones that no node is in":  {two, gangOf("g", 2, 4, spread(overZones)), "NodesFull"},
		"over two zones":                 {zones("x", "y"), gangOf("g", 2, 4, spread(overZones)), apart},
		"over one zone":                  {zones("x", "x"), gangOf("g", 2, 4, spread(overZones)), packed}, // as if there were no limit
		"over zones, with a skew of two": {zones("x", "y"), gangOf("g", 2, 4, spread(overZones, func(c *corev1.TopologySpreadConstraint) { c.MaxSkew = 2 })), packed},
		"over zones, of which one has some already": {
			append(zones("x", "y"), running("ml", "train", "node-a", nil)), gangOf("g", 1, 4, spread(overZones)), onB,
		},
		"nodes without another label do not count": {
			append(zones("x", "y"), inZone(unlabelled.DeepCopy(), "z"), running("ml", "train", "node-a", nil), running("ml", "train", "node-b", nil)),
			gangOf("g", 2, 4, spread(overZones), spread(func(c *corev1.TopologySpreadConstraint) { c.MaxSkew = 5 })), apart,
		},
		"and no two on a node": {
			append(slices.Clone(two), readyNode("node-c"), hgx("node-c"), running("ml", "train", "node-a", nil)),
			gangOf("g", 2, 4, spread(), port("", 80)), "node-b node-b.0 ×1: 0 1 2 3; node-c node-c.0 ×1: 0 1 2 3",
		},
		"over zones and host names": {
			append(zones("x", "y"), inZone(readyNode("node-c"), "y"), hgx("node-c")), gangOf("g", 3, 4, spread(overZones, func(c *corev1.TopologySpreadConstraint) { c.MaxSkew = 2 }), spread()),
			apart + "; node-c node-c.0 ×1: 0 1 2 3",
		},
		"of other pods":                  {two, gangOf("g", 2, 4, spread(func(c *corev1.TopologySpreadConstraint) { c.LabelSelector.MatchLabels["app"] = "web" })), packed},
		"of one member":                  {two, gangOf("g", 2, 4, spread(), func(g *placement.Gang) { g.Pods[1].Spec.TopologySpreadConstraints = nil }), packed},
		"more than that allows for sure": {two, gangOf("g", 4, 4, spread()), all},
		"a node has one already":         {append(slices.Clone(two), running("ml", "train", "node-a", nil)), gangOf("g", 1, 4, spread()), onB},
		"each has one already": {
			append(slices.Clone(two), running("ml", "train", "node-a", nil), running("ml", "train", "node-b", nil)), gangOf("g", 2, 4, spread()), apart,
		},
		"of another namespace": {append(slices.Clone(two), running("web", "train", "node-a", nil)), gangOf("g", 1, 4, spread()), "node-a node-a.0 ×1: 0 1 2 3"},
		"which is ending":      {append(slices.Clone(two), ending), gangOf("g", 1, 4, spread()), "node-a node-a.0 ×1: 0 1 2 3"},
		"too few nodes to count by": {
			append(slices.Clone(two), running("ml", "train", "node-a", nil), running("ml", "train", "node-b", nil)),
			gangOf("g", 2, 4, spread(func(c *corev1.TopologySpreadConstraint) { c.MinDomains, c.MaxSkew = ptr.To[int32](3), 2 })), apart,
		},
		"a node without GPUs counts as one with none": {
			append(slices.Clone(two), readyNode("cpu-only"), running("ml", "train", "node-a", nil), running("ml", "train", "node-b", nil)),
			gangOf("g", 2, 4, spread()), packed, // no more is allowed: as if there were no limit
		},
		"unless members do not want it": {
			append(slices.Clone(labelled), running("ml", "train", "node-a", nil), running("ml", "train", "node-b", nil)), gangOf("g", 2, 4, spread(), onGPUs), apart,
		},
		"or has no host name": {
			append(slices.Clone(two), unlabelled, running("ml", "train", "node-a", nil), running("ml", "train", "node-b", nil)), gangOf("g", 2, 4, spread()), apart,
		},
		"or is tainted and taints are honoured": {
			append(slices.Clone(two), tainted, running("ml", "train", "node-a", nil), running("ml", "train", "node-b", nil)),
			gangOf("g", 2, 4, spread(func(c *corev1.TopologySpreadConstraint) { c.NodeTaintsPolicy = ptr.To(corev1.NodeInclusionPolicyHonor) })), apart,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := planOf(t, clusterOf(t, test.cluster...), test.gang); got != test.want {
				t.Errorf("planned on %q, want %q", got, test.want)
			}
		})
	}
}
