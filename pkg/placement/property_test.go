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
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	draCEL "k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// small is a random small cluster, as the brute force sees it.
type small struct {
	objects []any
	gpus    []smallGPU
	cpu     map[string]int // free, by node
}

type smallGPU struct {
	node, domain string
	numa         int64
	free         bool
}

func randomCluster(r *rand.Rand) small {
	s := small{cpu: map[string]int{}}
	for n := range 1 + r.IntN(3) {
		name := fmt.Sprintf("node-%d", n)
		node := readyNode(name)
		s.cpu[name] = r.IntN(5)
		node.Status.Allocatable[corev1.ResourceCPU] = *resource.NewQuantity(int64(s.cpu[name]), resource.DecimalSI)
		list := make([]gpu, 1+r.IntN(6))
		for i := range list {
			list[i] = gpu{domain: fmt.Sprintf("%s.%d", name, r.IntN(2)), numa: int64(r.IntN(2))}
			switch r.IntN(6) {
			case 0:
				list[i].domain = ""
			case 1:
				list[i].domain = "fabric"
			}
		}
		s.objects = append(s.objects, node, sliceOf(name, list...))
		for i, g := range list {
			free := r.IntN(3) > 0
			if !free {
				s.objects = append(s.objects, single(fmt.Sprintf("s-%d-%d", n, i), name, i))
			}
			s.gpus = append(s.gpus, smallGPU{name, g.domain, g.numa, free})
		}
	}
	return s
}

// feasible tries everything: for each value of the gang's scope, how many members do its nodes hold?
func (s small) feasible(members, perMember int, member v1alpha1.MemberScope, gang v1alpha1.GangScope) bool {
	inGang := map[string]map[string]map[string]int{} // gang scope, node, member scope: free devices
	for _, g := range s.gpus {
		gangValue := map[v1alpha1.GangScope]string{v1alpha1.GangAny: "all", v1alpha1.GangNode: g.node, v1alpha1.GangNVSwitchDomain: g.domain}[gang]
		memberValue := map[v1alpha1.MemberScope]string{
			v1alpha1.MemberNode: "all", v1alpha1.MemberNUMANode: fmt.Sprint(g.numa), v1alpha1.MemberNVSwitchDomain: g.domain,
		}[member]
		if !g.free || gangValue == "" || memberValue == "" {
			continue
		}
		if inGang[gangValue] == nil {
			inGang[gangValue] = map[string]map[string]int{}
		}
		if inGang[gangValue][g.node] == nil {
			inGang[gangValue][g.node] = map[string]int{}
		}
		inGang[gangValue][g.node][memberValue]++
	}
	for _, nodes := range inGang {
		total := 0
		for node, groups := range nodes {
			here := 0
			for _, n := range groups {
				here += n / perMember
			}
			total += min(here, s.cpu[node])
		}
		if total >= members {
			return true
		}
	}
	return false
}

func TestPlannerAgreesWithBruteForceAndTheAllocator(t *testing.T) {
	const cases = 500
	members := []v1alpha1.MemberScope{v1alpha1.MemberNVSwitchDomain, v1alpha1.MemberNUMANode, v1alpha1.MemberNode}
	gangs := []v1alpha1.GangScope{v1alpha1.GangAny, v1alpha1.GangNode, v1alpha1.GangNVSwitchDomain}
	feasible := 0
	for seed := range uint64(cases) {
		r := rand.New(rand.NewPCG(seed, 0))
		s := randomCluster(r)
		g := gangOf("g", int32(1+r.IntN(4)), int32(1+r.IntN(3)), scopes(members[r.IntN(3)], gangs[r.IntN(3)]))
		topology := g.Claim.Spec.Topology
		c := clusterOf(t, s.objects...)
		decision := c.Plan(context.Background(), []placement.Gang{g})[0]
		want := s.feasible(len(g.Pods), int(g.Claim.Spec.DevicesPerMember), topology.Member, topology.Gang)
		if (decision.Plan != nil) != want {
			t.Fatalf("seed %d: %s, but feasible is %v", seed, describe(decision), want)
		}
		if decision.Plan == nil {
			continue
		}
		feasible++
		if err := allocateInAnyOrder(t, s, g, decision.Plan, r); err != nil {
			t.Fatalf("seed %d: plan %s: %v", seed, describe(decision), err)
		}
	}
	if feasible < cases/10 || feasible > cases*9/10 {
		t.Errorf("%d of %d cases are feasible: the test shows little", feasible, cases)
	}
}

