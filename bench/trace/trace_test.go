// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// writeTraces writes traces of one workload that are small enough to be replayed in a test.
func writeTraces(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"openb_node_list_gpu_node.csv":   "sn,cpu_milli,memory_mib,gpu,model\na,32000,131072,4,T4\nb,32000,131072,4,T4\n",
		"openb_pod_list_default.csv":     "name,cpu_milli,memory_mib,num_gpu,gpu_milli\njob,3000,1024,3,1000\n",
		"openb_pod_list_multigpu50.csv":  "name,cpu_milli,memory_mib,num_gpu,gpu_milli\njob,3000,1024,3,1000\n",
		"expected_allocation.csv":        "workload,policy,arrived_percent,allocated_percent_mean\ndefault,FGD,100,74.5\ndefault,FGD,130,75.00\n",
		"openb_pod_list_not-a-trace.csv": "broken",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestRunWritesReportAndChart(t *testing.T) {
	o := options{traces: writeTraces(t), output: filepath.Join(t.TempDir(), "out"), workloads: "^default$", seeds: 3, workers: 2}
	if err := run(t.Context(), o, t.Output()); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(o.output, "report.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| default | 75.00 ± 0.00 | 75.00 ± 0.00 |",
		"0.00 / 33.33",
		"| default | 0.00 ± 0.00 | 0.00 ± 0.00 | 0/3 |",
		"| fgd | 0.500 | 1 |", // 75 against 74.5 at 100 %
		"| default | fgd | 0.00 | 2 | 2 | 2 | 2 |",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the report lacks %q:\n%s", want, text)
		}
	}
	chart, err := os.ReadFile(filepath.Join(o.output, "chart.svg"))
	if err != nil {
		t.Fatal(err)
	}
	decoder := xml.NewDecoder(strings.NewReader(string(chart)))
	for {
		if _, err := decoder.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("the chart is no XML: %v", err)
		}
	}
	if !strings.Contains(string(chart), ">default</text>") || !strings.Contains(string(chart), "FGD") {
		t.Errorf("the chart lacks the trace or a policy:\n%s", chart)
	}
}

func TestResumeReplaysWhatLacks(t *testing.T) {
	o := options{traces: writeTraces(t), output: filepath.Join(t.TempDir(), "out"), workloads: "^default$", variants: "^fgd$", seeds: 2, workers: 1}
	if err := run(t.Context(), o, t.Output()); err != nil {
		t.Fatal(err)
	}
	o.variants, o.resume = "^(fgd|bestfit)$", true
	var log strings.Builder
	if err := run(t.Context(), o, &log); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(log.String(), "fgd") || !strings.Contains(log.String(), "bestfit") {
		t.Errorf("replayed %q", log.String())
	}
	records, err := readRecords(filepath.Join(o.output, "results.jsonl"))
	if err != nil || len(records) != 4 {
		t.Errorf("%d records, %v, want 2 seeds of 2 policies", len(records), err)
	}
	// The report alone needs no traces.
	o.traces, o.reportOnly = "", true
	if err := run(t.Context(), o, t.Output()); err != nil {
		t.Error(err)
	}
}

func TestErrors(t *testing.T) {
	dir := writeTraces(t)
	broken := writeTraces(t)
	if err := os.WriteFile(filepath.Join(broken, publishedFile), []byte("header\ndefault,FGD,100,many\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	damaged := t.TempDir()
	if err := os.WriteFile(filepath.Join(damaged, "results.jsonl"), []byte("{}\n{\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		o    options
		want string
	}{
		"no traces":                    {options{}, "-traces must be set: the directory of the openb traces"},
		"a directory without traces":   {options{traces: t.TempDir()}, "no such file or directory: -traces must be the directory of the openb traces"},
		"a pattern that is none":       {options{traces: dir, workloads: "("}, "-workloads: "},
		"another pattern that is none": {options{traces: dir, variants: "("}, "-variants: "},
		"no seeds":                     {options{traces: dir, workloads: "^default$", workers: 1}, "default, random: there are no seeds"},
		"damaged published results":    {options{traces: broken, workloads: "^none$", seeds: 1, workers: 1}, `expected_allocation.csv, line 2, column 4: "many" is not a number`},
		"damaged results":              {options{output: damaged, reportOnly: true}, "results.jsonl, line 2"},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.o.output == "" {
				tc.o.output = t.TempDir()
			}
			if err := run(t.Context(), tc.o, t.Output()); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestConfidenceIntervals(t *testing.T) {
	// Ten values with a standard deviation of 3.0277: 2.262·3.0277/√10.
	got := estimateOf([]float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10})
	if math.Abs(got.mean-5.5) > 1e-9 || math.Abs(got.half-2.1657) > 1e-3 {
		t.Errorf("got %v", got)
	}
	if got := estimateOf([]float64{3}); !math.IsInf(got.half, 1) {
		t.Errorf("one value says nothing of the spread: got %v", got)
	}
	difference, above := paired([]float64{2, 3, 4}, []float64{1, 3, 2})
	if math.Abs(difference.mean-1) > 1e-9 || above != 2 {
		t.Errorf("got %v, %d above", difference, above)
	}
}
