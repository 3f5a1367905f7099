// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// execute runs the command line.
func execute(t *testing.T, args ...string) (stdout string, err error) {
	t.Helper()
	cmd := New()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(t.Output())
	cmd.SetArgs(args)
	err = cmd.ExecuteContext(t.Context())
	return out.String(), err
}

// traceArgs simulate a trace whose result is known: 3 of 4 GPUs of both nodes, and one task of three refused.
func traceArgs(args ...string) []string {
	return append([]string{
		"simulate", "--nodes", "../trace/testdata/nodes.csv", "--pods", "../trace/testdata/three-of-four.csv",
	}, args...)
}

func TestSimulateFormats(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"json": {[]string{"--policy", "fgd", "-o", "json"}, `{
    "policy": "fgd",
    "allocatedPercent": {
        "mean": 75,
        "min": 75,
        "max": 75
    },
    "rejectedMultiGPUPercent": {
        "mean": 33.333,
        "min": 33.333,
        "max": 33.333
    },
    "moves": 0,
    "seeds": 10
}
`},
		"yaml": {[]string{"--arrival", "100", "--seeds", "2", "-o", "yaml"}, `allocatedPercent:
  max: 75
  mean: 75
  min: 75
moves: 0
policy: switchyard
rejectedMultiGPUPercent:
  max: 0
  mean: 0
  min: 0
seeds: 2
`},
		"table": {nil, "" +
			"POLICY       ARRIVED %   ALLOCATED %   MIN-MAX       REJECTED MULTI-GPU %   MOVES/100   SEEDS\n" +
			"switchyard   130         75.00         75.00-75.00   33.33                  0.00        10\n"},
		"wide without headers": {
			[]string{"-o", "wide", "--no-headers"},
			"switchyard   130   75.00   75.00-75.00   33.33   33.33-33.33   0.00   10\n",
		},
		"domains": {
			[]string{"--domains", "4", "--no-headers"},
			"switchyard   130   75.00   75.00-75.00   33.33   0.00   10    2.00   2.00   2.00   2.00\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := execute(t, traceArgs(tc.args...)...)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("output differs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSimulateWithDomainsInJSON(t *testing.T) {
	out, err := execute(t, traceArgs("--domains", "4", "-o", "json")...)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		FreeGPUs     float64
		UnusableGPUs map[string]float64
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	if got.FreeGPUs != 2 || !cmp.Equal(got.UnusableGPUs, map[string]float64{"2": 2, "4": 2, "8": 2}) {
		t.Errorf("got %+v", got)
	}
}

func TestSimulateErrors(t *testing.T) {
	damaged := filepath.Join(t.TempDir(), "damaged.csv")
	if err := os.WriteFile(damaged, []byte("name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,x,1,0,0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"no files":                         {[]string{"simulate"}, "--nodes must be set: the CSV file of the nodes\n--pods must be set"},
		"a file that is not there":         {[]string{"simulate", "--nodes", "/nowhere.csv", "--pods", "x"}, "open /nowhere.csv: no such file"},
		"a damaged file is named":          {traceArgs("--pods", damaged), damaged + `: read tasks: line 2, column 2 (cpu_milli): "x" is not a whole number`},
		"files swapped":                    {[]string{"simulate", "--nodes", "../trace/testdata/mixed.csv", "--pods", "x"}, "column gpu is missing"},
		"no seeds":                         {traceArgs("--seeds", "0"), "--seeds 0 is not between 1 and 1000"},
		"an unknown format":                {traceArgs("-o", "xml"), `--output "xml" is unknown: use one of table, wide, json, yaml`},
		"an unknown policy":                {traceArgs("--policy", "best"), `policy "best" is unknown: use one of random, bestfit`},
		"a value that is no number":        {traceArgs("--arrival", "all"), `invalid argument "all" for "--arrival" flag`},
		"moves of a policy that has none":  {traceArgs("--policy", "fgd", "--moves", "1"), "policy fgd makes no moves"},
		"arguments, of which there are no": {traceArgs("more"), `unknown command "more"`},
		"an unknown command":               {[]string{"simulat"}, `unknown command "simulat"`},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := execute(t, tc.args...)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
			if out != "" {
				t.Errorf("it printed %q", out)
			}
		})
	}
}

func TestCompletion(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"commands": {[]string{"sim"}, "simulate\t"},
		"policies": {[]string{"simulate", "--policy", ""}, "fgd\nswitchyard\n"},
		"formats":  {[]string{"simulate", "-o", ""}, "table\nwide\njson\nyaml\n"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := execute(t, append([]string{"__complete"}, tc.args...)...)
			if err != nil || !strings.Contains(got, tc.want) {
				t.Errorf("got %q, %v, want %q", got, err, tc.want)
			}
		})
	}
}
