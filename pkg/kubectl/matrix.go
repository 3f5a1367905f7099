// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/switchyard-dev/switchyard/pkg/topology"
)

// links are how the GPUs of a node are connected, as far as ResourceSlices tell, in the words of nvidia-smi topo -m.
func links(gpus []gpuView) [][]string {
	table := make([][]string, len(gpus))
	for i := range gpus {
		for j := range gpus {
			table[i] = append(table[i], link(gpus, i, j))
		}
	}
	return table
}

// link is how two GPUs are connected.
//
// GPUs of one domain have NVLinks; over how many, the slices say of a GPU that has as many to each peer. Else it says
// NVL. GPUs of different domains may have NVLinks of which slices do not tell (DGX-1). Below one PCIe root complex
// it is PHB, or nearer.
func link(gpus []gpuView, i, j int) string {
	a, b := gpus[i], gpus[j]
	switch {
	case i == j:
		return topology.Self.String()
	case a.Domain != "" && a.Domain == b.Domain:
		count := max(a.NVLinksPerPeer, b.NVLinksPerPeer) // one may have another number to another peer
		return topology.Connection{Level: topology.NVLink, NVLinks: int(count)}.String()
	case a.PCIeRoot != "" && a.PCIeRoot == b.PCIeRoot:
		return topology.PHB.String()
	case a.NUMANode == nil || b.NUMANode == nil:
		return topology.Unknown.String()
	case *a.NUMANode == *b.NUMANode:
		return topology.NODE.String()
	default:
		return topology.SYS.String()
	}
}

// meanings explain the cells, as nvidia-smi does below its matrix.
var meanings = []struct{ cell, meaning string }{
	{topology.Self.String(), "the GPU itself"},
	{"NV#", "over # NVLinks"},
	{topology.NVLink.String(), "over NVLink; slices do not say over how many"},
	{topology.PHB.String(), "below one PCIe root complex (PHB or nearer)"},
	{topology.NODE.String(), "across PCIe root complexes of one NUMA node"},
	{topology.SYS.String(), "across NUMA nodes"},
	{topology.Unknown.String(), "not known: a NUMA node is not published"},
}

// matrix prints the links like nvidia-smi topo -m, with what the cells mean.
func matrix(n nodeView, headers bool) string {
	var b strings.Builder
	label := func(g gpuView) string { return fmt.Sprintf("GPU%d", g.Index) }
	write := func(cells ...string) { b.WriteString(strings.TrimRight(strings.Join(cells, " "), " ") + "\n") }
	cell := func(text string) string { return fmt.Sprintf("%-5s", text) }
	if headers {
		cells := []string{cell("")}
		for _, g := range n.GPUs {
			cells = append(cells, cell(label(g)))
		}
		write(append(cells, "NUMA  NVSwitch domain")...)
	}
	used := map[string]bool{}
	for i, g := range n.GPUs {
		cells := []string{cell(label(g))}
		for _, text := range n.Links[i] {
			cells = append(cells, cell(text))
			if strings.HasPrefix(text, "NV") && text != topology.NVLink.String() {
				text = "NV#"
			}
			used[text] = true
		}
		numa := "-"
		if g.NUMANode != nil {
			numa = strconv.FormatInt(*g.NUMANode, 10)
		}
		write(append(cells, fmt.Sprintf("%-5s %s", numa, orDash(plainLine(g.Domain))))...)
	}
	if headers {
		b.WriteString("\n")
		for _, m := range meanings {
			if used[m.cell] {
				fmt.Fprintf(&b, "  %-4s = %s\n", m.cell, m.meaning)
			}
		}
	}
	return b.String()
}
