// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"math/rand"
	"slices"
	"testing"
)

// scripted is randomness that is known: it reverses what it shuffles and draws from a list.
type scripted struct {
	t     *testing.T
	draws []int
	log   []string
}

func (s *scripted) Int() int         { s.log = append(s.log, "Int"); return 7 }
func (s *scripted) Float64() float64 { s.log = append(s.log, "Float64"); return 0.5 }

func (s *scripted) Intn(n int) int {
	s.log = append(s.log, "Intn")
	if len(s.draws) == 0 {
		s.t.Fatal("more is drawn than expected")
	}
	draw := s.draws[0]
	s.draws = s.draws[1:]
	if draw >= n {
		s.t.Fatalf("draw %d of %d", draw, n)
	}
	return draw
}

func (s *scripted) Perm(n int) []int {
	s.log = append(s.log, "Perm")
	ranks := make([]int, n)
	for i := range ranks {
		ranks[i] = n - 1 - i
	}
	return ranks
}

func (s *scripted) Shuffle(n int, swap func(i, j int)) {
	s.log = append(s.log, "Shuffle")
	for i := range n / 2 {
		swap(i, n-1-i)
	}
}

func task(name string, gpus, milli int) Task {
	return Task{Name: name, Kind: Kind{GPUs: gpus, Milli: milli}}
}

func TestWorkload(t *testing.T) {
	tenGPUs := []Node{{"b", 1, 1, 2, "T4"}, {"a", 1, 1, 8, "T4"}}
	for name, tc := range map[string]struct {
		tasks    []Task
		percent  float64
		draws    []int
		arrivals []string
	}{
		"below the target: drawn again, from the tasks by name, until the next one would exceed it": {
			tasks: []Task{task("2", 1, 1000), task("1", 2, 1000), task("0", 0, 0)}, percent: 60, draws: []int{2, 0, 2, 1, 1},
			// 3 GPUs, and 1, and none, and 1: 5. The next needs 2, but counts as 1 GPU does: 7. One more ends it.
			arrivals: []string{"2", "1", "0", "2", "0", "2", "1"},
		},
		"a draw that fits exactly is taken": {
			tasks: []Task{task("1", 1, 500)}, percent: 10, draws: []int{0, 0}, arrivals: []string{"1", "1"},
		},
		"above the target: deleted at random until at or below it": {
			tasks: []Task{task("1", 4, 1000), task("2", 4, 1000), task("3", 4, 1000)}, percent: 80, draws: []int{1},
			arrivals: []string{"3", "1"},
		},
		"exactly at the target: one draw is made and refused": {
			tasks: []Task{task("1", 8, 1000)}, percent: 80, draws: []int{0}, arrivals: []string{"1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			random := &scripted{t: t, draws: tc.draws}
			before := slices.Clone(tc.tasks)
			got := NewWorkload(tenGPUs, tc.tasks, tc.percent, random)
			var names []string
			for _, a := range got.Arrivals {
				names = append(names, a.Name)
			}
			if !slices.Equal(names, tc.arrivals) {
				t.Errorf("arrivals %v, want %v", names, tc.arrivals)
			}
			if len(random.draws) > 0 {
				t.Errorf("draws %v were not made", random.draws)
			}
			if got.Nodes[0].Name != "a" || !slices.Equal(got.Ranks, []int{1, 0}) {
				t.Errorf("nodes %v with ranks %v, want them by name", got.Nodes, got.Ranks)
			}
			if !slices.Equal(tc.tasks, before) {
				t.Error("the tasks were changed")
			}
			want := []string{"Int", "Shuffle"}
			for range tc.draws {
				want = append(want, "Intn")
			}
			for range 10 {
				want = append(want, "Float64")
			}
			if want = append(want, "Perm"); !slices.Equal(random.log, want) {
				t.Errorf("drawn %v, want %v", random.log, want)
			}
		})
	}
}

func TestPositionsAreTakenAsFromASlice(t *testing.T) {
	for n := range 70 {
		random := rand.New(rand.NewSource(int64(n)))
		left, tree := make([]int, n), newPositions(n)
		for i := range left {
			left[i] = i
		}
		for len(left) > 0 {
			before := random.Intn(len(left))
			if got := tree.take(before); got != left[before] {
				t.Fatalf("of %d, position %d of %v: got %d", n, before, left, got)
			}
			left = slices.Delete(left, before, before+1)
		}
	}
}

// Many more tasks than fit: with a slice that each deletion moves it takes minutes.
func TestManyTasksAreDeleted(t *testing.T) {
	tasks := slices.Repeat([]Task{task("1", 1, 1000)}, 300_000)
	got := NewWorkload([]Node{{"a", 1, 1, 4, "T4"}}, tasks, 100, rand.New(rand.NewSource(1)))
	if len(got.Arrivals) != 4 {
		t.Errorf("%d tasks are left, want 4", len(got.Arrivals))
	}
}

// Go promises that a seed of math/rand gives the same numbers for ever; the published seeds rest on it.
func TestSeedsOfMathRandAreStable(t *testing.T) {
	random := rand.New(rand.NewSource(42))
	if got, want := []int{random.Intn(1000), random.Intn(1000), random.Intn(1000)}, []int{305, 987, 668}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	var _ Rand = random
}
