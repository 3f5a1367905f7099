// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package profile

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/switchyard-dev/switchyard/pkg/topology/smi"
)

func parseMatrix(t *testing.T, text string) *smi.Matrix {
	t.Helper()
	m, _, err := smi.Parse(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// table writes rows of cells as nvidia-smi does.
func table(rows ...string) string {
	var b strings.Builder
	for i := range rows {
		fmt.Fprintf(&b, "\tGPU%d", i)
	}
	b.WriteString("\tCPU Affinity\tNUMA Affinity\n")
	for i, row := range rows {
		fmt.Fprintf(&b, "GPU%d\t%s\n", i, strings.ReplaceAll(row, " ", "\t"))
	}
	return b.String()
}

func TestImport(t *testing.T) {
	cases := map[string]struct {
		matrix   string
		options  ImportOptions
		product  string
		nvlink   *NVLink
		warnings []string
		cells    []string // what the profile's PCIe distances are
	}{
		"more links than a GPU has: a switch": {
			matrix:  table("X NV12 NV12 0-3 0", "NV12 X NV12 0-3 0", "NV12 NV12 X 4-7 1"),
			product: "NVIDIA A100-SXM4-40GB",
			nvlink:  &NVLink{Version: 3, LinksPerGPU: 12, MBPerSecond: 25000, Switches: []Switch{{BusID: "0001:00:00.0", GPUs: []int{0, 1, 2}, Links: 12}}},
			cells:   []string{"X NODE SYS", "NODE X SYS", "SYS SYS X"},
		},
		"as many links as a GPU has: direct": {
			matrix:  table("X NV6 NV6 NV6 0 0", "NV6 X NV6 NV6 1 1", "NV6 NV6 X NV6 2 2", "NV6 NV6 NV6 X 3 3"),
			product: "NVIDIA H100 80GB HBM3",
			nvlink: &NVLink{Version: 4, LinksPerGPU: 18, MBPerSecond: 26562, Peers: []Peer{
				{[2]int{0, 1}, 6}, {[2]int{0, 2}, 6}, {[2]int{0, 3}, 6}, {[2]int{1, 2}, 6}, {[2]int{1, 3}, 6}, {[2]int{2, 3}, 6},
			}},
			cells: []string{"X SYS SYS SYS", "SYS X SYS SYS", "SYS SYS X SYS", "SYS SYS SYS X"},
		},
		"the product is asked for": {
			matrix:  table("X NV2 0 0", "NV2 X 0 0"),
			options: ImportOptions{Like: "dgx1-v100"},
			product: "Tesla V100-SXM2-32GB",
			nvlink:  &NVLink{Version: 2, LinksPerGPU: 2, MBPerSecond: 25781, Peers: []Peer{{[2]int{0, 1}, 2}}},
			cells:   []string{"X NODE", "NODE X"},
		},
		"every PCIe distance": {
			matrix: table(
				"X PIX PXB PHB NODE SYS 0 0", "PIX X PXB PHB NODE SYS 0 0", "PXB PXB X PHB NODE SYS 0 0",
				"PHB PHB PHB X NODE SYS 0 0", "NODE NODE NODE NODE X SYS 0 0", "SYS SYS SYS SYS SYS X 1 1"),
			product: "NVIDIA L40S",
			cells: []string{
				"X PIX PXB PHB NODE SYS", "PIX X PXB PHB NODE SYS", "PXB PXB X PHB NODE SYS",
				"PHB PHB PHB X NODE SYS", "NODE NODE NODE NODE X SYS", "SYS SYS SYS SYS SYS X",
			},
		},
		"what no tree has is a warning": {
			matrix:   table("X SYS PIX 0 0", "SYS X PIX 0 0", "PIX PIX X 0 0,1"),
			product:  "NVIDIA L40S",
			warnings: []string{"GPU2 is near NUMA nodes [0 1]: the profile gives it node 0", "SYS in the matrix, PIX in the profile: GPU0-GPU1"},
			cells:    []string{"X PIX PIX", "PIX X PIX", "PIX PIX X"},
		},
		"no affinity": {
			matrix:   table("X NODE  ", "NODE X  "),
			product:  "NVIDIA L40S",
			warnings: []string{"NODE in the matrix, SYS in the profile: GPU0-GPU1"},
			cells:    []string{"X SYS", "SYS X"},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			c.options.Name = "imported"
			p, warnings, err := FromMatrix(parseMatrix(t, c.matrix), c.options)
			if err != nil {
				t.Fatal(err)
			}
			if p.Product.Name != c.product {
				t.Errorf("product %q, want %q", p.Product.Name, c.product)
			}
			if diff := cmp.Diff(c.nvlink, p.NVLink); diff != "" {
				t.Errorf("NVLink:\n%s", diff)
			}
			if diff := cmp.Diff(c.warnings, warnings); diff != "" {
				t.Errorf("warnings:\n%s", diff)
			}
			if diff := cmp.Diff(c.cells, distances(p)); diff != "" {
				t.Errorf("distances:\n%s", diff)
			}
		})
	}
}

func distances(p Profile) []string {
	rows := make([]string, len(p.GPUs))
	for i := range p.GPUs {
		cells := make([]string, len(p.GPUs))
		for j := range p.GPUs {
			cells[j] = p.Distance(i, j).String()
		}
		rows[i] = strings.Join(cells, " ")
	}
	return rows
}

func TestImportRefuses(t *testing.T) {
	good := table("X NV2 0 0", "NV2 X 0 0")
	cases := map[string]struct {
		matrix  string
		options ImportOptions
		want    string
	}{
		"more links than NVML knows": {
			table("X NV18 NV19 0 0", "NV18 X NV18 0 0", "NV19 NV18 X 0 0"),
			ImportOptions{Name: "x"},
			"GPUs [0 1 2] are not all connected alike, and would need 37 NVLinks a GPU",
		},
		"a bad name":       {good, ImportOptions{Name: "A b"}, "name: Invalid value"},
		"no such product":  {good, ImportOptions{Name: "x", Like: "h100"}, `no profile is called "h100"`},
		"no such products": {good, ImportOptions{Name: "x", Like: "none.yaml"}, "no such file"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if _, _, err := FromMatrix(parseMatrix(t, c.matrix), c.options); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an error with %q", err, c.want)
			}
		})
	}
}

