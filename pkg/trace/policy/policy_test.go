// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"math"
	"math/rand"
	"testing"

	"github.com/switchyard-dev/switchyard/pkg/trace"
	"github.com/switchyard-dev/switchyard/pkg/trace/cluster"
)

// oneNode is a node of the shape that most nodes of the traces have.
var oneNode = []trace.Node{{Name: "a", CPU: 96000, Memory: 393216, GPUs: 8, Model: "G2"}}

// setup returns what a policy is made from, with tasks that run on the first node.
func setup(t *testing.T, nodes []trace.Node, mix []trace.Task, running ...trace.Kind) Env {
	t.Helper()
	ranks := make([]int, len(nodes))
	for i := range ranks {
		ranks[i] = i
	}
	c := cluster.New(nodes, ranks, 0)
	e := Env{
		Cluster: c, Catalog: c.NewCatalog(mix), Tasks: mix,
		Random: rand.New(rand.NewSource(1)), Streams: rand.New(rand.NewSource(1)),
	}
	for id, kind := range running {
		r := e.Catalog.Request(kind)
		c.Place(id, r, cluster.Placement{Node: 0, GPUs: c.FirstFit(&c.Nodes[0].State, r)})
	}
	return e
}

func share(milli int) trace.Kind { return trace.Kind{CPU: 8000, GPUs: 1, Milli: milli} }
func gpus(n int) trace.Kind      { return trace.Kind{CPU: 8000, GPUs: n, Milli: 1000} }

// The scores were computed by hand from the formulas of the paper's simulator.
func TestBaselineScores(t *testing.T) {
	bestFit := func(e Env) scorer { return bestFit{e.Cluster} }
	dot := func(e Env) scorer { return dotProduct{e.Cluster} }
	packing := func(e Env) scorer { return gpuPacking{e.Cluster} }
	clustering := func(e Env) scorer { return gpuClustering{e.Cluster} }
	cpuOnly := trace.Kind{CPU: 32000}
	for name, tc := range map[string]struct {
		policy  func(Env) scorer
		running []trace.Kind
		request trace.Kind
		want    float64
	}{
		// 88000 of 128000 CPU and 7000 of 8000 GPU left: 100·(1 − 0.34375 − 0.4375).
		"bestfit: an empty node":                      {bestFit, nil, gpus(1), 21},
		"bestfit: no GPU asked for, GPUs still count": {bestFit, nil, cpuOnly, 25},
		// 100·(1 − ½·0.75·0.0625 − ½·1·0.125) = 91.4
		"dotprod: an empty node":                              {dot, nil, gpus(1), 91},
		"dotprod: no GPU asked for":                           {dot, nil, cpuOnly, 90},
		"gpupacking: no GPU":                                  {packing, nil, cpuOnly, 0},
		"gpupacking: a free node":                             {packing, nil, gpus(1), 25},
		"gpupacking: free GPUs of a used node":                {packing, []trace.Kind{share(500)}, gpus(2), 48},
		"gpupacking: a GPU in use":                            {packing, []trace.Kind{share(570)}, share(300), 96},
		"gpupacking: no GPU in use has enough":                {packing, []trace.Kind{share(570)}, share(500), 49},
		"gpuclustering: no GPU":                               {clustering, nil, cpuOnly, 0},
		"gpuclustering: an empty node":                        {clustering, nil, gpus(1), 25},
		"gpuclustering: a node of the same class":             {clustering, []trace.Kind{gpus(2)}, gpus(2), 81},
		"gpuclustering: parts of any size are one class":      {clustering, []trace.Kind{share(999)}, share(10), 78},
		"gpuclustering: same class and others":                {clustering, []trace.Kind{gpus(2), share(10)}, gpus(2), 56},
		"gpuclustering: other classes":                        {clustering, []trace.Kind{gpus(2)}, gpus(1), 6},
		"gpuclustering: tasks without GPUs have no class":     {clustering, []trace.Kind{cpuOnly}, gpus(1), 25},
		"gpuclustering: one whole GPU is another than a part": {clustering, []trace.Kind{share(1)}, gpus(1), 0},
	} {
		t.Run(name, func(t *testing.T) {
			e := setup(t, oneNode, nil, tc.running...)
			if got, _ := tc.policy(e).score(&e.Cluster.Nodes[0], e.Catalog.Request(tc.request)); got != tc.want {
				t.Errorf("score %v, want %v", got, tc.want)
			}
		})
	}
}

