// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/switchyard-dev/switchyard/pkg/trace/replay"
)

// samples are the records of a workload and a variant, by seed.
func samples(records []record, workload, variant string) []record {
	var found []record
	for _, r := range records {
		if r.Workload == workload && r.Variant == variant {
			found = append(found, r)
		}
	}
	slices.SortFunc(found, func(a, b record) int { return int(a.Seed - b.Seed) })
	return found
}

func values(records []record, quantity func(record) float64) []float64 {
	result := make([]float64, len(records))
	for i, r := range records {
		result[i] = quantity(r)
	}
	return result
}

// estimate is a mean with the half width of its 95 % confidence interval.
type estimate struct{ mean, half float64 }

// studentT has the 97.5 % quantiles of Student's distribution by degrees of freedom, from 1; beyond, the
// last is used, which is a little too wide.
var studentT = []float64{
	12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
	2.120, 2.110, 2.101, 2.093, 2.086,
}

// estimateOf is the mean of the values; its interval is infinite for a single one.
func estimateOf(values []float64) estimate {
	n := float64(len(values))
	mean, squares := 0.0, 0.0
	for _, v := range values {
		mean += v / n
	}
	if len(values) < 2 {
		return estimate{mean, math.Inf(1)}
	}
	for _, v := range values {
		squares += (v - mean) * (v - mean)
	}
	t := studentT[min(len(values)-2, len(studentT)-1)]
	return estimate{mean, t * math.Sqrt(squares/(n-1)/n)}
}

func (e estimate) String() string { return fmt.Sprintf("%.2f ± %.2f", e.mean, e.half) }

// paired is the estimate of the differences, seed by seed, and how many are above zero.
func paired(a, b []float64) (difference estimate, above int) {
	differences := make([]float64, min(len(a), len(b)))
	for i := range differences {
		differences[i] = a[i] - b[i]
		if differences[i] > 0 {
			above++
		}
	}
	return estimateOf(differences), above
}

// Quantities of records of the first set.
func allocated100(r record) float64 { return r.At100.Allocated }
func allocated130(r record) float64 { return r.At130.Allocated }
func rejected100(r record) float64  { return r.At100.RejectedMultiGPU }
func rejected130(r record) float64  { return r.At130.RejectedMultiGPU }
func moves(r record) float64        { return 100 * float64(r.At130.Moves) / float64(r.At130.Arrivals) }

// report is the report in Markdown.
func report(records []record, published map[string]float64) []byte {
	var out strings.Builder
	reportAllocated(&out, records, "130", allocated130)
	reportAllocated(&out, records, "100", allocated100)
	reportRejected(&out, records)
	reportPaired(&out, records)
	reportPublished(&out, records, published)
	reportDomains(&out, records)
	return []byte(out.String())
}

// firstSet are the variants of the first set, those with results.
func firstSet(records []record) []string {
	var names []string
	for _, v := range variants() {
		if v.domain == 0 && slices.ContainsFunc(records, func(r record) bool { return r.Variant == v.name }) {
			names = append(names, v.name)
		}
	}
	return names
}

// grid writes a table of workloads by variants.
func grid(out *strings.Builder, records []record, names []string, cell func([]record) string) {
	fmt.Fprintf(out, "| trace | %s |\n|---|%s\n", strings.Join(names, " | "), strings.Repeat("---|", len(names)))
	for _, workload := range workloads {
		var cells []string
		any := false
		for _, name := range names {
			found := samples(records, workload, name)
			if len(found) == 0 {
				cells = append(cells, "")
				continue
			}
			any = true
			cells = append(cells, cell(found))
		}
		if any {
			fmt.Fprintf(out, "| %s | %s |\n", workload, strings.Join(cells, " | "))
		}
	}
}

func reportAllocated(out *strings.Builder, records []record, arrived string, quantity func(record) float64) {
	fmt.Fprintf(out, "### Allocated, %% of the GPUs, at %s %% arrived\n\nMean over the seeds and 95 %% confidence interval.\n\n", arrived)
	grid(out, records, firstSet(records), func(found []record) string { return estimateOf(values(found, quantity)).String() })
	out.WriteString("\n")
}

