// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package smi

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestDamageOutsideTheGPUBlockIsAWarning(t *testing.T) {
	tests := map[string]struct {
		old, with string // of pairs
		want      []string
		// check looks at what was read, if more than the graph matters.
		check func(*Matrix) bool
	}{
		"an illegible NIC cell":             {"SYS\tPXB\t0-3", "SYS\tP?B\t0-3", []string{`line 3, column 18: row GPU1, column NIC0: unknown connection "P?B": expected X, NV1`}, nil},
		"an empty NIC cell":                 {"SYS\tPXB\t0-3", "SYS\t\t0-3", []string{"line 3, column 1: row GPU1 has no cell for NIC0"}, func(m *Matrix) bool { return len(m.GPUs[1].CPUAffinity) == 4 }},
		"a lost NIC cell":                   {"SYS\tPXB\t0-3", "SYS\t0-3", []string{"row GPU1 has no cell for NIC0"}, func(m *Matrix) bool { return len(m.GPUs[1].CPUAffinity) == 4 && m.GPUs[1].NUMAAffinity[0] == 0 }},
		"a NIC cell too many":               {"SYS\tPXB\t0-3", "SYS\tPXB\tPXB\t0-3", []string{"line 3, column 1: row GPU1 has 5 cells for 4 columns: expected one for each device that the header names"}, func(m *Matrix) bool { return len(m.GPUs[1].CPUAffinity) == 4 }},
		"a NIC without a row":               {"NIC0\tPIX\tPXB\tSYS\t X \t\t\t\t\n", "", []string{"line 5, column 1: no row for NIC0"}, nil},
		"a NIC row that breaks off":         {"NIC0\tPIX\tPXB\tSYS\t X \t\t\t\t\n", "NIC0\tPIX\tP", []string{`line 5, column 10: row NIC0, column GPU1: unknown connection "P"`, "line 5, column 1: row NIC0 has no cell for GPU2, NIC0"}, nil},
		"a NIC row twice":                   {"NIC0\tPIX\tPXB\tSYS\t X \t\t\t\t\n", "NIC0\tPIX\tPXB\tSYS\t X \nNIC0\tPIX\tPXB\tSYS\t X \n", []string{"line 6, column 1: row NIC0 appears twice"}, nil},
		"a damaged name of a NIC":           {"GPU2\tNIC0", "GPU2\tN?C0", []string{"no row for N?C0"}, func(m *Matrix) bool { return m.NICs[0].Label == "N?C0" }},
		"a lost name of a NIC":              {"GPU2\tNIC0\tCPU", "GPU2\t\tCPU", []string{"line 1, column 17: the header's column 4 has no name"}, func(m *Matrix) bool { return len(m.GPUs[0].CPUAffinity) == 4 }},
		"a NIC column twice":                {"GPU2\tNIC0", "GPU2\tNIC0\tNIC0", []string{"line 1, column 22: column NIC0 appears twice", "row GPU0 has no cell for NIC0", "row GPU1 has no cell for NIC0", "row GPU2 has no cell for NIC0", "row NIC0 has no cell for NIC0"}, nil},
		"a line between the rows":           {"GPU2\tSYS", "kernel: NVRM: Xid 79\nGPU2\tSYS", []string{`line 4, column 1: no row of the matrix: "kernel: NVRM: Xid 79" is left out`}, nil},
		"an illegible CPU list":             {"PXB\t0-3\t", "PXB\t0-?\t", []string{`line 3, column 22: row GPU1, column CPU Affinity: "0-?" is no list of numbers: expected such as 0-31,64-95`}, func(m *Matrix) bool { return m.GPUs[1].CPUAffinity == nil && m.GPUs[1].NUMAAffinity != nil }},
		"a descending CPU range":            {"PXB\t0-3\t", "PXB\t3-0\t", []string{`"3-0": expected an ascending range`}, func(m *Matrix) bool { return m.GPUs[1].CPUAffinity == nil }},
		"a huge CPU number":                 {"PXB\t0-3\t", "PXB\t0-4000000000\t", []string{`"0-4000000000": expected numbers below 65536`}, func(m *Matrix) bool { return m.GPUs[1].CPUAffinity == nil }},
		"an illegible NUMA list":            {"4-7\t1\t", "4-7\t1;2\t", []string{`line 4, column 26: row GPU2, column NUMA Affinity: "1;2" is no list`}, func(m *Matrix) bool { return m.GPUs[2].NUMAAffinity == nil }},
		"an illegible GPU NUMA ID":          {"4-7\t1\t\tN/A", "4-7\t1\t\tN?A", []string{`row GPU2, column GPU NUMA ID: "N?A" is no NUMA node: expected a number or N/A`}, func(m *Matrix) bool { return m.GPUs[2].NUMANode == NoNUMANode }},
		"affinity cells cut off":            {"SYS\t4-7\t1\t\tN/A", "SYS", []string{"line 4, column 21: row GPU2 has no cell for CPU Affinity", "for NUMA Affinity", "for GPU NUMA ID"}, func(m *Matrix) bool { return m.GPUs[2].CPUAffinity == nil }},
		"an affinity cell too many":         {"4-7\t1\t\tN/A", "4-7\t1\t\tN/A\t9", []string{"line 4, column 33: row GPU2 has more cells than the header has columns"}, nil},
		"damaged names of affinity columns": {"CPU Affinity\tNUMA Affinity", "CPU Aff", []string{"line 1, column 1: the header's names of the affinity columns are damaged"}, func(m *Matrix) bool { return m.GPUs[0].CPUAffinity == nil && m.GPUs[0].NUMANode == NoNUMANode }},
		"no names of affinity columns":      {"\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID", "", []string{"line 2, column 22: row GPU0 has cells behind the columns that the header names; they are left out", "row GPU1 has", "row GPU2 has"}, func(m *Matrix) bool { return m.GPUs[0].CPUAffinity == nil }},
		"a NIC cell that lost its tab":      {"SYS\tPXB\t0-3", "SYS\tPXB 0-3", nil, func(m *Matrix) bool { return len(m.GPUs[1].CPUAffinity) == 4 }},
	}
	original, _ := mustParse(t, pairs)
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			m, warnings := mustParse(t, replace(t, pairs, test.old, test.with))
			requireWarnings(t, warnings, test.want)
			if !reflect.DeepEqual(m.Graph, original.Graph) {
				t.Errorf("the graph changed: %v", m.Graph.Cells())
			}
			if test.check != nil && !test.check(m) {
				t.Errorf("matrix = %+v", m)
			}
		})
	}
}

