// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package smi

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/switchyard-dev/switchyard/pkg/topology"
)

// checkMissingRows reports the first GPU column without a row, at the line
// where the row is expected.
func (p *parser) checkMissingRows() error {
	for n, i := range p.header.gpus {
		d := p.header.devices[i]
		if _, ok := p.rows[d.gpu]; ok {
			continue
		}
		msg := fmt.Sprintf("row %s is missing: expected a row for each of the %d GPUs that the header names (line %d)",
			d.label, len(p.header.gpus), p.header.line.number)
		from, to := p.header.line.number, len(p.lines)+1
		if n > 0 {
			from = p.rows[p.header.devices[p.header.gpus[n-1]].gpu].line.number
		}
		var next *row
		for _, later := range p.header.gpus[n+1:] {
			if r, ok := p.rows[p.header.devices[later].gpu]; ok {
				next, to = &r, r.line.number
				break
			}
		}
		for _, l := range p.strays {
			if first := l.words[0]; l.number > from && l.number < to {
				return &ParseError{l.number, first.column, fmt.Sprintf("%s; this line starts with %q", msg, excerpt(first.text))}
			}
		}
		if next != nil {
			return &ParseError{next.line.number, next.label.column, msg + " before this one"}
		}
		last := p.header.line.number
		for _, r := range p.rows {
			last = max(last, r.line.number)
		}
		return &ParseError{last + 1, 1, msg + "; the rows of GPUs end here"}
	}
	return nil
}

// assemble makes the Matrix of complete rows. It checks that the GPU×GPU block
// is symmetric.
func (p *parser) assemble() (*Matrix, error) {
	gpus := slices.Clone(p.header.gpus)
	number := func(i int) int { return p.header.devices[i].gpu }
	slices.SortFunc(gpus, func(a, b int) int { return cmp.Compare(number(a), number(b)) })

	m := &Matrix{}
	connections := make([][]topology.Connection, len(gpus))
	for i, at := range gpus {
		r := p.rows[number(at)]
		connections[i] = make([]topology.Connection, len(gpus))
		for j, column := range gpus {
			v := r.values[column]
			c, err := topology.ParseConnection(v.text)
			if err != nil {
				return nil, &ParseError{r.line.number, v.column, err.Error()}
			}
			connections[i][j] = c
			if j < i && connections[j][i] != c {
				return nil, p.asymmetry(r, p.header.devices[column], p.rows[number(column)], p.header.devices[at])
			}
		}
		gpu := GPU{Index: number(at), NUMANode: NoNUMANode}
		p.readAffinities(r, &gpu)
		m.GPUs = append(m.GPUs, gpu)
	}
	graph, err := topology.NewGraph(connections, nil)
	if err != nil {
		return nil, &ParseError{p.header.line.number, 1, err.Error()}
	}
	m.Graph = graph
	for _, d := range p.header.devices {
		if d.gpu < 0 {
			m.NICs = append(m.NICs, NIC{Label: d.label, Device: p.legend.nics[d.label]})
		}
	}
	return m, nil
}

// asymmetry reports two mirrored cells that differ: at the one whose row has too
// few or too many cells, so that the others may have moved, else at the later.
func (p *parser) asymmetry(r row, column device, mirror row, mirrorColumn device) error {
	value := func(r row, d device) value { return r.values[p.header.index(d)] }
	later := mirror.line.number > r.line.number
	if r.miscounted() != mirror.miscounted() {
		later = mirror.miscounted()
	}
	if later {
		r, column, mirror, mirrorColumn = mirror, mirrorColumn, r, column
	}
	v, other := value(r, column), value(mirror, mirrorColumn)
	msg := fmt.Sprintf("row %s, column %s is %s, but row %s, column %s is %s (line %d, column %d): expected the same",
		r.label.text, column.label, v.text, mirror.label.text, mirrorColumn.label, other.text, mirror.line.number, other.column)
	if r.miscounted() {
		msg += fmt.Sprintf("; row %s has %d cells for %d columns, so cells may have moved", r.label.text, r.count(), len(r.values))
	}
	return &ParseError{r.line.number, v.column, msg}
}

func (h *header) index(d device) int { return slices.Index(h.devices, d) }

// warnAboutTheRest warns of everything that is noticed only at the end.
func (p *parser) warnAboutTheRest(m *Matrix, headerAt int) {
	for _, l := range p.strays {
		if l.number < p.lastRow.number {
			w := l.words[0]
			p.warn(l.number, w.column, fmt.Sprintf("no row of the matrix: %q is left out", excerpt(l.text)))
		}
	}
	for i, gpu := range m.GPUs {
		if gpu.Index != i {
			p.warn(p.header.line.number, 1, fmt.Sprintf("the GPUs are not numbered without gaps from 0: GPU%d is not in the matrix", i))
			break
		}
	}
	var lost []string
	for _, d := range p.header.devices {
		if d.gpu < 0 && d.label != "" && !p.nicRows[d.label] {
			lost = append(lost, d.label)
		}
	}
	if len(lost) > 0 {
		p.warn(p.lastRow.number+1, 1, "no row for "+strings.Join(lost, ", "))
	}
	for _, name := range p.legend.unknownNICs(p.header) {
		p.warn(p.legend.nicLines[name], 1, fmt.Sprintf("the NIC legend names %s, which has no column", name))
	}
	p.warnIfNVLinkIsHidden(m, headerAt)
}

// warnIfNVLinkIsHidden recognises nvidia-smi topo -mp by its legend, which
// lacks NV#, or by the command line.
func (p *parser) warnIfNVLinkIsHidden(m *Matrix, headerAt int) {
	if len(m.GPUs) < 2 {
		return
	}
	for i := range m.GPUs {
		if m.Graph.HasNVLink(i) {
			return
		}
	}
	const hides = "which hides NVLink, so no NVSwitch domain can be seen: use nvidia-smi topo -m"
	for _, l := range p.lines[:headerAt] {
		if pcieOnly.MatchString(l.text) {
			p.warn(l.number, 1, "this is the output of nvidia-smi topo -mp, "+hides)
			return
		}
	}
	if p.legend.line > 0 && !p.legend.hasNVLink {
		p.warn(p.legend.line, 1, "the legend has no NV#: this looks like the output of nvidia-smi topo -mp (or of a driver older than NVLink), "+hides)
	}
}