func reportRejected(out *strings.Builder, records []record) {
	out.WriteString("### Rejected, % of the demand of tasks with two or more GPUs, at 100 and 130 % arrived\n\n")
	grid(out, records, firstSet(records), func(found []record) string {
		return fmt.Sprintf("%.2f / %.2f", estimateOf(values(found, rejected100)).mean, estimateOf(values(found, rejected130)).mean)
	})
	out.WriteString("\n")
}

// reportPaired compares our policy with FGD, seed by seed.
func reportPaired(out *strings.Builder, records []record) {
	out.WriteString("### Our policy less FGD, seed by seed\n\n" +
		"Percentage points, mean and 95 % confidence interval, and in how many seeds more is allocated.\n\n" +
		"| trace | allocated at 100 % | allocated at 130 % | seeds | rejected multi-GPU at 130 % | moves add at 130 % | moves per 100 arrivals | with moves, below the ceiling |\n" +
		"|---|---|---|---|---|---|---|---|\n")
	for _, workload := range workloads {
		ours, fgd := samples(records, workload, "switchyard"), samples(records, workload, "fgd")
		if len(ours) == 0 || len(fgd) == 0 {
			continue
		}
		at100, _ := paired(values(ours, allocated100), values(fgd, allocated100))
		at130, above := paired(values(ours, allocated130), values(fgd, allocated130))
		rejected, _ := paired(values(ours, rejected130), values(fgd, rejected130))
		gain, made, below := "", "", ""
		if with := samples(records, workload, moved); len(with) > 0 {
			added, _ := paired(values(with, allocated130), values(ours, allocated130))
			gain, made = added.String(), fmt.Sprintf("%.2f", estimateOf(values(with, moves)).mean)
			below = estimateOf(values(with, func(r record) float64 { return r.Ceiling - r.At130.Allocated })).String()
		}
		fmt.Fprintf(out, "| %s | %s | %s | %d/%d | %s | %s | %s | %s |\n", workload, at100, at130, above, len(ours), rejected, gain, made, below)
	}
	out.WriteString("\n")
}

// reportPublished says how far the baselines are from what was published.
func reportPublished(out *strings.Builder, records []record, published map[string]float64) {
	if published == nil {
		return
	}
	out.WriteString("### Distance to the published means\n\nThe largest over the traces, at 100 and 130 % arrived, in percentage points.\n\n" +
		"| policy | largest | traces |\n|---|---|---|\n")
	for _, name := range firstSet(records) {
		largest, count := 0.0, 0
		for _, workload := range workloads {
			found := samples(records, workload, name)
			at100, known := published[publishedKey(workload, name, "100")]
			if len(found) == 0 || !known {
				continue
			}
			count++
			at130 := published[publishedKey(workload, name, "130")]
			largest = max(largest, math.Abs(estimateOf(values(found, allocated100)).mean-at100),
				math.Abs(estimateOf(values(found, allocated130)).mean-at130))
		}
		if count > 0 {
			fmt.Fprintf(out, "| %s | %.3f | %d |\n", name, largest, count)
		}
	}
	out.WriteString("\n")
}

// reportDomains is the second set.
func reportDomains(out *strings.Builder, records []record) {
	var rows strings.Builder
	for _, workload := range workloads {
		for _, v := range variants() {
			found := samples(records, workload, v.name)
			if v.domain == 0 || len(found) == 0 {
				continue
			}
			fmt.Fprintf(&rows, "| %s | %s | %.2f | %.0f |", workload, v.policy,
				estimateOf(values(found, func(r record) float64 { return r.AtEnd.RejectedMultiGPU })).mean,
				estimateOf(values(found, func(r record) float64 { return float64(r.Free) })).mean)
			for i := range replay.GangSizes {
				fmt.Fprintf(&rows, " %.0f |", estimateOf(values(found, func(r record) float64 { return float64(r.Unusable[i]) })).mean)
			}
			rows.WriteString("\n")
		}
	}
	if rows.Len() == 0 {
		return
	}
	fmt.Fprintf(out, "### Domains of four: free GPUs that are of no use, at %d %% arrived\n\n"+
		"| trace | policy | rejected multi-GPU, %% | free GPUs | of no use to 2 | to 4 | to 8 |\n|---|---|---|---|---|---|---|\n%s",
		domainArrival, rows.String())
}
