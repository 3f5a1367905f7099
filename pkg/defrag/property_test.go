// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package defrag_test

import (
	"context"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"testing"

	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// puzzle is a random small cluster, as the brute force sees it.
type puzzle struct {
	domains  map[string][]string // nodes, and the pod on each GPU, "" for none
	movable  []string
	sizes    map[string][]int
	where    map[string]string // pod → domain
	free     int
	gpuOf    map[string]int
	members  int
	perGroup int
}

func randomPuzzle(r *rand.Rand) puzzle {
	p := puzzle{domains: map[string][]string{}, sizes: map[string][]int{}, where: map[string]string{}, gpuOf: map[string]int{}}
	for n := range 2 + r.IntN(2) {
		node := fmt.Sprintf("node-%d", n)
		gpu := 0
		for d := range 1 + r.IntN(2) {
			size := 2 + r.IntN(3)
			p.sizes[node] = append(p.sizes[node], size)
			domain := fmt.Sprintf("%s.%d", node, d)
			p.domains[domain] = make([]string, size)
			for i := range size {
				if r.IntN(2) > 0 {
					name := fmt.Sprintf("pod-%d-%d", n, gpu)
					p.domains[domain][i] = name
					p.where[name], p.gpuOf[name] = domain, gpu
					if r.IntN(4) > 0 && len(p.movable) < 10 {
						p.movable = append(p.movable, name)
					}
				} else {
					p.free++
				}
				gpu++
			}
		}
	}
	p.members, p.perGroup = 1+r.IntN(2), 2+r.IntN(3)
	return p
}

// lab builds the cluster. Pods that may be moved have priority 0, the others the gang's.
func (p puzzle) lab(without map[string]bool) *lab {
	l := newLab()
	for node, sizes := range p.sizes {
		l.node(node, sizes...)
	}
	may := map[string]bool{}
	for _, name := range p.movable {
		may[name] = true
	}
	for name, domain := range p.where {
		if without[name] {
			continue
		}
		with := ownedBy("rs-" + name)
		if may[name] {
			l.single(name, domain[:len(domain)-2], p.gpuOf[name], with)
		} else {
			l.single(name, domain[:len(domain)-2], p.gpuOf[name], with, priority(100))
		}
	}
	return l
}

// fewest is how few pods have to move, by trying all sets of them; -1 when no set serves. All pods fit all nodes, so
// each has a place as long as there are as many free devices as the gang takes.
func (p puzzle) fewest() int {
	best := -1
	for set := range 1 << len(p.movable) {
		moved := bits.OnesCount(uint(set))
		if best >= 0 && moved >= best {
			continue
		}
		gone := map[string]bool{}
		for i, name := range p.movable {
			gone[name] = set&(1<<i) != 0
		}
		fit := 0
		for _, gpus := range p.domains {
			free := 0
			for _, pod := range gpus {
				if pod == "" || gone[pod] {
					free++
				}
			}
			fit += free / p.perGroup
		}
		if fit >= p.members && p.free >= p.members*p.perGroup {
			best = moved
		}
	}
	return best
}

func TestMovesAreTheFewestAndLeadToAPlaceForAll(t *testing.T) {
	movesAreTheFewest(t, math.MaxInt, func(seed uint64) scene { return randomPuzzle(rand.New(rand.NewPCG(seed, 5))) })
}

func (p puzzle) gang() placement.Gang { return gang("g", int32(p.members), int32(p.perGroup)) }

// scene is a random cluster with a gang.
type scene interface {
	gang() placement.Gang
	// fewest is how few pods have to move for the gang, by brute force; -1 when no set serves.
	fewest() int
	// lab is the cluster without some pods.
	lab(without map[string]bool) *lab
	// apply makes the moves of a decision, and fails unless the gang is planned without moves then.
	apply(t *testing.T, seed uint64, d placement.Decision, g placement.Gang)
}

// movesAreTheFewest compares what is found in 400 scenes with brute force, but in those that take no moves or more than
// the most.
func movesAreTheFewest(t *testing.T, most int, random func(seed uint64) scene) {
	t.Helper()
	found, impossible := 0, 0
	for seed := range uint64(400) {
		s := random(seed)
		want := s.fewest()
		if want == 0 || want > most {
			continue
		}
		g, l := s.gang(), s.lab(nil)
		d := l.one(t, g)
		if (d.Plan != nil) != (want > 0) {
			t.Fatalf("seed %d: %+v, but the fewest are %d", seed, d.Room, want)
		}
		if d.Plan == nil {
			impossible++
			continue
		}
		found++
		if len(d.Plan.Moves) != want {
			t.Fatalf("seed %d: %d moves (%s), the fewest are %d", seed, len(d.Plan.Moves), moves(d.Plan.Moves), want)
		}
		// Nothing of it was for real: asked again, the answer is the same.
		if again := l.one(t, g); moves(again.Plan.Moves) != moves(d.Plan.Moves) {
			t.Fatalf("seed %d: first %s, then %s", seed, moves(d.Plan.Moves), moves(again.Plan.Moves))
		}
		s.apply(t, seed, d, g)
	}
	t.Logf("%d with moves, %d without", found, impossible)
	if found < 50 || impossible < 50 {
		t.Errorf("only %d with moves and %d without: the scenes are too easy or too hard", found, impossible)
	}
}

// apply makes the moves and plans the gang anew, without moves.
func (p puzzle) apply(t *testing.T, seed uint64, d placement.Decision, g placement.Gang) {
	t.Helper()
	taken := map[placement.DeviceID]bool{}
	for _, id := range placement.PlannedDevices(d.Plan) {
		taken[id] = true
	}
	moved := map[string]bool{}
	for _, m := range d.Plan.Moves {
		moved[m.Pod] = true
	}
	after := p.lab(moved)
	for _, m := range d.Plan.Moves {
		to := placement.DeviceID{Driver: "gpu.switchyard.dev", Pool: m.To.Pool, Device: m.To.Device}
		if taken[to] {
			t.Fatalf("seed %d: %s goes to %v, which is taken", seed, m.Pod, to)
		}
		taken[to] = true
		if holder, held := after.Holders([]placement.DeviceID{to})[to]; held {
			t.Fatalf("seed %d: %s goes to %v, which %s has", seed, m.Pod, to, holder.Name)
		}
		var gpu int
		if _, err := fmt.Sscanf(m.To.Device, "gpu-%d", &gpu); err != nil {
			t.Fatal(err)
		}
		after.single(m.Pod+"-new", m.To.Node, gpu)
	}
	again := after.Plan(context.Background(), []placement.Gang{g})[0]
	if again.Plan == nil {
		t.Fatalf("seed %d: after %s: %s", seed, moves(d.Plan.Moves), again.Refusal.Message)
	}
}
