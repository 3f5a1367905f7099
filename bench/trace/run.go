// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/renameio/v2"

	"github.com/switchyard-dev/switchyard/pkg/trace"
	"github.com/switchyard-dev/switchyard/pkg/trace/policy"
	"github.com/switchyard-dev/switchyard/pkg/trace/replay"
)

// firstSeed is the first seed of the published results.
const firstSeed = 42

// Names of files.
const (
	nodesFile     = "openb_node_list_gpu_node.csv"
	podsFile      = "openb_pod_list_%s.csv"
	publishedFile = "expected_allocation.csv"
)

// options are the flags.
type options struct {
	traces, output      string
	workloads, variants string
	seeds, workers      int
	resume, reportOnly  bool
}

// variant is a way to replay a workload.
type variant struct {
	name   string
	policy string
	moves  float64
	// domain is the size of domains; 0 for the first set, in which a node is one.
	domain  int
	arrival int
	// workloads are those of the variant; nil for all.
	workloads []string
}

// moved is the variant of our policy with moves.
const moved = "switchyard+moves"

// domainArrival is where the second set ends: while GPUs are free, their places matter.
const domainArrival = 80

// variants are all, in the order in which they are reported.
func variants() []variant {
	var all []variant
	for _, name := range policy.Names() {
		all = append(all, variant{name: name, policy: name, arrival: replay.PublishedArrival})
	}
	all = append(all, variant{name: moved, policy: policy.Switchyard, moves: 1, arrival: replay.PublishedArrival})
	for _, name := range policy.Names() {
		all = append(all, variant{
			name: "domains/" + name, policy: name, domain: 4, arrival: domainArrival,
			workloads: []string{"default", "multigpu20", "multigpu30", "multigpu50"},
		})
	}
	return all
}

// workloads are the published ones.
var workloads = []string{
	"default", "cpu050", "cpu100", "cpu250", "gpushare40", "gpushare80", "gpushare100",
	"gpuspec10", "gpuspec20", "gpuspec33", "multigpu20", "multigpu30", "multigpu50",
}

// record is a line of results.jsonl: one seed.
type record struct {
	Workload string `json:"workload"`
	Variant  string `json:"variant"`
	Seed     int64  `json:"seed"`
	// At100 and At130 are the points of the first set, AtEnd that of the second.
	At100    *replay.Point `json:"at100,omitempty"`
	At130    *replay.Point `json:"at130,omitempty"`
	AtEnd    *replay.Point `json:"atEnd,omitempty"`
	Ceiling  float64       `json:"ceiling"`
	Free     int           `json:"free"`
	Unusable []int         `json:"unusable"` // by replay.GangSizes
	// Seconds is what all seeds of the workload and variant took together.
	Seconds float64 `json:"seconds"`
}

// run replays what is asked for and writes the report.
func run(ctx context.Context, o options, log io.Writer) error {
	var records []record
	path := filepath.Join(o.output, "results.jsonl")
	if o.resume || o.reportOnly {
		var err error
		if records, err = readRecords(path); err != nil {
			return err
		}
	}
	if !o.reportOnly {
		var err error
		if records, err = replayAll(ctx, o, records, log); err != nil {
			return err
		}
	}
	published, err := readPublished(o.traces)
	if err != nil {
		return err
	}
	if err := renameio.WriteFile(filepath.Join(o.output, "chart.svg"), chart(records), 0o644); err != nil {
		return fmt.Errorf("write the chart: %w", err)
	}
	if err := renameio.WriteFile(filepath.Join(o.output, "report.md"), report(records, published), 0o644); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}

