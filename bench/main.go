// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Command bench runs the benchmarks of the project on real parts: the program that users run, a real
// API server, real sockets and disks. Only the GPUs are simulated.
//
//	make bench                     all of them
//	make bench BENCH=unprepare     those whose name matches the regular expression
//
// It prints a table and writes one JSON object a line to bench/results/latest.jsonl:
//
//	{"name":"prepare-1-gpu/p50","value":2.9,"unit":"ms","target":3.5,"better":"lower","n":300}
//
// A missed target is marked and is no error: a machine that is busy with something else misses all of
// them. A benchmark that could not run makes the exit status 1.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
)

func main() {
	pattern := flag.String("run", "", "Run the benchmarks whose name matches this regular expression.")
	output := flag.String("output", "bench/results/latest.jsonl", "File for the results.")
	list := flag.Bool("list", false, "List the benchmarks and what they measure.")
	flag.Parse()
	if *list {
		printList(os.Stdout, benchmarks())
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, benchmarks(), *pattern, *output, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}
