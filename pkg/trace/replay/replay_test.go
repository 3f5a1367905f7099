// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/switchyard-dev/switchyard/pkg/trace"
	"github.com/switchyard-dev/switchyard/pkg/trace/cluster"
	"github.com/switchyard-dev/switchyard/pkg/trace/policy"
)

func load[T any](t *testing.T, path string, read func(io.Reader) (T, error)) T {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	value, err := read(file)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

func source(seed int64) trace.Rand { return rand.New(rand.NewSource(seed)) }

// small is a replay of a trace of testdata on two nodes of four GPUs.
func small(t *testing.T, tasks string) Config {
	t.Helper()
	return Config{
		Nodes:   load(t, "../testdata/nodes.csv", trace.ReadNodes),
		Tasks:   load(t, filepath.Join("../testdata", tasks), trace.ReadTasks),
		Policy:  "fgd",
		Arrival: 130,
		Seeds:   SeedsFrom(42, 3),
		Workers: 2,
		Rand:    source,
	}
}

func TestSmallTraces(t *testing.T) {
	for _, name := range policy.Names() {
		for _, tc := range []struct {
			tasks     string
			arrival   int
			allocated float64
			rejected  float64
			arrivals  int
		}{
			// 3 of the 4 GPUs of each node, by the first two tasks. The third is refused. A fourth would
			// bring the demand to 150 %.
			{"three-of-four.csv", 130, 75, 100.0 / 3, 3},
			{"three-of-four.csv", 100, 75, 0, 2},
			{"three-of-four.csv", 40, 37.5, 0, 1},
			{"three-of-four.csv", 1, 0, 0, 0},
			// 600 of each of the 4 GPUs whose model suits; 17 tasks ask for 127.5 %.
			{"one-model.csv", 130, 30, 0, 17},
			{"one-model.csv", 100, 30, 0, 13},
			{"one-model.csv", 8, 7.5, 0, 1},
		} {
			t.Run(fmt.Sprintf("%s/%s/%d", name, tc.tasks, tc.arrival), func(t *testing.T) {
				config := small(t, tc.tasks)
				config.Policy, config.Arrival = name, tc.arrival
				result, err := Run(t.Context(), config)
				if err != nil {
					t.Fatal(err)
				}
				for _, seed := range result.Seeds {
					got := seed.At(tc.arrival)
					if got.Allocated != tc.allocated || math.Abs(got.RejectedMultiGPU-tc.rejected) > 1e-9 || got.Arrivals != tc.arrivals {
						t.Errorf("seed %d: got %+v, want %+v", seed.Seed, got, tc)
					}
				}
			})
		}
	}
}

func TestPointsOnTheWayAreThoseOfAShorterReplay(t *testing.T) {
	for _, name := range policy.Names() {
		config := small(t, "mixed.csv")
		config.Policy = name
		long, err := Run(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		config.Arrival = 90
		short, err := Run(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		for i := range long.Seeds {
			if got, want := short.Seeds[i].At(90), long.Seeds[i].At(90); got != want {
				t.Errorf("%s: got %+v, want %+v", name, got, want)
			}
		}
	}
}

func TestWorkersDoNotChangeTheResult(t *testing.T) {
	config := small(t, "mixed.csv")
	config.Policy, config.Seeds = "random", SeedsFrom(1, 7)
	config.Workers = 1
	one, err := Run(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	config.Workers = 16
	many, err := Run(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(one, many) {
		t.Error("16 workers give another result than one")
	}
	if reflect.DeepEqual(one.Seeds[0].Points, one.Seeds[1].Points) {
		t.Error("two seeds give the same result")
	}
}

func TestDomainsMakeFreeGPUsUnusable(t *testing.T) {
	config := small(t, "three-of-four.csv")
	result, err := Run(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	// One GPU of each node is free.
	if got := result.Seeds[0]; got.Free != 2 || got.Unusable != [3]int{2, 2, 2} {
		t.Errorf("got %d free, unusable %v", got.Free, got.Unusable)
	}
}

func TestSummarise(t *testing.T) {
	points := func(values ...float64) Seed {
		var s Seed
		for _, v := range values {
			s.Points = append(s.Points, Point{Allocated: v})
		}
		return s
	}
	result := Result{Seeds: []Seed{points(0, 10), points(0, 20, 30)}}
	if got, want := result.Summarise(5, func(p Point) float64 { return p.Allocated }), (Summary{20, 10, 30}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestValidate(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"an unknown policy":           {func(c *Config) { c.Policy = "best" }, `policy "best" is unknown: use one of random`},
		"arrival 0":                   {func(c *Config) { c.Arrival = 0 }, "arrival 0 is not between 1 and 1000"},
		"no seeds":                    {func(c *Config) { c.Seeds = nil }, "there are no seeds"},
		"negative moves":              {func(c *Config) { c.Moves = -1 }, "moves -1 is not between 0 and 100"},
		"moves that are not a number": {func(c *Config) { c.Moves = math.NaN() }, "moves NaN is not between"},
		"moves of another policy":     {func(c *Config) { c.Moves = 1 }, "policy fgd makes no moves: leave moves at 0 or use policy switchyard"},
		"domains of 17":               {func(c *Config) { c.Domain = 17 }, "domain of 17 GPUs is not between 0 and 16"},
		"no workers":                  {func(c *Config) { c.Workers = 0 }, "workers 0 is less than 1"},
		"tasks that do not suit":      {func(c *Config) { c.Tasks[0].Spec = "H100" }, `no node has GPU model "H100"`},
	} {
		t.Run(name, func(t *testing.T) {
			config := small(t, "mixed.csv")
			tc.change(&config)
			if _, err := Run(t.Context(), config); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestCancelledReplaysEnd(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	if _, err := Run(ctx, small(t, "mixed.csv")); err == nil || !strings.Contains(err.Error(), "replay policy fgd: enough") {
		t.Errorf("got %v", err)
	}
}

// tracesDir has the openb traces, which are no part of the repository.
const tracesDir = "../../../../shared/data/openb"

func TestPublishedResults(t *testing.T) {
	if _, err := os.Stat(tracesDir); err != nil {
		t.Skipf("the openb traces are not there: %v", err)
	}
	published := readPublished(t)
	nodes := load(t, filepath.Join(tracesDir, "openb_node_list_gpu_node.csv"), trace.ReadNodes)
	for _, tc := range []struct {
		workload, policy, publishedAs string
		tolerance                     float64
	}{
		{"default", "bestfit", "BestFit", 0.05},
		{"default", "dotprod", "DotProd", 0.05},
		{"default", "gpupacking", "GpuPacking", 0.05},
		{"default", "gpuclustering", "GpuClustering", 0.05},
		{"gpuspec33", "gpupacking", "GpuPacking", 0.05},
		{"multigpu50", "fgd", "FGD", 0.05},
		// It draws from another place than the authors' simulator, which is not reproducible.
		{"multigpu50", "random", "Random", 0.4},
	} {
		t.Run(tc.workload+"/"+tc.policy, func(t *testing.T) {
			t.Parallel()
			result, err := Run(t.Context(), Config{
				Nodes:  nodes,
				Tasks:  load(t, filepath.Join(tracesDir, "openb_pod_list_"+tc.workload+".csv"), trace.ReadTasks),
				Policy: tc.policy, Arrival: 130, Seeds: SeedsFrom(42, 10), Workers: 2, Rand: source,
			})
			if err != nil {
				t.Fatal(err)
			}
			for _, arrived := range []int{80, 90, 100, 110, 120, 130} {
				want, known := published[fmt.Sprint(tc.workload, tc.publishedAs, arrived)]
				if !known {
					t.Fatalf("nothing was published at %d %%", arrived)
				}
				got := result.Summarise(arrived, func(p Point) float64 { return p.Allocated }).Mean
				if math.Abs(got-want) > tc.tolerance {
					t.Errorf("at %d %%: %.2f allocated, published %.2f", arrived, got, want)
				}
			}
		})
	}
}

func readPublished(t *testing.T) map[string]float64 {
	t.Helper()
	file, err := os.Open(filepath.Join(tracesDir, "expected_allocation.csv"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	rows, err := csv.NewReader(file).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	published := map[string]float64{}
	for _, row := range rows[1:] {
		mean, err := strconv.ParseFloat(row[3], 64)
		if err != nil {
			t.Fatal(err)
		}
		published[row[0]+row[1]+row[2]] = mean
	}
	return published
}

func TestMovesStayWithinTheirBudget(t *testing.T) {
	// Nodes of which some have CPU for all of their GPUs and some have not.
	var nodes []trace.Node
	for i := range 60 {
		nodes = append(nodes, trace.Node{Name: strconv.Itoa(i), CPU: 40000, Memory: 1000, GPUs: 2 + 2*(i%4), Model: "T4"})
	}
	var tasks []trace.Task
	for i, kind := range []trace.Kind{
		{CPU: 12000, GPUs: 1, Milli: 350},
		{CPU: 500, GPUs: 1, Milli: 650},
		{CPU: 5000, GPUs: 1, Milli: 1000},
		{CPU: 3000},
		{CPU: 2000, GPUs: 1, Milli: 550},
		{CPU: 2000, GPUs: 1, Milli: 450},
		{CPU: 16000, GPUs: 4, Milli: 1000},
	} {
		tasks = append(tasks, trace.Task{Name: strconv.Itoa(i), Kind: kind})
	}
	config := Config{
		Nodes: nodes, Tasks: tasks, Policy: policy.Switchyard, Arrival: 130, Seeds: SeedsFrom(42, 10), Workers: 2, Rand: source,
	}
	without, err := Run(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	config.Moves = 5
	with, err := Run(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	moved := 0
	for i, seed := range with.Seeds {
		for percent, p := range seed.Points {
			if float64(p.Moves) > config.Moves*float64(p.Arrivals)/100 {
				t.Fatalf("seed %d: %d moves for %d arrivals at %d %%", seed.Seed, p.Moves, p.Arrivals, percent)
			}
		}
		moved += seed.At(130).Moves
		if m := without.Seeds[i].At(130).Moves; m != 0 {
			t.Errorf("%d moves without a budget", m)
		}
	}
	if moved == 0 {
		t.Error("nothing was moved")
	}
	allocated := func(p Point) float64 { return p.Allocated }
	if with, without := with.Summarise(130, allocated).Mean, without.Summarise(130, allocated).Mean; with < without {
		t.Errorf("%.2f allocated with moves, %.2f without", with, without)
	}
}

func TestCeiling(t *testing.T) {
	nodes := []trace.Node{{Name: "a", GPUs: 4, Model: "T4"}}
	for name, tc := range map[string]struct {
		milli []int
		want  float64 // lost, in milli-GPUs
	}{
		"nothing runs":                            {nil, 0},
		"whole GPUs lose nothing":                 {[]int{1000, 1000}, 0},
		"halves go together":                      {[]int{500, 500, 500}, 0},
		"nothing fits beside large ones":          {[]int{810, 900}, 290},
		"one fits beside one":                     {[]int{810, 190, 900}, 100},
		"small ones leave less":                   {[]int{810, 160}, 30},
		"one that does not fit does not help":     {[]int{810, 210}, 190},
		"a larger bound counts more on both side": {[]int{810, 600, 400}, 190},
	} {
		t.Run(name, func(t *testing.T) {
			c := cluster.New(nodes, []int{0}, 0)
			catalog := c.NewCatalog(nil)
			for id, milli := range tc.milli {
				r := catalog.Request(trace.Kind{GPUs: 1, Milli: milli})
				c.Place(id, r, cluster.Placement{GPUs: c.FirstFit(&c.Nodes[0].State, r)})
			}
			if got, want := ceiling(c), 100*(1-tc.want/4000); math.Abs(got-want) > 1e-9 {
				t.Errorf("got %v, want %v", got, want)
			}
		})
	}
}

// The promises that are made of our policy, on a few seeds of the trace where they are hardest to keep.
func TestSwitchyardBeatsGradientDescent(t *testing.T) {
	if _, err := os.Stat(tracesDir); err != nil {
		t.Skipf("the openb traces are not there: %v", err)
	}
	config := Config{
		Nodes:   load(t, filepath.Join(tracesDir, "openb_node_list_gpu_node.csv"), trace.ReadNodes),
		Tasks:   load(t, filepath.Join(tracesDir, "openb_pod_list_multigpu50.csv"), trace.ReadTasks),
		Arrival: 130, Seeds: SeedsFrom(42, 2), Workers: 2, Rand: source,
	}
	results := map[string]Result{}
	for _, name := range []string{"fgd", policy.Switchyard} {
		config.Policy = name
		result, err := Run(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		results[name] = result
	}
	for i, ours := range results[policy.Switchyard].Seeds {
		fgd := results["fgd"].Seeds[i]
		for percent, least := range map[int]float64{100: 0, 130: 0.3} {
			if got, than := ours.At(percent), fgd.At(percent); got.Allocated < than.Allocated+least {
				t.Errorf("seed %d at %d %%: %.2f allocated, FGD %.2f", ours.Seed, percent, got.Allocated, than.Allocated)
			}
		}
		if got, than := ours.At(130), fgd.At(130); got.RejectedMultiGPU > than.RejectedMultiGPU {
			t.Errorf("seed %d: %.2f %% rejected, FGD %.2f", ours.Seed, got.RejectedMultiGPU, than.RejectedMultiGPU)
		}
	}
}
