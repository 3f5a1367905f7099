// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package replay lets the tasks of a trace arrive at a cluster, one seed after the other, and reports how
// much of the GPUs they got.
//
// It imports the other packages of trace and the standard library. It promises the same result for the same
// seeds, however many run at once.
package replay

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/switchyard-dev/switchyard/pkg/trace"
	"github.com/switchyard-dev/switchyard/pkg/trace/policy"
)

// PublishedArrival is the arrived demand, in percent of the GPUs, to which the published results go.
const PublishedArrival = 130

// GangSizes are the numbers of GPUs for which Seed.Unusable is given.
var GangSizes = [...]int{2, 4, 8}

// Config says what is replayed.
type Config struct {
	Nodes []trace.Node
	Tasks []trace.Task
	// Policy is the policy's name.
	Policy string
	// Arrival is how much demand arrives, in percent of the nodes' GPUs. Workloads are made for
	// PublishedArrival, or for Arrival if that is more: with less, the results are those of the way there.
	Arrival int
	// Seeds are the seeds, one replay each.
	Seeds []int64
	// Moves is how many running tasks may be moved for every 100 arrivals. What is not used is saved up.
	Moves float64
	// Domain is how many GPUs a domain has; 0: all of a node.
	Domain int
	// Workers is how many replays run at once.
	Workers int
	// Rand returns the randomness of a seed: rand.New(rand.NewSource(seed)) of math/rand for the
	// published workloads.
	Rand func(seed int64) trace.Rand
}

// Validate reports what is wrong with the configuration, and how to correct it.
func (c Config) Validate() error {
	var errs []error
	if err := policy.Check(c.Policy); err != nil {
		errs = append(errs, err)
	}
	if c.Arrival < 1 || c.Arrival > 1000 {
		errs = append(errs, fmt.Errorf("arrival %d is not between 1 and 1000: it is in percent of the nodes' GPUs", c.Arrival))
	}
	if len(c.Seeds) == 0 {
		errs = append(errs, errors.New("there are no seeds: at least one is needed"))
	}
	if !(c.Moves >= 0 && c.Moves <= 100) {
		errs = append(errs, fmt.Errorf("moves %v is not between 0 and 100: it is for every 100 arrivals", c.Moves))
	}
	if c.Moves > 0 && !policy.Moves(c.Policy) {
		errs = append(errs, fmt.Errorf("policy %s makes no moves: leave moves at 0 or use policy %s", c.Policy, policy.Switchyard))
	}
	if c.Domain < 0 || c.Domain > trace.MaxGPUs {
		errs = append(errs, fmt.Errorf("domain of %d GPUs is not between 0 and %d", c.Domain, trace.MaxGPUs))
	}
	if c.Workers < 1 {
		errs = append(errs, fmt.Errorf("workers %d is less than 1", c.Workers))
	}
	errs = append(errs, trace.Check(c.Nodes, c.Tasks, c.demand()))
	return errors.Join(errs...)
}

// demand is how much demand workloads are made for, in percent of the nodes' GPUs.
func (c Config) demand() float64 { return float64(max(c.Arrival, PublishedArrival)) }

// Result is what came of all seeds.
type Result struct {
	// Seeds are the results in the order of Config.Seeds.
	Seeds []Seed
}

// Seed is what came of one seed.
type Seed struct {
	Seed int64
	// Points are the results when 0, 1, 2, … percent of the GPUs had been asked for.
	Points []Point
	// Ceiling is how much of the GPUs, in percent, could have been allocated in the end at most, had the
	// tasks that ran been elsewhere: see the function.
	Ceiling float64
	// Free is how many GPUs no task used in the end.
	Free int
	// Unusable is, by GangSizes, how many of them no task with so many GPUs could use, had it CPU and
	// memory: there are too few in the domain or on the node.
	Unusable [len(GangSizes)]int
}

// Point is what there was when a percentage of the GPUs had been asked for.
type Point struct {
	// Allocated is how much of the GPUs tasks had, in percent: the mean over the arrivals that bring the
	// demand, rounded, to the percentage.
	Allocated float64
	// RejectedMultiGPU is, of what tasks with two or more GPUs had asked for, what was refused, in percent.
	RejectedMultiGPU float64
	// Arrivals, Rejected and Moves count tasks and moves until then.
	Arrivals, Rejected, Moves int
}

// At is the last point at or before the percentage.
func (s Seed) At(percent int) Point { return s.Points[min(percent, len(s.Points)-1)] }

// Summary is a quantity over the seeds.
type Summary struct {
	Mean float64 `json:"mean"`
	Min  float64 `json:"min"`
	Max  float64 `json:"max"`
}

// Summarise summarises a quantity of the points of all seeds at a percentage.
func (r Result) Summarise(percent int, quantity func(Point) float64) Summary {
	s := Summary{Min: math.Inf(1), Max: math.Inf(-1)}
	for _, seed := range r.Seeds {
		value := quantity(seed.At(percent))
		s.Mean += value / float64(len(r.Seeds))
		s.Min, s.Max = min(s.Min, value), max(s.Max, value)
	}
	return s
}

// Run replays all seeds. It returns an error if the configuration is not valid or ctx ends.
func Run(ctx context.Context, config Config) (Result, error) {
	if err := config.Validate(); err != nil {
		return Result{}, err
	}
	result := Result{Seeds: make([]Seed, len(config.Seeds))}
	jobs := make(chan int)
	var workers sync.WaitGroup
	for range min(config.Workers, len(config.Seeds)) {
		workers.Go(func() {
			for i := range jobs {
				result.Seeds[i] = run(ctx, config, config.Seeds[i])
			}
		})
	}
	for i := range config.Seeds {
		jobs <- i
	}
	close(jobs)
	workers.Wait()
	if err := context.Cause(ctx); err != nil {
		return Result{}, fmt.Errorf("replay policy %s: %w", config.Policy, err)
	}
	return result, nil
}

// SeedsFrom are count seeds from the first.
func SeedsFrom(first int64, count int) []int64 {
	seeds := make([]int64, count)
	for i := range seeds {
		seeds[i] = first + int64(i)
	}
	return seeds
}
