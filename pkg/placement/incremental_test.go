// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// world holds objects by kind and name, to build a cluster from them anew.
type world map[string]any

// step changes one object, in the world and in the cluster that follows it.
func (w world) step(t *testing.T, c *placement.Cluster, r *rand.Rand) {
	node := fmt.Sprintf("node-%d", r.IntN(3))
	at := r.IntN(8)
	var key string
	var object any
	var remove func()
	switch r.IntN(8) {
	case 0:
		key, object, remove = "node/"+node, readyNode(node), func() { c.DeleteNode(node) }
	case 1:
		s := hgx(node)
		if r.IntN(3) == 0 {
			s = sliceOf(node, gpus(1+r.IntN(8), "fabric", 0)...)
		}
		if r.IntN(6) == 0 {
			s.Spec.Pool.ResourceSliceCount = 2 // The other is yet to come.
		}
		key, object, remove = "slice/"+node, s, func() { c.DeleteSlice(s.Name) }
	case 2, 3:
		claim := single(fmt.Sprintf("%s-%d", node, at), node, at)
		key, object, remove = "claim/"+claim.Name, claim, func() { c.DeleteClaim(nameOf(claim.Name)) }
	case 4:
		name := fmt.Sprintf("%s-%d", node, at)
		key, object, remove = "rule/"+name, rule(name, node, fmt.Sprintf("gpu-%d", at), resourceapi.DeviceTaint{Key: "k", Effect: resourceapi.DeviceTaintEffectNoSchedule}), func() { c.DeleteRule(name) }
		if at == 0 {
			object = rule(name, "", "gpu-7", resourceapi.DeviceTaint{Key: "k", Effect: resourceapi.DeviceTaintEffectNoSchedule})
		}
	case 5:
		p := podOf(fmt.Sprintf("%s-%d", node, at), node)
		p.Spec.Containers = gangOf("x", 1, 1).Pods[0].Spec.Containers
		key, object, remove = "pod/"+p.Name, p, func() { c.DeletePod(nameOf(p.Name)) }
	case 6:
		g := gangOf(fmt.Sprintf("%s-%d", node, at), 1, 1).Claim
		g.Status.Plan = &v1alpha1.GangPlan{Placements: []v1alpha1.GangPlacement{{Node: node, Pool: node, Members: 1, Devices: []v1alpha1.GangDevice{{Name: fmt.Sprintf("gpu-%d", at)}}}}}
		key, object, remove = "gang/"+g.Name, g, func() { c.DeleteGang(types.NamespacedName{Namespace: "ml", Name: g.Name}) }
	case 7:
		q := quota("count/resourceclaims.resource.k8s.io", fmt.Sprint(r.IntN(5)), "0")
		key, object, remove = "quota/q", q, func() { c.DeleteQuota(types.NamespacedName{Namespace: "ml", Name: "q"}) }
	}
	if r.IntN(4) == 0 {
		delete(w, key)
		remove()
		return
	}
	w[key] = object
	set(t, c, object)
}

