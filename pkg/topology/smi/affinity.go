// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package smi

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// notAvailable is what nvidia-smi prints where there is nothing to say.
const notAvailable = "N/A"

// maxNumber bounds the CPUs and NUMA nodes in a list, so that a slip does not
// become a list of billions. Linux knows up to 8192 CPUs and 1024 nodes.
const maxNumber = 1 << 16

var list = regexp.MustCompile(`^\d+(-\d+)?(,\d+(-\d+)?)*$`)

// isList reports whether text has the form of a CPU or NUMA list.
func isList(text string) bool { return list.MatchString(text) }

// parseList reads a list of numbers and ranges, such as "0-31,64-95".
func parseList(text string) ([]int, error) {
	if !isList(text) {
		return nil, fmt.Errorf("%q is no list of numbers: expected such as 0-31,64-95", excerpt(text))
	}
	var numbers []int
	for item := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(item, "-")
		if !isRange {
			last = first
		}
		from, err1 := strconv.Atoi(first)
		to, err2 := strconv.Atoi(last)
		if err1 != nil || err2 != nil || to >= maxNumber {
			return nil, fmt.Errorf("%q: expected numbers below %d", excerpt(item), maxNumber)
		}
		if from > to {
			return nil, fmt.Errorf("%q: expected an ascending range", item)
		}
		if len(numbers)+to-from >= maxNumber {
			return nil, fmt.Errorf("%q has more than %d numbers", excerpt(text), maxNumber)
		}
		for n := from; n <= to; n++ {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	return slices.Compact(numbers), nil
}

// readAffinities reads the cells behind a GPU row's device cells.
func (p *parser) readAffinities(r row, gpu *GPU) {
	if len(p.header.affinities) == 0 || p.header.affinityUnknown {
		if !p.header.affinityUnknown && slices.ContainsFunc(r.tail, func(v value) bool { return v.text != "" }) {
			p.warn(r.line.number, r.tail[0].column, fmt.Sprintf(
				"row %s has cells behind the columns that the header names; they are left out", r.label.text))
		}
		return
	}
	var cells map[string]value
	if r.tabbed {
		cells = p.sortTail(r)
	} else {
		cells = p.sortTailWords(r)
	}
	lists := map[string]*[]int{cpuAffinity: &gpu.CPUAffinity, numaAffinity: &gpu.NUMAAffinity}
	for _, name := range p.header.affinities {
		v := cells[name]
		if v.text == "" || v.text == notAvailable {
			continue
		}
		if name == gpuNUMAID {
			node, err := strconv.Atoi(v.text)
			if err != nil || node < NoNUMANode || node >= maxNumber {
				p.warn(r.line.number, v.column, fmt.Sprintf("row %s, column %s: %q is no NUMA node: expected a number or N/A", r.label.text, name, excerpt(v.text)))
				continue
			}
			gpu.NUMANode = node
			continue
		}
		numbers, err := parseList(v.text)
		if err != nil {
			p.warn(r.line.number, v.column, fmt.Sprintf("row %s, column %s: %v", r.label.text, name, err))
			continue
		}
		*lists[name] = numbers
	}
}

// sortTail names the cells behind the device columns of a row with tabs.
// nvidia-smi writes two tabs before the GPU NUMA ID, for the heading before it
// is wider than one tab stop.
func (p *parser) sortTail(r row) map[string]value {
	cells := map[string]value{}
	rest := r.tail
	for _, name := range p.header.affinities {
		if name == gpuNUMAID && len(rest) > 1 && rest[0].text == "" {
			rest = rest[1:]
		}
		if len(rest) == 0 {
			p.warn(r.line.number, r.line.end, fmt.Sprintf("row %s has no cell for %s", r.label.text, name))
			continue
		}
		cells[name] = rest[0]
		rest = rest[1:]
	}
	if slices.ContainsFunc(rest, func(v value) bool { return v.text != "" }) {
		p.warn(r.line.number, rest[0].column, fmt.Sprintf("row %s has more cells than the header has columns", r.label.text))
	}
	return cells
}

// sortTailWords names the words behind the device columns of a row without
// tabs. If there are fewer than columns, an empty cell shows only in where the
// words stand: tabs that were expanded leave the first cell at tailStart and,
// if it is empty, the second one tab stop further. Where that does not decide,
// the cells are left out.
func (p *parser) sortTailWords(r row) map[string]value {
	names, words := p.header.affinities, r.tail
	cells := map[string]value{}
	if len(words) > 0 && len(words) < len(names) && names[len(names)-1] == gpuNUMAID {
		if last := words[len(words)-1]; last.text == notAvailable {
			// nvidia-smi never leaves the GPU NUMA ID empty.
			cells[gpuNUMAID] = last
			names, words = names[:len(names)-1], words[:len(words)-1]
		}
	}
	switch {
	case len(words) == len(names):
		for i, name := range names {
			cells[name] = words[i]
		}
	case len(words) == 0 && len(r.tail) == 0 && slices.Contains(names, gpuNUMAID):
		p.warn(r.line.number, r.line.end, fmt.Sprintf("row %s has no affinity cells", r.label.text))
	case len(words) == 0:
		// All empty, as for a GPU without affinity.
	case len(words) == 1 && r.tailStart >= 0 && words[0].start == r.tailStart:
		cells[names[0]] = words[0]
	case len(words) == 1 && len(names) == 2 && r.tailStart >= 0 && words[0].start == r.tailStart+tabStop:
		cells[names[1]] = words[0]
	default:
		p.warn(r.line.number, words[0].column, fmt.Sprintf(
			"row %s has %d affinity cells for %d columns and no tabs that tell which: affinities are left out", r.label.text, len(r.tail), len(p.header.affinities)))
	}
	return cells
}
