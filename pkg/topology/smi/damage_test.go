// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package smi

import (
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

// pairs is a small matrix with everything in it; its line 1 is the header.
const pairs = "\tGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n" +
	"GPU0\t X \tNV4\tSYS\tPIX\t0-3\t0\t\tN/A\n" +
	"GPU1\tNV4\t X \tSYS\tPXB\t0-3\t0\t\tN/A\n" +
	"GPU2\tSYS\tSYS\t X \tSYS\t4-7\t1\t\tN/A\n" +
	"NIC0\tPIX\tPXB\tSYS\t X \t\t\t\t\n"

// replace replaces old, which must be there exactly once.
func replace(t *testing.T, text, old, with string) string {
	t.Helper()
	if strings.Count(text, old) != 1 {
		t.Fatalf("%q is in the text %d times", old, strings.Count(text, old))
	}
	return strings.Replace(text, old, with, 1)
}

func TestDamageOfTheGPUBlockIsAnErrorThatNamesThePlace(t *testing.T) {
	tests := map[string]struct {
		old, with    string // of pairs
		line, column int
		want         string
	}{
		"an unknown cell": {
			"GPU1\tNV4\t X \tSYS", "GPU1\tNV4\t X \tSY5", 3, 14,
			`row GPU1, column GPU2: unknown connection "SY5": expected X, NV1 to NV64, PIX, PXB, PHB, NODE or SYS`,
		},
		"a link count of zero":     {"GPU1\tNV4", "GPU1\tNV0", 3, 6, `row GPU1, column GPU0: unknown connection "NV0"`},
		"a lower-case cell":        {"GPU1\tNV4", "GPU1\tnv4", 3, 6, `unknown connection "nv4"`},
		"an empty cell":            {"GPU1\tNV4\t", "GPU1\t\t", 3, 6, "row GPU1, column GPU0: the cell is empty: expected X, NV1"},
		"a blank cell":             {"GPU1\tNV4\t", "GPU1\t   \t", 3, 9, "row GPU1, column GPU0: the cell is empty"},
		"a row that breaks off":    {"GPU2\tSYS\tSYS\t X \tSYS\t4-7\t1\t\tN/A", "GPU2\tSYS", 4, 9, "row GPU2, column GPU1: the row ends before this cell"},
		"a label without a row":    {"GPU2\tSYS\tSYS\t X \tSYS\t4-7\t1\t\tN/A", "GPU2", 4, 5, "row GPU2, column GPU0: the row ends before this cell"},
		"a lost cell before X":     {"GPU1\tNV4\t X ", "GPU1\t X ", 3, 7, "row GPU1, column GPU0: X off the diagonal: expected the connection of two GPUs"},
		"a lost cell behind X":     {"GPU0\t X \tNV4\tSYS", "GPU0\t X \tSYS", 2, 10, "row GPU0, column GPU1 is SYS, but row GPU1, column GPU0 is NV4 (line 3, column 6): expected the same; row GPU0 has 3 cells for 4 columns, so cells may have moved"},
		"a missing X":              {"GPU1\tNV4\t X ", "GPU1\tNV4\tNV4", 3, 10, "row GPU1, column GPU1: NV4 on the diagonal: expected X"},
		"two links on one side":    {"GPU1\tNV4", "GPU1\tNV2", 3, 6, "row GPU1, column GPU0 is NV2, but row GPU0, column GPU1 is NV4 (line 2, column 10): expected the same"},
		"a path on one side":       {"GPU2\tSYS\t", "GPU2\tNODE\t", 4, 6, "row GPU2, column GPU0 is NODE, but row GPU0, column GPU2 is SYS (line 2, column 14)"},
		"a missing row":            {"GPU1\tNV4\t X \tSYS\tPXB\t0-3\t0\t\tN/A\n", "", 3, 1, "row GPU1 is missing: expected a row for each of the 3 GPUs that the header names (line 1) before this one"},
		"a damaged label of a row": {"GPU1\tNV4", "GP1\tNV4", 3, 1, `row GPU1 is missing: expected a row for each of the 3 GPUs that the header names (line 1); this line starts with "GP1"`},
		"a missing last row":       {"GPU2\tSYS\tSYS\t X \tSYS\t4-7\t1\t\tN/A\nNIC0\tPIX\tPXB\tSYS\t X \t\t\t\t\n", "", 4, 1, "row GPU2 is missing: expected a row for each of the 3 GPUs that the header names (line 1); the rows of GPUs end here"},
		"a row twice":              {"GPU2\tSYS", "GPU1\tNV4\t X \tSYS\tPXB\nGPU2\tSYS", 4, 1, "row GPU1 appears twice (first at line 3)"},
		"a row under another name": {"GPU2\tSYS", "GPU1\tSYS", 4, 1, "row GPU1 appears twice"},
		"a row without a column":   {"GPU2\tSYS", "GPU7\tSYS", 4, 1, "row GPU7 has no column: expected it among those that the header names (line 1)"},
		"a column twice":           {"GPU1\tGPU2\tNIC0", "GPU1\tGPU1\tNIC0", 1, 12, "column GPU1 appears twice (first at column 7)"},
		"a column without a row":   {"GPU2\tNIC0", "GPU2\tGPU3\tNIC0", 5, 1, "row GPU3 is missing: expected a row for each of the 4 GPUs that the header names (line 1); the rows of GPUs end here"},
		"a lost name of a column":  {"GPU1\tGPU2\tNIC0", "\tGPU2\tNIC0", 3, 1, "row GPU1 has no column"},
		"swapped names of columns": {"GPU1\tGPU2\tNIC0", "GPU2\tGPU1\tNIC0", 3, 11, "row GPU1, column GPU2: X off the diagonal"},
		"swapped names of rows":    {"GPU0\t X ", "GPU1\t X ", 2, 7, "row GPU1, column GPU0: X off the diagonal"},
		"no header": {
			strings.SplitAfter(pairs, "\n")[0], "", 1, 1,
			"row GPU0 without a header: expected a line before it that names the columns (GPU0, GPU1, …)",
		},
		"a second matrix": {"NIC0\tPIX\tPXB\tSYS\t X \t\t\t\t\n", "\n" + pairs, 6, 2, "a second matrix starts here (the first at line 1): expected the output of one nvidia-smi topo -m"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			requireParseError(t, replace(t, pairs, test.old, test.with), test.line, test.column, test.want)
		})
	}
}

