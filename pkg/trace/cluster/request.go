// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"slices"

	"github.com/switchyard-dev/switchyard/pkg/trace"
)

// Request is a kind of task, prepared for a cluster.
type Request struct {
	trace.Kind
	// ID numbers the requests of a catalog from 0.
	ID int
	// models are those that suit, by number; nil if all do.
	models []bool
}

// Suits reports whether the request may run on the GPU model, or on a node without GPUs (-1).
func (r *Request) Suits(model int) bool { return r.models == nil || model >= 0 && r.models[model] }

// class is the index of Node.Classes.
func (r *Request) class() int {
	if r.Shared() {
		return 0
	}
	return r.GPUs
}

// Catalog has one Request for each kind of task.
type Catalog struct {
	Requests []*Request
	byKind   map[trace.Kind]*Request
	models   []string
}

// NewCatalog returns the catalog of the tasks.
func (c *Cluster) NewCatalog(tasks []trace.Task) *Catalog {
	catalog := &Catalog{byKind: map[trace.Kind]*Request{}, models: c.Models}
	for _, t := range tasks {
		catalog.Request(t.Kind)
	}
	return catalog
}

// Request returns the request of a kind.
func (c *Catalog) Request(kind trace.Kind) *Request {
	if r := c.byKind[kind]; r != nil {
		return r
	}
	r := &Request{Kind: kind, ID: len(c.Requests)}
	if models := kind.Models(); models != nil {
		r.models = make([]bool, len(c.models))
		for i, model := range c.models {
			r.models[i] = slices.Contains(models, model)
		}
	}
	c.Requests = append(c.Requests, r)
	c.byKind[kind] = r
	return r
}

// Fits reports whether the request fits a node in the state.
func (c *Cluster) Fits(s *State, r *Request) bool {
	if s.CPU < r.CPU || s.Memory < r.Memory {
		return false
	}
	if r.GPUs == 0 {
		return true
	}
	if !r.Suits(c.Shapes[s.Shape].Model) {
		return false
	}
	gpus := c.Shapes[s.Shape].GPUs
	size := c.scope(gpus, r)
	for first := 0; first < gpus; first += size {
		if count(s, r, first, min(first+size, gpus)) >= r.GPUs {
			return true
		}
	}
	return false
}

// fitsOn reports whether the request fits the GPUs of a node in the state.
func (c *Cluster) fitsOn(s State, r *Request, gpus GPUSet) bool {
	if gpus.Len() != r.GPUs || s.CPU < r.CPU || s.Memory < r.Memory {
		return false
	}
	if r.GPUs == 0 {
		return true
	}
	size, domain := c.scope(c.Shapes[s.Shape].GPUs, r), -1
	for i := range gpus.All {
		if int(s.Left[i]) < r.Milli || domain >= 0 && domain != i/size {
			return false
		}
		domain = i / size
	}
	return r.Suits(c.Shapes[s.Shape].Model)
}

// scope is how many GPUs there are in the part of a node that must hold all of the request's.
func (c *Cluster) scope(gpus int, r *Request) int {
	if c.Domain == 0 || r.GPUs < 2 || r.GPUs > c.Domain {
		return gpus
	}
	return c.Domain
}

func count(s *State, r *Request, first, end int) int {
	n := 0
	for _, left := range s.Left[first:end] {
		if int(left) >= r.Milli {
			n++
		}
	}
	return n
}

// FirstFit returns the GPUs that the stock choice takes of a node that the request fits: for a part of a
// GPU the one that has least left, otherwise the first ones.
func (c *Cluster) FirstFit(s *State, r *Request) GPUSet {
	if r.GPUs == 0 {
		return 0
	}
	gpus := c.Shapes[s.Shape].GPUs
	if r.Shared() {
		best := -1
		for i, left := range s.Left[:gpus] {
			if int(left) >= r.Milli && (best < 0 || left < s.Left[best]) {
				best = i
			}
		}
		return 1 << best
	}
	size := c.scope(gpus, r)
	for first := 0; first < gpus; first += size {
		if end := min(first+size, gpus); count(s, r, first, end) >= r.GPUs {
			return take(s, r, first, end)
		}
	}
	panic("FirstFit on a node that the request does not fit")
}

func take(s *State, r *Request, first, end int) GPUSet {
	var set GPUSet
	for i := first; i < end && set.Len() < r.GPUs; i++ {
		if int(s.Left[i]) >= r.Milli {
			set |= 1 << i
		}
	}
	return set
}

// Options appends the choices of GPUs that lead to different states of a node that the request fits: one
// for each amount that is left of a GPU where it needs a part of one, one for each domain otherwise.
func (c *Cluster) Options(options []GPUSet, s *State, r *Request) []GPUSet {
	if r.GPUs == 0 {
		return append(options, 0)
	}
	gpus := c.Shapes[s.Shape].GPUs
	if r.GPUs == 1 {
		size := gpus
		if c.Domain > 0 {
			size = c.Domain
		}
		for i, left := range s.Left[:gpus] {
			// A GPU that has as much left as one before it in its domain leads to the same state.
			if int(left) >= r.Milli && !slices.Contains(s.Left[i-i%size:i], left) {
				options = append(options, 1<<i)
			}
		}
		return options
	}
	size := c.scope(gpus, r)
	for first := 0; first < gpus; first += size {
		if end := min(first+size, gpus); count(s, r, first, end) >= r.GPUs {
			options = append(options, take(s, r, first, end))
		}
	}
	return options
}

// Canonical is the state with its GPUs in an order that does not tell equal nodes apart: by what is left,
// most first, within each domain and between domains.
func (c *Cluster) Canonical(s State) State {
	gpus := c.Shapes[s.Shape].GPUs
	size := gpus
	if c.Domain > 0 && c.Domain < gpus {
		size = c.Domain
	}
	if size == 0 {
		return s
	}
	for first := 0; first < gpus; first += size {
		sortDescending(s.Left[first:min(first+size, gpus)])
	}
	if gpus%size == 0 {
		sortDomains(s.Left[:gpus], size)
	}
	return s
}

func sortDescending(left []int16) {
	for i := 1; i < len(left); i++ {
		for j := i; j > 0 && left[j] > left[j-1]; j-- {
			left[j], left[j-1] = left[j-1], left[j]
		}
	}
}

// sortDomains sorts parts of equal size, the greatest first.
func sortDomains(left []int16, size int) {
	for i := size; i < len(left); i += size {
		for j := i; j > 0; j -= size {
			a, b := left[j-size:j], left[j:j+size]
			if slices.Compare(a, b) >= 0 {
				break
			}
			for k := range a {
				a[k], b[k] = b[k], a[k]
			}
		}
	}
}

// Room is how many tasks of the request find room on a node in the state: on whole GPUs, one after the other.
// GPU models do not count.
func (c *Cluster) Room(s *State, r *Request) int {
	gpus := c.Shapes[s.Shape].GPUs
	if gpus < r.GPUs {
		return 0
	}
	room := 0
	size := c.scope(gpus, r)
	for first := 0; first < gpus; first += size {
		room += count(s, r, first, min(first+size, gpus)) / r.GPUs
	}
	if r.CPU > 0 {
		room = min(room, int(s.CPU/r.CPU))
	}
	if r.Memory > 0 {
		room = min(room, int(s.Memory/r.Memory))
	}
	return room
}