// TestDamageOfOneOtherCellKeepsTheGraph damages every cell outside the GPU×GPU
// block of dumps with NICs.
func TestDamageOfOneOtherCellKeepsTheGraph(t *testing.T) {
	for _, name := range []string{"02-a100-8gpu-nv12-4nic", "06-dgx1-v100-8gpu-hybrid-cube-mesh", "18-a100-4gpu-nv4-mesh-slurm-empty-affinity"} {
		text := readDump(t, name)
		original, _ := mustParse(t, text)
		inBlock := map[[2]int]bool{}
		gpuBlock(text, func(line, cell int) { inBlock[[2]int{line, cell}] = true })
		for i, l := range strings.Split(text, "\n") {
			if i < 2 || l == "" {
				continue
			}
			for cell, content := range strings.Split(l, "\t") {
				if cell == 0 || inBlock[[2]int{i, cell}] || strings.TrimSpace(content) == "" {
					continue
				}
				for damage, with := range map[string][]string{"illegible": {"?!"}, "emptied": {""}, "lost": nil} {
					changed := changeCell(text, i, cell, func(string) []string { return with })
					for layout, input := range map[string]string{"tabs": changed, "blanks": expandTabs(changed)} {
						m, warnings, err := Parse(strings.NewReader(input))
						if err != nil || !reflect.DeepEqual(m.Graph, original.Graph) {
							t.Errorf("%s, line %d, cell %d %s (%s): error %v or another graph", name, i+1, cell, damage, layout, err)
						}
						if damage == "illegible" && len(warnings) == 0 {
							t.Errorf("%s, line %d, cell %d %s (%s): no warning", name, i+1, cell, damage, layout)
						}
					}
				}
			}
		}
	}
}