func requireParseError(t *testing.T, input string, line, column int, want string) {
	t.Helper()
	_, _, err := Parse(strings.NewReader(input))
	var parseErr *ParseError
	if !errors.As(err, &parseErr) {
		t.Fatalf("error = %v, want a ParseError with %q", err, want)
	}
	if parseErr.Line != line || parseErr.Column != column || !strings.Contains(parseErr.Msg, want) {
		t.Errorf("error = %v\nwant line %d, column %d, and %q", err, line, column, want)
	}
	if line > 0 && !strings.HasPrefix(err.Error(), fmt.Sprintf("line %d, column %d: ", line, column)) {
		t.Errorf("error %q does not start with the place", err)
	}
}

func TestOtherErrors(t *testing.T) {
	p2p := " \tGPU0\tGPU1\t\n GPU0\tX\tOK\t\n GPU1\tOK\tX\t\n"
	var wide, columns strings.Builder
	for i := range 65 {
		fmt.Fprintf(&wide, "\tGPU%d", i)
	}
	columns.WriteString("GPU0")
	for i := range 1024 {
		fmt.Fprintf(&columns, "\tNIC%d", i)
	}
	tests := map[string]struct {
		input        string
		line, column int
		want         string
	}{
		"empty input":        {"", 0, 0, "empty input: expected the output of nvidia-smi topo -m"},
		"only blanks":        {" \n\t\n", 0, 0, "empty input"},
		"only comments":      {"# source: nowhere\n", 0, 0, "empty input"},
		"no matrix":          {"\nNVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", 2, 1, `no topology matrix found: expected the output of nvidia-smi topo -m with a line that names the columns (GPU0, GPU1, …); the input starts with "NVIDIA-SMI has failed because it couldn'…"`},
		"prose about GPUs":   {"GPU0 and GPU1 are linked\n", 1, 1, "no topology matrix found"},
		"list of GPUs":       {"GPU 0: NVIDIA H100 (UUID: GPU-1)\n", 1, 1, "no topology matrix found"},
		"the peer matrix":    {p2p, 2, 9, `row GPU0, column GPU1: unknown connection "OK": expected X, NV1 to NV64, PIX, PXB, PHB, NODE or SYS; this looks like nvidia-smi topo -p2p: use nvidia-smi topo -m`},
		"too many GPUs":      {wide.String(), 1, 376, "65 GPU columns: expected at most 64"},
		"too many columns":   {columns.String(), 1, 7080, "1025 columns: expected at most 1024"},
		"too large an input": {strings.Repeat("x", maxInput+1), 0, 0, "input is larger than 1048576 bytes"},
		"a cell too many without NICs": {
			"\tGPU0\tGPU1\nGPU0\t X \tSYS\tSYS\nGPU1\tSYS\t X \n", 2, 1,
			"row GPU0 has 3 cells for 2 columns: expected one for each GPU that the header names",
		},
		"too few words": {
			"GPU0 GPU1 GPU2 CPU Affinity\nGPU0 X SYS SYS 0-3\nGPU1 SYS X 0-3\nGPU2 SYS SYS X 0-3\n", 3, 12,
			`row GPU1, column GPU2: no cell before "0-3": expected X, NV1`,
		},
		"an empty place among blanks": {
			"        GPU0    GPU1    GPU2    CPU Affinity\nGPU0     X      SYS     SYS     0-3\nGPU1             X      SYS     0-3\nGPU2    SYS     SYS      X      0-3\n", 3, 18,
			"row GPU1, column GPU0: the cell is empty",
		},
		"a position behind ANSI codes counts them":        {"\t\x1b[4mGPU0\tGPU0\x1b[0m\n", 1, 11, "column GPU0 appears twice (first at column 6)"},
		"a legend instead of the last row":                {"\tGPU0\tGPU1\nGPU0\t X \tSYS\n" + realLegend, 3, 1, "row GPU1 is missing"},
		"a later row cannot take the place of a lost one": {"\tGPU0\tGPU1\n\n\nGPU1\tSYS\t X \nGPU9 is gone\n", 5, 1, "row GPU9 has no column"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			requireParseError(t, test.input, test.line, test.column, test.want)
		})
	}
}

