// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package profile

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/utils/cpuset"

	"github.com/switchyard-dev/switchyard/pkg/topology"
	"github.com/switchyard-dev/switchyard/pkg/topology/smi"
)

// ImportOptions say what the output of nvidia-smi topo -m does not.
type ImportOptions struct {
	// Name is the name of the new profile.
	Name string
	// Like is the profile, by name or file, that product, driver and fabric are taken from. Empty: one
	// with as many NVLinks.
	Like string
}

// directLinks is the largest number of NVLinks that one GPU of any product has. A set of GPUs that would
// need more to be joined directly is joined by NVSwitches.
const directLinks = 18

// FromMatrix makes a profile of the node that a matrix was taken on. The profile has the same NVLinks
// between all pairs, hence the same domains; PCIe distances and NUMA nodes are the same as far as one
// tree of PCI devices can have them, and each pair that differs is in the warnings.
//
// It fails if no node with at most MaxLinksPerGPU links a GPU has such NVLinks.
func FromMatrix(m *smi.Matrix, o ImportOptions) (Profile, []string, error) {
	nvlink, err := nvlinksOf(m.Graph)
	if err != nil {
		return Profile{}, nil, err
	}
	like := o.Like
	if like == "" {
		like = similar(nvlink)
	}
	base, err := Load(like)
	if err != nil {
		return Profile{}, nil, err
	}
	p := Profile{
		Name:        o.Name,
		Description: fmt.Sprintf("%d GPUs, imported from nvidia-smi topo -m", len(m.GPUs)),
		Sources:     []string{"nvidia-smi topo -m"},
		Assumptions: []string{
			"Product and driver, those of profile " + base.Name,
			"PCI addresses and bridges, made up to give the distances of the matrix",
		},
		Driver:  base.Driver,
		Product: base.Product,
		NVLink:  nvlink,
	}
	if nvlink != nil {
		p.Fabric = base.Fabric
		if base.NVLink != nil {
			nvlink.Version, nvlink.MBPerSecond, nvlink.Remotes = base.NVLink.Version, base.NVLink.MBPerSecond, base.NVLink.Remotes
		}
	}
	p.GPUs = slotsOf(m)
	if err := Validate(p).ToAggregate(); err != nil {
		return Profile{}, nil, err
	}
	return p, differences(p, m), nil
}

// similar names the profile whose GPUs have as many NVLinks.
func similar(nvlink *NVLink) string {
	switch {
	case nvlink == nil:
		return "l40s-pcie"
	case nvlink.LinksPerGPU > 12:
		return "hgx-h100"
	case nvlink.LinksPerGPU > 6:
		return "dgx-a100"
	default:
		return "dgx1-v100"
	}
}

// nvlinksOf joins the GPUs of each connected component directly if they have links enough for that, and
// else by a switch, which takes that all of them are connected with equally many links.
func nvlinksOf(g topology.Graph) (*NVLink, error) {
	n := &NVLink{Version: 3}
	for _, component := range components(g) {
		if len(component) == 1 {
			continue
		}
		peers, perGPU := directly(g, component)
		if links, ok := alike(g, component); ok && perGPU > directLinks {
			n.Switches = append(n.Switches, Switch{BusID: fmt.Sprintf("0001:%02x:00.0", len(n.Switches)), GPUs: component, Links: links})
			perGPU = links
		} else {
			n.Peers = append(n.Peers, peers...)
		}
		if perGPU > MaxLinksPerGPU {
			return nil, fmt.Errorf("GPUs %v are not all connected alike, and would need %d NVLinks a GPU to be connected directly: NVML knows %d", component, perGPU, MaxLinksPerGPU)
		}
		n.LinksPerGPU = max(n.LinksPerGPU, perGPU)
	}
	if n.LinksPerGPU == 0 {
		return nil, nil
	}
	return n, nil
}

// components are the sets of GPUs that are connected over NVLinks.
func components(g topology.Graph) [][]int {
	return classes(g.Len(), func(i, j int) bool { return g.Connection(i, j).NVLinks > 0 })
}

// directly joins GPUs with links of their own, and returns the largest number of links of one GPU.
func directly(g topology.Graph, gpus []int) (peers []Peer, perGPU int) {
	used := map[int]int{}
	for i, a := range gpus {
		for _, b := range gpus[i+1:] {
			if links := g.Connection(a, b).NVLinks; links > 0 {
				peers = append(peers, Peer{GPUs: [2]int{a, b}, Links: links})
				used[a] += links
				used[b] += links
			}
		}
	}
	for _, links := range used {
		perGPU = max(perGPU, links)
	}
	return peers, perGPU
}

