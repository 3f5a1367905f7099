// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package defrag_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/defrag"
	"github.com/switchyard-dev/switchyard/pkg/demand"
	"github.com/switchyard-dev/switchyard/pkg/fragmentation"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// asked is a mix of so many requests of one size, each of another owner, for a product.
func asked(size int, requests float64, product string) demand.Mix {
	return demand.Mix{Owners: requests, Requests: []demand.Request{{Product: product, Size: size, Requests: requests}}}
}

func (l *lab) consolidateFor(mix demand.Mix) *defrag.Consolidation {
	return l.maker.Consolidate(context.Background(), l.Cluster, 4, mix)
}

// eightOrFour has a domain of eight that two moves make whole, one of four that one move does, and room for
// these pods elsewhere.
func eightOrFour() *lab {
	l := newLab()
	l.node("eight", 8)
	l.node("four", 4)
	l.node("rest", 4)
	l.node("more", 4)
	l.single("in-eight-0", "eight", 0, optedIn)
	l.single("in-eight-1", "eight", 1, optedIn)
	l.single("in-four", "four", 0, optedIn)
	for _, node := range []string{"rest", "more"} {
		for i := range 3 {
			l.single(fmt.Sprint("stays-", node, i), node, i)
		}
	}
	return l
}

func TestConsolidationMakesRoomForWhatIsAskedFor(t *testing.T) {
	for rule, tc := range map[string]struct {
		mix  demand.Mix
		want string
	}{
		"nothing was seen: two gangs more for one move":       {demand.Mix{}, "four.0"},
		"eights are asked for: they are worth two moves":      {asked(8, 20, ""), "eight.0"},
		"fours are asked for: two moves make as many as one":  {asked(4, 20, ""), "four.0"},
		"one owner does not turn it":                          {asked(8, 1, ""), "four.0"},
		"who asks for single GPUs asks for no domain":         {asked(1, 1000, ""), "four.0"},
		"what no domain has room for does not turn it either": {asked(16, 1000, ""), "four.0"},
	} {
		t.Run(rule, func(t *testing.T) {
			l := eightOrFour()
			got := l.consolidateFor(tc.mix)
			if got.Domain != tc.want {
				t.Errorf("got %s: %s", got.Domain, got.Message)
			}
			if known := len(tc.mix.Requests) > 0; strings.Contains(got.Message, "asked for of late: "+tc.mix.String()) != known {
				t.Errorf("says %s", got.Message)
			}
		})
	}
}

func TestConsolidationTellsOfTheSizesThatAreAskedFor(t *testing.T) {
	l := newLab()
	l.node("six", 6)
	l.node("rest", 4)
	l.single("a", "six", 0, optedIn)
	for i := range 3 {
		l.single(fmt.Sprint("stays", i), "rest", i)
	}
	got := l.consolidateFor(asked(3, 20, ""))
	if want := []defrag.Gain{{2, 2, 3}, {3, 1, 2}, {4, 1, 1}, {8, 0, 0}}; !slices.Equal(got.Gain, want) {
		t.Errorf("gain %v, want %v", got.Gain, want)
	}
	if want := "Domain six.0 is whole then: runnable gangs more: 1 of 2, 1 of 3 (asked for of late: 100 % of the GPUs 3 together)"; !strings.HasSuffix(got.Message, want) {
		t.Errorf("says %q, want %q", got.Message, want)
	}
	if got.Mix.Owners != 20 {
		t.Errorf("the mix is %+v", got.Mix)
	}
}

// The product of the GPUs that are asked for matters.
func TestConsolidationMakesRoomOfTheProductThatIsAskedFor(t *testing.T) {
	product := func(name string) func(*resourceapi.ResourceSlice) {
		return func(s *resourceapi.ResourceSlice) {
			for i := range s.Spec.Devices {
				s.Spec.Devices[i].Attributes["productName"] = resourceapi.DeviceAttribute{StringValue: ptr.To(name)}
			}
		}
	}
	for _, asks := range []string{"A100", "H100"} {
		l := newLab()
		l.nodeWith("a", product("A100"), 4, 4)
		l.nodeWith("h", product("H100"), 4, 4)
		for _, node := range []string{"a", "h"} {
			l.single("moves-"+node, node, 0, optedIn)
			for i := range 3 {
				l.single(fmt.Sprint("stays-", node, i), node, 4+i)
			}
		}
		if got := l.consolidateFor(asked(4, 20, asks)); got.Domain != strings.ToLower(asks[:1])+".0" {
			t.Errorf("%s are asked for: got %s: %s", asks, got.Domain, got.Message)
		}
	}
}

// alike is what consolidation has chosen since before it knew what is asked for: every domain is tried, and gangs of 2,
// 4 and 8 count the same.
func (l *lab) alike(most int) (perEviction [2]int, found bool) {
	runnable := func(free int) (n int) {
		for _, size := range fragmentation.Sizes() {
			n += free / size
		}
		return n
	}
	free := map[string]int{}
	for _, o := range l.Occupancies() {
		free[o.Domain] = o.Free
	}
	for _, o := range l.Occupancies() {
		if n := len(o.Residents); n == 0 || n > most || slices.ContainsFunc(o.Residents, func(r placement.Resident) bool { return r.Pod.Labels[v1alpha1.MovableLabel] != "true" }) {
			continue
		}
		after := maps.Clone(free)
		if _, obstacle := l.Vacate(context.Background(), o, after, func(_ string, free int) int { return runnable(free) - runnable(free-1) }); obstacle != nil {
			continue
		}
		after[o.Domain] += o.Freed
		gain, loses := 0, false
		for _, size := range fragmentation.Sizes() {
			more := 0
			for domain := range free {
				more += after[domain]/size - free[domain]/size
			}
			gain, loses = gain+more, loses || more < 0
		}
		if !loses && gain > 0 && (!found || gain*perEviction[1] > perEviction[0]*len(o.Residents)) {
			perEviction, found = [2]int{gain, len(o.Residents)}, true
		}
	}
	return perEviction, found
}

func TestConsolidationWithoutHistoryChoosesAsEver(t *testing.T) {
	found := 0
	for seed := range uint64(300) {
		l, most := randomLab(rand.New(rand.NewPCG(seed, 12)))
		want, is := l.alike(most)
		for name, mix := range map[string]demand.Mix{"nothing was seen": {}, "single GPUs only": asked(1, 100, "")} {
			got := l.maker.Consolidate(context.Background(), l.Cluster, most, mix)
			if got.Found() != is {
				t.Fatalf("seed %d, %s: got %+v, want moves: %t", seed, name, got, is)
			}
			if !is {
				continue
			}
			found++
			gain := 0
			for _, g := range got.Gain {
				gain += g.After - g.Before
			}
			if gain*want[1] != want[0]*len(got.Moves) {
				t.Errorf("seed %d, %s: %d gangs more for %d moves, want %d for %d", seed, name, gain, len(got.Moves), want[0], want[1])
			}
		}
	}
	if found < 100 {
		t.Errorf("something was to be moved in %d cases only", found)
	}
}
