// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
)

// link is an edge of a test graph: two GPUs and their number of NVLinks.
type link struct{ a, b, n int }

// graphOf returns a graph of n GPUs that are SYS apart except for links.
func graphOf(t testing.TB, n int, ports []Port, links ...link) Graph {
	t.Helper()
	matrix := make([][]Connection, n)
	for i := range matrix {
		matrix[i] = slices.Repeat([]Connection{{Level: SYS}}, n)
		matrix[i][i] = Connection{Level: Self}
	}
	for _, l := range links {
		matrix[l.a][l.b].NVLinks = l.n
		matrix[l.b][l.a].NVLinks = l.n
	}
	g, err := NewGraph(matrix, ports)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// mesh returns links between every pair of gpus.
func mesh(n int, gpus ...int) []link {
	var links []link
	for i, a := range gpus {
		for _, b := range gpus[i+1:] {
			links = append(links, link{a, b, n})
		}
	}
	return links
}

func span(from, to int) []int {
	var gpus []int
	for i := from; i <= to; i++ {
		gpus = append(gpus, i)
	}
	return gpus
}

// hybridCubeMesh is the NVLinks of a DGX-1 V100.
var hybridCubeMesh = []link{
	{0, 1, 1},
	{0, 2, 1},
	{0, 3, 2},
	{1, 2, 2},
	{1, 3, 1},
	{2, 3, 2},
	{4, 5, 1},
	{4, 6, 1},
	{4, 7, 2},
	{5, 6, 2},
	{5, 7, 1},
	{6, 7, 2},
	{0, 4, 2},
	{1, 5, 2},
	{2, 6, 1},
	{3, 7, 1},
}

func TestDomains(t *testing.T) {
	tests := map[string]struct {
		gpus  int
		ports []Port
		links []link
		want  [][]int
	}{
		"no GPU has no domain":                           {gpus: 0},
		"a GPU without NVLink has no domain":             {gpus: 4},
		"a single GPU with NVLinks to nobody has none":   {gpus: 1, ports: []Port{{ActiveNVLinks: 4}}},
		"a single GPU on a switch is a domain of one":    {gpus: 1, ports: []Port{{ActiveNVLinks: 18, Switched: true}}, want: [][]int{{0}}},
		"an NVSwitch board is one domain":                {gpus: 8, links: mesh(18, span(0, 7)...), want: [][]int{span(0, 7)}},
		"two boards are two domains":                     {gpus: 16, links: append(mesh(12, span(0, 7)...), mesh(12, span(8, 15)...)...), want: [][]int{span(0, 7), span(8, 15)}},
		"bridged pairs are domains":                      {gpus: 4, links: []link{{0, 1, 12}, {2, 3, 12}}, want: [][]int{{0, 1}, {2, 3}}},
		"pairs need not be neighbours":                   {gpus: 4, links: []link{{0, 2, 4}, {1, 3, 4}}, want: [][]int{{0, 2}, {1, 3}}},
		"a GPU beside a pair stays without":              {gpus: 3, links: []link{{1, 2, 4}}, want: [][]int{{1, 2}}},
		"the hybrid cube mesh splits into its two quads": {gpus: 8, links: hybridCubeMesh, want: [][]int{{0, 1, 2, 3}, {4, 5, 6, 7}}},
		"the end of a chain of three has no domain":      {gpus: 3, links: []link{{0, 1, 1}, {1, 2, 1}}, want: [][]int{{0, 1}}},
		"the stronger link of a chain decides":           {gpus: 3, links: []link{{0, 1, 1}, {1, 2, 2}}, want: [][]int{{1, 2}}},
		"a chain of four pairs its ends": {
			gpus: 4, links: []link{{0, 1, 2}, {1, 2, 3}, {2, 3, 2}}, want: [][]int{{0, 1}, {2, 3}},
		},
		"bandwidth goes before fewer sets": {
			// Against {0,1},{2,3}: 2 sets, but 2 links instead of 5.
			gpus: 4, links: []link{{0, 1, 1}, {1, 2, 5}, {2, 3, 1}}, want: [][]int{{1, 2}},
		},
		"fewer sets go before order": {
			// Against {0,1},{2},{3}: also 2 links and first in order, but 3 sets.
			gpus: 4, links: []link{{0, 1, 2}, {0, 2, 1}, {1, 3, 1}}, want: [][]int{{0, 2}, {1, 3}},
		},
		"order breaks a tie of equal bandwidth and sets": {
			gpus: 4, links: []link{{0, 1, 1}, {1, 2, 1}, {2, 3, 1}, {0, 3, 1}}, want: [][]int{{0, 1}, {2, 3}},
		},
		"the larger set comes first in order": {
			// Against {0,1},{2,3}: also 3 links and 2 sets.
			gpus: 4, links: append(mesh(1, 0, 1, 2), link{2, 3, 2}), want: [][]int{{0, 1, 2}},
		},
		"a lone GPU of a component keeps its domain on a switch": {
			gpus: 3, ports: []Port{{}, {}, {ActiveNVLinks: 2, Switched: true}},
			links: []link{{0, 1, 2}, {1, 2, 1}}, want: [][]int{{0, 1}, {2}},
		},
		"switched GPUs without a link between them stay apart": {
			gpus: 2, ports: []Port{{ActiveNVLinks: 18, Switched: true}, {ActiveNVLinks: 18, Switched: true}},
			want: [][]int{{0}, {1}},
		},
		"a board that lost one pair of links keeps the rest together": {
			// Without 0-7 either of the two leaves; GPU 0 stays.
			gpus: 8, links: slices.DeleteFunc(mesh(12, span(0, 7)...), func(l link) bool { return l == link{0, 7, 12} }),
			want: [][]int{span(0, 6)},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got := Domains(graphOf(t, test.gpus, test.ports, test.links...))
			if !reflect.DeepEqual(got, test.want) {
				t.Errorf("Domains = %v, want %v", got, test.want)
			}
		})
	}
}