func TestFragmentation(t *testing.T) {
	mix := []trace.Task{
		{Name: "1", Kind: share(500)},
		{Name: "2", Kind: share(500)},
		{Name: "3", Kind: gpus(2)},
		{Name: "4", Kind: trace.Kind{CPU: 1}},
	}
	for name, tc := range map[string]struct {
		running []trace.Kind
		want    float64 // of 8000
	}{
		// A quarter of the tasks needs no GPU: to them all of it is lost.
		"an empty node": {nil, 8000.0 / 4},
		// 7400 idle; the 400 of one GPU are of no use to half and to two whole ones.
		"a GPU with less than half left": {[]trace.Kind{share(600)}, 7400.0/4 + 400.0*3/4},
		"one GPU left":                   {[]trace.Kind{gpus(7)}, 1000.0/4 + 1000.0/4},
		// CPU for nothing but the task without GPU.
		"no CPU left": {[]trace.Kind{{CPU: 95000, GPUs: 1, Milli: 1000}}, 7000},
	} {
		t.Run(name, func(t *testing.T) {
			e := setup(t, oneNode, mix, tc.running...)
			if got := newGradientDescent(e).fragmentation(e.Cluster.Nodes[0].State); math.Abs(got-tc.want) > 1e-9 {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

func TestTypicalTasksAreTheMostFrequent(t *testing.T) {
	var mix []trace.Task
	add := func(count int, kind trace.Kind) {
		for range count {
			mix = append(mix, trace.Task{Kind: kind})
		}
	}
	add(4, gpus(8)) // below the 95 % that the others are
	add(48, share(100))
	add(48, trace.Kind{CPU: 9000, Memory: 5, GPUs: 1, Milli: 100})
	e := setup(t, oneNode, mix)
	got := typicalTasks(e)
	if len(got) != 2 || got[0].CPU != 9000 || got[0].Memory != 0 || got[0].share != 0.5 || got[1].CPU != 8000 {
		t.Errorf("got %+v", got)
	}
}

func TestGradientDescentTakesTheGPUThatLosesLeast(t *testing.T) {
	mix := []trace.Task{{Kind: share(500)}}
	// GPU 0 has 500 left, GPU 1 400: 400 is of no use to the mix, 500 is.
	e := setup(t, oneNode, mix, share(500), share(600))
	place, ok := newRanked(e, newGradientDescent(e)).Choose(e.Catalog.Request(share(400)))
	if !ok || place.GPUs != 2 {
		t.Errorf("got %+v, want GPU 1", place)
	}
}

func TestTiesGoToTheLowestRank(t *testing.T) {
	nodes := []trace.Node{oneNode[0], oneNode[0], oneNode[0]}
	c := cluster.New(nodes, []int{2, 0, 1}, 0)
	e := Env{Cluster: c, Catalog: c.NewCatalog(nil)}
	p := newRanked(e, bestFit{c})
	r := e.Catalog.Request(gpus(8))
	for id, want := range []int{1, 2, 0} {
		place, ok := p.Choose(r)
		if !ok || place.Node != want {
			t.Fatalf("task %d goes to node %d, want %d", id, place.Node, want)
		}
		c.Place(id, r, place)
	}
	if place, ok := p.Choose(r); ok {
		t.Errorf("a fourth fits: %+v", place)
	}
}

// A rating that is kept must be what it would be anew, and what is chosen must fit: Place panics otherwise.
func TestKeptRatingsAreCurrent(t *testing.T) {
	nodes := []trace.Node{
		oneNode[0], oneNode[0],
		{Name: "b", CPU: 64000, Memory: 1 << 20, GPUs: 4, Model: "T4"},
		{Name: "c", CPU: 8000, Memory: 1 << 20},
	}
	mix := []trace.Task{
		{Kind: share(300)},
		{Kind: share(700)},
		{Kind: gpus(1)},
		{Kind: gpus(2)},
		{Kind: gpus(4)},
		{Kind: trace.Kind{CPU: 4000}},
		{Kind: trace.Kind{CPU: 1000, GPUs: 1, Milli: 500, Spec: "T4"}},
	}
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) {
			e := setup(t, nodes, mix)
			kept, err := New(name, e)
			if err != nil {
				t.Fatal(err)
			}
			random := rand.New(rand.NewSource(7))
			placed := 0
			for id := range 60 {
				r := e.Catalog.Requests[random.Intn(len(e.Catalog.Requests))]
				place, ok := kept.Choose(r)
				if name != "random" {
					e.Streams = rand.New(rand.NewSource(1))
					fresh, _ := New(name, e)
					if want, wantOK := fresh.Choose(r); place != want || ok != wantOK {
						t.Fatalf("task %d: got %+v, anew %+v", id, place, want)
					}
				}
				if ok {
					e.Cluster.Place(id, r, place)
					placed++
				}
			}
			if placed < 20 {
				t.Errorf("only %d tasks were placed", placed)
			}
		})
	}
}

func TestUnknownPolicy(t *testing.T) {
	if _, err := New("worst", Env{}); err == nil || err.Error() != `policy "worst" is unknown: use one of random, bestfit, dotprod, gpupacking, gpuclustering, fgd, switchyard` {
		t.Errorf("got %v", err)
	}
}
