// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand"
	"os"
	"runtime"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/switchyard-dev/switchyard/pkg/trace"
	"github.com/switchyard-dev/switchyard/pkg/trace/policy"
	"github.com/switchyard-dev/switchyard/pkg/trace/replay"
)

// firstSeed is the first of the seeds of the published results.
const firstSeed = 42

// maxSeeds bounds --seeds.
const maxSeeds = 1000

// simulateOptions are the flags of simulate.
type simulateOptions struct {
	output
	nodes, pods string
	seeds       int
	replay.Config
}

func newSimulate() *cobra.Command {
	o := simulateOptions{}
	cmd := &cobra.Command{
		Use:   "simulate --nodes NODES.csv --pods PODS.csv",
		Short: "Replay a list of jobs on a list of nodes with a placement policy",
		Long: `Replay a list of jobs on a list of nodes with a placement policy, and print how much of the GPUs got used.

Jobs arrive one after the other, in random order, and none ends. Those that fit nowhere are rejected for good.
Arrivals are drawn until they ask for 130 % of the nodes' GPUs (or --arrival, if that is more): with
repetition if there are too few jobs, and some are left out if there are too many. Nothing is read from a
cluster and nothing is written to one.

--arrival is the point at which the numbers are read: 100 is when jobs that ask for as many GPUs as there are
have arrived on the way to 130. The allocated part is the mean over the arrivals that make the demand, rounded
to a whole percentage, just that. The rejected part is, of what jobs with two or more GPUs had asked for until
then, what was refused.

Nodes are CSV with the columns sn (or name), cpu_milli, memory_mib, gpu and model. Jobs are CSV with the columns
name, cpu_milli, memory_mib, num_gpu, gpu_milli (thousandths of each GPU; 1000 unless num_gpu is 1), and gpu_spec
if jobs need particular models ("A|B"). These are the columns of the openb traces, and with them the seeds give
the published results.

The moves that are printed are those made for every 100 arrivals, like --moves.`,
		Example: `  # How much would be used with our policy, and how much with the best one that was published?
  kubectl switchyard simulate --nodes nodes.csv --pods pods.csv --policy switchyard
  kubectl switchyard simulate --nodes nodes.csv --pods pods.csv --policy fgd

  # Would it pay to move one running job for every 100 that arrive?
  kubectl switchyard simulate --nodes nodes.csv --pods pods.csv --moves 1 -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.validate(); err != nil {
				return err
			}
			return o.run(cmd.Context(), cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.nodes, "nodes", "", "CSV file of the nodes.")
	flags.StringVar(&o.pods, "pods", "", "CSV file of the jobs.")
	flags.StringVar(&o.Policy, "policy", policy.Switchyard, "Placement policy: "+strings.Join(policy.Names(), ", ")+".")
	flags.IntVar(&o.Arrival, "arrival", replay.PublishedArrival, "Demand at which the numbers are read, in percent of the nodes' GPUs.")
	flags.IntVar(&o.seeds, "seeds", 10, fmt.Sprintf("Number of replays; their seeds are %d and those that follow.", firstSeed))
	flags.Float64Var(&o.Moves, "moves", 0, "How many running jobs may be moved for every 100 arrivals; what is not used is saved up.")
	flags.IntVar(&o.Domain, "domains", 0, "GPUs in a domain of a node: a job with as many GPUs or fewer needs one domain. 0: a node is one domain.")
	flags.IntVar(&o.Workers, "workers", runtime.GOMAXPROCS(0), "How many replays run at once.")
	complete(cmd, "policy", policy.Names())
	o.addFlags(cmd)
	return cmd
}

// validate reports what is wrong with the flags. What is wrong with the files, replay.Run says.
func (o *simulateOptions) validate() error {
	var errs []error
	if o.nodes == "" {
		errs = append(errs, errors.New("--nodes must be set: the CSV file of the nodes"))
	}
	if o.pods == "" {
		errs = append(errs, errors.New("--pods must be set: the CSV file of the jobs"))
	}
	if o.seeds < 1 || o.seeds > maxSeeds {
		errs = append(errs, fmt.Errorf("--seeds %d is not between 1 and %d", o.seeds, maxSeeds))
	}
	return errors.Join(append(errs, o.output.validate())...)
}

func (o *simulateOptions) run(ctx context.Context, out io.Writer) (err error) {
	if o.Nodes, err = readFile(o.nodes, trace.ReadNodes); err != nil {
		return err
	}
	if o.Tasks, err = readFile(o.pods, trace.ReadTasks); err != nil {
		return err
	}
	o.Seeds = replay.SeedsFrom(firstSeed, o.seeds)
	o.Rand = func(seed int64) trace.Rand { return rand.New(rand.NewSource(seed)) }
	result, err := replay.Run(ctx, o.Config)
	if err != nil {
		return err
	}
	summary := summarise(o.Config, result)
	return o.print(out, summary, summary.table(o.Arrival))
}

func readFile[T any](path string, read func(io.Reader) (T, error)) (T, error) {
	file, err := os.Open(path)
	if err != nil {
		var none T
		return none, err // names the file
	}
	defer file.Close()
	value, err := read(file)
	if err != nil {
		return value, fmt.Errorf("%s: %w", path, err)
	}
	return value, nil
}

// simulation is what simulate prints. Numbers are rounded to thousandths.
type simulation struct {
	Policy                  string         `json:"policy"`
	AllocatedPercent        replay.Summary `json:"allocatedPercent"`
	RejectedMultiGPUPercent replay.Summary `json:"rejectedMultiGPUPercent"`
	// Moves is how many were made for every 100 arrivals, the mean over the seeds.
	Moves float64 `json:"moves"`
	Seeds int     `json:"seeds"`
	// FreeGPUs and UnusableGPUs, by the GPUs that a job needs, are given with --domains: the means of the
	// GPUs that are free in the end and those of them that are in the wrong place for such a job.
	FreeGPUs     *float64           `json:"freeGPUs,omitempty"`
	UnusableGPUs map[string]float64 `json:"unusableGPUs,omitempty"`
}

func summarise(config replay.Config, result replay.Result) simulation {
	summary := func(quantity func(replay.Point) float64) replay.Summary {
		s := result.Summarise(config.Arrival, quantity)
		return replay.Summary{Mean: round(s.Mean), Min: round(s.Min), Max: round(s.Max)}
	}
	s := simulation{
		Policy:                  config.Policy,
		AllocatedPercent:        summary(func(p replay.Point) float64 { return p.Allocated }),
		RejectedMultiGPUPercent: summary(func(p replay.Point) float64 { return p.RejectedMultiGPU }),
		Moves: summary(func(p replay.Point) float64 {
			return 100 * float64(p.Moves) / float64(max(p.Arrivals, 1))
		}).Mean,
		Seeds: len(result.Seeds),
	}
	if config.Domain > 0 {
		mean := func(count func(replay.Seed) int) float64 {
			sum := 0
			for _, seed := range result.Seeds {
				sum += count(seed)
			}
			return round(float64(sum) / float64(len(result.Seeds)))
		}
		free := mean(func(seed replay.Seed) int { return seed.Free })
		s.FreeGPUs, s.UnusableGPUs = &free, map[string]float64{}
		for i, size := range replay.GangSizes {
			s.UnusableGPUs[strconv.Itoa(size)] = mean(func(seed replay.Seed) int { return seed.Unusable[i] })
		}
	}
	return s
}

func round(value float64) float64 { return math.Round(value*1000) / 1000 }

func (s simulation) table(arrival int) *metav1.Table {
	number := func(value float64) string { return fmt.Sprintf("%.2f", value) }
	span := func(s replay.Summary) string { return number(s.Min) + "-" + number(s.Max) }
	table := &metav1.Table{
		ColumnDefinitions: []metav1.TableColumnDefinition{
			{Name: "Policy"},
			{Name: "Arrived %"},
			{Name: "Allocated %"},
			{Name: "Min-Max"},
			{Name: "Rejected Multi-GPU %"},
			{Name: "Rejected Min-Max", Priority: 1},
			{Name: "Moves/100"},
			{Name: "Seeds"},
		},
	}
	cells := []any{
		s.Policy, arrival, number(s.AllocatedPercent.Mean), span(s.AllocatedPercent),
		number(s.RejectedMultiGPUPercent.Mean), span(s.RejectedMultiGPUPercent), number(s.Moves), s.Seeds,
	}
	if s.FreeGPUs != nil {
		table.ColumnDefinitions = append(table.ColumnDefinitions, metav1.TableColumnDefinition{Name: "Free GPUs"})
		cells = append(cells, number(*s.FreeGPUs))
		for _, size := range replay.GangSizes {
			table.ColumnDefinitions = append(table.ColumnDefinitions,
				metav1.TableColumnDefinition{Name: fmt.Sprintf("No Use To %d", size)})
			cells = append(cells, number(s.UnusableGPUs[strconv.Itoa(size)]))
		}
	}
	table.Rows = []metav1.TableRow{{Cells: cells}}
	return table
}
