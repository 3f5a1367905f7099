// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package model

import (
	"bytes"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	seedFlag  = flag.Uint64("model.seed", 0, "run this seed only")
	seedsFlag = flag.Uint64("model.seeds", 20, "how many seeds to run, from 1 or -model.from")
	fromFlag  = flag.Uint64("model.from", 1, "the first seed to run")
	stepsFlag = flag.Int("model.steps", 6000, "how many events happen before users stop")
	soakFlag  = flag.Duration("model.soak", 0, "run seeds for so long")
	traceFlag = flag.Bool("model.v", false, "say what happens")
)

// TestModel runs seeds: whatever users, hardware, crashes and races do, what must hold holds; and once they
// stop, every gang that fits runs, and nothing is left when all is deleted.
func TestModel(t *testing.T) {
	t.Parallel()
	model(t, false)
}

// TestModelWithPartitions does the same on GPUs that may be had in parts.
func TestModelWithPartitions(t *testing.T) {
	t.Parallel()
	model(t, true)
}

func model(t *testing.T, partitions bool) {
	t.Helper()
	began := time.Now()
	first, last := *fromFlag, *fromFlag+*seedsFlag-1
	if *seedFlag != 0 {
		first, last = *seedFlag, *seedFlag
	}
	seeds, operations, starts, moved := 0, 0, 0, 0
	for seed := first; seed <= last || time.Since(began) < *soakFlag; seed++ {
		// Every other run is one in which pods are moved for gangs.
		o := options{seed: seed, steps: *stepsFlag, moves: seed%2 == 0, partitions: partitions}
		if *traceFlag {
			o.trace = os.Stdout
		}
		w := play(o)
		seeds++
		operations += w.checker.operations
		moved += len(w.checker.victims)
		for _, n := range w.checker.starts {
			starts += n
		}
		if w.err != nil {
			t.Errorf("seed %d: %v\nrepeat it with: go test ./test/model -run '%s$' -model.seed=%d -model.steps=%d -model.v", seed, w.err, t.Name(), seed, shrink(o))
			if *soakFlag == 0 {
				return
			}
		}
	}
	t.Logf("%d seeds: users did %d things, members were started %d times, %d pods were moved", seeds, operations, starts, moved)
	if operations == 0 || starts == 0 || seeds > 10 && moved == 0 {
		t.Error("nothing happened")
	}
}

// shrink looks for fewer steps with which a run still fails.
func shrink(o options) int {
	o.trace = nil
	best := o.steps
	for least := 0; best-least > 50; {
		try := o
		try.steps = (least + best) / 2
		if play(try).err != nil {
			best = try.steps
		} else {
			least = try.steps
		}
	}
	return best
}

// TestSameSeedSameRun is what replaying rests on.
func TestSameSeedSameRun(t *testing.T) {
	t.Parallel()
	var one, two bytes.Buffer
	play(options{seed: 7, steps: 1500, trace: &one})
	play(options{seed: 7, steps: 1500, trace: &two})
	if one.String() == two.String() {
		return
	}
	a, b := strings.Split(one.String(), "\n"), strings.Split(two.String(), "\n")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			t.Fatalf("two runs of one seed differ in line %d:\n%s\n%s", i, a[i], b[i])
		}
	}
	t.Fatal("two runs of one seed differ in length")
}

// TestFaultsAreCaught puts each fault into runs, until one fails: what is checked can fail.
func TestFaultsAreCaught(t *testing.T) {
	for _, f := range slices.Sorted(func(yield func(fault) bool) {
		for f := range faults {
			if !yield(f) {
				return
			}
		}
	}) {
		t.Run(string(f), func(t *testing.T) {
			t.Parallel()
			for seed := 1; seed <= caughtWithin; seed++ {
				o := options{seed: uint64(seed), steps: 4000, fault: f, often: faults[f], pace: 300 * time.Millisecond}
				o.moves = f == budgetsBroken || f == movesForgotten
				o.partitions = f == noSiblings
				if w := play(o); w.err != nil {
					t.Logf("caught with seed %d: %v", seed, w.err)
					return
				}
			}
			t.Errorf("not caught with %d seeds", caughtWithin)
		})
	}
}
