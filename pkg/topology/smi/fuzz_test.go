// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package smi

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/switchyard-dev/switchyard/pkg/topology"
)

// FuzzParse checks that Parse never panics, gives the same answer twice, and
// that without an error the graph is valid and its domains keep their promise.
func FuzzParse(f *testing.F) {
	for name := range dumps {
		text := readDump(f, name)
		f.Add(text)
		f.Add(expandTabs(text) + realLegend + "\nNIC Legend:\n\n  NIC0: mlx5_0\n")
	}
	f.Add("GPU0GPU1\nGPU0 X NV1\nGPU1 NV1 X")
	f.Add("\t[4mGPU0\tGPU1[0m\nGPU1\tSOC\tX\nGPU0\tX\tSYS")
	f.Fuzz(func(t *testing.T, input string) {
		m, warnings, err := Parse(strings.NewReader(input))
		again, warningsAgain, errAgain := Parse(strings.NewReader(input))
		if !reflect.DeepEqual(m, again) || !reflect.DeepEqual(warnings, warningsAgain) || !reflect.DeepEqual(err, errAgain) {
			t.Fatal("Parse gives two answers")
		}
		for _, w := range warnings {
			if w.Line < 1 || w.Column < 1 {
				t.Fatalf("warning %q names no place", w)
			}
		}
		if err != nil {
			var parseErr *ParseError
			if !errors.As(err, &parseErr) || parseErr.Msg == "" || (parseErr.Line == 0) != (parseErr.Column == 0) {
				t.Fatalf("error %v is no proper ParseError", err)
			}
			return
		}
		checkMatrix(t, m)
	})
}

func checkMatrix(t *testing.T, m *Matrix) {
	n := m.Graph.Len()
	if n == 0 || n != len(m.GPUs) {
		t.Fatalf("%d GPUs, graph of %d", len(m.GPUs), n)
	}
	connections := make([][]topology.Connection, n)
	index := map[int]int{}
	for i, gpu := range m.GPUs {
		if i > 0 && m.GPUs[i-1].Index >= gpu.Index {
			t.Fatalf("GPUs are not in order: %v", m.GPUs)
		}
		if !slices.IsSorted(gpu.CPUAffinity) || !slices.IsSorted(gpu.NUMAAffinity) || gpu.NUMANode < NoNUMANode {
			t.Fatalf("affinities of %+v", gpu)
		}
		index[gpu.Index] = i
		for j := range n {
			connections[i] = append(connections[i], m.Graph.Connection(i, j))
		}
	}
	if _, err := topology.NewGraph(connections, nil); err != nil {
		t.Fatalf("invalid graph: %v", err)
	}
	seen := map[int]bool{}
	for _, domain := range m.Domains() {
		if len(domain) < 2 || !slices.IsSorted(domain) {
			t.Fatalf("domain %v", domain)
		}
		for _, a := range domain {
			if seen[a] {
				t.Fatalf("GPU %d is in two domains", a)
			}
			seen[a] = true
			for _, b := range domain {
				if a != b && m.Graph.Connection(index[a], index[b]).NVLinks == 0 {
					t.Fatalf("domain %v holds GPUs %d and %d without a link", domain, a, b)
				}
			}
		}
	}
}
