// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cluster is what is left of each node while tasks run: CPU, memory, and a part of each GPU.
//
// It imports package trace and the standard library. It promises that Remove undoes Place exactly, and that
// nothing is placed that does not fit: Place panics on that, since it is an error of the caller.
package cluster

import (
	"fmt"
	"math/bits"
	"slices"

	"github.com/switchyard-dev/switchyard/pkg/trace"
)

// Cluster is a set of nodes. It is not safe for concurrent use.
type Cluster struct {
	Shapes []Shape
	Nodes  []Node
	// Models are the GPU models, by the number that Shape.Model has.
	Models []string
	// Domain is the number of GPUs in a domain: the first Domain GPUs of a node are one, and so on. A task
	// with 2 to Domain GPUs needs all of them in one. 0: the GPUs of a node are one domain.
	Domain int
	// Capacity is the number of GPUs, in milli-GPUs.
	Capacity int
	// Used is what tasks have of it.
	Used int
	// Version changes whenever a node does.
	Version int
}

// Shape is what a node has without tasks. Nodes of a shape are interchangeable then.
type Shape struct {
	CPU, Memory int32
	GPUs        int
	// Model is the number of the GPU model; -1 without GPUs.
	Model int
	// Nodes is how many nodes have the shape.
	Nodes int
}

// State is what is left of a node. It is comparable: nodes of equal states are interchangeable.
type State struct {
	// Shape is the number of the node's shape.
	Shape       int32
	CPU, Memory int32
	// Left is what is left of each GPU, in milli-GPUs; 0 beyond the node's GPUs.
	Left [trace.MaxGPUs]int16
}

// Node is a node with tasks.
type Node struct {
	State
	GPUs int
	// Rank decides between nodes that are rated equal: the lowest is taken.
	Rank int
	// Version changes whenever the state does.
	Version uint32
	// Tasks are the tasks that run on the node.
	Tasks []Run
	// Classes counts them by the GPUs that they asked for; those that share one are at 0, those without
	// GPUs are not counted.
	Classes [trace.MaxGPUs + 1]int
}

// Run is a task that runs.
type Run struct {
	// ID tells tasks apart.
	ID      int
	Request *Request
	GPUs    GPUSet
}

// GPUSet is a set of GPUs of a node: bit i is GPU i.
type GPUSet uint16

// Len is the number of GPUs.
func (s GPUSet) Len() int { return bits.OnesCount16(uint16(s)) }

// All yields the GPUs in order.
func (s GPUSet) All(yield func(int) bool) {
	for s != 0 {
		if !yield(bits.TrailingZeros16(uint16(s))) {
			return
		}
		s &= s - 1
	}
}

// Placement is where a task runs, or could.
type Placement struct {
	// Node is the number of the node in Cluster.Nodes.
	Node int
	GPUs GPUSet
}

// New returns a cluster without tasks. ranks belong to nodes; domain is Cluster.Domain.
func New(nodes []trace.Node, ranks []int, domain int) *Cluster {
	c := &Cluster{Domain: domain, Capacity: trace.Capacity(nodes)}
	models, shapes := map[string]int{}, map[Shape]int32{}
	for i, n := range nodes {
		shape := Shape{CPU: n.CPU, Memory: n.Memory, GPUs: n.GPUs, Model: -1}
		if n.GPUs > 0 {
			if _, known := models[n.Model]; !known {
				models[n.Model] = len(c.Models)
				c.Models = append(c.Models, n.Model)
			}
			shape.Model = models[n.Model]
		}
		number, known := shapes[shape]
		if !known {
			number = int32(len(c.Shapes))
			shapes[shape] = number
			c.Shapes = append(c.Shapes, shape)
		}
		c.Shapes[number].Nodes++
		c.Nodes = append(c.Nodes, Node{State: c.Shapes[number].empty(number), GPUs: n.GPUs, Rank: ranks[i]})
	}
	return c
}

func (s Shape) empty(number int32) State {
	state := State{Shape: number, CPU: s.CPU, Memory: s.Memory}
	for i := range s.GPUs {
		state.Left[i] = trace.Whole
	}
	return state
}

// Empty is the state of a node of the shape without tasks.
func (c *Cluster) Empty(shape int) State { return c.Shapes[shape].empty(int32(shape)) }

// Place lets a task run.
func (c *Cluster) Place(id int, r *Request, p Placement) {
	n := &c.Nodes[p.Node]
	if !c.fitsOn(n.State, r, p.GPUs) {
		panic(fmt.Sprintf("task %d (%+v) does not fit GPUs %b of node %d: %+v", id, r.Kind, p.GPUs, p.Node, n.State))
	}
	n.State = n.After(r, p.GPUs)
	n.Version++
	c.Version++
	n.Tasks = append(n.Tasks, Run{ID: id, Request: r, GPUs: p.GPUs})
	if r.GPUs > 0 {
		n.Classes[r.class()]++
	}
	c.Used += r.Demand()
}

// Remove takes a task away from its node. It panics if the task does not run there.
func (c *Cluster) Remove(id, node int) Run {
	n := &c.Nodes[node]
	i := slices.IndexFunc(n.Tasks, func(t Run) bool { return t.ID == id })
	run := n.Tasks[i]
	n.State = n.Before(run)
	n.Version++
	c.Version++
	n.Tasks = slices.Delete(n.Tasks, i, i+1)
	if run.Request.GPUs > 0 {
		n.Classes[run.Request.class()]--
	}
	c.Used -= run.Request.Demand()
	return run
}

// After is the state when the task runs on the GPUs.
func (s State) After(r *Request, gpus GPUSet) State {
	s.CPU -= r.CPU
	s.Memory -= r.Memory
	for i := range gpus.All {
		s.Left[i] -= int16(r.Milli)
	}
	return s
}

// Before is the state when the task does not run any more.
func (s State) Before(run Run) State {
	s.CPU += run.Request.CPU
	s.Memory += run.Request.Memory
	for i := range run.GPUs.All {
		s.Left[i] += int16(run.Request.Milli)
	}
	return s
}

// Idle is what is left of all GPUs, in milli-GPUs.
func (s *State) Idle() int {
	idle := 0
	for _, left := range s.Left {
		idle += int(left)
	}
	return idle
}

// Free is the number of GPUs that no task uses.
func (s *State) Free() int {
	free := 0
	for _, left := range s.Left {
		if left == trace.Whole {
			free++
		}
	}
	return free
}

// Has reports whether a task runs on the node that asks for as many GPUs as the request, or a part of one
// as it does.
func (n *Node) Has(r *Request) bool { return n.Classes[r.class()] > 0 }

// ClassCount is how many different numbers of GPUs the node's tasks ask for; a part of one is a number too.
func (n *Node) ClassCount() int {
	count := 0
	for _, tasks := range n.Classes {
		if tasks > 0 {
			count++
		}
	}
	return count
}
