// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/google/renameio/v2"
)

// run runs the benchmarks that the pattern selects, writes their results to the file and prints them.
// What could be measured is reported even if something else could not be.
func run(ctx context.Context, all []Benchmark, pattern, output string, stdout, stderr io.Writer) error {
	selected, err := selectBenchmarks(all, pattern)
	if err != nil {
		return err
	}
	lab := newLab(stderr)
	var results []Result
	var errs []error
	for _, b := range selected {
		fmt.Fprintf(stderr, "%s ...", b.Name)
		start := time.Now()
		measured, err := measure(ctx, b, lab)
		if err != nil {
			fmt.Fprintln(stderr, " failed")
			errs = append(errs, fmt.Errorf("%s could not run: %w", b.Name, err))
			continue
		}
		fmt.Fprintf(stderr, " %.1fs\n", time.Since(start).Seconds())
		results = append(results, measured...)
	}
	errs = append(errs, lab.Close(), writeResults(output, results))
	printTable(stdout, results)
	return errors.Join(errs...)
}

func selectBenchmarks(all []Benchmark, pattern string) ([]Benchmark, error) {
	expression, err := regexp.Compile(pattern)
	if err != nil {
		return nil, fmt.Errorf("pattern of -run: %w", err)
	}
	var selected []Benchmark
	for _, b := range all {
		if b.matches(expression) {
			selected = append(selected, b)
		}
	}
	if len(selected) == 0 {
		return nil, fmt.Errorf("no benchmark matches %q: see -list", pattern)
	}
	return selected, nil
}

// matches looks at the benchmark's name and at those of its series: whoever has a line of the results
// can run it again.
func (b Benchmark) matches(expression *regexp.Regexp) bool {
	if expression.MatchString(b.Name) {
		return true
	}
	for _, series := range b.Series {
		for _, statistic := range series.Statistics {
			if expression.MatchString(series.Name + "/" + statistic.Name) {
				return true
			}
		}
	}
	return false
}

func measure(ctx context.Context, b Benchmark, lab *Lab) ([]Result, error) {
	samples := Samples{}
	if err := b.Run(ctx, lab, samples); err != nil {
		return nil, err
	}
	return b.evaluate(samples)
}

// writeResults replaces the file by the results, one JSON object a line.
func writeResults(path string, results []Result) error {
	var lines bytes.Buffer
	encoder := json.NewEncoder(&lines)
	for _, result := range results {
		if err := encoder.Encode(result); err != nil {
			return fmt.Errorf("encode result %s: %w", result.Name, err)
		}
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	if err := renameio.WriteFile(path, lines.Bytes(), 0o644); err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	return nil
}
