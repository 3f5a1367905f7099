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

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/defrag"
	"github.com/switchyard-dev/switchyard/pkg/demand"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// partitions is how many equal ones each GPU of a partitioned node may have.
const partitions = 4

// partitioned adds a node whose GPUs may be had whole, gpu-0, or in four parts, mig-0-0 to mig-0-3.
func (l *lab) partitioned(name string, domains ...int) {
	consumes := func(gpu int, n int64) []resourceapi.DeviceCounterConsumption {
		return []resourceapi.DeviceCounterConsumption{{CounterSet: fmt.Sprintf("gpu-%d", gpu), Counters: slicesOf(n)}}
	}
	counters := &resourceapi.ResourceSlice{}
	l.nodeWith(name, func(s *resourceapi.ResourceSlice) {
		s.Spec.Pool.ResourceSliceCount = 2
		counters.ObjectMeta, counters.Spec = s.ObjectMeta, s.Spec
		counters.Name, counters.Spec.Devices = name+"-1", nil
		for g := range s.Spec.Devices {
			counters.Spec.SharedCounters = append(counters.Spec.SharedCounters, resourceapi.CounterSet{Name: fmt.Sprintf("gpu-%d", g), Counters: slicesOf(partitions)})
			s.Spec.Devices[g].ConsumesCounters = consumes(g, partitions)
			for p := range partitions {
				attributes := maps.Clone(s.Spec.Devices[g].Attributes)
				attributes["type"] = resourceapi.DeviceAttribute{StringValue: ptr.To("mig")}
				attributes["id"] = resourceapi.DeviceAttribute{StringValue: ptr.To(fmt.Sprintf("%s-%d-%d", name, g, p))}
				s.Spec.Devices = append(s.Spec.Devices, resourceapi.Device{Name: partition(g, p), Attributes: attributes, ConsumesCounters: consumes(g, 1)})
			}
		}
	}, domains...)
	l.SetSlice(counters)
	l.SetClass(&resourceapi.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: "mig"},
		Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: `device.attributes["gpu.switchyard.dev"].type == "mig"`,
		}}}},
	})
}

func slicesOf(n int64) map[string]resourceapi.Counter {
	return map[string]resourceapi.Counter{"slices": {Value: *resource.NewQuantity(n, resource.DecimalSI)}}
}

func partition(gpu, part int) string { return fmt.Sprintf("mig-%d-%d", gpu, part) }

// on runs a pod on a partition in place of a GPU.
func on(gpu, part int) func(*corev1.Pod, *resourceapi.ResourceClaim) {
	return func(_ *corev1.Pod, c *resourceapi.ResourceClaim) {
		c.Spec.Devices.Requests[0].Exactly.DeviceClassName = "mig"
		c.Status.Allocation.Devices.Results[0].Device = partition(gpu, part)
	}
}

func TestPodsOnPartitionsMoveForAGangThatGetsTheGPU(t *testing.T) {
	l := newLab()
	l.partitioned("node-a", 2)
	for _, p := range [][2]int{{0, 0}, {0, 3}, {1, 0}, {1, 1}} {
		l.single(fmt.Sprintf("infer-%d-%d", p[0], p[1]), "node-a", 0, on(p[0], p[1]))
	}
	d := l.one(t, gang("g", 1, 1))
	if d.Plan == nil {
		t.Fatalf("%+v", d.Room)
	}
	const want = "infer-0-0 node-a.0/mig-0-0 > node-a.0/mig-1-2, infer-0-3 node-a.0/mig-0-3 > node-a.0/mig-1-3"
	if got := moves(d.Plan.Moves); got != want {
		t.Errorf("moves %s, want %s", got, want)
	}
	if got := d.Plan.Placements[0].Devices[0]; got.Name != "gpu-0" || len(got.Siblings) != partitions {
		t.Errorf("the gang gets %+v", got)
	}
	if !strings.Contains(d.Room.Message, "web/infer-0-0 (node-a.0/mig-0-0 → node-a.0/mig-1-2, priority 0)") || d.Room.Cost == "" {
		t.Errorf("the report says %q", d.Room.Message)
	}
	// They are looked at once more before they are evicted.
	g := gang("g", 1, 1)
	g.Claim.Status.Plan = d.Plan
	l.SetGang(g.Claim)
	if why := l.maker.Recheck(l.Cluster, g); why != "" {
		t.Errorf("the moves must not be made: %s", why)
	}
	l.single("late", "node-a", 0, on(1, 2))
	if why := l.maker.Recheck(l.Cluster, g); !strings.Contains(why, "has no place elsewhere any more") {
		t.Errorf("a partition fewer: %q", why)
	}
}

