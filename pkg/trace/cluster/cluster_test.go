// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"math/rand"
	"slices"
	"testing"

	"github.com/switchyard-dev/switchyard/pkg/trace"
)

var nodes = []trace.Node{
	{Name: "eight", CPU: 96000, Memory: 1000, GPUs: 8, Model: "G2"},
	{Name: "four", CPU: 32000, Memory: 1000, GPUs: 4, Model: "T4"},
	{Name: "none", CPU: 64000, Memory: 1000},
	{Name: "eight-too", CPU: 96000, Memory: 1000, GPUs: 8, Model: "G2"},
}

func newCluster(domain int) *Cluster { return New(nodes, []int{3, 1, 0, 2}, domain) }

func TestNewGroupsNodesByShape(t *testing.T) {
	c := newCluster(0)
	if c.Capacity != 20000 || len(c.Nodes) != 4 || !slices.Equal(c.Models, []string{"G2", "T4"}) {
		t.Errorf("capacity %d, %d nodes, models %v", c.Capacity, len(c.Nodes), c.Models)
	}
	want := []Shape{{96000, 1000, 8, 0, 2}, {32000, 1000, 4, 1, 1}, {64000, 1000, 0, -1, 1}}
	if !slices.Equal(c.Shapes, want) {
		t.Errorf("shapes %+v, want %+v", c.Shapes, want)
	}
	if c.Nodes[3].State != c.Empty(0) || c.Nodes[3].Rank != 2 {
		t.Errorf("node 3 is %+v", c.Nodes[3])
	}
}

// state is that of a node of the shape with so much left of its GPUs.
func (c *Cluster) state(shape int, left ...int16) State {
	s := c.Empty(shape)
	copy(s.Left[:], left)
	return s
}