// TestImportOfRealMatrices imports what people posted and looks whether it can be written and read back.
func TestImportOfRealMatrices(t *testing.T) {
	files, err := filepath.Glob("../../topology/smi/testdata/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 20 {
		t.Fatalf("found %d matrices", len(files))
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			m, _, err := smi.Parse(strings.NewReader(string(text)))
			if err != nil {
				t.Fatal(err)
			}
			p, _, err := FromMatrix(m, ImportOptions{Name: "imported"})
			if err != nil {
				t.Fatal(err)
			}
			written, err := Marshal(p)
			if err != nil {
				t.Fatal(err)
			}
			again, err := Parse(written)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(p, again); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// FuzzImport holds every matrix that is read to a profile that has its NVLinks, or an error.
func FuzzImport(f *testing.F) {
	f.Add(table("X NV12 NV12 0-3 0", "NV12 X NV12 0-3 0", "NV12 NV12 X 4-7 1"))
	f.Add(table("X PIX NV2 0 0", "PIX X SYS 0 1", "NV2 SYS X 0-3 0,1"))
	f.Fuzz(func(t *testing.T, text string) {
		m, _, err := smi.Parse(strings.NewReader(text))
		if err != nil {
			return
		}
		p, _, err := FromMatrix(m, ImportOptions{Name: "imported"})
		if err != nil {
			return
		}
		for i := range m.GPUs {
			if len(m.GPUs) != len(p.GPUs) {
				t.Fatalf("%d GPUs of %d", len(p.GPUs), len(m.GPUs))
			}
			linked := p.NVLink != nil && p.Links()[i][0].Kind != EndNone
			if want := m.Graph.HasNVLink(i); linked != want {
				t.Errorf("GPU %d has NVLinks: %v, in the matrix %v", i, linked, want)
			}
		}
	})
}
