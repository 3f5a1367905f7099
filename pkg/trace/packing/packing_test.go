// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"math"
	"math/rand"
	"slices"
	"testing"

	"github.com/switchyard-dev/switchyard/pkg/demand"
	"github.com/switchyard-dev/switchyard/pkg/trace"
	"github.com/switchyard-dev/switchyard/pkg/trace/cluster"
)

// twoModels are two nodes with 4 GPUs and one with 8 that has CPU to spare.
var twoModels = []trace.Node{
	{Name: "a", CPU: 32000, Memory: 1 << 20, GPUs: 4, Model: "T4"},
	{Name: "b", CPU: 32000, Memory: 1 << 20, GPUs: 4, Model: "T4"},
	{Name: "c", CPU: 160000, Memory: 1 << 20, GPUs: 8, Model: "G2"},
	{Name: "d", CPU: 64000, Memory: 1 << 20},
}

func newCluster() *cluster.Cluster { return cluster.New(twoModels, []int{0, 1, 2, 3}, 0) }

func tasks(kinds ...trace.Kind) []trace.Task {
	var all []trace.Task
	for _, k := range kinds {
		all = append(all, trace.Task{Kind: k})
	}
	return all
}

func repeat(n int, kind trace.Kind) []trace.Task {
	return tasks(slices.Repeat([]trace.Kind{kind}, n)...)
}

func newMix(c *cluster.Cluster, all []trace.Task) Mix { return NewMix(all, c.NewCatalog(all)) }

func near(a, b float64) bool { return math.Abs(a-b) < 1e-9 }

func TestPressure(t *testing.T) {
	whole := trace.Kind{GPUs: 1, Milli: 1000}
	onT4 := trace.Kind{GPUs: 1, Milli: 1000, Spec: "T4"}
	for name, tc := range map[string]struct {
		mix    []trace.Task
		t4, g2 float64
	}{
		"without constraints none is sought after": {repeat(5, whole), 0, 0},
		// Half of the GPUs are T4: those who need them ask for all of the demand there, twice the mean.
		"all need one model":  {repeat(5, onT4), 1, -1},
		"half need one model": {tasks(whole, onT4), 0.5, -0.5},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster()
			got := newMix(c, tc.mix).Pressure(c)
			if !near(got[0], tc.t4) || !near(got[1], tc.g2) {
				t.Errorf("got %v, want T4 %v and G2 %v", got, tc.t4, tc.g2)
			}
		})
	}
}

func TestCPUOnlyTasksGoWhereCPUIsSpare(t *testing.T) {
	gpu := trace.Kind{CPU: 8000, GPUs: 1, Milli: 1000}
	for name, tc := range map[string]struct {
		cpuOnly int32 // that each task with a GPU has beside it
		want    []float64
	}{
		"none": {0, []float64{0, 0, 0}},
		// T4 nodes have no CPU to spare beyond 8 for each GPU, the G2 node has 96, the node without GPUs 64.
		// 16 tasks ask for 80 of the 160: half. The G2 node gets 48 of 80, twice of what its half of the GPUs
		// would be.
		"there is enough to spare": {5000, []float64{0, 1.2, math.Inf(1)}},
		// 240 asked, 160 to spare: the other 80 are spread as GPUs are.
		"there is not enough": {15000, []float64{20.0 / 60, 136.0 / 120, math.Inf(1)}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster()
			mix := newMix(c, tasks(gpu, trace.Kind{CPU: tc.cpuOnly}))
			for shape, want := range tc.want {
				if got := mix.cpuOnlyFactor(c, shape, 1); !near(got, want) && got != want {
					t.Errorf("shape %d: got %v, want %v", shape, got, want)
				}
			}
		})
	}
}

