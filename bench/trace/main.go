// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Command trace replays the openb traces with every policy and reports what was allocated and what was
// refused: a table, a chart, and one JSON object a replayed seed.
//
//	go run ./bench/trace -traces DIR            everything: an hour on two busy cores
//	go run ./bench/trace -traces DIR -workloads '^default$' -seeds 3
//	go run ./bench/trace -report                the report again, from the results that are there
//
// DIR has the files of data/csv of github.com/hkust-adsl/kubernetes-scheduler-simulator, which are no part of
// this repository, and expected_allocation.csv, the published results, if they are to be compared.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
)

func main() {
	o := options{}
	flag.StringVar(&o.traces, "traces", os.Getenv("OPENB_TRACES"), "Directory of the traces. Environment: OPENB_TRACES.")
	flag.StringVar(&o.output, "output", "bench/results/trace", "Directory for results.jsonl, report.md and chart.svg.")
	flag.StringVar(&o.workloads, "workloads", "", "Replay the workloads whose name matches this regular expression.")
	flag.StringVar(&o.variants, "variants", "", "Replay the variants (policies) whose name matches this regular expression.")
	flag.IntVar(&o.seeds, "seeds", 10, "Number of seeds, from 42.")
	flag.IntVar(&o.workers, "workers", runtime.GOMAXPROCS(0), "How many replays run at once.")
	flag.BoolVar(&o.resume, "resume", false, "Keep the results that are there and replay what lacks.")
	flag.BoolVar(&o.reportOnly, "report", false, "Replay nothing: write the report of the results that are there.")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, o, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "trace:", err)
		os.Exit(1)
	}
}
