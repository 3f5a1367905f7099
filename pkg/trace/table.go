// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"bufio"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// table is a CSV file with a header.
type table struct {
	reader  *csv.Reader
	columns map[string]int
	names   map[string]int // lines of names
}

// byteOrderMark is what spreadsheets write before the text.
const byteOrderMark = "\ufeff"

// openTable reads the header. A required column may have several names, separated by "|".
func openTable(r io.Reader, required ...string) (*table, error) {
	text := bufio.NewReader(r)
	if mark, err := text.Peek(len(byteOrderMark)); err == nil && string(mark) == byteOrderMark {
		_, _ = text.Discard(len(byteOrderMark)) // it is there
	}
	reader := csv.NewReader(text)
	header, err := reader.Read()
	if errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("the file is empty: its first line must be a header with the columns %s", strings.Join(required, ", "))
	}
	if err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	t := &table{reader: reader, columns: map[string]int{}, names: map[string]int{}}
	for i, name := range header {
		name = strings.ToLower(strings.TrimSpace(name))
		if _, twice := t.columns[name]; twice {
			return nil, fmt.Errorf("line 1, column %d: a second column %q: remove one", i+1, name)
		}
		t.columns[name] = i
	}
	for _, name := range required {
		if _, ok := t.column(name); !ok {
			return nil, fmt.Errorf("line 1: column %s is missing: the header must have %s; it has %q, separated by commas",
				name, strings.Join(required, ", "), header)
		}
	}
	return t, nil
}

func (t *table) column(name string) (int, bool) {
	for alternative := range strings.SplitSeq(name, "|") {
		if i, ok := t.columns[alternative]; ok {
			return i, true
		}
	}
	return 0, false
}

// each calls visit with each row, and stops at the first error.
func (t *table) each(visit func(row) error) error {
	for {
		fields, err := t.reader.Read()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, csv.ErrFieldCount):
			line, _ := t.reader.FieldPos(0)
			return fmt.Errorf("line %d has %d columns, the header has %d: a comma is missing or too many", line, len(fields), t.reader.FieldsPerRecord)
		case err != nil:
			return err // encoding/csv names line and column
		}
		if err := visit(row{table: t, fields: fields, first: new(error)}); err != nil {
			return err
		}
	}
}

// row is one record. Its first error is kept: what is read after it does not matter.
type row struct {
	*table
	fields []string
	first  *error
}

func (r row) err() error { return *r.first }

// fail records what is wrong with a column.
func (r row) fail(column, problem string) {
	if *r.first != nil {
		return
	}
	i, _ := r.column(column)
	line, _ := r.reader.FieldPos(i)
	*r.first = fmt.Errorf("line %d, column %d (%s): %s", line, i+1, column, problem)
}

// text is the column's text, "" if there is no such column.
func (r row) text(column string) string {
	i, ok := r.column(column)
	if !ok {
		return ""
	}
	return strings.TrimSpace(r.fields[i])
}

// name is the column's text, which no row before has.
func (r row) name(column string) string {
	name := r.text(column)
	i, _ := r.column(column)
	line, _ := r.reader.FieldPos(i)
	if name == "" {
		r.fail(column, "the name is empty: give each line its own")
	} else if before, taken := r.names[name]; taken {
		r.fail(column, fmt.Sprintf("%q is also on line %d: give each line its own name", name, before))
	}
	r.names[name] = line
	return name
}

// number is the column's number, from 0 to a maximum.
func (r row) number(column string, maximum int64, meaning string) int32 {
	text := r.text(column)
	value, err := strconv.ParseInt(text, 10, 64)
	switch {
	case text == "":
		r.fail(column, "the cell is empty: write "+meaning)
	case errors.Is(err, strconv.ErrSyntax):
		r.fail(column, fmt.Sprintf("%q is not a whole number: write %s", text, meaning))
	case err != nil, value < 0, value > maximum:
		r.fail(column, fmt.Sprintf("%s is not between 0 and %d: write %s", text, maximum, meaning))
	}
	return int32(min(max(value, 0), maximum))
}
