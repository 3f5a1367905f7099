// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"fmt"
	"slices"

	"github.com/switchyard-dev/switchyard/pkg/device"
	"github.com/switchyard-dev/switchyard/pkg/topology"
)

// peerStatus is the driver's word on a pair of GPUs (nvmlDeviceGetP2PStatus).
type peerStatus int

const (
	peersUnknown peerStatus = iota
	peersConnected
	peersDenied
)

// assignDomains sets the domain of every GPU that has one and returns whether one is yet to come. The
// rules are in the package comment.
func assignDomains(nodeName string, gpus []*gpu, status func(a, b *gpu) peerStatus) (settling bool) {
	var local, partitioned []*gpu
	for _, g := range gpus {
		if !g.Health.Healthy() {
			continue
		}
		g.Health.Message = g.fabric.message
		if g.links.allDown() {
			continue
		}
		switch g.fabric.state {
		case fabricJoined:
			g.NVSwitchDomain = g.fabric.domain
		case fabricSettling:
			settling = settling || !g.MIGEnabled
		case fabricFailed:
			// none
		case fabricNone, fabricLocal:
			if g.MIGEnabled {
				partitioned = append(partitioned, g)
			} else {
				local = append(local, g)
			}
		}
	}

	graph, err := linkGraph(local, status)
	if err != nil {
		for _, g := range local {
			g.Health.Message = "NVSwitch domain unknown: " + err.Error()
		}
	} else {
		domains := topology.Domains(graph)
		for n, domain := range domains {
			for _, i := range domain {
				local[i].NVSwitchDomain = device.LocalDomain(nodeName, n)
			}
		}
		assignPartitioned(nodeName, partitioned, local, len(domains))
	}

	countDomains(gpus)
	countPeerLinks(gpus)
	return settling
}

// assignPartitioned sets the domain that GPUs in MIG mode sit in: that of the GPUs to which their links
// lead. The driver denies them all peers, so the links alone tell. Those that lead to no other than
// GPUs in MIG mode are in domains of their own, from number next on.
func assignPartitioned(nodeName string, partitioned, local []*gpu, next int) {
	linksAlone := func(_, _ *gpu) peerStatus { return peersUnknown }
	var apart []*gpu
	for _, g := range partitioned {
		most := 0
		for _, other := range local {
			if n := connected(g, other, linksAlone); n > most && other.NVSwitchDomain != "" {
				most, g.NVSwitchDomain = n, other.NVSwitchDomain
			}
		}
		if most == 0 {
			apart = append(apart, g)
		}
	}
	graph, err := linkGraph(apart, linksAlone)
	if err != nil {
		return // they have none
	}
	for n, domain := range topology.Domains(graph) {
		for _, i := range domain {
			apart[i].NVSwitchDomain = device.LocalDomain(nodeName, next+n)
		}
	}
}

// countDomains sets the size of every GPU's domain on this node.
func countDomains(gpus []*gpu) {
	sizes := map[string]int{}
	for _, g := range gpus {
		if !g.MIGEnabled {
			sizes[g.NVSwitchDomain]++
		}
	}
	for _, g := range gpus {
		if g.NVSwitchDomain != "" {
			g.NVSwitchDomainSize = sizes[g.NVSwitchDomain]
		}
	}
}

// countPeerLinks sets how many links every GPU has to each of its peers, where it is one number.
func countPeerLinks(gpus []*gpu) {
	for _, a := range gpus {
		var counts []int
		for _, b := range gpus {
			if a != b && a.NVSwitchDomain != "" && a.NVSwitchDomain == b.NVSwitchDomain && !a.MIGEnabled && !b.MIGEnabled {
				counts = append(counts, peerLinks(a, b))
			}
		}
		if counts = slices.Compact(counts); len(counts) == 1 {
			a.NVLinksPerPeer = counts[0]
		}
	}
}

// peerLinks returns the number of NVLinks between two GPUs of a domain, and 0 if their links do not tell.
func peerLinks(a, b *gpu) int {
	if links := directLinks(a, b) + sharedLinks(a, b); links > 0 {
		return links
	}
	throughSwitches := func(g *gpu) bool { return g.fabric.state == fabricJoined || g.links.toSwitch == g.links.active }
	if throughSwitches(a) && throughSwitches(b) {
		return min(a.links.active, b.links.active)
	}
	return 0
}

// linkGraph returns which of the GPUs are connected at NVLink speed inside this node.
func linkGraph(gpus []*gpu, status func(a, b *gpu) peerStatus) (topology.Graph, error) {
	matrix := make([][]topology.Connection, len(gpus))
	for i := range matrix {
		matrix[i] = make([]topology.Connection, len(gpus))
		matrix[i][i].Level = topology.Self
	}
	for i, a := range gpus {
		for j, b := range gpus[:i] {
			matrix[i][j].NVLinks = connected(a, b, status)
			matrix[j][i].NVLinks = matrix[i][j].NVLinks
		}
	}
	// A node-local domain of one would tell nobody anything, so no port is declared as switched.
	graph, err := topology.NewGraph(matrix, nil)
	if err != nil {
		return topology.Graph{}, fmt.Errorf("connect GPUs: %w", err)
	}
	return graph, nil
}

// connected returns the number of NVLinks between two GPUs of one node, counted as topology does, and 0
// if they are not connected at NVLink speed.
func connected(a, b *gpu, status func(a, b *gpu) peerStatus) int {
	if a.fabric.state == fabricLocal && b.fabric.state == fabricLocal && a.fabric.clique != b.fabric.clique {
		return 0
	}
	direct := directLinks(a, b)
	shared := sharedLinks(a, b)
	unknown := a.links.throughUnknown() && b.links.throughUnknown()
	if direct+shared == 0 && !unknown {
		return 0
	}
	switch status(a, b) {
	case peersDenied:
		return 0
	case peersConnected:
		if direct+shared == 0 {
			return max(1, min(a.links.active, b.links.active))
		}
	case peersUnknown:
		// the links decide
	}
	return direct + shared
}

// sharedLinks returns the number of links of the two GPUs that meet at an NVSwitch.
func sharedLinks(a, b *gpu) int {
	shared := 0
	for address, n := range a.links.switches {
		shared += min(n, b.links.switches[address])
	}
	return shared
}

// directLinks returns the number of links between the two GPUs. Both ends have to agree that a link is
// active, unless one of them does not tell where its links end.
func directLinks(a, b *gpu) int {
	if a.PCIBusID == "" || b.PCIBusID == "" {
		return 0
	}
	there, back := a.links.gpus[b.PCIBusID], b.links.gpus[a.PCIBusID]
	if a.links.hidden > 0 || b.links.hidden > 0 {
		return max(there, back)
	}
	return min(there, back)
}
