// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"fmt"
	"slices"
)

// MaxGPUs is the largest number of GPUs in one Graph. The largest nodes have
// 16; partitions are searched on 64-bit sets.
const MaxGPUs = 64

// Port is what is known of one GPU's own NVLinks, whoever their peers are.
type Port struct {
	// ActiveNVLinks is the number of active NVLinks of the GPU, including
	// those whose remote end is no GPU of the Graph.
	ActiveNVLinks int
	// Switched says that NVLinks of the GPU end at an NVSwitch (or, where the
	// remote end is hidden, at a fabric). Such a GPU has a domain even if no
	// other GPU of the node shares it.
	Switched bool
}

// Graph is the connections between the GPUs of one node, numbered from 0. It is
// immutable; the zero Graph has no GPU.
type Graph struct {
	connections [][]Connection
	ports       []Port
}

// NewGraph returns the Graph with the given symmetric matrix of connections.
// ports describes the GPUs' own NVLinks and may be nil if only the connections
// are known. Both are copied.
//
// The error names the first entry that is wrong: more than MaxGPUs GPUs, a row
// of the wrong length, a diagonal entry other than Self, Self elsewhere, a
// negative number of links or more than MaxNVLinks, Level NVLink without links,
// or an entry that differs from its mirror.
func NewGraph(connections [][]Connection, ports []Port) (Graph, error) {
	n := len(connections)
	if n > MaxGPUs {
		return Graph{}, fmt.Errorf("topology of %d GPUs: at most %d are supported", n, MaxGPUs)
	}
	if ports == nil {
		ports = make([]Port, n)
	}
	if len(ports) != n {
		return Graph{}, fmt.Errorf("topology of %d GPUs: %d ports given", n, len(ports))
	}
	g := Graph{connections: make([][]Connection, n), ports: slices.Clone(ports)}
	for i, row := range connections {
		if len(row) != n {
			return Graph{}, fmt.Errorf("topology of %d GPUs: row %d has %d entries", n, i, len(row))
		}
		g.connections[i] = make([]Connection, n)
		for j, c := range row {
			c, err := canonical(c, i == j)
			if err != nil {
				return Graph{}, fmt.Errorf("connection of GPUs %d and %d: %w", i, j, err)
			}
			if j < i && g.connections[j][i] != c {
				return Graph{}, fmt.Errorf("connection of GPUs %d and %d: %s from %d but %s from %d", j, i, g.connections[j][i], j, c, i)
			}
			g.connections[i][j] = c
		}
	}
	for i, p := range ports {
		if p.ActiveNVLinks < 0 {
			return Graph{}, fmt.Errorf("GPU %d: negative number of active NVLinks %d", i, p.ActiveNVLinks)
		}
	}
	return g, nil
}

// canonical checks one entry and gives an NVLinked pair of unknown PCIe path
// its one spelling.
func canonical(c Connection, diagonal bool) (Connection, error) {
	switch {
	case diagonal && c != (Connection{Level: Self}):
		return c, fmt.Errorf("a GPU's connection to itself must be %s, not %s", Self, c)
	case diagonal:
		return c, nil
	case c.Level < Unknown || c.Level > SYS || c.Level == Self:
		return c, fmt.Errorf("level %s is not one between two GPUs", c.Level)
	case c.NVLinks < 0 || c.NVLinks > MaxNVLinks:
		return c, fmt.Errorf("%d NVLinks: expected 0 to %d", c.NVLinks, MaxNVLinks)
	case c.Level == NVLink && c.NVLinks == 0:
		return c, fmt.Errorf("level %s needs at least one NVLink", c.Level)
	case c.Level == Unknown && c.NVLinks > 0:
		c.Level = NVLink
	}
	return c, nil
}

// Len returns the number of GPUs.
func (g Graph) Len() int { return len(g.connections) }

// Connection returns how GPUs i and j are connected.
func (g Graph) Connection(i, j int) Connection { return g.connections[i][j] }

// Switched reports whether NVLinks of GPU i are known to end at an NVSwitch or
// a fabric.
func (g Graph) Switched(i int) bool { return g.ports[i].Switched }

// HasNVLink reports whether GPU i has an active NVLink: to another GPU of the
// Graph, to an NVSwitch, or to a GPU that this node does not see, such as the
// other half of a bridged pair that was passed to another virtual machine.
func (g Graph) HasNVLink(i int) bool {
	return g.ports[i].ActiveNVLinks > 0 || g.ports[i].Switched ||
		slices.ContainsFunc(g.connections[i], func(c Connection) bool { return c.NVLinks > 0 })
}

// Cells returns the matrix as nvidia-smi topo -m prints it, without labels:
// Cells()[i][j] is such as "X", "NV12" or "PIX".
func (g Graph) Cells() [][]string {
	cells := make([][]string, g.Len())
	for i, row := range g.connections {
		cells[i] = make([]string, len(row))
		for j, c := range row {
			cells[i][j] = c.String()
		}
	}
	return cells
}
