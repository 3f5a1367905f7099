// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package smi reads the matrix that nvidia-smi topo -m prints into a
// [topology.Graph], together with the NICs and the CPU and NUMA affinity of the
// GPUs.
//
// It reads what people paste and redirect, not only what the tool writes: tabs
// or blanks, a header without its leading tab, an indented block, ANSI codes
// also without their ESC byte, CRLF, text around the matrix, columns in any
// order. It keeps one rule throughout: the GPU×GPU block is either complete and
// consistent or [Parse] fails with a [ParseError] that names line and column;
// nothing in it is ever guessed. Damage elsewhere (NICs, affinities, legends)
// is a [Warning], and the value in question is left out.
//
// Where tabs separate the cells, the tabs decide which column a cell belongs
// to, so an empty cell stays empty. Where only blanks are left, the words of a
// row are counted, and if there are too few, their position under the header
// decides.
//
// The package is pure: it imports the standard library and package topology,
// and never os, client-go or go-nvml.
package smi

import (
	"fmt"
	"io"
	"strconv"

	"github.com/switchyard-dev/switchyard/pkg/topology"
)

// maxInput is the largest input that is read, in bytes. The matrix of a node
// with 64 GPUs and 64 NICs is some 100 kB.
const maxInput = 1 << 20

// NoNUMANode is the NUMANode of a GPU whose memory is no NUMA node.
const NoNUMANode = -1

// Matrix is what nvidia-smi topo -m says about one node.
type Matrix struct {
	// GPUs are the GPUs of the matrix, ascending by Index.
	GPUs []GPU
	// Graph is the connections between them, in the order of GPUs.
	Graph topology.Graph
	// NICs are the columns that are no GPUs, from left to right.
	NICs []NIC
}

// GPU is one GPU of the matrix.
type GPU struct {
	// Index is the number in the label: 3 for GPU3.
	Index int
	// CPUAffinity are the CPUs nearest to the GPU, ascending; nil if the cell
	// is empty, N/A or not readable.
	CPUAffinity []int
	// NUMAAffinity are the NUMA nodes nearest to the GPU, ascending; nil if
	// the cell is empty, N/A or not readable.
	NUMAAffinity []int
	// NUMANode is the NUMA node that the GPU's own memory is ("GPU NUMA ID"),
	// as on GH200 and GB200, or NoNUMANode.
	NUMANode int
}

// Label returns the GPU's label in the matrix, such as "GPU3".
func (g GPU) Label() string { return "GPU" + strconv.Itoa(g.Index) }

// NIC is one column that is no GPU.
type NIC struct {
	// Label heads the column: "NIC0", or the device name with old drivers.
	Label string
	// Device is the name that the NIC legend gives, such as "mlx5_0"; empty if
	// there is none.
	Device string
}

// Domains returns the NVSwitch domains as [topology.Domains] derives them, with
// the GPUs' numbers in the matrix.
func (m *Matrix) Domains() [][]int {
	domains := topology.Domains(m.Graph)
	for _, domain := range domains {
		for i, gpu := range domain {
			domain[i] = m.GPUs[gpu].Index
		}
	}
	return domains
}

// Warning is damage that does not touch the GPU×GPU block, or something the
// user should know about the input.
type Warning struct {
	// Line and Column are the position in the input as it was given (ANSI
	// codes included), in lines and characters from 1.
	Line, Column int
	Msg          string
}

func (w Warning) String() string { return position(w.Line, w.Column) + w.Msg }

// ParseError says why the input has no usable GPU×GPU block.
type ParseError struct {
	// Line and Column are the position in the input as it was given (ANSI
	// codes included), in lines and characters from 1. Both are 0 if the error
	// is about the whole input.
	Line, Column int
	Msg          string
}

func (e *ParseError) Error() string { return position(e.Line, e.Column) + e.Msg }

func position(line, column int) string {
	if line == 0 {
		return ""
	}
	return fmt.Sprintf("line %d, column %d: ", line, column)
}

// Parse reads the output of nvidia-smi topo -m.
//
// An unreadable GPU×GPU block, an empty input, one without a matrix and one
// with more than one are a *ParseError. A failing reader's error is wrapped.
//
// The output of nvidia-smi topo -mp has the same form, but shows the PCIe path
// where GPUs share NVLinks. Nothing in the matrix tells it from that of a node
// without NVLink, for which it is harmless, so it is not an error; but if the
// legend has no entry for NV#, or the command line was pasted along, Parse
// warns that NVLink is hidden.
func Parse(r io.Reader) (*Matrix, []Warning, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxInput+1))
	if err != nil {
		return nil, nil, fmt.Errorf("read topology matrix: %w", err)
	}
	if len(data) > maxInput {
		return nil, nil, &ParseError{Msg: fmt.Sprintf("input is larger than %d bytes: expected the output of nvidia-smi topo -m", maxInput)}
	}
	p := parser{lines: splitLines(string(data))}
	m, err := p.parse()
	if err != nil {
		return nil, p.warnings, err
	}
	return m, p.warnings, nil
}
