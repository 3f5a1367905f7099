// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package demand_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/switchyard-dev/switchyard/pkg/demand"
)

// asked is a mix of so many requests by size, each of another owner.
func asked(requests map[int]float64) demand.Mix {
	m := demand.Mix{}
	for size := 1; size <= 64; size++ {
		if n := requests[size]; n > 0 {
			m.Requests = append(m.Requests, demand.Request{Size: size, Requests: n})
			if size > 1 {
				m.Owners += n
			}
		}
	}
	return m
}

// broken are domains of 8 with so many free.
func broken(free ...int) []demand.Place {
	var places []demand.Place
	for _, f := range free {
		places = append(places, demand.Place{Product: "H100", Free: f, Total: 8})
	}
	return places
}

// weights are those of the sizes for a product.
func weights(w demand.Weights, product string) map[int]int {
	got := map[int]int{}
	for _, size := range w.Sizes {
		// A domain with the size free, less what the smaller sizes are worth in it.
		got[size] = w.Rooms(product, size)
		for _, smaller := range w.Sizes {
			if smaller < size {
				got[size] -= got[smaller] * (size / smaller)
			}
		}
	}
	return got
}

func TestWithoutHistoryGangsOf2And4And8AreWorthTheSame(t *testing.T) {
	for name, mix := range map[string]demand.Mix{"nothing was seen": {}, "single GPUs only": asked(map[int]float64{1: 1000})} {
		t.Run(name, func(t *testing.T) {
			w := mix.Weights(broken(3, 6, 8))
			got := weights(w, "H100")
			if len(got) != 3 || got[2] != 1000 || got[4] != 1000 || got[8] != 1000 || mix.History() != 0 {
				t.Errorf("weights %v", got)
			}
			if got := w.Rooms("T4", 8); got != 0 {
				t.Errorf("a product that there is not is worth %d", got)
			}
		})
	}
}

func TestWeightsFollowWhatIsAskedFor(t *testing.T) {
	places := broken(3, 6, 8, 7, 2)
	twos, eights := weights(asked(map[int]float64{2: 50}).Weights(places), "H100"), weights(asked(map[int]float64{8: 50}).Weights(places), "H100")
	if twos[2] <= 10*twos[8] || eights[8] <= 10*eights[2] {
		t.Errorf("asked for twos: %v, for eights: %v", twos, eights)
	}
	// As rooms for eight get scarce they are worth more.
	both := asked(map[int]float64{2: 50, 8: 50})
	scarce, plenty := weights(both.Weights(broken(8, 2, 2, 2)), "H100"), weights(both.Weights(broken(8, 8, 8, 8, 8, 8, 8, 2)), "H100")
	if scarce[8]*plenty[2] <= plenty[8]*scarce[2] {
		t.Errorf("weights %v where rooms are scarce, %v where they are not", scarce, plenty)
	}
}

func TestSizesThatAreNotCommonAreCounted(t *testing.T) {
	requests := map[int]float64{1: 10, 3: 20, 6: 5}
	w := asked(requests).Weights(broken(3, 6))
	if !slices.Equal(w.Sizes, []int{2, 3, 4, 6, 8}) {
		t.Errorf("sizes %v", w.Sizes)
	}
	if got := weights(w, "H100"); got[3] < got[4] {
		t.Errorf("weights %v", got)
	}
	requests[7] = 0.01
	if w := asked(requests).Weights(broken(3)); slices.Contains(w.Sizes, 7) {
		t.Errorf("one that hardly anybody asks for is counted: %v", w.Sizes)
	}
	for size := 1; size <= 40; size++ {
		requests[size] = 40.0 / float64(size)
	}
	large := []demand.Place{{Product: "H100", Free: 3, Total: 40}}
	if w := asked(requests).Weights(large); len(w.Sizes) != demand.MaxGroups {
		t.Errorf("%d sizes, want at most %d", len(w.Sizes), demand.MaxGroups)
	}
}

func TestSizesThatNoDomainHasRoomForAreWorthNothingMore(t *testing.T) {
	got := weights(asked(map[int]float64{2: 5, 16: 100}).Weights(broken(3, 6)), "H100")
	if got[16] > 1 || got[2] < got[8] {
		t.Errorf("weights %v", got)
	}
}