func TestFitsAndChoicesOfGPUs(t *testing.T) {
	for name, tc := range map[string]struct {
		domain   int
		shape    int
		left     []int16
		cpu      int32
		request  trace.Kind
		fits     bool
		firstFit GPUSet
		options  []GPUSet
	}{
		"no GPU on a node with GPUs":                   {request: trace.Kind{CPU: 1}, fits: true, options: []GPUSet{0}},
		"no GPU on a node without":                     {shape: 2, request: trace.Kind{CPU: 1}, fits: true, options: []GPUSet{0}},
		"CPU lacks":                                    {request: trace.Kind{CPU: 96001}},
		"memory lacks":                                 {request: trace.Kind{Memory: 1001}},
		"a GPU on a node without":                      {shape: 2, request: trace.Kind{GPUs: 1, Milli: 1}},
		"the model suits":                              {shape: 1, request: trace.Kind{GPUs: 1, Milli: 1000, Spec: "T4|P4"}, fits: true, firstFit: 1, options: []GPUSet{1}},
		"the model does not suit":                      {shape: 0, request: trace.Kind{GPUs: 1, Milli: 1000, Spec: "T4|P4"}},
		"a part goes where least is left":              {shape: 1, left: []int16{1000, 400, 300, 400}, request: trace.Kind{GPUs: 1, Milli: 300}, fits: true, firstFit: 4, options: []GPUSet{1, 2, 4}},
		"a part does not fit two halves":               {shape: 1, left: []int16{400, 400, 400, 400}, request: trace.Kind{GPUs: 1, Milli: 401}},
		"whole ones are the first":                     {shape: 1, left: []int16{900, 1000, 1000, 1000}, request: trace.Kind{GPUs: 2, Milli: 1000}, fits: true, firstFit: 6, options: []GPUSet{6}},
		"too few whole ones":                           {shape: 1, left: []int16{900, 900, 1000, 1000}, request: trace.Kind{GPUs: 3, Milli: 1000}},
		"two need one domain":                          {domain: 4, left: []int16{0, 0, 0, 1000, 1000, 0, 0, 0}, request: trace.Kind{GPUs: 2, Milli: 1000}},
		"two in the second domain":                     {domain: 4, left: []int16{0, 0, 0, 1000, 1000, 0, 0, 1000}, request: trace.Kind{GPUs: 2, Milli: 1000}, fits: true, firstFit: 0x90, options: []GPUSet{0x90}},
		"two in either domain":                         {domain: 4, left: []int16{0, 0, 1000, 1000, 1000, 1000, 1000, 1000}, request: trace.Kind{GPUs: 2, Milli: 1000}, fits: true, firstFit: 0x0c, options: []GPUSet{0x0c, 0x30}},
		"eight need the whole node":                    {domain: 4, request: trace.Kind{GPUs: 8, Milli: 1000}, fits: true, firstFit: 0xff, options: []GPUSet{0xff}},
		"one of either domain is not the same":         {domain: 4, left: []int16{0, 1000, 1000, 0, 0, 0, 0, 1000}, request: trace.Kind{GPUs: 1, Milli: 1000}, fits: true, firstFit: 2, options: []GPUSet{2, 0x80}},
		"without domains one is as good as the other":  {left: []int16{0, 1000, 1000, 0, 0, 0, 0, 1000}, request: trace.Kind{GPUs: 1, Milli: 1000}, fits: true, firstFit: 2, options: []GPUSet{2}},
		"a small node is one domain":                   {domain: 8, shape: 1, request: trace.Kind{GPUs: 4, Milli: 1000}, fits: true, firstFit: 0x0f, options: []GPUSet{0x0f}},
		"more than a domain needs no domain in common": {domain: 2, shape: 1, left: []int16{0, 1000, 1000, 1000}, request: trace.Kind{GPUs: 3, Milli: 1000}, fits: true, firstFit: 0x0e, options: []GPUSet{0x0e}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(tc.domain)
			r := c.NewCatalog([]trace.Task{{Kind: tc.request}}).Requests[0]
			s := c.state(tc.shape, tc.left...)
			if got := c.Fits(&s, r); got != tc.fits {
				t.Fatalf("Fits() = %v, want %v", got, tc.fits)
			}
			if !tc.fits {
				return
			}
			if got := c.FirstFit(&s, r); got != tc.firstFit {
				t.Errorf("FirstFit() = %b, want %b", got, tc.firstFit)
			}
			if got := c.Options(nil, &s, r); !slices.Equal(got, tc.options) {
				t.Errorf("Options() = %b, want %b", got, tc.options)
			}
		})
	}
}

func TestCanonical(t *testing.T) {
	for name, tc := range map[string]struct {
		domain     int
		shape      int
		left, want []int16
	}{
		"most first":                           {0, 1, []int16{1, 3, 2, 4}, []int16{4, 3, 2, 1}},
		"within domains, and domains":          {2, 1, []int16{1, 3, 2, 4}, []int16{4, 2, 3, 1}},
		"domains that do not divide the node":  {3, 1, []int16{1, 3, 2, 4}, []int16{3, 2, 1, 4}},
		"a node smaller than a domain":         {8, 1, []int16{1, 3, 2, 4}, []int16{4, 3, 2, 1}},
		"a node without GPUs":                  {4, 2, nil, nil},
		"domains that begin alike are told by": {4, 0, []int16{9, 1, 0, 0, 9, 2, 0, 0}, []int16{9, 2, 0, 0, 9, 1, 0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(tc.domain)
			if got, want := c.Canonical(c.state(tc.shape, tc.left...)), c.state(tc.shape, tc.want...); got != want {
				t.Errorf("got %v, want %v", got.Left, want.Left)
			}
		})
	}
}