// allocateInAnyOrder lets the members go to random nodes of the plan, one after the other, each with
// the first devices that the allocator finds there.
func allocateInAnyOrder(t *testing.T, s small, g placement.Gang, plan *v1alpha1.GangPlan, r *rand.Rand) error {
	t.Helper()
	cache := draCEL.NewCache(10, draCEL.Features{EnableConsumableCapacity: true})
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "m"}, Spec: placement.ClaimSpec(g.Claim, plan)}
	state := structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	nodes := map[string]*corev1.Node{}
	var published []*resourceapi.ResourceSlice
	for _, o := range s.objects {
		switch o := o.(type) {
		case *corev1.Node:
			nodes[o.Name] = o
		case *resourceapi.ResourceSlice:
			published = append(published, o)
		case *resourceapi.ResourceClaim:
			for _, d := range o.Status.Allocation.Devices.Results {
				state.AllocatedDevices.Insert(structured.MakeDeviceID(d.Driver, d.Pool, d.Device))
			}
		}
	}
	var names []string
	for _, p := range plan.Placements {
		if !slices.Contains(names, p.Node) {
			names = append(names, p.Node)
		}
	}
	allocator := func() structured.Allocator {
		a, err := structured.NewAllocator(context.Background(), structured.Features{ConsumableCapacity: true, DeviceTaints: true, PartitionableDevices: true},
			state, oneClass{gpuClass()}, published, cache)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	placed := map[string]int{}
	for m := range plan.Members {
		r.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		done := false
		for _, name := range names {
			results, err := allocator().Allocate(context.Background(), nodes[name], []*resourceapi.ResourceClaim{claim})
			if err != nil {
				return err
			}
			if len(results) == 0 {
				continue
			}
			for _, d := range results[0].Devices.Results {
				state.AllocatedDevices.Insert(structured.MakeDeviceID(d.Driver, d.Pool, d.Device))
			}
			placed[name]++
			done = true
			break
		}
		if !done {
			return fmt.Errorf("member %d of %d has no place", m+1, plan.Members)
		}
	}
	for name, n := range placed {
		if n > s.cpu[name] {
			return fmt.Errorf("%d members on node %s, which has %d CPUs", n, name, s.cpu[name])
		}
	}
	return nil
}

type oneClass struct{ class *resourceapi.DeviceClass }

func (o oneClass) List() ([]*resourceapi.DeviceClass, error) {
	return []*resourceapi.DeviceClass{o.class}, nil
}

func (o oneClass) Get(string) (*resourceapi.DeviceClass, error) { return o.class, nil }

func TestTheSameClusterGivesTheSamePlan(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 1))
		s := randomCluster(r)
		gangs := []placement.Gang{gangOf("a", 2, 2), gangOf("b", 1, 1), gangOf("c", 3, 1, scopes(v1alpha1.MemberNode, v1alpha1.GangAny))}
		want := describeAll(clusterOf(t, s.objects...).Plan(context.Background(), gangs))
		r.Shuffle(len(s.objects), func(i, j int) { s.objects[i], s.objects[j] = s.objects[j], s.objects[i] })
		r.Shuffle(len(gangs), func(i, j int) { gangs[i], gangs[j] = gangs[j], gangs[i] })
		c := clusterOf(t, s.objects...)
		if got := describeAll(c.Plan(context.Background(), gangs)); got != want {
			t.Fatalf("seed %d: in another order\n%s\nwas\n%s", seed, got, want)
		}
		if got := describeAll(c.Plan(context.Background(), gangs)); got != want {
			t.Fatalf("seed %d: asked again\n%s\nwas\n%s", seed, got, want)
		}
	}
}

func describeAll(decisions []placement.Decision) string {
	text := ""
	for _, d := range decisions {
		text += string(d.Gang) + " " + describe(d)
		if d.Refusal != nil {
			text += " " + d.Refusal.Message
		}
		text += "\n"
	}
	return text
}
