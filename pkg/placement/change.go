// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"maps"
	"slices"
)

// change is a supposed change of the cluster, and how to take it back.
type change struct {
	*Cluster
	back []func()
}

func (c *change) undo() {
	for _, f := range slices.Backward(c.back) {
		f()
	}
}

// leave supposes that a resident gives its devices back and leaves its node.
func (c *change) leave(v Resident) {
	for _, id := range v.held.devices {
		u := c.uses[id]
		before := u.left
		u.suppose(append(slices.Clip(before), v.held))
		c.back = append(c.back, func() { u.suppose(before) })
	}
	if n := c.nodes[v.pod.node]; n != nil {
		less := amounts{}
		for name, value := range v.pod.requests {
			less[name] = -value
		}
		c.take(n, less)
	}
}

// take supposes that pods come to a node.
func (c *change) take(n *node, more amounts) {
	before, known := c.promised[n.name]
	after := maps.Clone(before)
	if after == nil {
		after = amounts{}
	}
	for name, value := range more {
		after[name] += value
	}
	c.promised[n.name] = after
	c.back = append(c.back, func() {
		if c.promised[n.name] = before; !known {
			delete(c.promised, n.name)
		}
	})
}

// plan supposes that a device is taken.
func (c *change) plan(d *device) {
	if d.use.planned {
		return
	}
	d.use.plan(true)
	c.back = append(c.back, func() { d.use.plan(false) })
}