func TestReaderErrorIsWrapped(t *testing.T) {
	_, _, err := Parse(iotest.ErrReader(io.ErrClosedPipe))
	if !errors.Is(err, io.ErrClosedPipe) || !strings.HasPrefix(err.Error(), "read topology matrix: ") {
		t.Errorf("error = %v", err)
	}
}

// gpuBlock calls visit for each cell of the GPU×GPU block of a matrix with
// tabs: its line (from 0) and cell (from 1) in the text.
func gpuBlock(text string, visit func(line, cell int)) {
	gpus := 0
	for i, l := range strings.Split(text, "\n") {
		words := strings.Fields(l)
		if len(words) > 0 && isGPURow(l2words(l)) {
			for cell := 1; cell <= gpus; cell++ {
				visit(i, cell)
			}
			continue
		}
		if gpus == 0 {
			gpus = len(slices.DeleteFunc(words, func(w string) bool { return gpuNumber(w) < 0 }))
		}
	}
}

func l2words(text string) []word { return newLine(1, text).words }

// changeCell returns text with a changed cell, where cells are separated by
// tabs.
func changeCell(text string, line, cell int, change func(string) []string) string {
	lines := strings.Split(text, "\n")
	cells := strings.Split(strings.TrimLeft(lines[line], " "), "\t")
	lines[line] = strings.Join(slices.Replace(cells, cell, cell+1, change(cells[cell])...), "\t")
	return strings.Join(lines, "\n")
}

// damaged are the dumps that are damaged in every way: one for each kind of
// topology and layout.
var damaged = []string{
	"03-ec2-vm-a100-8gpu-nv12-no-nic",
	"06-dgx1-v100-8gpu-hybrid-cube-mesh",
	"18-a100-4gpu-nv4-mesh-slurm-empty-affinity",
	"22-a100-pcie-4gpu-nv12-pairs-4numa",
	"25-rtx4090-8gpu-all-SYS-2nic",
	"26-rtx3090-2gpu-nv4-bridge",
	"38-a100-8gpu-nv12-10nic-X-without-leading-blank",
}

