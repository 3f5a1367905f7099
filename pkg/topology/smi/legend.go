// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package smi

import (
	"maps"
	"slices"
	"strings"
)

// legend is what nvidia-smi prints below the matrix: the meaning of the
// connections, and the device names of the NICs.
type legend struct {
	line      int // of the legend of connections, or 0
	hasNVLink bool
	inNICs    bool
	nics      map[string]string // device name by label
	nicLines  map[string]int    // line by label
}

func (g *legend) started() bool { return g.line > 0 || g.nics != nil }

// read reads a line if it belongs to a legend.
func (g *legend) read(l line) bool {
	text := l.text
	switch text {
	case "Legend:":
		g.line, g.inNICs = l.number, false
		return true
	case "NIC Legend:":
		g.inNICs, g.nics, g.nicLines = true, map[string]string{}, map[string]int{}
		return true
	}
	if !g.started() {
		return false
	}
	if symbol, _, ok := strings.Cut(text, " = "); ok && !g.inNICs {
		g.hasNVLink = g.hasNVLink || strings.HasPrefix(symbol, "NV")
		return true
	}
	if label, name, ok := strings.Cut(text, ": "); ok && g.inNICs && isDeviceLabel(label) {
		g.nics[label], g.nicLines[label] = name, l.number
		return true
	}
	return false
}

// unknownNICs returns the labels of the NIC legend that head no column.
func (g *legend) unknownNICs(h *header) []string {
	var unknown []string
	for _, label := range slices.Sorted(maps.Keys(g.nics)) {
		if _, ok := h.nics[label]; !ok {
			unknown = append(unknown, label)
		}
	}
	return unknown
}
