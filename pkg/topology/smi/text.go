// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package smi

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// tabStop is the distance of tab stops, to which terminals expand the tabs that
// nvidia-smi writes.
const tabStop = 8

// line is one line of the input without what a terminal would not show.
type line struct {
	number int // from 1
	end    int // column behind the last character
	// cells are the parts between tabs, without the empty ones at the
	// beginning: a missing leading tab and an indented block make no
	// difference.
	cells []cell
	words []word
	text  string // the words, separated by one blank
}

// char is a visible character, a blank or a tab.
type char struct {
	r      rune
	column int // in the input, in characters from 1
	start  int // on the screen, from 0, tabs expanded
}

// word is a run of visible characters.
type word struct {
	text          string
	column, start int
}

// cell is what stands between two tabs.
type cell struct {
	words  []word
	column int // of its first word, or of its end if it is empty
}

// text returns the words of the cell, separated by one blank.
func (c cell) text() string { return joinWords(c.words) }

func joinWords(words []word) string {
	texts := make([]string, len(words))
	for i, w := range words {
		texts[i] = w.text
	}
	return strings.Join(texts, " ")
}

// escapes matches ANSI escape sequences: control sequences, operating system
// commands, two-byte sequences, and graphics codes (underline on and off) whose
// ESC byte was lost or spelled out, such as "[4m" and "^[[0m".
var escapes = regexp.MustCompile(
	`\x1b\[[0-?]*[ -/]*[@-~]` +
		`|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?` +
		`|\x1b[ -/]*[0-~]` +
		`|(?:\^\[|\\e|\\033|\\x1b|\x{FFFD}|\x{241B})?\[[0-9;]*m`)

func splitLines(input string) []line {
	texts := strings.Split(input, "\n")
	lines := make([]line, len(texts))
	for i, text := range texts {
		lines[i] = newLine(i+1, text)
	}
	return lines
}

// newLine drops escape sequences and characters without width, and makes every
// kind of blank a plain one.
func newLine(number int, text string) line {
	l := line{number: number}
	hidden := escapes.FindAllStringIndex(text, -1)
	chars := make([]char, 0, len(text))
	column, start := 0, 0
	for offset, r := range text {
		column++
		for len(hidden) > 0 && offset >= hidden[0][1] {
			hidden = hidden[1:]
		}
		if len(hidden) > 0 && offset >= hidden[0][0] {
			continue
		}
		c := char{r: r, column: column, start: start}
		switch {
		case r == '\t':
			start += tabStop - start%tabStop
		case unicode.IsSpace(r):
			c.r = ' '
			start++
		case unicode.IsControl(r), unicode.Is(unicode.Cf, r): // Cf: BOM, zero-width blanks
			continue
		default:
			start++
		}
		chars = append(chars, c)
	}
	for len(chars) > 0 && chars[len(chars)-1].r == ' ' {
		chars = chars[:len(chars)-1]
	}
	l.end = 1
	if n := len(chars); n > 0 {
		l.end = chars[n-1].column + 1
	}
	l.cells = splitCells(chars, l.end)
	for _, c := range l.cells {
		l.words = append(l.words, c.words...)
	}
	l.text = joinWords(l.words)
	return l
}

// splitCells splits characters at tabs, and what is between at blanks. end is
// the column behind the last character.
func splitCells(chars []char, end int) []cell {
	var cells []cell
	current, wordAt := cell{}, -1
	endWord := func(i int) {
		if wordAt >= 0 {
			current.words = append(current.words, newWord(chars[wordAt:i]))
			wordAt = -1
		}
	}
	endCell := func(column int) {
		current.column = column
		if len(current.words) > 0 {
			current.column = current.words[0].column
		}
		if len(cells) > 0 || len(current.words) > 0 {
			cells = append(cells, current)
		}
		current = cell{}
	}
	for i, c := range chars {
		switch {
		case c.r == '\t':
			endWord(i)
			endCell(c.column)
		case c.r == ' ':
			endWord(i)
		case wordAt < 0:
			wordAt = i
		}
	}
	endWord(len(chars))
	endCell(end)
	return cells
}

func newWord(chars []char) word {
	runes := make([]rune, len(chars))
	for i, c := range chars {
		runes[i] = c.r
	}
	return word{text: string(runes), column: chars[0].column, start: chars[0].start}
}

// comment reports whether the line is a comment.
func (l line) comment() bool { return strings.HasPrefix(l.text, "#") }

// excerpt shortens text for a message.
func excerpt(text string) string {
	const most = 40
	if utf8.RuneCountInString(text) <= most {
		return text
	}
	return string([]rune(text)[:most]) + "…"
}
