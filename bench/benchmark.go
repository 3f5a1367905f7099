// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"math"
	"slices"
)

// benchmarks are all benchmarks of the project, in the order in which they run. A new one is added
// here.
func benchmarks() []Benchmark {
	return slices.Concat(
		machineSpeed(),
		nodePluginCalls(),
		nodePluginStart(),
		nodePluginHealth(),
		nodePluginMIG(),
		nodePluginMPS(),
		nodePluginMemory(),
		planner(),
		defragmentation(),
		gangs(),
		steering(),
	)
}

// Benchmark is one measurement: it runs as a whole, and what it samples may be several series.
type Benchmark struct {
	// Name is what a pattern selects by, for example "node-plugin/calls".
	Name string
	// About says in one line what is measured and how.
	About string
	// Series are what Run samples, all of them.
	Series []Series
	// Run takes the samples. Its error means that the benchmark could not run.
	Run func(context.Context, *Lab, Samples) error
}

// Series is one measured quantity.
type Series struct {
	// Name is the result's name, before the statistic.
	Name   string
	Unit   string
	Better Direction
	// Statistics are what is reported of the samples.
	Statistics []Statistic
}

// Direction says which of two values is the better one.
type Direction string

// The directions.
const (
	Lower  Direction = "lower"
	Higher Direction = "higher"
)

// Statistic is one number of a series, and what it should reach.
type Statistic struct {
	// Name follows the series' name after a slash. It is empty where a series has one number.
	Name string
	// Of computes the number from the sorted samples, of which there is at least one.
	Of func(sorted []float64) float64
	// Target is nil where none is set.
	Target *float64
}

// With returns the statistic with a target.
func (s Statistic) With(target float64) Statistic {
	s.Target = &target
	return s
}

// The statistics. Quantiles are samples (nearest rank), never interpolated.
var (
	P50    = Statistic{Name: "p50", Of: quantile(0.50)}
	P95    = Statistic{Name: "p95", Of: quantile(0.95)}
	P99    = Statistic{Name: "p99", Of: quantile(0.99)}
	Max    = Statistic{Name: "max", Of: quantile(1)}
	Median = Statistic{Of: quantile(0.50)}
)

func quantile(q float64) func([]float64) float64 {
	return func(sorted []float64) float64 {
		rank := int(math.Ceil(q*float64(len(sorted)))) - 1
		return sorted[max(rank, 0)]
	}
}

// Samples are the samples of the series of one benchmark, by the series' name.
type Samples map[string][]float64

// Add adds samples to a series.
func (s Samples) Add(series string, values ...float64) {
	s[series] = append(s[series], values...)
}

// Result is one line of the results.
type Result struct {
	Name   string    `json:"name"`
	Value  float64   `json:"value"`
	Unit   string    `json:"unit"`
	Target *float64  `json:"target"`
	Better Direction `json:"better"`
	// N is the number of samples behind the value.
	N int `json:"n"`
}

// Missed reports whether there is a target and the value does not reach it.
func (r Result) Missed() bool {
	switch {
	case r.Target == nil:
		return false
	case r.Better == Higher:
		return r.Value < *r.Target
	default:
		return r.Value > *r.Target
	}
}

// evaluate turns the samples of a benchmark into results. A series without samples, and samples of a
// series that the benchmark does not have, are errors: something was not measured.
func (b Benchmark) evaluate(samples Samples) ([]Result, error) {
	var results []Result
	known := map[string]bool{}
	for _, series := range b.Series {
		known[series.Name] = true
		values := slices.Sorted(slices.Values(samples[series.Name]))
		if len(values) == 0 {
			return nil, fmt.Errorf("series %s has no samples", series.Name)
		}
		for _, statistic := range series.Statistics {
			name := series.Name
			if statistic.Name != "" {
				name += "/" + statistic.Name
			}
			results = append(results, Result{
				Name:   name,
				Value:  round(statistic.Of(values)),
				Unit:   series.Unit,
				Target: statistic.Target,
				Better: series.Better,
				N:      len(values),
			})
		}
	}
	for name := range samples {
		if !known[name] {
			return nil, fmt.Errorf("series %s is sampled but not declared", name)
		}
	}
	return results, nil
}

// round keeps three digits after the point: microseconds of milliseconds.
func round(value float64) float64 { return math.Round(value*1000) / 1000 }
