// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package smi

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// dump is what was read from a real matrix in testdata by eye.
type dump struct {
	domains [][]int
	nics    string // labels, separated by blanks
	numa    [][]int
	cpus    string // CPU affinity of the first GPU, as printed
	// warnings are parts of the expected warnings, in order.
	warnings []string
}

var (
	allEight = [][]int{{0, 1, 2, 3, 4, 5, 6, 7}}
	allFour  = [][]int{{0, 1, 2, 3}}
	quads    = [][]int{{0, 1, 2, 3}, {4, 5, 6, 7}}
	// halves is the NUMA affinity of four GPUs on each of two sockets.
	halves = [][]int{{0}, {0}, {0}, {0}, {1}, {1}, {1}, {1}}
	noNUMA = make([][]int, 8)
)

var dumps = map[string]dump{
	"01-dgx-a100-8gpu-nv12-mlx5-cols": {
		domains: allEight,
		nics:    "mlx5_0 mlx5_1 mlx5_2 mlx5_3 mlx5_4 mlx5_5 mlx5_6 mlx5_7 mlx5_8 mlx5_9 mlx5_10 mlx5_11",
		numa:    [][]int{{3}, {3}, {1}, {1}, {7}, {7}, {5}, {5}}, cpus: "48-63,176-191",
	},
	"02-a100-8gpu-nv12-4nic":          {domains: allEight, nics: "NIC0 NIC1 NIC2 NIC3", numa: halves, cpus: "0-31,64-95"},
	"03-ec2-vm-a100-8gpu-nv12-no-nic": {domains: allEight, numa: halves, cpus: "0-23,48-71"},
	"05-a800-8gpu-nv8-bond-nics":      {domains: allEight, nics: "NIC0 NIC1 NIC2 NIC3 NIC4 NIC5 NIC6 NIC7", numa: halves, cpus: "0-61"},
	// 0-3 and 4-7 are all NV; the cube's edges 0-4, 1-5, 2-6, 3-7 are NV too,
	// but 0-5 and the like are SYS. Inside the quads there are 18 links.
	"06-dgx1-v100-8gpu-hybrid-cube-mesh": {domains: quads, nics: "mlx5_0 mlx5_2 mlx5_1 mlx5_3", numa: noNUMA, cpus: "0-19,40-59"},
	"07-v100-8gpu-hybrid-cube-mesh-nic0": {domains: quads, nics: "NIC0", numa: halves, cpus: "0-19,40-59"},
	"09-dgx-h100-8gpu-nv18-12nic-TRUNCATED-nic-rows": {
		domains: allEight, nics: "NIC0 NIC1 NIC2 NIC3 NIC4 NIC5 NIC6 NIC7 NIC8 NIC9 NIC10 NIC11", numa: halves, cpus: "0-55,112-167",
		warnings: []string{"line 17, column 1: no row for NIC6, NIC7, NIC8, NIC9, NIC10, NIC11"},
	},
	"10-kvm-vm-h100-8gpu-nv18-header-without-leading-tab": {domains: allEight, nics: "NIC0", numa: halves, cpus: "0-103"},
	"11-h200-8gpu-nv18-8nic-shuffled-nic-order":           {domains: allEight, nics: "NIC0 NIC1 NIC2 NIC3 NIC4 NIC5 NIC6 NIC7", numa: halves, cpus: "0-63,128-191"},
	"14-rtx5060ti-4gpu-phb-ANSI-underlined-header":        {numa: [][]int{{0}, {0}, {0}, {0}}, cpus: "0-7"},
	"15-a100-sxm-4of8gpu-nv12-ANSI-uneven-numa":           {domains: allFour, numa: [][]int{{0}, {1}, {1}, {1}}, cpus: "0-31,64-95"},
	"18-a100-4gpu-nv4-mesh-slurm-empty-affinity":          {domains: allFour, nics: "NIC0 NIC1 NIC2", numa: [][]int{{0}, {0}, {1}, {1}}, cpus: "0"},
	"19-a100-4gpu-nv4-mesh-2socket":                       {domains: allFour, nics: "mlx5_0", numa: [][]int{{0}, {0}, {1}, {1}}, cpus: "0-23"},
	"22-a100-pcie-4gpu-nv12-pairs-4numa":                  {domains: [][]int{{0, 1}, {2, 3}}, nics: "NIC0", numa: [][]int{{0}, {1}, {2}, {3}}, cpus: "0-23"},
	"25-rtx4090-8gpu-all-SYS-2nic":                        {nics: "NIC0 NIC1", numa: halves, cpus: "0-55,112-167"},
	"26-rtx3090-2gpu-nv4-bridge":                          {domains: [][]int{{0, 1}}, numa: [][]int{{0}, {0}}, cpus: "0-23"},
	"28-h100-4gpu-nv6-mesh-strided-cpu-lists":             {domains: allFour, nics: "NIC0 NIC1 NIC2 NIC3", numa: [][]int{{3}, {1}, {7}, {5}}, cpus: "6,14,22,30"},
	"30-gb200-4gpu-nv18":                                  {domains: allFour, numa: [][]int{{0}, {0}, {1}, {1}}, cpus: "0-71"},
	"37-4gpu-phb-single-node-blanks":                      {numa: [][]int{{0}, {0}, {0}, {0}}, cpus: "0-47"},
	"38-a100-8gpu-nv12-10nic-X-without-leading-blank":     {domains: allEight, nics: "NIC0 NIC1 NIC2 NIC3 NIC4 NIC5 NIC6 NIC7 NIC8 NIC9", numa: halves, cpus: "0-63,128-191"},
}

