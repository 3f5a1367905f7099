// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"fmt"
	"strconv"
	"strings"
)

// Level is a path class between two GPUs, nearest first, so that a smaller
// known Level is a nearer one. The names are those of nvidia-smi topo -m.
type Level int

const (
	// Unknown means that the path class could not be determined.
	Unknown Level = iota
	// Self is the GPU itself.
	Self
	// NVLink is a path over NVLinks, direct or through NVSwitches.
	NVLink
	// PIX crosses at most one PCIe bridge
	// (NVML_TOPOLOGY_INTERNAL and NVML_TOPOLOGY_SINGLE).
	PIX
	// PXB crosses several PCIe bridges but no host bridge
	// (NVML_TOPOLOGY_MULTIPLE).
	PXB
	// PHB crosses a PCIe host bridge (NVML_TOPOLOGY_HOSTBRIDGE).
	PHB
	// NODE crosses the interconnect between host bridges of one NUMA node
	// (NVML_TOPOLOGY_NODE).
	NODE
	// SYS crosses the interconnect between NUMA nodes (NVML_TOPOLOGY_SYSTEM).
	SYS
)

var levelNames = [...]string{
	Unknown: "N/A", Self: "X", NVLink: "NVL", PIX: "PIX", PXB: "PXB", PHB: "PHB", NODE: "NODE", SYS: "SYS",
}

// String returns the name that nvidia-smi topo -m prints, "NVL" for NVLink
// (which nvidia-smi only prints with a number of links) and "N/A" for Unknown.
func (l Level) String() string {
	if l < Unknown || l > SYS {
		return fmt.Sprintf("Level(%d)", int(l))
	}
	return levelNames[l]
}

// MaxNVLinks is the largest number of NVLinks that a connection may have. NVML
// knows up to 18 per GPU (NVML_NVLINK_MAX_LINKS); the rest is headroom for
// hardware to come, while a slip such as NV120 is still caught.
const MaxNVLinks = 64

// Connection is how two GPUs are connected.
type Connection struct {
	// Level is the class of the PCIe path. If the GPUs share NVLinks and the
	// PCIe path beside them is not known, it is NVLink.
	Level Level
	// NVLinks is the number of active NVLinks between the two GPUs, counted as
	// nvidia-smi does: through NVSwitches, all links of the GPU count for
	// every peer. 0 means that they share no NVLink.
	NVLinks int
}

// String returns the connection as nvidia-smi topo -m prints it, such as "X",
// "NV12" or "PIX".
func (c Connection) String() string {
	if c.NVLinks > 0 {
		return "NV" + strconv.Itoa(c.NVLinks)
	}
	return c.Level.String()
}

// ParseConnection reads one cell of nvidia-smi topo -m: X, NV1 to NV64, PIX,
// PXB, PHB, NODE, SYS, or SOC, which old drivers print for SYS. It accepts
// nothing else; the error says what a cell may be.
func ParseConnection(cell string) (Connection, error) {
	switch cell {
	case "X":
		return Connection{Level: Self}, nil
	case "PIX":
		return Connection{Level: PIX}, nil
	case "PXB":
		return Connection{Level: PXB}, nil
	case "PHB":
		return Connection{Level: PHB}, nil
	case "NODE":
		return Connection{Level: NODE}, nil
	case "SYS", "SOC":
		return Connection{Level: SYS}, nil
	}
	if digits, ok := strings.CutPrefix(cell, "NV"); ok {
		links, err := strconv.Atoi(digits)
		if err == nil && links >= 1 && links <= MaxNVLinks && strconv.Itoa(links) == digits {
			return Connection{Level: NVLink, NVLinks: links}, nil
		}
	}
	return Connection{}, fmt.Errorf("unknown connection %q: expected X, NV1 to NV%d, PIX, PXB, PHB, NODE or SYS", cell, MaxNVLinks)
}
