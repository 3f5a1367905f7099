// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package smi

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode"

	"github.com/switchyard-dev/switchyard/pkg/topology"
)

// The columns that may follow those of the devices.
const (
	cpuAffinity  = "CPU Affinity"
	numaAffinity = "NUMA Affinity"
	gpuNUMAID    = "GPU NUMA ID"
)

var (
	gpuLabel = regexp.MustCompile(`^GPU(\d{1,4})$`)
	// nicLabel is NIC0 or a device name; every known one has a digit, which
	// tells it from prose.
	nicLabel = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]*\d[A-Za-z0-9_.-]*$`)
)

// header is the line that names the columns.
type header struct {
	line    line
	devices []device
	// gpus are the indexes in devices of the GPU columns, from left to right.
	gpus []int
	// nics are the indexes in devices of the other columns, by label.
	nics map[string]int
	// affinities are the columns behind the devices.
	affinities []string
	// affinityUnknown says that not all columns behind the devices could be
	// recognised, so that no cell behind the devices can be told.
	affinityUnknown bool
}

// device is a GPU or NIC column.
type device struct {
	label         string
	gpu           int // the number in the label, or -1 for a NIC
	column, start int
}

// name returns the label of column i for messages.
func (d device) name(i int) string {
	if d.label == "" {
		return fmt.Sprintf("number %d (without a name)", i+1)
	}
	return d.label
}

// maxColumns bounds the device columns of a matrix.
const maxColumns = 1024

// lastGPU returns the index in devices of the rightmost GPU column.
func (h *header) lastGPU() int { return h.gpus[len(h.gpus)-1] }

// gpuNumber returns the number of a GPU label, or -1.
func gpuNumber(label string) int {
	match := gpuLabel.FindStringSubmatch(label)
	if match == nil {
		return -1
	}
	n, err := strconv.Atoi(match[1])
	if err != nil {
		return -1
	}
	return n
}

func isConnection(text string) bool {
	_, err := topology.ParseConnection(text)
	return err == nil
}

// isGPURow reports whether a line is a GPU's row: a label, then a connection.
func isGPURow(words []word) bool {
	return len(words) > 1 && gpuNumber(words[0].text) >= 0 && isConnection(words[1].text)
}

// isHeader reports whether a line may be a header, and whether it certainly is:
// whether all its labels have the form of one.
func isHeader(words []word) (maybe, certain bool) {
	words = splitGlued(words)
	if len(words) == 0 || !isDeviceLabel(words[0].text) {
		return false, false
	}
	certain = true
	hasGPU := false
	for i, w := range words {
		switch {
		case isConnection(w.text):
			return false, false
		case gpuNumber(w.text) >= 0:
			hasGPU = true
		case startsAffinity(words[i:]):
			return hasGPU, hasGPU && certain
		case !isDeviceLabel(w.text):
			certain = false
		}
	}
	return hasGPU, hasGPU && certain
}

func isDeviceLabel(text string) bool { return nicLabel.MatchString(text) }

// startsAffinity reports whether the affinity columns start here; their names
// may be cut off.
func startsAffinity(words []word) bool {
	switch words[0].text {
	case "CPU", "NUMA", "Affinity", "GPU":
		return true
	}
	return false
}

// splitGlued separates GPU labels that lost the tab between them.
func splitGlued(words []word) []word {
	var split []word
	for _, w := range words {
		for {
			rest, ok := strings.CutPrefix(w.text, "GPU")
			digits := len(rest) - len(strings.TrimLeft(rest, "0123456789"))
			if !ok || digits == 0 || digits == len(rest) || !unicode.IsLetter(rune(rest[digits])) {
				break
			}
			n := len("GPU") + digits
			split = append(split, word{text: w.text[:n], column: w.column, start: w.start})
			w = word{text: w.text[n:], column: w.column + n, start: w.start + n}
		}
		split = append(split, w)
	}
	return split
}

// findHeader returns the index of the header line. What stands before it
// (comments, prompts, other output) is ignored.
func (p *parser) findHeader() (int, error) {
	var first *line
	for i, l := range p.lines {
		words := l.words
		if len(words) == 0 || l.comment() {
			continue
		}
		if first == nil {
			first = &p.lines[i]
		}
		if p.startsMatrix(i) {
			return i, nil
		}
		if isGPURow(words) {
			return 0, &ParseError{l.number, words[0].column, fmt.Sprintf(
				"row %s without a header: expected a line before it that names the columns (GPU0, GPU1, …)", words[0].text)}
		}
	}
	if first == nil {
		return 0, &ParseError{Msg: "empty input: expected the output of nvidia-smi topo -m"}
	}
	return 0, &ParseError{first.number, 1, fmt.Sprintf(
		"no topology matrix found: expected the output of nvidia-smi topo -m with a line that names the columns (GPU0, GPU1, …); the input starts with %q", excerpt(first.text))}
}

// startsMatrix reports whether line i is a header. A line with words that are
// no labels counts only if a row follows.
func (p *parser) startsMatrix(i int) bool {
	maybe, certain := isHeader(p.lines[i].words)
	if !maybe || certain {
		return certain
	}
	for _, l := range p.lines[i+1:] {
		if words := l.words; len(words) > 0 {
			return isGPURow(words)
		}
	}
	return false
}

// readHeader reads the names of the columns.
func (p *parser) readHeader(l line) (*header, error) {
	h := &header{line: l, nics: map[string]int{}}
	for _, c := range l.cells {
		words := splitGlued(c.words)
		if len(words) == 0 && h.affinities == nil && !h.affinityUnknown {
			// A column whose name was lost, unless nothing follows.
			h.devices = append(h.devices, device{gpu: -1, column: c.column, start: -1})
			continue
		}
		for i, w := range words {
			if h.affinities != nil || h.affinityUnknown || startsAffinity(words[i:]) {
				h.readAffinityNames(words[i:])
				break
			}
			h.devices = append(h.devices, device{label: w.text, gpu: gpuNumber(w.text), column: w.column, start: w.start})
		}
	}
	if h.affinities == nil && !h.affinityUnknown {
		h.dropTrailingTabs()
	}
	if len(h.devices) > maxColumns {
		return nil, &ParseError{l.number, h.devices[maxColumns].column, fmt.Sprintf("%d columns: expected at most %d", len(h.devices), maxColumns)}
	}
	if h.affinityUnknown {
		p.warn(l.number, 1, "the header's names of the affinity columns are damaged: expected CPU Affinity, NUMA Affinity and GPU NUMA ID; affinities are left out")
	}
	columnOf := map[int]device{}
	for i, d := range h.devices {
		switch {
		case d.gpu >= 0:
			if other, ok := columnOf[d.gpu]; ok {
				return nil, &ParseError{l.number, d.column, fmt.Sprintf(
					"column %s appears twice (first at column %d): expected every GPU once", d.label, other.column)}
			}
			columnOf[d.gpu] = d
			h.gpus = append(h.gpus, i)
		case d.label == "":
			p.warn(l.number, d.column, fmt.Sprintf("the header's column %d has no name: expected that of a NIC", i+1))
		default:
			if _, ok := h.nics[d.label]; ok {
				p.warn(l.number, d.column, fmt.Sprintf("column %s appears twice: expected every NIC once", d.label))
				continue
			}
			h.nics[d.label] = i
		}
	}
	if len(h.gpus) > topology.MaxGPUs {
		return nil, &ParseError{l.number, h.devices[h.gpus[topology.MaxGPUs]].column, fmt.Sprintf(
			"%d GPU columns: expected at most %d", len(h.gpus), topology.MaxGPUs)}
	}
	return h, nil
}

// dropTrailingTabs forgets columns without a name that nothing follows.
func (h *header) dropTrailingTabs() {
	for n := len(h.devices); n > 0 && h.devices[n-1].label == ""; n-- {
		h.devices = h.devices[:n-1]
	}
}

// readAffinityNames reads the names of columns behind those of the devices.
func (h *header) readAffinityNames(words []word) {
	for rest := joinWords(words); rest != ""; {
		found := false
		for _, name := range []string{cpuAffinity, numaAffinity, gpuNUMAID} {
			if tail, ok := strings.CutPrefix(rest, name); ok && (tail == "" || tail[0] == ' ') {
				h.affinities = append(h.affinities, name)
				rest, found = strings.TrimPrefix(tail, " "), true
				break
			}
		}
		if !found {
			h.affinityUnknown = true
			return
		}
	}
}