func readDump(t testing.TB, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name+".txt"))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// mustParse parses input that has no error.
func mustParse(t testing.TB, input string) (*Matrix, []string) {
	t.Helper()
	m, warnings, err := Parse(strings.NewReader(input))
	if err != nil {
		t.Fatalf("Parse: %v\n%s", err, input)
	}
	var texts []string
	for _, w := range warnings {
		texts = append(texts, w.String())
	}
	return m, texts
}

// requireWarnings checks that each warning contains the wanted part.
func requireWarnings(t testing.TB, got, want []string) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%d warnings, want %d:\n%s", len(got), len(want), strings.Join(got, "\n"))
		return
	}
	for i := range want {
		if !strings.Contains(got[i], want[i]) {
			t.Errorf("warning %q, want one with %q", got[i], want[i])
		}
	}
}

func TestEveryDumpHasAnExpectation(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) != len(dumps) {
		t.Fatalf("%d dumps in testdata, %d expectations (%v)", len(files), len(dumps), err)
	}
}

func TestParseDumps(t *testing.T) {
	for name, want := range dumps {
		t.Run(name, func(t *testing.T) {
			m, warnings := mustParse(t, readDump(t, name))
			requireWarnings(t, warnings, want.warnings)
			requireDump(t, m, want)
		})
	}
}

func requireDump(t testing.TB, m *Matrix, want dump) {
	t.Helper()
	if got := m.Domains(); !reflect.DeepEqual(got, want.domains) {
		t.Errorf("domains = %v, want %v", got, want.domains)
	}
	var nics []string
	for _, nic := range m.NICs {
		nics = append(nics, nic.Label)
	}
	if got := strings.Join(nics, " "); got != want.nics {
		t.Errorf("NICs = %q, want %q", got, want.nics)
	}
	cpus, err := parseList(want.cpus)
	if err != nil {
		t.Fatal(err)
	}
	if got := m.GPUs[0].CPUAffinity; !slices.Equal(got, cpus) {
		t.Errorf("CPU affinity of GPU0 = %v, want %v", got, cpus)
	}
	var numa [][]int
	for i, gpu := range m.GPUs {
		numa = append(numa, gpu.NUMAAffinity)
		if gpu.Index != i || gpu.NUMANode != NoNUMANode {
			t.Errorf("GPU %d = %+v, want index %d and no NUMA node of its own", i, gpu, i)
		}
	}
	if !reflect.DeepEqual(numa, want.numa) {
		t.Errorf("NUMA affinity = %v, want %v", numa, want.numa)
	}
}

const realLegend = `
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
`

// expandTabs does what a terminal does, from which most people copy.
func expandTabs(text string) string {
	var out strings.Builder
	at := 0
	for _, r := range text {
		switch r {
		case '\t':
			out.WriteString(strings.Repeat(" ", tabStop-at%tabStop))
			at += tabStop - at%tabStop
		case '\n':
			out.WriteRune(r)
			at = 0
		default:
			out.WriteRune(r)
			at++
		}
	}
	return out.String()
}

// mapLines changes each line but the comment on top; i is 0 for the header.
func mapLines(text string, change func(i int, line string) string) string {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	for i := range lines[1:] {
		lines[i+1] = change(i, lines[i+1])
	}
	return strings.Join(lines, "\n") + "\n"
}

func changeHeader(change func(string) string) func(string) string {
	return func(text string) string {
		return mapLines(text, func(i int, line string) string {
			if i == 0 {
				return change(line)
			}
			return line
		})
	}
}

// reverseColumns turns the device columns of a matrix with tabs around, so that
// GPUs come last and in descending order.
func reverseColumns(text string) string {
	if !strings.Contains(text, "\t") {
		return text
	}
	devices := 0
	return mapLines(text, func(i int, line string) string {
		cells := strings.Split(line, "\t")
		if i == 0 {
			if strings.HasPrefix(line, " ") {
				cells = append([]string{""}, cells...)
				cells[1] = strings.TrimSpace(cells[1])
			}
			for devices+1 < len(cells) && !strings.Contains(cells[devices+1], " ") {
				devices++
			}
		}
		slices.Reverse(cells[1 : devices+1])
		return strings.Join(cells, "\t")
	})
}

