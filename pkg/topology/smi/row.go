// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package smi

import (
	"fmt"
	"slices"
	"strings"
)

// row is a row of the matrix, its cells sorted into the header's columns.
type row struct {
	line   line
	label  word
	values []value // one for each of header.devices
	// extra is the number of connections behind the last device column.
	extra int
	// tail is what follows the device columns: with tabs, a value for every
	// cell, else one for every word.
	tail   []value
	tabbed bool
	// tailStart is the place on the screen where the first cell behind the
	// device columns starts if only blanks are left of expanded tabs, or -1.
	tailStart int
}

// value is the content of one cell.
type value struct {
	text   string
	column int
	start  int
	// state tells a cell that is there from one that is not.
	state cellState
}

type cellState int

const (
	present cellState = iota
	empty             // between two tabs, or under the header, there is nothing
	cutOff            // the row ends before the cell
)

// sortRow sorts the cells of a row into the columns of the header.
func (h *header) sortRow(l line) row {
	cells := l.cells
	r := row{line: l, label: cells[0].words[0], tailStart: -1}
	r.tabbed = h.isTabbed(cells)
	if r.tabbed {
		h.sortTabbed(&r, cells[1:])
	} else {
		h.sortWords(&r, l.words[1:])
	}
	for len(r.tail) > 0 && isConnection(r.tail[0].text) {
		r.extra++
		r.tail = r.tail[1:]
	}
	return r
}

// isTabbed reports whether tabs separate the cells of a row: no device cell
// then has more than one word.
func (h *header) isTabbed(cells []cell) bool {
	if len(cells) == 1 || len(cells[0].words) > 1 {
		return false
	}
	for i, c := range cells[1:] {
		if i < len(h.devices) && len(c.words) > 1 {
			return false
		}
	}
	return true
}

func (h *header) sortTabbed(r *row, cells []cell) {
	r.values = make([]value, len(h.devices))
	count := min(len(cells), len(h.devices))
	for i := h.lastGPU() + 1; i < count; i++ {
		if isList(cells[i].text()) {
			// A NIC's cell was lost together with its tab, and the CPU
			// affinity moved into its place.
			count = i
		}
	}
	for i := range r.values {
		if i >= count {
			r.values[i] = value{column: r.line.end, state: cutOff}
			continue
		}
		r.values[i] = newValue(cells[i])
	}
	for _, c := range cells[count:] {
		r.tail = append(r.tail, newValue(c))
	}
}

func newValue(c cell) value {
	v := value{text: c.text(), column: c.column}
	if v.text == "" {
		v.state = empty
	}
	return v
}

// sortWords sorts the words of a row without tabs. The device cells end at the
// first word that looks like an affinity.
func (h *header) sortWords(r *row, words []word) {
	count := 0
	for count < len(words) && !isList(words[count].text) && words[count].text != notAvailable {
		if count >= len(h.devices) && !isConnection(words[count].text) {
			break
		}
		count++
	}
	inColumns := min(count, len(h.devices))
	r.values = make([]value, len(h.devices))
	end := value{column: r.line.end, state: cutOff}
	if count < len(words) {
		end.text, end.column = words[count].text, words[count].column
	}
	for i := range r.values {
		r.values[i] = end
	}
	columns, placed := h.place(r.label, words[:inColumns])
	for i, w := range words[:inColumns] {
		at := i
		if placed {
			at = columns[i]
		}
		r.values[at] = value{text: w.text, column: w.column, start: w.start}
	}
	if placed {
		for i := range r.values[:columns[inColumns-1]] {
			if r.values[i].state == cutOff {
				next := words[slices.IndexFunc(columns, func(c int) bool { return c > i })]
				r.values[i] = value{column: next.column, state: empty}
			}
		}
	}
	for _, w := range words[inColumns:] {
		r.tail = append(r.tail, value{text: w.text, column: w.column, start: w.start})
	}
	if count == len(h.devices) {
		if last := words[count-1].start - r.label.start; last%tabStop <= 1 { // 1: X has a blank before it
			r.tailStart = r.label.start + last - last%tabStop + tabStop
		}
	}
}

// place finds the columns of words that are fewer than the device columns by
// their position under the header. It reports false if they do not line up.
func (h *header) place(label word, words []word) ([]int, bool) {
	const slack = 2 // X has a blank before it
	if len(words) == 0 || len(words) == len(h.devices) {
		return nil, false
	}
	shift := 0
	if first := h.devices[0].start; first <= label.start {
		shift = label.start + tabStop - first // the header lost its leading tab
	}
	columns := make([]int, len(words))
	next := 0
	for i, w := range words {
		for next < len(h.devices) && h.devices[next].start+shift < w.start-slack {
			next++
		}
		if next == len(h.devices) || h.devices[next].start+shift > w.start+slack {
			return nil, false
		}
		columns[i] = next
		next++
	}
	return columns, true
}

// count returns the number of device cells in the row.
func (r row) count() int {
	n := len(r.values) + r.extra
	for _, v := range r.values {
		if v.state == cutOff {
			n--
		}
	}
	return n
}

// miscounted reports whether the row has too few or too many device cells.
func (r row) miscounted() bool { return r.count() != len(r.values) }

// checkCount reports a row with too few or too many cells where the GPU×GPU
// block itself is not concerned.
func (p *parser) checkCount(r row) error {
	if r.extra > 0 {
		msg := fmt.Sprintf("row %s has %d cells for %d columns", r.label.text, len(r.values)+r.extra, len(r.values))
		if len(p.header.gpus) == len(p.header.devices) && gpuNumber(r.label.text) >= 0 {
			return &ParseError{r.line.number, r.label.column, msg + ": expected one for each GPU that the header names"}
		}
		p.warn(r.line.number, r.label.column, msg+": expected one for each device that the header names")
	}
	p.warnOfLostCells(r)
	return nil
}

// warnOfLostCells warns of device cells that a row lacks.
func (p *parser) warnOfLostCells(r row) {
	var lost []string
	for i, v := range r.values {
		if v.state != present {
			lost = append(lost, p.header.devices[i].name(i))
		}
	}
	if len(lost) > 0 {
		p.warn(r.line.number, r.label.column, fmt.Sprintf("row %s has no cell for %s", r.label.text, strings.Join(lost, ", ")))
	}
}