func TestRoom(t *testing.T) {
	for name, tc := range map[string]struct {
		domain int
		left   []int16
		kind   trace.Kind
		want   int
	}{
		"by GPUs":                {0, nil, trace.Kind{GPUs: 2, Milli: 1000}, 4},
		"by CPU":                 {0, nil, trace.Kind{GPUs: 2, Milli: 1000, CPU: 32000}, 3},
		"by memory":              {0, nil, trace.Kind{GPUs: 2, Milli: 1000, Memory: 501}, 1},
		"the node is too small":  {0, nil, trace.Kind{GPUs: 16, Milli: 1000}, 0},
		"GPUs in use do not add": {0, []int16{1000, 1000, 1000, 999, 999, 999, 999, 999}, trace.Kind{GPUs: 2, Milli: 1000}, 1},
		"in domains":             {4, []int16{1000, 1000, 1000, 0, 0, 0, 0, 1000}, trace.Kind{GPUs: 2, Milli: 1000}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(tc.domain)
			s := c.state(0, tc.left...)
			if got := c.Room(&s, &Request{Kind: tc.kind}); got != tc.want {
				t.Errorf("got %d, want %d", got, tc.want)
			}
		})
	}
}

func TestRemoveUndoesPlace(t *testing.T) {
	random := rand.New(rand.NewSource(1))
	for _, domain := range []int{0, 4} {
		c := newCluster(domain)
		kinds := []trace.Kind{
			{CPU: 1000, Memory: 1},
			{CPU: 1000, Memory: 1, GPUs: 1, Milli: 300},
			{CPU: 1000, Memory: 1, GPUs: 1, Milli: 1000},
			{CPU: 1000, Memory: 1, GPUs: 2, Milli: 1000},
			{CPU: 1000, Memory: 1, GPUs: 4, Milli: 1000, Spec: "G2"},
		}
		catalog := c.NewCatalog(nil)
		running := map[int]int{} // node by task
		for id := range 2000 {
			if len(running) > 0 && random.Intn(3) == 0 {
				for task, node := range running {
					run := c.Remove(task, node)
					if run.ID != task {
						t.Fatalf("removed %d instead of %d", run.ID, task)
					}
					delete(running, task)
					break
				}
				continue
			}
			node := random.Intn(len(c.Nodes))
			n, r := &c.Nodes[node], catalog.Request(kinds[random.Intn(len(kinds))])
			if !c.Fits(&n.State, r) {
				continue
			}
			options := c.Options(nil, &n.State, r)
			version := n.Version
			c.Place(id, r, Placement{Node: node, GPUs: options[random.Intn(len(options))]})
			if n.Version == version {
				t.Fatal("the version did not change")
			}
			if r.GPUs > 0 && !n.Has(r) {
				t.Fatal("the node does not have what was placed on it")
			}
			running[id] = node
		}
		used := 0
		for task, node := range running {
			used += slices.Collect(func(yield func(int) bool) {
				for _, run := range c.Nodes[node].Tasks {
					if run.ID == task {
						yield(run.Request.Demand())
					}
				}
			})[0]
		}
		if used != c.Used || used == 0 {
			t.Errorf("tasks use %d, the cluster says %d", used, c.Used)
		}
		for task, node := range running {
			c.Remove(task, node)
		}
		fresh := newCluster(domain)
		for i, n := range c.Nodes {
			if n.State != fresh.Nodes[i].State || n.ClassCount() != 0 || len(n.Tasks) != 0 || n.Idle() != n.GPUs*1000 || n.Free() != n.GPUs {
				t.Errorf("domain %d: node %d is not empty: %+v", domain, i, n)
			}
		}
	}
}

func TestPlacePanicsOnWhatDoesNotFit(t *testing.T) {
	c := newCluster(4)
	catalog := c.NewCatalog(nil)
	for name, tc := range map[string]struct {
		kind trace.Kind
		to   Placement
	}{
		"another number of GPUs": {trace.Kind{GPUs: 2, Milli: 1000}, Placement{0, 1}},
		"across domains":         {trace.Kind{GPUs: 2, Milli: 1000}, Placement{0, 0x18}},
		"a GPU that is not":      {trace.Kind{GPUs: 1, Milli: 1000}, Placement{1, 0x10}},
		"the wrong model":        {trace.Kind{GPUs: 1, Milli: 1000, Spec: "T4"}, Placement{0, 1}},
		"too much CPU":           {trace.Kind{CPU: 1 << 30}, Placement{0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("it was placed")
				}
			}()
			c.Place(1, catalog.Request(tc.kind), tc.to)
		})
	}
}
