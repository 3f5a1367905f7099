// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/switchyard-dev/switchyard/pkg/nvml"
	"github.com/switchyard-dev/switchyard/pkg/simulator/profile"
	"github.com/switchyard-dev/switchyard/pkg/topology/smi"
)

// discoveredDomains asks the driver's own discovery for the domains of a node, as lists of indexes.
func discoveredDomains(t *testing.T, n *Node) [][]int {
	t.Helper()
	lib, err := nvml.Open(nvml.Options{NodeName: "node-a", SysfsRoot: n.SysfsRoot(), Lib: n.NVML()})
	if err != nil {
		t.Fatal(err)
	}
	inventory, err := lib.Discover(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := lib.Close(); err != nil {
		t.Fatal(err)
	}
	members := map[string][]int{}
	for _, gpu := range inventory.GPUs {
		if !gpu.Health.Healthy() {
			t.Errorf("GPU %d is unhealthy: %+v", gpu.Index, gpu.Health)
		}
		if gpu.NVSwitchDomain != "" {
			members[gpu.NVSwitchDomain] = append(members[gpu.NVSwitchDomain], gpu.Index)
		}
	}
	return slices.SortedFunc(maps.Values(members), func(a, b []int) int { return cmp.Compare(a[0], b[0]) })
}

func TestDomainsOfEveryProfile(t *testing.T) {
	want := map[string][][]int{
		"dgx-a100":        {{0, 1, 2, 3, 4, 5, 6, 7}},
		"a100-2x4":        {{0, 1, 2, 3}, {4, 5, 6, 7}},
		"hgx-h100":        {{0, 1, 2, 3, 4, 5, 6, 7}},
		"hgx-h200":        {{0, 1, 2, 3, 4, 5, 6, 7}},
		"hgx-b200":        {{0, 1, 2, 3, 4, 5, 6, 7}},
		"gb200-nvl72":     {{0, 1, 2, 3}},
		"dgx1-v100":       {{0, 1, 2, 3}, {4, 5, 6, 7}},
		"a100-pcie-pairs": {{0, 1}, {2, 3}},
		"a30-pcie":        {{0, 1}},
		"l40s-pcie":       nil,
		"t4":              nil,
	}
	for _, name := range profile.Names() {
		t.Run(name, func(t *testing.T) {
			if diff := gocmp.Diff(want[name], discoveredDomains(t, newNode(t, name))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestNodesOfARackShareADomain(t *testing.T) {
	p, err := profile.Load("gb200-nvl72")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"tray-1", "tray-2"} {
		dir := t.TempDir()
		if err := Create(dir, p, Options{NodeName: name, DeviceNodes: DeviceNodesFiles}); err != nil {
			t.Fatal(err)
		}
		n := open(t, dir)
		lib, err := nvml.Open(nvml.Options{NodeName: name, SysfsRoot: n.SysfsRoot(), Lib: n.NVML()})
		if err != nil {
			t.Fatal(err)
		}
		inventory, err := lib.Discover(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got := inventory.GPUs[3].NVSwitchDomain; got != "00000001-0000-0000-0000-000000000001.2" {
			t.Errorf("domain on %s: %q", name, got)
		}
		if calls := n.Unsimulated(); len(calls) > 0 {
			t.Errorf("discovery calls what is not simulated: %v", calls)
		}
	}
}

// TestImportedNodeHasTheDomainsOfItsMatrix imports matrices, real and random, and compares the domains
// that follow from the text with those that discovery finds on the simulated node.
func TestImportedNodeHasTheDomainsOfItsMatrix(t *testing.T) {
	matrices := map[string]string{}
	files, err := filepath.Glob("../topology/smi/testdata/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		matrices[filepath.Base(file)] = string(text)
	}
	if len(matrices) < 20 {
		t.Fatalf("found %d matrices", len(matrices))
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 40 {
		matrices[fmt.Sprintf("random %d", i)] = randomMatrix(rng)
	}
	for name, text := range matrices {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, _, err := smi.Parse(strings.NewReader(text))
			if err != nil {
				t.Fatal(err)
			}
			p, _, err := profile.FromMatrix(m, profile.ImportOptions{Name: "imported"})
			if err != nil {
				t.Fatal(err)
			}
			n := newNodeOf(t, p)
			if diff := gocmp.Diff(m.Domains(), discoveredDomains(t, n)); diff != "" {
				t.Errorf("%s\n%s", diff, text)
			}
			s, err := n.State()
			if err != nil {
				t.Fatal(err)
			}
			snap := newSnapshot(s)
			for i := range m.GPUs {
				for j := range m.GPUs {
					if links := m.Graph.Connection(i, j).NVLinks; links > 0 && snap.connection(i, j) != fmt.Sprintf("NV%d", links) {
						t.Errorf("GPU%d to GPU%d: %s, in the matrix NV%d", i, j, snap.connection(i, j), links)
					}
				}
			}
		})
	}
}

// randomMatrix joins up to 10 GPUs at random: some in switched groups, some by bundles of links.
func randomMatrix(rng *rand.Rand) string {
	n := 2 + rng.IntN(9)
	cells := make([][]string, n)
	for i := range cells {
		cells[i] = slices.Repeat([]string{"SYS"}, n)
		cells[i][i] = "X"
	}
	set := func(i, j int, cell string) { cells[i][j], cells[j][i] = cell, cell }
	first := 0
	for first < n {
		size := min(1+rng.IntN(5), n-first)
		switched := rng.IntN(2) == 0
		for i := first; i < first+size; i++ {
			for j := first; j < i; j++ {
				switch {
				case switched:
					set(i, j, "NV12")
				case rng.IntN(3) > 0:
					set(i, j, fmt.Sprintf("NV%d", 1+rng.IntN(4)))
				}
			}
		}
		first += size
	}
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "\tGPU%d", i)
	}
	b.WriteString("\tCPU Affinity\tNUMA Affinity\n")
	for i := range n {
		fmt.Fprintf(&b, "GPU%d\t%s\t%d\t%d\n", i, strings.Join(cells[i], "\t"), i, i)
	}
	return b.String()
}
