// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"cmp"
	_ "embed"
	"fmt"
	"strconv"
	"strings"
)

//go:embed nvidia-smi.sh.in
var smiText string

// smiScript returns the program that containers find as nvidia-smi. It knows the node and shows of it
// the GPUs and MIG devices whose device nodes it finds.
//
// The words in its source are replaced by hand: a program that contains text/template can call any
// method by name, so the linker keeps all of them, which costs 20 MiB of memory.
func smiScript(s State) []byte {
	snap := newSnapshot(s)
	var gpus, connections, partitions strings.Builder
	for i, gpu := range s.GPUs {
		at := s.Profile.GPUs[i]
		numa := "N/A"
		if at.NUMANode != nil {
			numa = strconv.Itoa(*at.NUMANode)
		}
		fmt.Fprintf(&gpus, "%d %s 0000%s %s %s\n", gpu.Minor, gpu.UUID, at.BusID, cmp.Or(at.CPUs, "N/A"), numa)
		fmt.Fprintf(&connections, "%d", gpu.Minor)
		for j := range s.GPUs {
			fmt.Fprintf(&connections, " %s", snap.connection(i, j))
		}
		connections.WriteString("\n")
		for gi, ci := range gpu.MIG.devices() {
			p, _ := s.Profile.Product.MIG.ByID(gi.ProfileID)
			fmt.Fprintf(&partitions, "%d %s %s %d %d\n", gpu.Minor, ci.UUID, p.Name, instanceCapability(gpu.Minor, gi.ID), computeCapability(gpu.Minor, gi.ID, ci.ID))
		}
	}
	return []byte(strings.NewReplacer(
		"@PRODUCT@", s.Profile.Product.Name,
		"@DRIVER@", s.Profile.Driver.Version,
		"@CUDA@", s.Profile.Driver.CUDAVersion,
		"@MEMORY@", strconv.FormatUint(s.Profile.Product.MemoryMiB, 10),
		"@GPUS@\n", gpus.String(),
		"@CONNECTIONS@\n", connections.String(),
		"@PARTITIONS@\n", partitions.String(),
	).Replace(smiText))
}

// connection is what nvidia-smi topo -m prints for two GPUs: NV and the number of links if they reach
// each other over NVLink, else the PCIe distance.
func (s *snapshot) connection(a, b int) string {
	if s.peers(a, b) {
		if links := min(s.linksToward(a, b), s.linksToward(b, a)); links > 0 {
			return fmt.Sprintf("NV%d", links)
		}
	}
	return s.Profile.Distance(a, b).String()
}
