// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// selects gives a member a node selector.
func selects(member int, label, value string) func(*placement.Gang) {
	return func(g *placement.Gang) { g.Pods[member].Spec.NodeSelector = map[string]string{label: value} }
}

// tolerates gives a member a toleration of a taint's key.
func tolerates(member int, key string) func(*placement.Gang) {
	return func(g *placement.Gang) {
		g.Pods[member].Spec.Tolerations = []corev1.Toleration{{Key: key, Operator: corev1.TolerationOpExists}}
	}
}

// notOn is affinity to all other nodes.
func notOn(node string) *corev1.Affinity {
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpNotIn, Values: []string{node}},
		}}},
	}}}
}

// Members of several Jobs may want different nodes. As any member may be scheduled to any node of a plan, those that suit all
// are taken if there are any.
func TestMembersThatWantDifferentNodes(t *testing.T) {
	const (
		onA    = "node-a node-a.0 ×1: 0 1 2 3"
		onB    = "node-b node-b.0 ×1: 0 1 2 3"
		twoOnB = "node-b node-b.0 ×1: 0 1 2 3; node-b node-b.1 ×1: 4 5 6 7"
	)
	tainted := inZone(readyNode("node-a"), "x")
	tainted.Spec.Taints = []corev1.Taint{{Key: "team", Effect: corev1.TaintEffectNoSchedule}}
	for name, test := range map[string]struct {
		gang placement.Gang
		node *corev1.Node // added, or in place of another
		want string
	}{
		"a zone each":                         {gangOf("g", 2, 4, selects(0, zone, "x"), selects(1, zone, "y")), nil, onA + "; " + onB},
		"two in one zone, one in another":     {gangOf("g", 3, 4, selects(0, zone, "y"), selects(1, zone, "x"), selects(2, zone, "y")), nil, onA + "; " + twoOnB},
		"one has no wish":                     {gangOf("g", 2, 4, selects(0, zone, "y")), nil, twoOnB},
		"one tolerates what the other cannot": {gangOf("g", 2, 4, tolerates(0, "team")), tainted, twoOnB},
		"one wants what the other cannot":     {gangOf("g", 2, 4, tolerates(0, "team"), selects(0, zone, "x")), tainted, onA + "; " + onB},
		"only a node without GPUs suits both": {
			gangOf("g", 2, 4, selects(0, zone, "x"), func(g *placement.Gang) { g.Pods[1].Spec.Affinity = notOn("node-a") }), inZone(readyNode("node-c"), "x"), onA + "; " + onB,
		},
		"one wants what there is not": {gangOf("g", 2, 4, selects(0, zone, "x"), selects(1, zone, "w")), nil, "NodesFull"},
		"three where there is room for two": {
			gangOf("g", 4, 4, selects(0, zone, "x"), selects(1, zone, "x"), selects(2, zone, "x"), selects(3, zone, "y")), nil, "NodesFull",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := clusterOf(t, inZone(readyNode("node-a"), "x"), hgx("node-a"), inZone(readyNode("node-b"), "y"), hgx("node-b"))
			if test.node != nil {
				set(t, c, test.node)
			}
			if got := planOf(t, c, test.gang); got != test.want {
				t.Errorf("%s, want %s", got, test.want)
			}
		})
	}
}

// Members that volumes or node selectors tie to several places are placed where each can be. Where each place is for some of them
// alone, kube-scheduler can bind them in any order; where not, in one at least.
func TestTiedMembersAreBoundWhereTheyCanBe(t *testing.T) {
	planned, refused, apart := 0, 0, 0
	for seed := range uint64(600) {
		r := rand.New(rand.NewPCG(seed, 3))
		var names []string
		var objects []any
		for i := range 5 {
			name := fmt.Sprintf("node-%d", i)
			names = append(names, name)
			objects = append(objects, inZone(readyNode(name), fmt.Sprintf("zone-%d", i/2)), hgx(name))
		}
		c := clusterOf(t, objects...)
		free := map[string]int{}
		for _, name := range names {
			free[name] = 2 // domains, so members
			for domain := range 2 {
				if r.IntN(4) == 0 {
					c.SetClaim(single(fmt.Sprintf("other-%s-%d", name, domain), name, domain*4, domain*4+1, domain*4+2, domain*4+3))
					free[name]--
				}
			}
		}
		g := gangOf("g", int32(2+r.IntN(4)), 4)
		reach := make([][]string, len(g.Pods))
		for i := range g.Pods {
			at := r.IntN(len(names))
			label, value := corev1.LabelHostname, names[at]
			switch kind := r.IntN(8); {
			case kind == 0 && seed%4 == 0:
				reach[i] = names
				continue
			case kind < 4:
				reach[i] = names[at/2*2 : min(at/2*2+2, len(names))]
				label, value = zone, fmt.Sprintf("zone-%d", at/2)
			default:
				reach[i] = names[at : at+1]
			}
			if seed%2 == 0 && r.IntN(2) == 0 {
				g.Pods[i].Spec.NodeSelector = map[string]string{label: value}
				continue
			}
			name := fmt.Sprintf("data-%d", i)
			g.Pods[i].Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}}}
			set(t, c, persistent(name, "", corev1.VolumeBound, label, value))
			set(t, c, volumeClaim(name, "", name))
		}
		plan := c.Plan(context.Background(), []placement.Gang{g})[0].Plan
		overlap := slices.ContainsFunc(reach, func(a []string) bool {
			return slices.ContainsFunc(reach, func(b []string) bool {
				return !slices.Equal(a, b) && slices.ContainsFunc(a, func(n string) bool { return slices.Contains(b, n) })
			})
		})
		if plan == nil {
			refused++
			if !overlap && bindable(reach, free, false) {
				t.Fatalf("seed %d: members %v have no plan with %v free", seed, reach, free)
			}
			continue
		}
		planned++
		take := map[string]int{}
		for _, p := range plan.Placements {
			take[p.Node] += int(p.Members)
		}
		if !bindable(reach, take, false) {
			t.Fatalf("seed %d: members %v cannot be bound as planned: %+v", seed, reach, plan.Placements)
		}
		if !overlap {
			apart++
			if !bindable(reach, take, true) {
				t.Fatalf("seed %d: members %v cannot be bound in any order as planned: %+v", seed, reach, plan.Placements)
			}
		}
	}
	if planned < 100 || refused < 100 || apart < 50 {
		t.Errorf("%d plans, of which %d with places apart, and %d refusals: too few of one to tell", planned, apart, refused)
	}
}

// bindable reports whether pods find a node each: in one way, or whichever nodes those before them take.
func bindable(reach [][]string, left map[string]int, always bool) bool {
	if len(reach) == 0 {
		return true
	}
	found := false
	for _, node := range reach[0] {
		if left[node] == 0 {
			continue
		}
		left[node]--
		ok := bindable(reach[1:], left, always)
		left[node]++
		if ok != always {
			return ok
		}
		found = true
	}
	return found && always
}