func TestWhichPodsOnPartitionsStay(t *testing.T) {
	for name, c := range map[string]struct {
		gang placement.Gang
		with func(*corev1.Pod, *resourceapi.ResourceClaim)
		want string
	}{
		"for a gang that gets a part": {gang("g", 3, 1, func(g *placement.Gang) { g.Claim.Spec.DeviceClassName = "mig" }), ownedBy("rs-infer"), defrag.SharedCounters},
		"with two of them": {gang("g", 1, 1), func(_ *corev1.Pod, c *resourceapi.ResourceClaim) {
			r := c.Status.Allocation.Devices.Results
			second := r[0]
			second.Device = partition(0, 1)
			c.Status.Allocation.Devices.Results = append(r, second)
		}, defrag.SeveralDevices},
		"of the gang's priority": {gang("g", 1, 1), priority(100), defrag.PriorityNotLower},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab()
			l.partitioned("node-a", 1)
			l.node("node-b", 1)
			l.single("b", "node-b", 0, priority(100))
			l.single("whole", "node-a", 0, func(p *corev1.Pod, claim *resourceapi.ResourceClaim) {
				on(0, 0)(p, claim)
				c.with(p, claim)
			})
			for i := 2; i < partitions-1; i++ {
				l.single(fmt.Sprint("more-", i), "node-a", 0, func(p *corev1.Pod, claim *resourceapi.ResourceClaim) {
					on(0, i)(p, claim)
					priority(100)(p, claim)
				})
			}
			d := l.one(t, c.gang)
			if d.Plan != nil || !slices.ContainsFunc(d.Room.RuledOut, func(r v1alpha1.GangRuledOut) bool { return r.Reason == c.want }) {
				t.Errorf("%s: %+v", describePlan(d.Plan), d.Room)
			}
		})
	}
}

func describePlan(p *v1alpha1.GangPlan) string {
	if p == nil {
		return "no plan"
	}
	return fmt.Sprintf("%+v", p.Placements)
}

func TestWhileNoGangWaitsPodsOnPartitionsStay(t *testing.T) {
	l := newLab()
	l.partitioned("node-a", 4)
	l.single("m", "node-a", 0, func(p *corev1.Pod, c *resourceapi.ResourceClaim) {
		on(0, 0)(p, c)
		movable(p, c)
	})
	l.node("node-b", 4)
	l.single("b", "node-b", 0, priority(100))
	r := l.maker.Consolidate(context.Background(), l.Cluster, 4, demand.Mix{})
	if r.Found() || !slices.ContainsFunc(r.RuledOut, func(r v1alpha1.GangRuledOut) bool { return r.Reason == defrag.SharedCounters }) {
		t.Errorf("%+v", r)
	}
}

// fragments is a random small cluster of GPUs in four parts, as the brute force sees it.
type fragments struct {
	nodes   [][]int           // GPUs by domain, of each node
	pods    map[[3]int]string // on node, GPU, part
	movable map[string]bool
	whole   map[string]bool // pods that have a whole GPU, on part 0

	members, perMember int
}

func randomFragments(r *rand.Rand) fragments {
	f := fragments{pods: map[[3]int]string{}, movable: map[string]bool{}, whole: map[string]bool{}}
	density := r.IntN(5)
	for n := range 1 + r.IntN(3) {
		domains := []int{1 + r.IntN(3)}
		if r.IntN(3) == 0 {
			domains = append(domains, 1+r.IntN(2))
		}
		f.nodes = append(f.nodes, domains)
		for g := range sum(domains) {
			if r.IntN(6) == 0 {
				name := fmt.Sprintf("whole-%d-%d", n, g)
				f.pods[[3]int{n, g, 0}], f.whole[name], f.movable[name] = name, true, false
				continue
			}
			for p := range partitions {
				if r.IntN(6) < density {
					name := fmt.Sprintf("pod-%d-%d-%d", n, g, p)
					f.pods[[3]int{n, g, p}], f.movable[name] = name, r.IntN(6) > 0
				}
			}
		}
	}
	f.members, f.perMember = 1+r.IntN(2), 1+r.IntN(2)
	return f
}