// What nobody can have would else be most of the demand.
func TestRequestsThatNoDomainCouldHoldDoNotOutweighOthers(t *testing.T) {
	want := weights(asked(map[int]float64{2: 5, 3: 20, 8: 20}).Weights(broken(3, 6)), "H100")
	mix := asked(map[int]float64{2: 5, 3: 20, 8: 20})
	mix.Requests = append(mix.Requests, demand.Request{Size: 256 * 32, Requests: 1})
	if got := weights(mix.Weights(broken(3, 6)), "H100"); !maps.Equal(got, want) {
		t.Errorf("weights %v, without a gang of 8192 GPUs in one domain %v", got, want)
	}
}

func TestWeightsAreByProduct(t *testing.T) {
	mix := demand.Mix{Owners: 100, Requests: []demand.Request{{Product: "H100", Size: 8, Requests: 100}}}
	places := append(broken(7, 3), demand.Place{Product: "A100", Free: 7, Total: 8})
	w := mix.Weights(places)
	if h, a := w.Rooms("H100", 8), w.Rooms("A100", 8); h < 10*a {
		t.Errorf("eight are worth %d of the product that is asked for, %d of another", h, a)
	}
	// What has got none yet may mean either.
	mix.Requests[0].Product = ""
	w = mix.Weights(append(broken(7), demand.Place{Product: "A100", Free: 7, Total: 8}))
	if h, a := w.Rooms("H100", 8), w.Rooms("A100", 8); h != a {
		t.Errorf("eight are worth %d and %d", h, a)
	}
}

// One owner that asks for the most it may has a fifth of the weights.
func TestABurstOfOneOwnerIsBounded(t *testing.T) {
	u := newUser()
	for i := range 5000 {
		name := fmt.Sprint("burst-", i)
		u.SetPod(pod(name, "burst"))
		u.SetClaim(u.claim(name, name, request(2)))
	}
	places := broken(3, 6, 8, 7, 2)
	burst := u.Mix(nodes)
	if burst.History() > 0.2 {
		t.Errorf("its weight is %v", burst.History())
	}
	if got := weights(burst.Weights(places), "H100"); got[8] < 800 {
		t.Errorf("weights %v: those of what it did not ask for are less than four fifths", got)
	}
	// Among others' requests it is as 32.
	for i := range 32 {
		u.runs(fmt.Sprint(i), fmt.Sprint("job-", i), 8)
	}
	if got := u.Mix(nodes).Shares(); len(got) != 2 || got[0].Part != 0.2 {
		t.Errorf("shares %+v, want a fifth for as many requests for a fourth", got)
	}
}

// Whatever was asked for, weights are positive and rooms are worth more the more there are: else a bound on what can be
// gained would be none.
func TestWeightsAreNeverNegative(t *testing.T) {
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 5))
		requests := map[int]float64{}
		for range r.IntN(20) {
			requests[1+r.IntN(20)] = r.ExpFloat64() * 10
		}
		var places []demand.Place
		for range r.IntN(20) {
			total := 1 + r.IntN(16)
			places = append(places, demand.Place{Product: []string{"A", "B", ""}[r.IntN(3)], Total: total, Free: r.IntN(total + 1)})
		}
		mix := asked(requests)
		if history := mix.History(); history < 0 || history >= 1 {
			t.Fatalf("seed %d: history %v", seed, history)
		}
		w := mix.Weights(places)
		for _, p := range places {
			for free := range 20 {
				if more, less := w.Rooms(p.Product, free+1), w.Rooms(p.Product, free); more < less || less < 0 {
					t.Fatalf("seed %d: %d free are worth %d, one more %d", seed, free, less, more)
				}
			}
			if w.Rooms(p.Product, 8) == 0 {
				t.Fatalf("seed %d: room for the common sizes is worth nothing", seed)
			}
		}
	}
}

func TestTheMixAsText(t *testing.T) {
	for want, requests := range map[string]map[int]float64{
		"nothing that is known":                    nil,
		"100 % of the GPUs singly":                 {1: 3},
		"80 % of the GPUs 8 together, 20 % singly": {1: 8, 8: 4},
		"50 % of the GPUs 4 together, 50 % singly": {1: 8, 4: 2},
		"60 % of the GPUs 8 together, 20 % 5 together, 10 % 4 together, 5 % 2 together, 5 % otherwise": {8: 6, 5: 3.2, 4: 2, 2: 2, 1: 4},
	} {
		if got := asked(requests).String(); got != want {
			t.Errorf("says %q, want %q", got, want)
		}
	}
	if got := asked(map[int]float64{2: 1, 3: 1, 4: 1, 5: 1, 6: 1}).String(); !strings.HasSuffix(got, "10 % otherwise") {
		t.Errorf("says %q", got)
	}
}