func TestDomainsEqualBruteForceOnAllGraphsOfUpToSixGPUs(t *testing.T) {
	for n := range 7 {
		pairs := mesh(1, span(0, n-1)...)
		for edges := range 1 << len(pairs) {
			var links []link
			for i, l := range pairs {
				if edges>>i&1 == 1 {
					links = append(links, l)
				}
			}
			requireBest(t, n, links)
		}
	}
}

func TestDomainsEqualBruteForceOnWeightedGraphs(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 400 {
		n := 4 + random.IntN(5)
		density, weights := 0.3+0.7*random.Float64(), 1+random.IntN(4)
		requireBest(t, n, randomLinks(random, n, density, weights))
	}
}

func randomLinks(random *rand.Rand, n int, density float64, weights int) []link {
	var links []link
	for _, l := range mesh(1, span(0, n-1)...) {
		if random.Float64() < density {
			l.n = 1 + random.IntN(weights)
			links = append(links, l)
		}
	}
	return links
}

// requireBest compares Domains with the best of all partitions.
func requireBest(t *testing.T, n int, links []link) {
	t.Helper()
	g := graphOf(t, n, nil, links...)
	want := bruteForce(g)
	if got := Domains(g); !reflect.DeepEqual(got, want) {
		t.Fatalf("%d GPUs, links %v:\nDomains = %v\n   want = %v", n, links, got, want)
	}
}

// bruteForce looks at every partition of the GPUs and ranks them by the rule
// in the documentation of Domains.
func bruteForce(g Graph) [][]int {
	var best [][]int
	bestLinks := -1
	var place func(gpu int, sets [][]int, links int)
	place = func(gpu int, sets [][]int, links int) {
		if gpu == g.Len() {
			better := links > bestLinks ||
				links == bestLinks && len(sets) < len(best) ||
				links == bestLinks && len(sets) == len(best) && comesFirst(sets, best)
			if better {
				bestLinks, best = links, nil
				for _, set := range sets {
					best = append(best, slices.Clone(set))
				}
			}
			return
		}
	next:
		for i, set := range sets {
			gain := 0
			for _, other := range set {
				c := g.Connection(gpu, other)
				if c.NVLinks == 0 {
					continue next
				}
				gain += c.NVLinks
			}
			grown := slices.Clone(sets)
			grown[i] = append(slices.Clone(set), gpu)
			place(gpu+1, grown, links+gain)
		}
		place(gpu+1, append(slices.Clone(sets), []int{gpu}), links)
	}
	place(0, nil, 0)
	var domains [][]int
	for _, set := range best {
		if len(set) > 1 {
			domains = append(domains, set)
		}
	}
	return domains
}

// comesFirst compares two partitions, sets ordered by smallest GPU.
func comesFirst(a, b [][]int) bool {
	for i := range a {
		for gpu := range 64 {
			inA, inB := slices.Contains(a[i], gpu), slices.Contains(b[i], gpu)
			if inA != inB {
				return inA
			}
		}
	}
	return false
}