func TestIdle(t *testing.T) {
	for name, tc := range map[string]struct {
		mix    []trace.Task
		shape  int
		change func(*cluster.State)
		want   float64
	}{
		"whole GPUs fill a node":                {repeat(50, trace.Kind{GPUs: 1, Milli: 1000}), 0, nil, 0},
		"0.6 of each GPU":                       {repeat(50, trace.Kind{GPUs: 1, Milli: 600}), 0, nil, 4 * 0.4},
		"halves fill a node":                    {repeat(50, trace.Kind{GPUs: 1, Milli: 500}), 0, nil, 0},
		"CPU for two":                           {repeat(50, trace.Kind{CPU: 16000, GPUs: 1, Milli: 1000}), 0, nil, 2},
		"memory for one":                        {repeat(50, trace.Kind{Memory: 1 << 20, GPUs: 1, Milli: 1000}), 0, nil, 3},
		"the mix does not suit the model":       {repeat(50, trace.Kind{GPUs: 1, Milli: 1000, Spec: "G2"}), 0, nil, 4},
		"tasks with several GPUs do not count":  {repeat(50, trace.Kind{GPUs: 2, Milli: 1000}), 0, nil, 4},
		"a node without GPUs":                   {repeat(50, trace.Kind{GPUs: 1, Milli: 1000}), 2, nil, 0},
		"no CPU left":                           {repeat(50, trace.Kind{CPU: 1, GPUs: 1, Milli: 1000}), 0, func(s *cluster.State) { s.CPU = 0 }, 4},
		"what is in use is not idle":            {repeat(50, trace.Kind{GPUs: 1, Milli: 600}), 0, func(s *cluster.State) { s.Left[2] = 0 }, 3 * 0.4},
		"the GPU that has least left, not more": {repeat(50, trace.Kind{CPU: 32000, GPUs: 1, Milli: 600}), 0, func(s *cluster.State) { s.Left[2] = 600 }, 3},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster()
			e := NewEstimator(c, newMix(c, tc.mix), DefaultOptions, rand.New(rand.NewSource(1)))
			s := c.Empty(tc.shape)
			if tc.change != nil {
				tc.change(&s)
			}
			for range 2 { // computed, and remembered
				if got := e.Idle(s); !near(got, tc.want) {
					t.Errorf("got %v, want %v", got, tc.want)
				}
			}
		})
	}
}

func TestCPUOnlyTasksTakeCPUFromGPUs(t *testing.T) {
	c := newCluster()
	// Without CPU-only tasks every GPU of the first node finds a task, with them not.
	gpu := repeat(50, trace.Kind{CPU: 8000, GPUs: 1, Milli: 1000})
	both := append(slices.Clone(gpu), repeat(50, trace.Kind{CPU: 32000})...)
	idle := func(mix []trace.Task) float64 {
		return NewEstimator(c, newMix(c, mix), DefaultOptions, rand.New(rand.NewSource(1))).Idle(c.Empty(0))
	}
	if without, with := idle(gpu), idle(both); without != 0 || with < 1 {
		t.Errorf("%v GPUs stay idle without and %v with CPU-only tasks", without, with)
	}
}

func TestWhatIsRememberedIsBounded(t *testing.T) {
	c := newCluster()
	e := NewEstimator(c, newMix(c, repeat(5, trace.Kind{GPUs: 1, Milli: 600})), Options{Streams: 1, LengthBase: 1, MaxLength: 1, Load: 1}, rand.New(rand.NewSource(1)))
	e.limit = 10
	for cpu := range int32(100) {
		s := c.Empty(0)
		s.CPU = cpu
		if got := e.Idle(s); !near(got, 3.4) { // one task is offered
			t.Fatalf("got %v", got)
		}
		if len(e.known) > 10 {
			t.Fatalf("%d are remembered", len(e.known))
		}
	}
}

func TestRooms(t *testing.T) {
	two, four := trace.Kind{CPU: 4000, GPUs: 2, Milli: 1000}, trace.Kind{CPU: 8000, GPUs: 4, Milli: 1000}
	big := trace.Kind{CPU: 160000, GPUs: 8, Milli: 1000}
	c := newCluster()
	r := NewReserve(c, newMix(c, tasks(big, two, two, four, four, trace.Kind{CPU: 32000, GPUs: 4, Milli: 1000})))
	// By demand: fours (12, of which a third needs 32 CPUs), 8 of big, 4 of twos. The fours are one group: as
	// many fit empty nodes of each shape.
	if len(r.groups) != 3 || r.groups[0].GPUs != 4 || r.groups[1].GPUs != 8 || r.groups[2].GPUs != 2 {
		t.Fatalf("groups %+v", r.groups)
	}
	for name, tc := range map[string]struct {
		shape  int
		change func(*cluster.State)
		want   []float32
	}{
		"an empty node of 4":               {0, nil, []float32{1, 0, 2}},
		"an empty node of 8":               {1, nil, []float32{2, 1, 4}},
		"a node without GPUs":              {2, nil, []float32{0, 0, 0}},
		"CPU for two thirds of the fours":  {0, func(s *cluster.State) { s.CPU = 31999 }, []float32{2.0 / 3, 0, 2}},
		"one GPU in use":                   {0, func(s *cluster.State) { s.Left[3] = 500 }, []float32{0, 0, 1}},
		"CPU for one two":                  {0, func(s *cluster.State) { s.CPU = 4000 }, []float32{0, 0, 1}},
		"less CPU than any needs":          {0, func(s *cluster.State) { s.CPU = 3999 }, []float32{0, 0, 0}},
		"less than two GPUs: nothing fits": {0, func(s *cluster.State) { s.Left = [16]int16{1000} }, []float32{0, 0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			s := c.Empty(tc.shape)
			if tc.change != nil {
				tc.change(&s)
			}
			rooms := r.Rooms(&s)
			for g, want := range tc.want {
				if math.Abs(float64(rooms[g]-want)) > 1e-6 {
					t.Errorf("group %d: got %v, want %v", g, rooms[g], want)
				}
			}
		})
	}
}

