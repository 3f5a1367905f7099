// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"
)

// printTable prints the results for people.
func printTable(out io.Writer, results []Result) {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "VALUE\tUNIT\tTARGET\tN\t\t  NAME") // the last column has no tab behind it and is not aligned
	missed := 0
	for _, r := range results {
		target, mark := "", ""
		if r.Target != nil {
			sign := "≤"
			if r.Better == Higher {
				sign = "≥"
			}
			target, mark = sign+" "+number(*r.Target), "ok"
		}
		if r.Missed() {
			mark = "MISSED"
			missed++
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%s\t  %s\n", number(r.Value), r.Unit, target, r.N, mark, r.Name)
	}
	table.Flush()
	if missed > 0 {
		fmt.Fprintf(out, "%d of %d results miss their target.\n", missed, len(results))
	}
}

func number(value float64) string { return strconv.FormatFloat(value, 'f', -1, 64) }

// printList prints what there is to run.
func printList(out io.Writer, all []Benchmark) {
	for _, b := range all {
		fmt.Fprintf(out, "%s\n    %s\n", b.Name, b.About)
		for _, series := range b.Series {
			fmt.Fprintf(out, "    - %s (%s)\n", series.Name, series.Unit)
		}
	}
}
