// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// onlooker moves any pod, and looks whenever it is asked whether what a search reads is what there is.
type onlooker struct {
	t *testing.T
	c *placement.Cluster
	// supposed counts the looks while claims are supposed to have given devices back, planned the plans with moves.
	supposed, planned int
}

func (o *onlooker) look() {
	o.t.Helper()
	if difference := o.c.Overlooked(); difference != "" {
		o.t.Error(difference) // Not Fatal: a lock is held.
	}
	if o.c.Supposed() {
		o.supposed++
	}
}

func (o *onlooker) Wanted(placement.Gang) bool {
	o.look()
	return true
}

func (o *onlooker) MakeRoom(ctx context.Context, room *placement.Room) (*v1alpha1.GangPlan, *v1alpha1.GangDefragmentation) {
	o.look()
	found := room.Cheapest(func(placement.Resident) (placement.Price, bool) {
		o.look()
		return placement.Price{Pods: 1}, true
	})
	if found.Members < len(room.Gang().Pods) {
		return nil, nil
	}
	plan, obstacle := room.Try(ctx, found, func(placement.Resident) bool {
		o.look()
		return true
	})
	o.look()
	if obstacle != nil {
		return nil, nil
	}
	o.planned++
	return plan, nil
}

func TestASearchReadsWhatThereIs(t *testing.T) {
	gangs := []placement.Gang{
		gangOf("a", 2, 2), gangOf("b", 2, 4), gangOf("c", 3, 8, scopes(v1alpha1.MemberNode, v1alpha1.GangAny)), gangOf("d", 1, 1), gangOf("e", 3, 4),
	}
	supposed, planned := 0, 0
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 4))
		w, o := world{}, &onlooker{t: t, c: clusterOf(t)}
		for n := range 3 {
			name := fmt.Sprintf("node-%d", n)
			set(t, o.c, readyNode(name))
			set(t, o.c, hgx(name))
		}
		for step := range 60 {
			node, at := fmt.Sprintf("node-%d", r.IntN(3)), r.IntN(8)
			switch r.IntN(5) {
			case 0, 1:
				resident(o.c, fmt.Sprintf("%s-%d", node, at), node, "0", nil, at)
			case 2:
				reserve(o.c, node, at, at+1)
			default:
				w.step(t, o.c, r)
			}
			o.look()
			if step%6 == 5 {
				o.c.PlanWithRoom(context.Background(), gangs, o)
				o.look()
			}
		}
		supposed, planned = supposed+o.supposed, planned+o.planned
	}
	if supposed < 20 || planned < 20 {
		t.Errorf("looked %d times while something was supposed, and at %d plans with moves: the test shows little", supposed, planned)
	}
}

// reserve has a gang plan devices of a node in place of those that it had planned.
func reserve(c *placement.Cluster, node string, devices ...int) {
	g := gangOf("planned", 1, 1).Claim
	p := v1alpha1.GangPlacement{Node: node, Pool: node, Members: 1}
	for _, at := range devices {
		p.Devices = append(p.Devices, v1alpha1.GangDevice{Name: fmt.Sprintf("gpu-%d", at)})
	}
	g.Status.Plan = &v1alpha1.GangPlan{Placements: []v1alpha1.GangPlacement{p}}
	c.SetGang(g)
}
