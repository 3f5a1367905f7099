// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package smi

import (
	"fmt"
	"regexp"
	"slices"

	"github.com/switchyard-dev/switchyard/pkg/topology"
)

// parser holds what was read so far.
type parser struct {
	lines    []line
	warnings []Warning
	header   *header
	rows     map[int]row // by GPU number
	nicRows  map[string]bool
	lastRow  line   // the last row of a GPU or NIC
	strays   []line // lines after the header that are no rows
	legend   legend
}

// pcieOnly matches a command line that hides NVLink.
var pcieOnly = regexp.MustCompile(`\btopo\b.*\s(-mp|--matrix_pci)(\s|$)`)

func (p *parser) warn(line, column int, msg string) {
	p.warnings = append(p.warnings, Warning{Line: line, Column: column, Msg: msg})
}

func (p *parser) parse() (*Matrix, error) {
	at, err := p.findHeader()
	if err != nil {
		return nil, err
	}
	if p.header, err = p.readHeader(p.lines[at]); err != nil {
		return nil, err
	}
	p.rows, p.nicRows = map[int]row{}, map[string]bool{}
	p.lastRow = p.header.line
	for i := at + 1; i < len(p.lines); i++ {
		if err := p.readLine(i); err != nil {
			return nil, err
		}
	}
	if err := p.checkMissingRows(); err != nil {
		return nil, err
	}
	m, err := p.assemble()
	if err != nil {
		return nil, err
	}
	p.warnAboutTheRest(m, at)
	slices.SortStableFunc(p.warnings, func(a, b Warning) int { return a.Line - b.Line })
	return m, nil
}

// readLine reads a line after the header.
func (p *parser) readLine(i int) error {
	l := p.lines[i]
	words := l.words
	if len(words) == 0 || l.comment() {
		return nil
	}
	first := words[0].text
	switch {
	case p.startsAnotherMatrix(i):
		return &ParseError{l.number, words[0].column, fmt.Sprintf(
			"a second matrix starts here (the first at line %d): expected the output of one nvidia-smi topo -m", p.header.line.number)}
	case p.legend.read(l):
		return nil
	case isGPURow(words) || gpuNumber(first) >= 0 && len(p.rows) < len(p.header.gpus):
		p.lastRow = l
		return p.readGPURow(l)
	}
	if _, ok := p.header.nics[first]; ok && !p.legend.started() {
		p.lastRow = l
		p.readNICRow(l)
		return nil
	}
	if !p.legend.started() {
		p.strays = append(p.strays, l)
	}
	return nil
}

// startsAnotherMatrix reports whether line i is a second header, and not a
// damaged row.
func (p *parser) startsAnotherMatrix(i int) bool {
	words := p.lines[i].words
	if _, certain := isHeader(words); !certain || len(words) < 2 {
		return false
	}
	number := gpuNumber(splitGlued(words)[0].text)
	_, read := p.rows[number]
	return number < 0 || read
}

// readGPURow reads a GPU's row and checks each of its cells by itself.
func (p *parser) readGPURow(l line) error {
	r := p.header.sortRow(l)
	number := gpuNumber(r.label.text)
	if !slices.ContainsFunc(p.header.gpus, func(i int) bool { return p.header.devices[i].gpu == number }) {
		return &ParseError{l.number, r.label.column, fmt.Sprintf(
			"row %s has no column: expected it among those that the header names (line %d)", r.label.text, p.header.line.number)}
	}
	if other, ok := p.rows[number]; ok {
		return &ParseError{l.number, r.label.column, fmt.Sprintf(
			"row %s appears twice (first at line %d): expected every GPU once", r.label.text, other.line.number)}
	}
	for i, d := range p.header.devices {
		if d.gpu >= 0 {
			if msg := checkGPUCell(r.values[i], d.gpu == number); msg != "" {
				return &ParseError{l.number, r.values[i].column, fmt.Sprintf("row %s, column %s: %s", r.label.text, d.label, msg)}
			}
			continue
		}
		p.checkNICCell(r, i)
	}
	if err := p.checkCount(r); err != nil {
		return err
	}
	p.rows[number] = r
	return nil
}

// checkGPUCell returns what is wrong with a cell of the GPU×GPU block.
func checkGPUCell(v value, diagonal bool) string {
	switch {
	case v.state == empty:
		return "the cell is empty: " + expectedCell
	case v.state == cutOff && v.text != "":
		return fmt.Sprintf("no cell before %q: %s", excerpt(v.text), expectedCell)
	case v.state == cutOff:
		return "the row ends before this cell: " + expectedCell
	}
	c, err := topology.ParseConnection(v.text)
	switch {
	case err != nil && isP2PStatus(v.text):
		return err.Error() + "; this looks like nvidia-smi topo -p2p: use nvidia-smi topo -m"
	case err != nil:
		return err.Error()
	case diagonal && c.Level != topology.Self:
		return v.text + " on the diagonal: expected X; a cell may be missing or a row or column mislabelled"
	case !diagonal && c.Level == topology.Self:
		return "X off the diagonal: expected the connection of two GPUs; a cell may be missing or a row or column mislabelled"
	}
	return ""
}

// expectedCell says what a cell of the GPU×GPU block may be.
var expectedCell = fmt.Sprintf("expected X, NV1 to NV%d, PIX, PXB, PHB, NODE or SYS", topology.MaxNVLinks)

// isP2PStatus reports whether a cell is one of nvidia-smi topo -p2p, which
// prints a matrix of the same form.
func isP2PStatus(text string) bool {
	return slices.Contains([]string{"OK", "CNS", "GNS", "TNS", "NS", "DR", "U"}, text)
}

// readNICRow checks a NIC's row. Nothing of it is kept.
func (p *parser) readNICRow(l line) {
	label := l.words[0]
	if p.nicRows[label.text] {
		p.warn(l.number, label.column, fmt.Sprintf("row %s appears twice: expected every NIC once", label.text))
		return
	}
	p.nicRows[label.text] = true
	r := p.header.sortRow(l)
	for i := range r.values {
		p.checkNICCell(r, i)
	}
	p.warnOfLostCells(r)
}

// checkNICCell warns of a cell outside the GPU×GPU block that is no connection.
func (p *parser) checkNICCell(r row, i int) {
	v := r.values[i]
	if v.state != present {
		return // reported for the row as a whole
	}
	if _, err := topology.ParseConnection(v.text); err != nil {
		p.warn(r.line.number, v.column, fmt.Sprintf("row %s, column %s: %v", r.label.text, p.header.devices[i].name(i), err))
	}
}