func sum(list []int) (n int) {
	for _, v := range list {
		n += v
	}
	return n
}

func nodeName(n int) string { return fmt.Sprintf("node-%d", n) }

// lab builds the cluster without some of the pods.
func (f fragments) lab(without map[string]bool) *lab {
	l := newLab()
	for n, domains := range f.nodes {
		l.partitioned(nodeName(n), domains...)
	}
	for at, name := range f.pods {
		if without[name] {
			continue
		}
		l.single(name, nodeName(at[0]), at[1], func(p *corev1.Pod, c *resourceapi.ResourceClaim) {
			if !f.whole[name] {
				on(at[1], at[2])(p, c)
			}
			if !f.movable[name] {
				priority(100)(p, c)
			}
			ownedBy("rs-"+name)(p, c)
		})
	}
	return l
}

// fewest is how few pods have to move, by trying all sets of GPUs; -1 when no set serves. All parts are alike: those
// outside the set must have room for who leaves it.
func (f fragments) fewest() int {
	type gpu struct{ domain, moved, free int }
	var gpus []gpu
	domain := 0
	for n, domains := range f.nodes {
		g := 0
		for _, size := range domains {
			domain++
			for range size {
				at := gpu{domain: domain, free: partitions}
				for p := range partitions {
					name, taken := f.pods[[3]int{n, g, p}]
					switch {
					case !taken:
					case f.whole[name]:
						at.moved, at.free = -1, 0
					case !f.movable[name]:
						at.moved = -1
						at.free--
					default:
						at.free--
						if at.moved >= 0 {
							at.moved++
						}
					}
				}
				gpus = append(gpus, at)
				g++
			}
		}
	}
	best := -1
	for set := range 1 << len(gpus) {
		taken, moved, free, ok := map[int]int{}, 0, 0, true
		for i, g := range gpus {
			if set&(1<<i) == 0 {
				free += g.free
				continue
			}
			taken[g.domain]++
			moved += g.moved
			ok = ok && g.moved >= 0
		}
		members := 0
		for _, n := range taken {
			ok = ok && n%f.perMember == 0
			members += n / f.perMember
		}
		if ok && members == f.members && moved <= free && (best < 0 || moved < best) {
			best = moved
		}
	}
	return best
}

func TestMovesOfPodsOnPartitionsAreTheFewestAndLeadToAPlaceForAll(t *testing.T) {
	movesAreTheFewest(t, 16, func(seed uint64) scene { return randomFragments(rand.New(rand.NewPCG(seed, 4815))) })
}

func (f fragments) gang() placement.Gang { return gang("g", int32(f.members), int32(f.perMember)) }

// apply makes the moves, in any order, and plans the gang anew, without moves.
func (f fragments) apply(t *testing.T, seed uint64, d placement.Decision, g placement.Gang) {
	t.Helper()
	reserved := map[placement.DeviceID]bool{}
	for _, id := range placement.ReservedDevices(d.Plan) {
		reserved[id] = true
	}
	moved := map[string]bool{}
	for _, m := range d.Plan.Moves {
		moved[m.Pod] = true
	}
	after := f.lab(moved)
	for _, m := range d.Plan.Moves {
		to := placement.DeviceID{Driver: v1alpha1.DriverName, Pool: m.To.Pool, Device: m.To.Device}
		if reserved[to] {
			t.Fatalf("seed %d: %s goes to %v, which the gang reserves", seed, m.Pod, to)
		}
		var gpu, part int
		if _, err := fmt.Sscanf(m.To.Device, "mig-%d-%d", &gpu, &part); err != nil {
			t.Fatal(err)
		}
		holders := after.Holders([]placement.DeviceID{to, {Driver: to.Driver, Pool: to.Pool, Device: fmt.Sprintf("gpu-%d", gpu)}})
		if len(holders) > 0 {
			t.Fatalf("seed %d: %s goes to %v, which %v have", seed, m.Pod, to, holders)
		}
		after.single(m.Pod+"-new", m.To.Node, 0, on(gpu, part))
	}
	if again := after.Plan(context.Background(), []placement.Gang{g})[0]; again.Plan == nil {
		t.Fatalf("seed %d: after %s: %s", seed, moves(d.Plan.Moves), again.Refusal.Message)
	}
}