// requireValid checks the promises of Domains that need no search.
func requireValid(t *testing.T, g Graph, domains [][]int) {
	t.Helper()
	seen := map[int]bool{}
	last := -1
	for _, domain := range domains {
		if !slices.IsSorted(domain) || domain[0] <= last {
			t.Fatalf("domains %v are not in order", domains)
		}
		last = domain[0]
		if len(domain) == 1 && !g.Switched(domain[0]) {
			t.Fatalf("domains %v: GPU %d is alone", domains, domain[0])
		}
		for i, a := range domain {
			if seen[a] {
				t.Fatalf("domains %v name GPU %d twice", domains, a)
			}
			seen[a] = true
			for _, b := range domain[:i] {
				if g.Connection(a, b).NVLinks == 0 {
					t.Fatalf("domains %v join GPUs %d and %d, which share no NVLink", domains, a, b)
				}
			}
		}
	}
}

func TestDomainsOfThirtyTwoGPUs(t *testing.T) {
	tests := map[string][]link{
		"four boards":          slices.Concat(mesh(18, span(0, 7)...), mesh(18, span(8, 15)...), mesh(18, span(16, 23)...), mesh(18, span(24, 31)...)),
		"dense and irregular":  randomLinks(rand.New(rand.NewPCG(3, 4)), 32, 0.9, 18),
		"medium and irregular": randomLinks(rand.New(rand.NewPCG(5, 6)), 32, 0.5, 18),
	}
	for name, links := range tests {
		t.Run(name, func(t *testing.T) {
			g := graphOf(t, 32, nil, links...)
			domains := Domains(g)
			requireValid(t, g, domains)
			if again := Domains(g); !reflect.DeepEqual(domains, again) {
				t.Errorf("Domains = %v, then %v", domains, again)
			}
		})
	}
}

func TestPartitionFallsBackToMergingWhenTheSearchIsCutOff(t *testing.T) {
	// A chain of four with a strong middle: the best partition pairs the ends,
	// merging takes the middle first.
	g := graphOf(t, 4, nil, link{0, 1, 2}, link{1, 2, 3}, link{2, 3, 2})
	merged := [][]int{{0}, {1, 2}, {3}}
	for name, l := range map[string]limits{"steps": {steps: 2, states: 100}, "states": {steps: 100, states: 1}} {
		if got := partition(g, span(0, 3), func(int) limits { return l }); !reflect.DeepEqual(got, merged) {
			t.Errorf("partition with few %s = %v, want %v", name, got, merged)
		}
	}
	random := rand.New(rand.NewPCG(7, 8))
	for range 50 {
		g := graphOf(t, 64, nil, randomLinks(random, 64, 0.8, 18)...)
		var domains [][]int
		for _, set := range partition(g, span(0, 63), func(int) limits { return limits{steps: 10, states: 10} }) {
			if len(set) > 1 {
				domains = append(domains, set)
			}
		}
		requireValid(t, g, domains)
	}
}

func TestSixteenGPUsStayWithinTheLimits(t *testing.T) {
	for _, density := range []float64{0.5, 0.7, 0.8, 0.9, 0.95, 1} {
		random := rand.New(rand.NewPCG(9, uint64(density*100)))
		for range 5 {
			g := graphOf(t, 16, nil, randomLinks(random, 16, density, 18)...)
			w := make([][]int64, 16)
			for i := range w {
				w[i] = make([]int64, 16)
				for j := range w {
					w[i][j] = int64(g.Connection(i, j).NVLinks)
				}
			}
			if _, exact := searchPartition(w, limitsFor(16)); !exact {
				t.Errorf("density %.2f: search gave up", density)
			}
		}
	}
}

func BenchmarkDomains(b *testing.B) {
	run := func(name string, g Graph) {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				Domains(g)
			}
		})
	}
	run("hgx-h100", graphOf(b, 8, nil, mesh(18, span(0, 7)...)...))
	run("dgx1-v100", graphOf(b, 8, nil, hybridCubeMesh...))
	for _, n := range []int{16, 32} {
		for _, density := range []float64{0.5, 0.7, 0.9, 1} {
			for _, weights := range []int{1, 18} {
				random := rand.New(rand.NewPCG(11, 12))
				g := graphOf(b, n, nil, randomLinks(random, n, density, weights)...)
				run(fmt.Sprintf("random-%d-density-%g-weights-%d", n, density, weights), g)
			}
		}
		// Every GPU linked to all but one: no twins, 2^(n/2) largest cliques.
		run(fmt.Sprintf("all-but-opposite-%d", n), graphOf(b, n, nil, slices.DeleteFunc(mesh(1, span(0, n-1)...), func(l link) bool { return l.b-l.a == n/2 })...))
	}
}