func TestRarestGroupsAreOne(t *testing.T) {
	var nodes []trace.Node
	var all []trace.Task
	for i := range demand.MaxGroups + 3 {
		model := string(rune('A' + i))
		nodes = append(nodes, trace.Node{Name: model, CPU: 1000, GPUs: 2, Model: model})
		all = append(all, repeat(i+1, trace.Kind{GPUs: 2, Milli: 1000, Spec: model})...)
	}
	c := cluster.New(nodes, make([]int, len(nodes)), 0)
	r := NewReserve(c, newMix(c, all))
	if len(r.groups) != demand.MaxGroups {
		t.Fatalf("%d groups, want %d", len(r.groups), demand.MaxGroups)
	}
	share := 0.0
	for _, g := range r.groups {
		share += g.Share
	}
	if !near(share, 1) {
		t.Errorf("the groups are %v of the demand, want all", share)
	}
}

func TestPricesRiseWithScarcity(t *testing.T) {
	c := newCluster()
	r := NewReserve(c, newMix(c, append(repeat(10, trace.Kind{GPUs: 1, Milli: 1000}), tasks(trace.Kind{GPUs: 4, Milli: 1000})...)))
	prices := func(rooms float32, idle float64) float32 {
		var stock demand.Stock
		stock.Change(&demand.Rooms{}, &demand.Rooms{rooms})
		p := r.Prices(&stock, idle, 0.01, 0.5)
		return p[0]
	}
	plenty, few, none := prices(4, 1), prices(1, 10), prices(1, 1000)
	if !(plenty < few && few < none) {
		t.Errorf("prices %v, %v, %v do not rise", plenty, few, none)
	}
	// A task that will be missed for certain: 4 GPUs, at 0.5 and the floor.
	if want := 4 * (0.5 + 0.01*math.Sqrt(4.0/14)); math.Abs(float64(none)-want) > 1e-6 {
		t.Errorf("got %v, want %v", none, want)
	}
}

func TestThoseWhoNeedTheSameNodesCompete(t *testing.T) {
	c := newCluster()
	four, eight := trace.Kind{GPUs: 4, Milli: 1000}, trace.Kind{GPUs: 8, Milli: 1000}
	r := NewReserve(c, newMix(c, tasks(four, four, four, eight)))
	if r.groups[0].GPUs != 4 {
		t.Fatalf("groups %+v", r.groups)
	}
	stock := func(nodes ...demand.Rooms) *demand.Stock {
		var s demand.Stock
		for i := range nodes {
			s.Change(&demand.Rooms{}, &nodes[i])
		}
		return &s
	}
	apart := r.Prices(stock(demand.Rooms{2, 0}, demand.Rooms{0, 2}), 8, 0, 1)
	together := r.Prices(stock(demand.Rooms{2, 2}), 8, 0, 1)
	if apart[0] >= together[0] {
		t.Errorf("fours cost %v beside eights that have nodes of their own, %v on the same", apart[0], together[0])
	}
	if apart[1] != together[1] {
		t.Errorf("eights cost %v and %v, but fours do not compete for their rooms", apart[1], together[1])
	}
	// Six rooms each time. Where a node has CPU for one four, an eight takes one room.
	one := r.Prices(stock(demand.Rooms{1, 1}, demand.Rooms{1, 1}, demand.Rooms{1, 1}, demand.Rooms{1, 1}, demand.Rooms{1, 1}, demand.Rooms{1, 1}), 8, 0, 1)
	two := r.Prices(stock(demand.Rooms{2, 1}, demand.Rooms{2, 1}, demand.Rooms{2, 1}), 8, 0, 1)
	if one[0] >= two[0] {
		t.Errorf("fours cost %v where an eight takes one of their rooms, %v where it takes two", one[0], two[0])
	}
}