func TestHiddenNVLinkIsAWarning(t *testing.T) {
	pcie := "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tSYS\t0-3\nGPU1\tSYS\t X \t4-7\n"
	nvlink := strings.ReplaceAll(pcie, "SYS", "NV4")
	legendMP := strings.Replace(realLegend, "  NV#  = Connection traversing a bonded set of # NVLinks\n", "", 1)
	single := "\tGPU0\tCPU Affinity\nGPU0\t X \t0-3\n"
	tests := map[string]struct {
		input string
		want  []string
	}{
		"a legend without NV# is that of -mp":           {pcie + legendMP, []string{"line 5, column 1: the legend has no NV#: this looks like the output of nvidia-smi topo -mp"}},
		"the command line names -mp":                    {"$ nvidia-smi topo -mp\n" + pcie, []string{"line 1, column 1: this is the output of nvidia-smi topo -mp, which hides NVLink, so no NVSwitch domain can be seen: use nvidia-smi topo -m"}},
		"the command line names it in full":             {"# nvidia-smi topo --matrix_pci > topo.txt\n" + pcie, []string{"nvidia-smi topo -mp"}},
		"command line and legend warn once":             {"$ nvidia-smi topo -mp\n" + pcie + legendMP, []string{"nvidia-smi topo -mp"}},
		"a node without NVLink is no reason to warn":    {pcie + realLegend, nil},
		"a matrix without a legend is no reason":        {pcie, nil},
		"visible NVLinks contradict it":                 {nvlink + legendMP, nil},
		"a single GPU has no link that could be hidden": {single + legendMP, nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, warnings := mustParse(t, test.input)
			requireWarnings(t, warnings, test.want)
		})
	}
}