// TestParseDumpsInEveryGuise changes all dumps in the ways met in the wild.
func TestParseDumpsInEveryGuise(t *testing.T) {
	guises := map[string]func(string) string{
		"CRLF":            func(s string) string { return strings.ReplaceAll(s, "\n", "\r\n") },
		"byte order mark": func(s string) string { return "\ufeff" + s },
		"legend below":    func(s string) string { return s + realLegend },
		"prompts around": func(s string) string {
			return "user@gpu-node1:~$ nvidia-smi topo -m\n\n" + s + realLegend + "user@gpu-node1:~$ \n"
		},
		"fenced":        func(s string) string { return "```\n" + s + "```\n" },
		"tabs expanded": expandTabs,
		"expanded and indented": func(s string) string {
			return mapLines(expandTabs(s), func(_ int, l string) string { return "    " + l })
		},
		"indented by blanks":        func(s string) string { return mapLines(s, func(_ int, l string) string { return "   " + l }) },
		"indented by a tab":         func(s string) string { return mapLines(s, func(_ int, l string) string { return "\t" + l }) },
		"header stripped":           changeHeader(strings.TrimSpace),
		"header's tab as blanks":    changeHeader(func(l string) string { return "        " + strings.TrimSpace(l) }),
		"expanded, header stripped": func(s string) string { return changeHeader(strings.TrimSpace)(expandTabs(s)) },
		"header underlined":         changeHeader(func(l string) string { return "\t\x1b[4m" + strings.TrimSpace(l) + "\x1b[0m" }),
		"ESC byte lost":             changeHeader(func(l string) string { return "\t[4m" + strings.TrimSpace(l) + "[0m" }),
		"ESC byte spelled out":      changeHeader(func(l string) string { return "\t^[[4m" + strings.TrimSpace(l) + "^[[0m" }),
		"ESC byte replaced":         changeHeader(func(l string) string { return "\t\ufffd[4m" + strings.TrimSpace(l) + "\ufffd[0m" }),
		"X without blanks":          func(s string) string { return strings.ReplaceAll(strings.ReplaceAll(s, "\t X ", "\tX"), "\t X", "\tX") },
		"old SOC for SYS":           func(s string) string { return strings.ReplaceAll(s, "SYS", "SOC") },
		"no-break spaces":           func(s string) string { return strings.ReplaceAll(s, " ", "\u00a0") },
		"double spaced":             func(s string) string { return strings.ReplaceAll(s, "\n", "\n\n") },
		"trailing blanks":           func(s string) string { return strings.ReplaceAll(s, "\n", "  \n") },
	}
	for guise, change := range guises {
		for name, want := range dumps {
			t.Run(guise+"/"+name, func(t *testing.T) {
				m, warnings := mustParse(t, change(readDump(t, name)))
				if len(warnings) != len(want.warnings) {
					t.Errorf("%d warnings, want %d:\n%s", len(warnings), len(want.warnings), strings.Join(warnings, "\n"))
				}
				requireDump(t, m, want)
			})
		}
	}
}

func TestColumnsMayStandInAnyOrder(t *testing.T) {
	for name, want := range dumps {
		t.Run(name, func(t *testing.T) {
			m, warnings := mustParse(t, reverseColumns(readDump(t, name)))
			if len(warnings) != len(want.warnings) {
				t.Errorf("warnings: %s", strings.Join(warnings, "\n"))
			}
			nics := strings.Fields(want.nics)
			if strings.Contains(readDump(t, name), "\t") {
				slices.Reverse(nics)
			}
			want.nics = strings.Join(nics, " ")
			requireDump(t, m, want)
		})
	}
}

// TestSingleBlanksKeepTheGraph collapses every run of blanks and tabs, after
// which an empty cell cannot be told from none.
func TestSingleBlanksKeepTheGraph(t *testing.T) {
	for name, want := range dumps {
		t.Run(name, func(t *testing.T) {
			m, warnings := mustParse(t, mapLines(readDump(t, name), func(_ int, l string) string { return strings.Join(strings.Fields(l), " ") }))
			if got := m.Domains(); !reflect.DeepEqual(got, want.domains) {
				t.Errorf("domains = %v, want %v", got, want.domains)
			}
			wantWarnings := want.warnings
			if strings.HasPrefix(name, "18-") { // GPU2 and GPU3 have one cell for CPU and NUMA
				wantWarnings = []string{"row GPU2 has 2 affinity cells for 3 columns", "row GPU3 has 2 affinity cells for 3 columns"}
				if m.GPUs[2].NUMAAffinity != nil || m.GPUs[2].CPUAffinity != nil {
					t.Errorf("affinities of GPU2 were guessed: %+v", m.GPUs[2])
				}
			}
			requireWarnings(t, warnings, wantWarnings)
		})
	}
}
