// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package fragmentation_test

import (
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/switchyard-dev/switchyard/pkg/fragmentation"
)

// The cluster of the documentation: node-a with one domain of 8 H100, node-b with two of 4 A100, of
// which GPUs 0, 2, 4 and 6 are in use.
var documented = []fragmentation.Domain{
	{Name: "node-a.0", Node: "node-a", Product: "H100", Total: 8, Free: 8},
	{Name: "node-b.0", Node: "node-b", Product: "A100", Total: 4, Free: 2, InUse: 2},
	{Name: "node-b.1", Node: "node-b", Product: "A100", Total: 4, Free: 2, InUse: 2},
}

func TestMeasure(t *testing.T) {
	tests := map[string]struct {
		domains []fragmentation.Domain
		sizes   []int
		want    fragmentation.Measures
	}{
		"four idle GPUs in two domains are not a runnable gang of four": {
			documented[1:],
			[]int{1, 2, 4},
			fragmentation.Measures{
				Total: 8, Free: 4, InUse: 4, Domains: 2, Broken: 2, LargestFreeBlock: 2, LargestFreeDomain: "node-b.0",
				Gangs: []fragmentation.Gang{
					{Size: 1, Runnable: 4, WithoutFragmentation: 4},
					{Size: 2, Runnable: 2, WithoutFragmentation: 2},
					{Size: 4, Runnable: 0, WithoutFragmentation: 1, Fragmentation: 1},
				},
			},
		},
		"the cluster sums its nodes": {
			documented,
			[]int{2, 4, 8},
			fragmentation.Measures{
				Total: 16, Free: 12, InUse: 4, Domains: 3, Whole: 1, Broken: 2, LargestFreeBlock: 8, LargestFreeDomain: "node-a.0",
				Gangs: []fragmentation.Gang{
					{Size: 2, Runnable: 6, WithoutFragmentation: 6},
					{Size: 4, Runnable: 2, WithoutFragmentation: 3, Fragmentation: 1 - 8.0/12},
					{Size: 8, Runnable: 1, WithoutFragmentation: 1, Fragmentation: 1 - 8.0/12},
				},
			},
		},
		"a full domain is not broken": {
			[]fragmentation.Domain{{Name: "a", Total: 4, InUse: 4}},
			[]int{1},
			fragmentation.Measures{Total: 4, InUse: 4, Domains: 1, Full: 1, Gangs: []fragmentation.Gang{{Size: 1}}},
		},
		"a tainted GPU is neither free nor in use, and breaks nothing": {
			[]fragmentation.Domain{{Name: "a", Total: 4, Free: 3}},
			[]int{4},
			fragmentation.Measures{
				Total: 4, Free: 3, Domains: 1, Whole: 1, LargestFreeBlock: 3, LargestFreeDomain: "a",
				Gangs: []fragmentation.Gang{{Size: 4, Fragmentation: 1}},
			},
		},
		"a fabric is one domain at all its nodes": {
			[]fragmentation.Domain{{Name: "rack", Node: "a", Total: 4, Free: 4}, {Name: "rack", Node: "b", Total: 4, Free: 3, InUse: 1}},
			[]int{7},
			fragmentation.Measures{
				Total: 8, Free: 7, InUse: 1, Domains: 1, Broken: 1, LargestFreeBlock: 7, LargestFreeDomain: "rack",
				Gangs: []fragmentation.Gang{{Size: 7, Runnable: 1, WithoutFragmentation: 1}},
			},
		},
		"GPUs without a domain are counted, not measured": {
			[]fragmentation.Domain{{Node: "a", Total: 8, Free: 6, InUse: 2}},
			[]int{2},
			fragmentation.Measures{Total: 8, Free: 6, InUse: 2, FreeWithoutDomain: 6, Gangs: []fragmentation.Gang{{Size: 2}}},
		},
		"sizes below one are left out":  {documented[:1], []int{0, -1}, fragmentation.Measures{Total: 8, Free: 8, Domains: 1, Whole: 1, LargestFreeBlock: 8, LargestFreeDomain: "node-a.0"}},
		"no devices, nothing to divide": {nil, []int{4}, fragmentation.Measures{Gangs: []fragmentation.Gang{{Size: 4}}}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got := fragmentation.Measure(test.domains, test.sizes).Cluster
			if diff := cmp.Diff(test.want, got, cmpopts.EquateApprox(0, 1e-9)); diff != "" {
				t.Errorf("measures differ (-want +got):\n%s", diff)
			}
		})
	}
}

func TestMeasureByNodeAndProduct(t *testing.T) {
	report := fragmentation.Measure(documented, []int{4})
	if got := report.Nodes["node-b"]; got.Free != 4 || got.Broken != 2 || got.Gangs[0].Runnable != 0 {
		t.Errorf("node-b: %+v", got)
	}
	if got := report.Products["H100"]; got.Free != 8 || got.Whole != 1 || got.Gangs[0].Runnable != 2 {
		t.Errorf("H100: %+v", got)
	}
	if len(report.Nodes) != 2 || len(report.Products) != 2 {
		t.Errorf("%d nodes and %d products, want 2 and 2", len(report.Nodes), len(report.Products))
	}
}

func TestMeasureDoesNotDependOnTheOrder(t *testing.T) {
	want := fragmentation.Measure(documented, []int{1, 2, 4})
	reversed := slices.Clone(documented)
	slices.Reverse(reversed)
	if diff := cmp.Diff(want, fragmentation.Measure(reversed, []int{1, 2, 4})); diff != "" {
		t.Errorf("reversed input: %s", diff)
	}
}

func TestLost(t *testing.T) {
	for name, test := range map[string]struct {
		gang fragmentation.Gang
		want float64
	}{
		"two of three":    {fragmentation.Gang{Size: 4, Runnable: 2, WithoutFragmentation: 3}, 1.0 / 3},
		"nothing to lose": {fragmentation.Gang{Size: 4}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			if got := test.gang.Lost(); math.Abs(got-test.want) > 1e-9 {
				t.Errorf("lost %v, want %v", got, test.want)
			}
		})
	}
}