func TestUnusualMatrices(t *testing.T) {
	tests := map[string]struct {
		input string
		want  []string // warnings
		check func(*Matrix) error
	}{
		"a single GPU": {"\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t0-5\t\t\tN/A\n", nil, func(m *Matrix) error {
			return equal(len(m.GPUs), 1, len(m.GPUs[0].CPUAffinity), 6, len(m.Domains()), 0)
		}},
		"a single GPU without affinities": {"\tGPU0\nGPU0\t X \n", nil, func(m *Matrix) error { return equal(m.Graph.Len(), 1) }},
		"GPUs with NUMA nodes of their own": {"\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n" +
			"GPU0\t X \tNV18\t0-71\t0,2-17\t\t1\nGPU1\tNV18\t X \t72-143\t0,8,252-255\t\t252\n", nil, func(m *Matrix) error {
			return equal(m.GPUs[0].NUMANode, 1, m.GPUs[1].NUMANode, 252, len(m.GPUs[0].NUMAAffinity), 17,
				fmt.Sprint(m.GPUs[1].NUMAAffinity), "[0 8 252 253 254 255]")
		}},
		"N/A affinities": {"\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \tN/A\tN/A\t\tN/A\n", nil, func(m *Matrix) error {
			return equal(len(m.GPUs[0].CPUAffinity), 0, len(m.GPUs[0].NUMAAffinity), 0)
		}},
		"a header whose tabs were lost": {"\t    GPU0GPU1mlx5_0\tmlx5_2\tCPU Affinity\nGPU0\t X \tNV1\tPIX\tSOC\t1-1\nGPU1\tNV1\t X \tPIX\tSOC\t1-1\nmlx5_0\tPIX\tPIX\t X \tSOC\nmlx5_2\tSOC\tSOC\tSOC\t X\n", nil, func(m *Matrix) error {
			return equal(fmt.Sprint(m.NICs), "[{mlx5_0 } {mlx5_2 }]", fmt.Sprint(m.Domains()), "[[0 1]]")
		}},
		"NICs between GPUs": {"\tNIC0\tGPU1\tNIC1\tGPU0\nNIC0\t X \tPIX\tSYS\tSYS\nGPU1\tPIX\t X \tSYS\tNV2\nNIC1\tSYS\tSYS\t X \tPIX\nGPU0\tSYS\tNV2\tPIX\t X \n", nil, func(m *Matrix) error {
			return equal(fmt.Sprint(m.NICs), "[{NIC0 } {NIC1 }]", fmt.Sprint(m.Domains()), "[[0 1]]")
		}},
		"NIC legend": {pairs + realLegend + "\nNIC Legend:\n\n  NIC0: mlx5_bond_0\n\nuser@host: ls\n", nil, func(m *Matrix) error {
			return equal(fmt.Sprint(m.NICs), "[{NIC0 mlx5_bond_0}]")
		}},
		"NIC legend of another matrix": {pairs + "\nNIC Legend:\n\n  NIC0: mlx5_0\n  NIC1: mlx5_1\n", []string{"line 10, column 1: the NIC legend names NIC1, which has no column"}, func(m *Matrix) error {
			return equal(fmt.Sprint(m.NICs), "[{NIC0 mlx5_0}]")
		}},
		"a gap in the numbers": {"\tGPU0\tGPU3\nGPU0\t X \tNV4\nGPU3\tNV4\t X \n", []string{"line 1, column 1: the GPUs are not numbered without gaps from 0: GPU1 is not in the matrix"}, func(m *Matrix) error {
			return equal(fmt.Sprint(m.Domains()), "[[0 3]]", m.GPUs[1].Label(), "GPU3")
		}},
		"rows in any order": {"\tGPU0\tGPU1\nGPU1\tNV4\t X \nGPU0\t X \tNV4\n", nil, func(m *Matrix) error { return equal(m.GPUs[0].Index, 0) }},
		"blanks with an empty CPU cell": {"        GPU0    GPU1    CPU Affinity    NUMA Affinity   GPU NUMA ID\n" +
			"GPU0     X      NV4             1               N/A\nGPU1    NV4      X      0-7     0               N/A\n", nil, func(m *Matrix) error {
			return equal(len(m.GPUs[0].CPUAffinity), 0, fmt.Sprint(m.GPUs[0].NUMAAffinity), "[1]", len(m.GPUs[1].CPUAffinity), 8)
		}},
		"blanks with an empty NUMA cell": {"        GPU0    GPU1    CPU Affinity    NUMA Affinity   GPU NUMA ID\n" +
			"GPU0     X      NV4     0-7                     N/A\nGPU1    NV4      X      0-7     0               N/A\n", nil, func(m *Matrix) error {
			return equal(len(m.GPUs[0].CPUAffinity), 8, len(m.GPUs[0].NUMAAffinity), 0)
		}},
		"blanks with both cells empty": {"        GPU0    GPU1    CPU Affinity    NUMA Affinity   GPU NUMA ID\n" +
			"GPU0     X      NV4                             N/A\nGPU1    NV4      X      0-7     0               N/A\n", nil, func(m *Matrix) error {
			return equal(len(m.GPUs[0].CPUAffinity), 0, len(m.GPUs[0].NUMAAffinity), 0)
		}},
		"blanks with the affinities cut off": {"        GPU0    GPU1    CPU Affinity    NUMA Affinity   GPU NUMA ID\n" +
			"GPU0     X      NV4\nGPU1    NV4      X      0-7     0               N/A\n", []string{"line 2, column 20: row GPU0 has no affinity cells"}, func(m *Matrix) error {
			return equal(len(m.GPUs[0].CPUAffinity), 0)
		}},
		"blanks with an empty NIC cell": {
			"        GPU0    NIC0    GPU1    NIC1    CPU Affinity\n" +
				"GPU0     X              NV4     PIX     0-7\nNIC0    SYS      X      SYS     SYS\nGPU1    NV4     SYS      X      PIX     0-7\nNIC1    PIX     SYS     PIX      X\n",
			[]string{"line 2, column 1: row GPU0 has no cell for NIC0"},
			func(m *Matrix) error {
				return equal(fmt.Sprint(m.Domains()), "[[0 1]]", len(m.GPUs[0].CPUAffinity), 8)
			},
		},
		"blanks with an empty NIC cell and a header without its leading blanks": {
			"GPU0    NIC0    GPU1    NIC1    CPU Affinity\n" +
				"GPU0     X              NV4     PIX     0-7\nNIC0    SYS      X      SYS     SYS\nGPU1    NV4     SYS      X      PIX     0-7\nNIC1    PIX     SYS     PIX      X\n",
			[]string{"line 2, column 1: row GPU0 has no cell for NIC0"},
			func(m *Matrix) error { return equal(fmt.Sprint(m.Domains()), "[[0 1]]") },
		},
		"drifted blanks with a lost NIC cell": {
			"  GPU0 GPU1 NIC0 NIC1 CPU Affinity\nGPU0 X NV4 PIX 0-7\nGPU1 NV4 X PIX SYS 0-7\n",
			[]string{"row GPU0 has no cell for NIC1", "no row for NIC0, NIC1"},
			func(m *Matrix) error {
				return equal(fmt.Sprint(m.Domains()), "[[0 1]]", len(m.GPUs[0].CPUAffinity), 8)
			},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			m, warnings := mustParse(t, test.input)
			requireWarnings(t, warnings, test.want)
			if err := test.check(m); err != nil {
				t.Errorf("%v\nmatrix = %+v", err, m)
			}
		})
	}
}

