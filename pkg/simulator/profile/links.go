// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package profile

// LinkTable lists, for each GPU, the far end of each of its links by link number. It is the one place
// where a profile's switches and peers become numbered links.
type LinkTable [][]LinkEnd

// LinkEnd is the far end of a link.
type LinkEnd struct {
	Kind EndKind
	// GPU is the index of the GPU at the far end, for EndGPU.
	GPU int
	// Link is the number that the link has at the far end, for EndGPU.
	Link int
	// Switch is the index of the NVSwitch at the far end, for EndSwitch.
	Switch int
}

// EndKind is what sits at the far end of a link.
type EndKind int

// What sits at the far end of a link. The zero value is a link that goes nowhere.
const (
	EndNone EndKind = iota
	EndGPU
	EndSwitch
)

// Links returns the node's link table; nil for boards without NVLink.
func (p Profile) Links() LinkTable {
	if p.NVLink == nil {
		return nil
	}
	table := make(LinkTable, len(p.GPUs))
	for i, sw := range p.NVLink.Switches {
		for range sw.Links {
			for _, gpu := range sw.GPUs {
				table[gpu] = append(table[gpu], LinkEnd{Kind: EndSwitch, Switch: i})
			}
		}
	}
	for _, peer := range p.NVLink.Peers {
		a, b := peer.GPUs[0], peer.GPUs[1]
		for range peer.Links {
			numberA, numberB := len(table[a]), len(table[b])
			table[a] = append(table[a], LinkEnd{Kind: EndGPU, GPU: b, Link: numberB})
			table[b] = append(table[b], LinkEnd{Kind: EndGPU, GPU: a, Link: numberA})
		}
	}
	for gpu := range table {
		for len(table[gpu]) < p.NVLink.LinksPerGPU {
			table[gpu] = append(table[gpu], LinkEnd{})
		}
	}
	return table
}