// TestNoDamageOfOneGPUCellChangesTheGraph changes every cell of every dump in
// every way: the result is an error, or the same graph where the damage cannot
// be seen (a lost cell among equal ones).
func TestNoDamageOfOneGPUCellChangesTheGraph(t *testing.T) {
	damages := map[string]func(string) []string{
		"emptied":      func(string) []string { return []string{""} },
		"illegible":    func(string) []string { return []string{"??"} },
		"cut short":    func(s string) []string { return []string{strings.TrimSpace(s)[:len(strings.TrimSpace(s))-1]} },
		"X":            func(string) []string { return []string{"X"} },
		"NV1":          func(string) []string { return []string{"NV1"} },
		"SYS":          func(string) []string { return []string{"SYS"} },
		"PIX":          func(string) []string { return []string{"PIX"} },
		"twice":        func(s string) []string { return []string{s, s} },
		"lost":         func(string) []string { return nil },
		"a CPU list":   func(string) []string { return []string{"0-7"} },
		"N/A":          func(string) []string { return []string{"N/A"} },
		"two in one":   func(s string) []string { return []string{s + " " + s} },
		"an extra SYS": func(s string) []string { return []string{s, "SYS"} },
	}
	for _, name := range damaged {
		text := readDump(t, name)
		if !strings.Contains(text, "\t") {
			continue // changeCell needs tabs
		}
		original, _ := mustParse(t, text)
		for damage, change := range damages {
			gpuBlock(text, func(line, cell int) {
				changed := changeCell(text, line, cell, change)
				for layout, input := range map[string]string{"tabs": changed, "blanks": expandTabs(changed)} {
					m, _, err := Parse(strings.NewReader(input))
					var parseErr *ParseError
					if err != nil && (!errors.As(err, &parseErr) || parseErr.Line == 0 || parseErr.Column == 0) {
						t.Errorf("%s, line %d, cell %d %s (%s): error %v names no place", name, line+1, cell, damage, layout, err)
					}
					if err == nil && !reflect.DeepEqual(m.Graph, original.Graph) {
						t.Errorf("%s, line %d, cell %d %s (%s): another graph", name, line+1, cell, damage, layout)
					}
				}
			})
		}
	}
}

// TestNoCutChangesTheGraph cuts every dump off after every byte.
func TestNoCutChangesTheGraph(t *testing.T) {
	for _, name := range damaged {
		text := readDump(t, name)
		original, _ := mustParse(t, text)
		lastGPU := strings.Index(text, fmt.Sprintf("\nGPU%d", len(original.GPUs)-1))
		for end := range len(text) {
			m, _, err := Parse(strings.NewReader(text[:end]))
			switch {
			case err == nil && lastGPU >= 0 && end <= lastGPU:
				t.Fatalf("%s cut off at byte %d: no error although rows are missing", name, end)
			case err == nil && !reflect.DeepEqual(m.Graph, original.Graph):
				t.Fatalf("%s cut off at byte %d: another graph", name, end)
			}
		}
	}
}

// TestNoLostLineChangesTheGraph takes every line out, and doubles it.
func TestNoLostLineChangesTheGraph(t *testing.T) {
	for name := range dumps {
		text := readDump(t, name)
		original, _ := mustParse(t, text)
		lines := strings.Split(text, "\n")
		for i, l := range lines {
			block := i == 1 || isGPURow(l2words(l))
			for what, with := range map[string][]string{"without": nil, "with twice": {l, l}} {
				input := strings.Join(slices.Replace(slices.Clone(lines), i, i+1, with...), "\n")
				m, _, err := Parse(strings.NewReader(input))
				if block && err == nil {
					t.Errorf("%s %s line %d: no error", name, what, i+1)
				}
				if !block && (err != nil || !reflect.DeepEqual(m.Graph, original.Graph)) {
					t.Errorf("%s %s line %d: error %v or another graph", name, what, i+1, err)
				}
			}
		}
	}
}