func TestFollowingObjectsIsTheSameAsStartingAnew(t *testing.T) {
	selecting := func(expression string) func(*placement.Gang) {
		return func(g *placement.Gang) { g.Claim.Spec.Selectors = []resourceapi.DeviceSelector{cel(expression)} }
	}
	gangs := []placement.Gang{
		gangOf("a", 2, 2), gangOf("b", 1, 4), gangOf("c", 2, 1, scopes(v1alpha1.MemberNode, v1alpha1.GangNode)),
		gangOf("d", 1, 1, selecting(`device.attributes["gpu.switchyard.dev"].id == "node-1-2"`)),
		// It errs on devices of the fabric.
		gangOf("e", 1, 1, selecting(`device.attributes["gpu.switchyard.dev"].nvswitchDomain != "fabric" || device.attributes["gpu.switchyard.dev"].productName == ""`)),
	}
	planned, failed := 0, 0
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 2))
		w, c := world{}, clusterOf(t)
		for n := range 3 {
			name := fmt.Sprintf("node-%d", n)
			w["node/"+name], w["slice/"+name] = readyNode(name), hgx(name)
			set(t, c, w["node/"+name])
			set(t, c, w["slice/"+name])
		}
		for step := range 60 {
			w.step(t, c, r)
			if stale := c.Stale(); stale != "" {
				t.Fatalf("seed %d, step %d: %s", seed, step, stale)
			}
			if step%6 != 5 {
				continue
			}
			anew := clusterOf(t)
			for _, object := range w {
				set(t, anew, object)
			}
			got, want := c.Plan(context.Background(), gangs), anew.Plan(context.Background(), gangs)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("seed %d, step %d: decisions differ (-anew +followed):\n%s", seed, step, diff)
			}
			if diff := cmp.Diff(anew.Domains(), c.Domains()); diff != "" {
				t.Fatalf("seed %d, step %d: domains differ (-anew +followed):\n%s", seed, step, diff)
			}
			if stale := c.Stale(); stale != "" {
				t.Fatalf("seed %d, step %d, planned: %s", seed, step, stale)
			}
			for _, d := range got {
				switch {
				case d.Plan != nil:
					planned++
				case d.Refusal.Reason == placement.ReasonSelectorFails:
					failed++
				}
			}
		}
		for key, object := range w {
			remove(c, key, object)
		}
		c.DeleteClass(driver)
		if diff := cmp.Diff(placement.NewCluster().Sizes(), c.Sizes()); diff != "" {
			t.Fatalf("seed %d: something stays when all objects are gone: %s", seed, diff)
		}
	}
	if planned < 100 || failed < 20 {
		t.Errorf("only %d plans and %d errors of selectors were compared", planned, failed)
	}
}

func remove(c *placement.Cluster, key string, object any) {
	switch o := object.(type) {
	case *resourceapi.ResourceSlice:
		c.DeleteSlice(o.Name)
	case *resourceapi.ResourceClaim:
		c.DeleteClaim(nameOf(o.Name))
	case *resourceapi.DeviceTaintRule:
		c.DeleteRule(o.Name)
	case *corev1.Node:
		c.DeleteNode(o.Name)
	case *corev1.Pod:
		c.DeletePod(nameOf(o.Name))
	case *corev1.ResourceQuota, *v1alpha1.GangClaim:
		name := types.NamespacedName{Namespace: "ml", Name: key[len("gang/"):]}
		c.DeleteGang(name)
		c.DeleteQuota(types.NamespacedName{Namespace: "ml", Name: "q"})
	}
}

func TestACommittedPlanKeepsRoomOnItsNodes(t *testing.T) {
	owner := gangOf("owner", 1, 4)
	owner.Claim.Status.Plan = &v1alpha1.GangPlan{Placements: []v1alpha1.GangPlacement{{Node: "n", Pool: "n", Members: 1, Devices: []v1alpha1.GangDevice{{Name: "gpu-0"}}}}}
	member := owner.Pods[0]
	member.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpus", ResourceClaimTemplateName: &owner.Claim.Name}}
	c := clusterOf(t, cpus(readyNode("n"), "2"), hgx("n"), owner.Claim, member)
	if got := planOf(t, c, gangOf("g", 2, 1)); got != "NodesFull" {
		t.Errorf("two members next to one that is planned, two CPUs: %q", got)
	}
	if got := planOf(t, c, gangOf("g", 1, 1)); got != "n n.0 ×1: 1" {
		t.Errorf("one member next to it: %q", got)
	}
	if got := planOf(t, c, gangOf("owner", 2, 1)); got != "n n.0 ×2: 0 1" {
		t.Errorf("the gang itself, planned anew: %q", got)
	}
	bound := member.DeepCopy()
	bound.Spec.NodeName = "n"
	c.SetPod(bound)
	if got := planOf(t, c, gangOf("g", 1, 1)); got != "n n.0 ×1: 1" {
		t.Errorf("a bound member counts once: %q", got)
	}
	c.DeletePod(types.NamespacedName{Namespace: member.Namespace, Name: member.Name})
	if got := planOf(t, c, gangOf("g", 2, 1)); got != "n n.0 ×2: 1 2" {
		t.Errorf("when the member is gone: %q", got)
	}
}