func replayAll(ctx context.Context, o options, records []record, log io.Writer) ([]record, error) {
	if o.traces == "" {
		return nil, errors.New("-traces must be set: the directory of the openb traces (environment: OPENB_TRACES); see go doc ./bench/trace")
	}
	workloadPattern, err := regexp.Compile(o.workloads)
	if err != nil {
		return nil, fmt.Errorf("-workloads: %w", err)
	}
	variantPattern, err := regexp.Compile(o.variants)
	if err != nil {
		return nil, fmt.Errorf("-variants: %w", err)
	}
	nodes, err := readFile(filepath.Join(o.traces, nodesFile), trace.ReadNodes)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(o.output, 0o755); err != nil {
		return nil, fmt.Errorf("make the directory of the results: %w", err)
	}
	for _, workload := range workloads {
		if !workloadPattern.MatchString(workload) {
			continue
		}
		tasks, err := readFile(filepath.Join(o.traces, fmt.Sprintf(podsFile, workload)), trace.ReadTasks)
		if err != nil {
			return nil, err
		}
		for _, v := range variants() {
			if !variantPattern.MatchString(v.name) || !v.has(workload) || len(samples(records, workload, v.name)) > 0 {
				continue
			}
			fmt.Fprintf(log, "%s %s ...", workload, v.name)
			measured, err := replayOne(ctx, o, v, workload, nodes, tasks)
			if err != nil {
				return nil, fmt.Errorf("%s, %s: %w", workload, v.name, err)
			}
			fmt.Fprintf(log, " %.1fs\n", measured[0].Seconds)
			records = append(records, measured...)
			// After each, so that what took long is not lost.
			if err := writeRecords(filepath.Join(o.output, "results.jsonl"), records); err != nil {
				return nil, err
			}
		}
	}
	return records, nil
}

func (v variant) has(workload string) bool {
	return v.workloads == nil || slices.Contains(v.workloads, workload)
}

func replayOne(ctx context.Context, o options, v variant, workload string, nodes []trace.Node, tasks []trace.Task) ([]record, error) {
	start := time.Now()
	result, err := replay.Run(ctx, replay.Config{
		Nodes: nodes, Tasks: tasks, Policy: v.policy, Arrival: v.arrival, Moves: v.moves, Domain: v.domain,
		Seeds: replay.SeedsFrom(firstSeed, o.seeds), Workers: o.workers,
		Rand: func(seed int64) trace.Rand { return rand.New(rand.NewSource(seed)) },
	})
	if err != nil {
		return nil, err
	}
	var records []record
	for _, seed := range result.Seeds {
		r := record{
			Workload: workload, Variant: v.name, Seed: seed.Seed, Ceiling: seed.Ceiling, Free: seed.Free, Unusable: seed.Unusable[:],
			Seconds: time.Since(start).Seconds(),
		}
		point := func(percent int) *replay.Point { p := seed.At(percent); return &p }
		if v.domain > 0 {
			r.AtEnd = point(v.arrival)
		} else {
			r.At100, r.At130 = point(100), point(replay.PublishedArrival)
		}
		records = append(records, r)
	}
	return records, nil
}

func readFile[T any](path string, read func(io.Reader) (T, error)) (T, error) {
	var value T
	file, err := os.Open(path)
	if err != nil {
		return value, fmt.Errorf("%w: -traces must be the directory of the openb traces", err)
	}
	defer file.Close()
	if value, err = read(file); err != nil {
		return value, fmt.Errorf("%s: %w", path, err)
	}
	return value, nil
}

func readRecords(path string) ([]record, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the results: %w", err)
	}
	var records []record
	lines := bufio.NewScanner(bytes.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		var r record
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", path, n, err)
		}
		records = append(records, r)
	}
	return records, lines.Err()
}

func writeRecords(path string, records []record) error {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	for _, r := range records {
		if err := encoder.Encode(r); err != nil {
			return fmt.Errorf("encode the results: %w", err)
		}
	}
	if err := renameio.WriteFile(path, text.Bytes(), 0o644); err != nil {
		return fmt.Errorf("write the results: %w", err)
	}
	return nil
}

// readPublished returns the published means, by workload, policy and arrived percent; nil if they are not
// there.
func readPublished(dir string) (map[string]float64, error) {
	text, err := os.ReadFile(filepath.Join(dir, publishedFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the published results: %w", err)
	}
	published := map[string]float64{}
	for n, line := range strings.Split(strings.TrimSpace(string(text)), "\n")[1:] {
		var mean float64
		fields := strings.Split(line, ",")
		if len(fields) < 4 {
			return nil, fmt.Errorf("%s, line %d: has %d columns, not 4 or more", publishedFile, n+2, len(fields))
		}
		if _, err := fmt.Sscan(fields[3], &mean); err != nil {
			return nil, fmt.Errorf("%s, line %d, column 4: %q is not a number", publishedFile, n+2, fields[3])
		}
		published[publishedKey(fields[0], fields[1], fields[2])] = mean
	}
	return published, nil
}

func publishedKey(workload, policy, arrived string) string {
	return workload + "/" + strings.ToLower(policy) + "/" + arrived
}
