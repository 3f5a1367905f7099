// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"testing"

	"github.com/switchyard-dev/switchyard/pkg/trace"
	"github.com/switchyard-dev/switchyard/pkg/trace/cluster"
)

// halves are nodes of one GPU each, on which a task with half of it runs. Whole GPUs are expected.
func halves(t *testing.T, nodes int) (*switchyard, Env) {
	t.Helper()
	var all []trace.Node
	for range nodes {
		all = append(all, trace.Node{CPU: 96000, Memory: 1000, GPUs: 1, Model: "T4"})
	}
	e := setup(t, all, []trace.Task{{Kind: gpus(1)}})
	for node := range nodes {
		e.Cluster.Place(node, e.Catalog.Request(share(500)), cluster.Placement{Node: node, GPUs: 1})
	}
	p := newSwitchyard(e)
	p.weights.MoveBelow = 1
	return p, e
}

func TestMovesMakeGPUsWhole(t *testing.T) {
	p, e := halves(t, 5)
	for moves := 0; ; moves++ {
		move, ok := p.Move(1)
		if !ok {
			// Two pairs; the fifth task has nobody.
			if moves != 2 {
				t.Errorf("%d moves, want 2", moves)
			}
			break
		}
		run := e.Cluster.Remove(move.Task, move.From)
		e.Cluster.Place(run.ID, run.Request, move.To)
	}
	free := 0
	for i := range e.Cluster.Nodes {
		free += e.Cluster.Nodes[i].Free()
	}
	if free != 2 {
		t.Errorf("%d GPUs are whole, want 2", free)
	}
	if _, ok := p.Move(1); ok {
		t.Error("there is a move although nothing changed since there was none")
	}
}

// Two tasks that leave the same behind may not suit the same nodes.
func TestATaskIsMovedThatSuitsTheOtherModel(t *testing.T) {
	nodes := []trace.Node{
		{CPU: 96000, Memory: 1000, GPUs: 1, Model: "G2"},
		{CPU: 96000, Memory: 1000, GPUs: 2, Model: "T4"},
	}
	e := setup(t, nodes, []trace.Task{{Kind: gpus(1)}})
	half := func(model string) *cluster.Request {
		kind := share(500)
		kind.Spec = model
		return e.Catalog.Request(kind)
	}
	e.Cluster.Place(0, half("G2"), cluster.Placement{Node: 0, GPUs: 1})
	e.Cluster.Place(1, half("T4"), cluster.Placement{Node: 1, GPUs: 1})
	e.Cluster.Place(2, half(""), cluster.Placement{Node: 1, GPUs: 2})
	p := newSwitchyard(e)
	p.weights.MoveBelow = 1
	if move, ok := p.Move(1); !ok || move.Task != 2 || move.To.Node != 0 {
		t.Errorf("got %+v, %t, want the task moved that suits any model", move, ok)
	}
}

func TestNoMoveWhileMuchIsIdle(t *testing.T) {
	p, _ := halves(t, 4)
	p.weights.MoveBelow = 0.1
	if move, ok := p.Move(100); ok {
		t.Errorf("%+v is moved although half of the GPUs is idle", move)
	}
}

func TestAMoveMustBeWorthItsWhile(t *testing.T) {
	p, e := halves(t, 2)
	// A pair is worth one GPU: 500 idle on each of the two before, none after.
	p.weights.MoveGain = 1.5
	if move, ok := p.Move(0); ok {
		t.Errorf("%+v is worth less than is asked for", move)
	}
	e.Cluster.Version++ // as if something had changed
	if _, ok := p.Move(halfSaved); !ok {
		t.Error("with moves saved up it is worth it")
	}
}

// Without the reserve the last node with room for eight would get the single task: it has as much CPU, and the
// lower rank.
func TestReserveKeepsWholeNodes(t *testing.T) {
	nodes := []trace.Node{oneNode[0], oneNode[0]}
	mix := []trace.Task{{Kind: gpus(8)}, {Kind: gpus(1)}, {Kind: gpus(1)}, {Kind: gpus(1)}, {Kind: gpus(1)}}
	e := setup(t, nodes, mix)
	single := e.Catalog.Request(gpus(1))
	e.Cluster.Place(1, single, cluster.Placement{Node: 1, GPUs: 1})
	p := newSwitchyard(e)
	if place, ok := p.Choose(single); !ok || place.Node != 1 {
		t.Errorf("got %+v, want the node that is in use", place)
	}
	if place, ok := p.Choose(e.Catalog.Request(gpus(8))); !ok || place.Node != 0 {
		t.Errorf("got %+v, want the whole node", place)
	}
}

// Of two nodes that are alike but for their model the one whose model fewer insist on is taken.
func TestPressureSparesModelsThatAreSoughtAfter(t *testing.T) {
	nodes := []trace.Node{
		{CPU: 96000, Memory: 1000, GPUs: 8, Model: "G2"},
		{CPU: 96000, Memory: 1000, GPUs: 8, Model: "T4"},
	}
	onG2 := gpus(1)
	onG2.Spec = "G2"
	e := setup(t, nodes, []trace.Task{{Kind: gpus(1)}, {Kind: onG2}})
	if place, ok := newSwitchyard(e).Choose(e.Catalog.Request(gpus(1))); !ok || place.Node != 1 {
		t.Errorf("got %+v, want the T4 node", place)
	}
}

// With domains a single task goes where a domain is broken already, even on a node that is otherwise free.
func TestDomainsStayWhole(t *testing.T) {
	nodes := []trace.Node{oneNode[0], oneNode[0]}
	c := cluster.New(nodes, []int{0, 1}, 4)
	mix := []trace.Task{{Kind: gpus(4)}, {Kind: gpus(1)}, {Kind: gpus(1)}, {Kind: gpus(1)}, {Kind: gpus(1)}}
	e := setup(t, nodes, mix)
	e.Cluster, e.Catalog = c, c.NewCatalog(mix)
	p := newSwitchyard(e)
	single := e.Catalog.Request(gpus(1))
	c.Place(1, single, cluster.Placement{Node: 1, GPUs: 1 << 6})
	for id, rest := range []int{2, 1, 0} {
		place, ok := p.Choose(single)
		if !ok || place.Node != 1 || place.GPUs&0xf0 == 0 {
			t.Fatalf("got %+v, want a GPU of the domain that is broken", place)
		}
		c.Place(2+id, single, place)
		free := 0
		for _, left := range c.Nodes[1].Left[4:8] {
			if left == trace.Whole {
				free++
			}
		}
		if free != rest {
			t.Fatalf("%d GPUs of the domain are free, want %d", free, rest)
		}
	}
}