// alike returns the number of links between GPUs if it is the same for every pair.
func alike(g topology.Graph, gpus []int) (int, bool) {
	links := g.Connection(gpus[0], gpus[1]).NVLinks
	for i, a := range gpus {
		for _, b := range gpus[i+1:] {
			if g.Connection(a, b).NVLinks != links {
				return 0, false
			}
		}
	}
	return links, links > 0
}

// slotsOf makes up a tree of PCI devices. Below a root complex, GPUs that are PXB to each other share a
// first bridge, and those that are PIX a second one.
func slotsOf(m *smi.Matrix) []GPU {
	near := func(level topology.Level) func(i, j int) bool {
		return func(i, j int) bool {
			at := m.Graph.Connection(i, j).Level
			return at >= topology.PIX && at <= level
		}
	}
	slots := make([]GPU, len(m.GPUs))
	for i, gpu := range m.GPUs {
		slots[i].BusID = fmt.Sprintf("0000:%02x:00.0", bus(i))
		if len(gpu.NUMAAffinity) > 0 {
			node := gpu.NUMAAffinity[0]
			slots[i].NUMANode = &node
		}
		if gpu.NUMANode != smi.NoNUMANode {
			node := gpu.NUMANode
			slots[i].MemoryNUMANode = &node
		}
		slots[i].CPUs = cpuset.New(gpu.CPUAffinity...).String()
	}
	for _, members := range classes(len(slots), near(topology.PHB)) {
		for _, i := range members {
			slots[i].PCIeRoot = fmt.Sprintf("pci0000:%02x", bus(members[0])-2)
		}
	}
	ports := map[string]int{}
	for _, members := range classes(len(slots), near(topology.PXB)) {
		root := slots[members[0]].PCIeRoot
		port := ports[root]
		ports[root]++
		for _, i := range members {
			slots[i].Bridges = append(slots[i].Bridges, fmt.Sprintf("%s:%02x.%x", root[len("pci"):], 1+port%31, port/31))
		}
	}
	for _, members := range classes(len(slots), near(topology.PIX)) {
		for _, i := range members {
			slots[i].Bridges = append(slots[i].Bridges, fmt.Sprintf("0000:%02x:00.0", bus(members[0])-1))
		}
	}
	return slots
}

// bus is the bus of a GPU. The two before it are free for a bridge and a root.
func bus(gpu int) int { return 0x12 + 3*gpu }

// classes joins what is related, directly or over others. Classes are ordered by their smallest member.
func classes(n int, related func(i, j int) bool) [][]int {
	class := make([]int, n)
	for i := range class {
		class[i] = i
	}
	for i := range n {
		for j := range i {
			if related(i, j) && class[i] != class[j] {
				from, to := max(class[i], class[j]), min(class[i], class[j])
				for k := range class {
					if class[k] == from {
						class[k] = to
					}
				}
			}
		}
	}
	members := map[int][]int{}
	for i, c := range class {
		members[c] = append(members[c], i)
	}
	result := make([][]int, 0, len(members))
	for _, list := range members {
		result = append(result, list)
	}
	slices.SortFunc(result, func(a, b []int) int { return cmp.Compare(a[0], b[0]) })
	return result
}

// differences lists what of the matrix the profile does not have.
func differences(p Profile, m *smi.Matrix) []string {
	var warnings []string
	for i, gpu := range m.GPUs {
		if gpu.Index != i {
			warnings = append(warnings, fmt.Sprintf("%s becomes GPU%d: NVML's indexes have no gaps", gpu.Label(), i))
		}
		if len(gpu.NUMAAffinity) > 1 {
			warnings = append(warnings, fmt.Sprintf("%s is near NUMA nodes %v: the profile gives it node %d", gpu.Label(), gpu.NUMAAffinity, gpu.NUMAAffinity[0]))
		}
	}
	// One line for all pairs that differ alike.
	type change struct{ from, to string }
	pairs := map[change][]string{}
	var order []change
	for i := range m.GPUs {
		for j := i + 1; j < len(m.GPUs); j++ {
			connection := m.Graph.Connection(i, j)
			if connection.NVLinks > 0 || connection.Level < topology.PIX {
				continue // hidden behind NVLink, or unknown
			}
			c := change{connection.Level.String(), p.Distance(i, j).String()}
			if c.from == c.to {
				continue
			}
			if len(pairs[c]) == 0 {
				order = append(order, c)
			}
			pairs[c] = append(pairs[c], m.GPUs[i].Label()+"-"+m.GPUs[j].Label())
		}
	}
	for _, c := range order {
		warnings = append(warnings, fmt.Sprintf("%s in the matrix, %s in the profile: %s", c.from, c.to, strings.Join(pairs[c], ", ")))
	}
	return warnings
}
