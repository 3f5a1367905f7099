// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestQuantilesAreSamples(t *testing.T) {
	hundred := make([]float64, 100)
	for i := range hundred {
		hundred[i] = float64(i + 1)
	}
	for name, tc := range map[string]struct {
		statistic Statistic
		sorted    []float64
		want      float64
	}{
		"p50 of 100 is the 50th":          {P50, hundred, 50},
		"p95 of 100 is the 95th":          {P95, hundred, 95},
		"p99 of 100 is the 99th":          {P99, hundred, 99},
		"max is the last":                 {Max, hundred, 100},
		"p99 of few is the last":          {P99, []float64{1, 2, 3}, 3},
		"p50 of two is the first":         {P50, []float64{1, 2}, 1},
		"any quantile of one is that one": {P50, []float64{7}, 7},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.statistic.Of(tc.sorted); got != tc.want {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

func TestMissed(t *testing.T) {
	target := 10.0
	for name, tc := range map[string]struct {
		result Result
		want   bool
	}{
		"lower is better and it is":      {Result{Value: 9, Target: &target, Better: Lower}, false},
		"on target":                      {Result{Value: 10, Target: &target, Better: Lower}, false},
		"lower is better and it is not":  {Result{Value: 10.001, Target: &target, Better: Lower}, true},
		"higher is better and it is":     {Result{Value: 11, Target: &target, Better: Higher}, false},
		"higher is better and it is not": {Result{Value: 9, Target: &target, Better: Higher}, true},
		"no target":                      {Result{Value: 1e9, Better: Lower}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.result.Missed(); got != tc.want {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

// sampler is a benchmark that samples what it is told to.
func sampler(name string, samples Samples, err error) Benchmark {
	return Benchmark{
		Name: name,
		Series: []Series{
			{Name: name + "-time", Unit: "ms", Better: Lower, Statistics: []Statistic{P50.With(2), P99}},
			{Name: name + "-size", Unit: "MiB", Better: Lower, Statistics: []Statistic{Median}},
		},
		Run: func(_ context.Context, _ *Lab, into Samples) error {
			for series, values := range samples {
				into.Add(series, values...)
			}
			return err
		},
	}
}

func TestRun(t *testing.T) {
	good := sampler("good", Samples{"good-time": {3, 1, 2, 5}, "good-size": {48.12345}}, nil)
	for name, tc := range map[string]struct {
		benchmarks []Benchmark
		pattern    string
		wantErr    string
		wantLines  []string
		wantTable  []string
	}{
		"results are one object a line, rounded, in order": {
			benchmarks: []Benchmark{good},
			wantLines: []string{
				`{"name":"good-time/p50","value":2,"unit":"ms","target":2,"better":"lower","n":4}`,
				`{"name":"good-time/p99","value":5,"unit":"ms","target":null,"better":"lower","n":4}`,
				`{"name":"good-size","value":48.123,"unit":"MiB","target":null,"better":"lower","n":1}`,
			},
			wantTable: []string{"≤ 2  4  ok"},
		},
		"a missed target is marked and no error": {
			benchmarks: []Benchmark{sampler("slow", Samples{"slow-time": {9}, "slow-size": {1}}, nil)},
			wantLines: []string{
				`{"name":"slow-time/p50","value":9,"unit":"ms","target":2,"better":"lower","n":1}`,
				`{"name":"slow-time/p99","value":9,"unit":"ms","target":null,"better":"lower","n":1}`,
				`{"name":"slow-size","value":1,"unit":"MiB","target":null,"better":"lower","n":1}`,
			},
			wantTable: []string{"MISSED", "1 of 3 results miss their target"},
		},
		"a benchmark that cannot run is an error, the others are reported": {
			benchmarks: []Benchmark{sampler("broken", nil, errors.New("no API server")), good},
			wantErr:    "broken could not run: no API server",
			wantLines: []string{
				`{"name":"good-time/p50","value":2,"unit":"ms","target":2,"better":"lower","n":4}`,
				`{"name":"good-time/p99","value":5,"unit":"ms","target":null,"better":"lower","n":4}`,
				`{"name":"good-size","value":48.123,"unit":"MiB","target":null,"better":"lower","n":1}`,
			},
		},
		"a series that was not measured is an error": {
			benchmarks: []Benchmark{sampler("partial", Samples{"partial-time": {1}}, nil)},
			wantErr:    "partial could not run: series partial-size has no samples",
		},
		"a series that is not declared is an error": {
			benchmarks: []Benchmark{sampler("odd", Samples{"odd-time": {1}, "odd-size": {1}, "other": {1}}, nil)},
			wantErr:    "series other is sampled but not declared",
		},
		"a pattern selects by name": {
			benchmarks: []Benchmark{good, sampler("other", nil, errors.New("must not run"))},
			pattern:    "^good$",
			wantLines: []string{
				`{"name":"good-time/p50","value":2,"unit":"ms","target":2,"better":"lower","n":4}`,
				`{"name":"good-time/p99","value":5,"unit":"ms","target":null,"better":"lower","n":4}`,
				`{"name":"good-size","value":48.123,"unit":"MiB","target":null,"better":"lower","n":1}`,
			},
		},
		"a pattern that selects nothing is an error": {benchmarks: []Benchmark{good}, pattern: "nothing", wantErr: `no benchmark matches "nothing"`},
		"a pattern that is none is an error":         {benchmarks: []Benchmark{good}, pattern: "(", wantErr: "pattern of -run"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "results", "latest.jsonl")
			var table bytes.Buffer
			err := run(t.Context(), tc.benchmarks, tc.pattern, path, &table, t.Output())
			if tc.wantErr == "" && err != nil || tc.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tc.wantErr)) {
				t.Fatalf("run() = %v, want %q", err, tc.wantErr)
			}
			written, _ := os.ReadFile(path) // there is no file where nothing could be selected
			if got := strings.Fields(string(written)); !slices.Equal(got, tc.wantLines) {
				t.Errorf("results are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(tc.wantLines, "\n"))
			}
			for _, part := range tc.wantTable {
				if !strings.Contains(table.String(), part) {
					t.Errorf("the table lacks %q:\n%s", part, table.String())
				}
			}
		})
	}
}

func TestBenchmarksAreWellFormed(t *testing.T) {
	names := map[string]bool{}
	for _, b := range benchmarks() {
		if names[b.Name] {
			t.Errorf("two benchmarks are called %s", b.Name)
		}
		names[b.Name] = true
		if b.About == "" || b.Run == nil || len(b.Series) == 0 {
			t.Errorf("%s is incomplete", b.Name)
		}
		for _, series := range b.Series {
			if names[series.Name] {
				t.Errorf("%s: the name of series %s is taken", b.Name, series.Name)
			}
			names[series.Name] = true
			if series.Unit == "" || series.Better != Lower && series.Better != Higher || len(series.Statistics) == 0 {
				t.Errorf("%s: series %s is incomplete", b.Name, series.Name)
			}
		}
	}
}