// equal compares got and want, got and want, and so on.
func equal(values ...any) error {
	for i := 0; i < len(values); i += 2 {
		if !reflect.DeepEqual(values[i], values[i+1]) {
			return fmt.Errorf("value %d = %v, want %v", i/2, values[i], values[i+1])
		}
	}
	return nil
}

func TestSixteenGPUsInTwoBoards(t *testing.T) {
	var text strings.Builder
	for i := range 16 {
		fmt.Fprintf(&text, "\tGPU%d", i)
	}
	text.WriteString("\tCPU Affinity\n")
	for i := range 16 {
		fmt.Fprintf(&text, "GPU%d", i)
		for j := range 16 {
			switch {
			case i == j:
				text.WriteString("\t X ")
			case i/8 == j/8:
				text.WriteString("\tNV6")
			default:
				text.WriteString("\tSYS")
			}
		}
		text.WriteString("\t0-23,48-71\n")
	}
	for layout, input := range map[string]string{"tabs": text.String(), "blanks": expandTabs(text.String())} {
		m, warnings := mustParse(t, input)
		requireWarnings(t, warnings, nil)
		want := [][]int{{0, 1, 2, 3, 4, 5, 6, 7}, {8, 9, 10, 11, 12, 13, 14, 15}}
		if got := m.Domains(); !reflect.DeepEqual(got, want) || m.GPUs[10].Label() != "GPU10" {
			t.Errorf("%s: domains = %v, want %v; GPUs[10] is %s", layout, got, want, m.GPUs[10].Label())
		}
	}
}

func TestParseList(t *testing.T) {
	for text, want := range map[string][]int{
		"0": {0}, "0-3": {0, 1, 2, 3}, "6,14,22,30": {6, 14, 22, 30}, "0,8,252-255": {0, 8, 252, 253, 254, 255},
		"4-5,0-1": {0, 1, 4, 5}, "1,1,0-2": {0, 1, 2}, "1-1": {1},
	} {
		if got, err := parseList(text); err != nil || !slices.Equal(got, want) {
			t.Errorf("parseList(%q) = %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "-", "1-", "-1", "a", "1,,2", "1, 2", "3-1", "65536", "99999999999999999999", strings.Repeat("0-65535,", 1000) + "0"} {
		if got, err := parseList(text); err == nil {
			t.Errorf("parseList(%q) = %v, want an error", excerpt(text), got)
		}
	}
}
