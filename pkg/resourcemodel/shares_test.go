// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package resourcemodel_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/switchyard-dev/switchyard/pkg/device"
	"github.com/switchyard-dev/switchyard/pkg/resourcemodel"
)

const gibibyte = 1 << 30

// shared puts a GPU into the form for several claims.
func shared(g device.GPU, maxClaims int, step uint64) device.GPU {
	g.Shares = &device.Shares{Strategy: "MPS", MaxClaims: maxClaims, MemoryStep: step}
	return g
}

// timeSliced is shared by time-slicing, among four.
func timeSliced(g device.GPU) device.GPU {
	g = shared(g, 4, gibibyte)
	g.Shares.Strategy = "TimeSlicing"
	return g
}

// share allocates a claim of one share, with what it asks for, and returns the result; nil if there is no room.
func (s *scheduler) share(requests map[resourceapi.QualifiedName]resource.Quantity) *resourceapi.DeviceRequestAllocationResult {
	s.t.Helper()
	exactly := &resourceapi.ExactDeviceRequest{DeviceClassName: "any", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1}
	if requests != nil {
		exactly.Capacity = &resourceapi.CapacityRequirements{Requests: requests}
	}
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "claim", Namespace: "default"}, Spec: resourceapi.ResourceClaimSpec{
		Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "gpu", Exactly: exactly}}},
	}}
	features := structured.Features{DeviceTaints: true, PartitionableDevices: true, ConsumableCapacity: true}
	allocator, err := structured.NewAllocator(context.Background(), features, s.state, s, s.slices, s.cache)
	if err != nil {
		s.t.Fatal(err)
	}
	results, err := allocator.Allocate(context.Background(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}, []*resourceapi.ResourceClaim{claim})
	if err != nil {
		s.t.Fatal(err)
	}
	if len(results) == 0 {
		return nil
	}
	result := results[0].Devices.Results[0]
	id := structured.MakeDeviceID(result.Driver, result.Pool, result.Device)
	if result.ShareID == nil {
		s.state.AllocatedDevices.Insert(id)
		return &result
	}
	s.state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, result.ShareID))
	s.state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, result.ConsumedCapacity))
	return &result
}

// release gives a share back.
func (s *scheduler) release(result *resourceapi.DeviceRequestAllocationResult) {
	id := structured.MakeDeviceID(result.Driver, result.Pool, result.Device)
	s.state.AllocatedSharedDeviceIDs.Delete(structured.MakeSharedDeviceID(id, result.ShareID))
	s.state.AggregatedCapacity.Remove(structured.NewDeviceConsumedCapacity(id, result.ConsumedCapacity))
}

func memory(text string) map[resourceapi.QualifiedName]resource.Quantity {
	return map[resourceapi.QualifiedName]resource.Quantity{resourcemodel.CapacityMemory: resource.MustParse(text)}
}

func TestSchedulerAllocatesShares(t *testing.T) {
	consumed := func(r *resourceapi.DeviceRequestAllocationResult) string {
		if r == nil {
			return "none"
		}
		text := func(name resourceapi.QualifiedName) string { q := r.ConsumedCapacity[name]; return q.String() }
		return fmt.Sprintf("%s %s %s", text(resourcemodel.CapacityMemory), text(resourcemodel.CapacityMultiprocessors), text(resourcemodel.CapacityShares))
	}
	quantities := func(pairs ...string) map[resourceapi.QualifiedName]resource.Quantity {
		requests := map[resourceapi.QualifiedName]resource.Quantity{}
		for i := 0; i < len(pairs); i += 2 {
			requests[resourceapi.QualifiedName(pairs[i])] = resource.MustParse(pairs[i+1])
		}
		return requests
	}
	type requests = []map[resourceapi.QualifiedName]resource.Quantity
	for name, test := range map[string]struct {
		gpu      device.GPU
		requests requests
		want     []string
	}{
		"without a request each gets an equal part, and no more claims than there may be": {
			shared(gpu(0, ""), 4, gibibyte), make(requests, 5),
			[]string{"19Gi 33 1", "19Gi 33 1", "19Gi 33 1", "19Gi 33 1", "none"},
		},
		"memory is rounded up to whole steps": {
			shared(gpu(0, ""), 4, gibibyte), requests{memory("10G"), memory("1"), memory("3Gi")}, []string{"10Gi 33 1", "1Gi 33 1", "3Gi 33 1"},
		},
		"small shares leave no room for a claim too many": {
			shared(gpu(0, ""), 2, gibibyte), requests{memory("1Gi"), memory("1Gi"), memory("1Gi")}, []string{"1Gi 66 1", "1Gi 66 1", "none"},
		},
		"memory is not promised twice": {
			shared(gpu(0, ""), 4, gibibyte), requests{memory("60Gi"), memory("20Gi"), memory("19Gi")}, []string{"60Gi 33 1", "none", "19Gi 33 1"},
		},
		"nor are multiprocessors": {
			shared(gpu(0, ""), 4, gibibyte), requests{quantities("multiprocessors", "100"), nil, quantities("multiprocessors", "32")}, []string{"19Gi 100 1", "none", "19Gi 32 1"},
		},
		"a share may be all but the rest of a step": {
			shared(gpu(0, ""), 4, gibibyte), requests{memory("80Gi"), memory("79Gi"), memory("1Gi")}, []string{"none", "79Gi 33 1", "none"},
		},
		"nobody takes the places of others": {
			shared(gpu(0, ""), 4, gibibyte), requests{quantities("shares", "2"), quantities("shares", "1")}, []string{"none", "19Gi 33 1"},
		},
		"nobody gets less than one percent of the multiprocessors by MPS": {
			shared(gpu(0, ""), 4, gibibyte), requests{quantities("multiprocessors", "1")}, []string{"19Gi 2 1"},
		},
		"one multiprocessor is one by time-slicing": {
			timeSliced(gpu(0, "")), requests{quantities("multiprocessors", "1")}, []string{"19Gi 1 1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScheduler(t, inventory(test.gpu))
			for i, request := range test.requests {
				if got := consumed(s.share(request)); got != test.want[i] {
					t.Errorf("claim %d: %s, want %s", i, got, test.want[i])
				}
			}
		})
	}
}

// The allocator keeps the two forms apart: this is why none changes while a device is allocated.
func TestTheSchedulerSeesNoSharesOfAGPUThatIsPublishedWhole(t *testing.T) {
	whole, asShare := gpu(0, ""), shared(gpu(0, ""), 4, gibibyte)
	all := map[resourceapi.QualifiedName]resource.Quantity{resourcemodel.CapacityMemory: resource.MustParse("1Gi"), resourcemodel.CapacityMultiprocessors: resource.MustParse("1")}

	before := newScheduler(t, inventory(asShare))
	if before.share(all) == nil {
		t.Fatal("no share of a free GPU")
	}
	after := newScheduler(t, inventory(whole))
	after.state = before.state
	if after.share(all) == nil {
		t.Error("the allocator has learned to see shares of a GPU that is published whole: the form may change earlier")
	}

	before = newScheduler(t, inventory(whole))
	if before.share(nil) == nil {
		t.Fatal("a free GPU is not allocated")
	}
	after = newScheduler(t, inventory(asShare))
	after.state = before.state
	if got := after.share(nil); got != nil {
		t.Errorf("a share of a GPU that a claim has alone: %v", got)
	}
}

func TestAGPUThatWaitsForItsFormIsGivenToNobody(t *testing.T) {
	for _, g := range []device.GPU{gpu(0, ""), shared(gpu(0, ""), 4, gibibyte)} {
		g.Reconfiguring = true
		if got := newScheduler(t, inventory(g)).share(nil); got != nil {
			t.Errorf("allocated %v", got)
		}
	}
}

// TestRandomSharesStayWithinTheGPU allocates and releases random claims through kube-scheduler's allocator: what
// they consume together never exceeds the GPU, and every share is one that the node can hold its claim to.
func TestRandomSharesStayWithinTheGPU(t *testing.T) {
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 1))
		g := gpu(0, "")
		g.MemoryBytes = uint64(16+random.IntN(150))<<30 - uint64(random.IntN(1024))<<20
		g.Multiprocessors = 40 + random.IntN(110)
		step := uint64(1+random.IntN(2048)) << 20
		g = shared(g, 2+random.IntN(7), step)
		if err := g.Shares.Check(g); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		s := newScheduler(t, inventory(g))
		held := map[types.UID]*resourceapi.DeviceRequestAllocationResult{}
		for range 60 {
			if len(held) > 0 && random.IntN(3) == 0 {
				id := slices.Sorted(maps.Keys(held))[random.IntN(len(held))]
				s.release(held[id])
				delete(held, id)
				continue
			}
			requests := map[resourceapi.QualifiedName]resource.Quantity{}
			if random.IntN(3) > 0 {
				requests[resourcemodel.CapacityMemory] = *resource.NewQuantity(random.Int64N(int64(g.MemoryBytes)/2), resource.BinarySI)
			}
			if random.IntN(3) > 0 {
				requests[resourcemodel.CapacityMultiprocessors] = *resource.NewQuantity(random.Int64N(int64(g.Multiprocessors)), resource.DecimalSI)
			}
			if got := s.share(requests); got != nil {
				held[*got.ShareID] = got
			}
			checkShares(t, seed, g, held)
		}
	}
}

func checkShares(t *testing.T, seed uint64, g device.GPU, held map[types.UID]*resourceapi.DeviceRequestAllocationResult) {
	t.Helper()
	var memory, multiprocessors int64
	for _, result := range held {
		m, sm := result.ConsumedCapacity[resourcemodel.CapacityMemory], result.ConsumedCapacity[resourcemodel.CapacityMultiprocessors]
		if m.Value() < int64(g.Shares.MemoryStep) || m.Value()%int64(g.Shares.MemoryStep) != 0 || g.ActiveThreadPercentage(sm.Value()) < 1 {
			t.Errorf("seed %d: a share of %s and %s multiprocessors, with a step of %d bytes", seed, m.String(), sm.String(), g.Shares.MemoryStep)
		}
		memory, multiprocessors = memory+m.Value(), multiprocessors+sm.Value()
	}
	if len(held) > g.Shares.MaxClaims || memory > int64(g.MemoryBytes) || multiprocessors > int64(g.Multiprocessors) {
		t.Fatalf("seed %d: %d claims have %d bytes and %d multiprocessors of a GPU for %d with %d and %d", seed, len(held), memory, multiprocessors, g.Shares.MaxClaims, g.MemoryBytes, g.Multiprocessors)
	}
}

// What the API server checks of a request policy (KEP-5075): one that it refuses would take the node's slice along.
func TestRequestPoliciesAreValid(t *testing.T) {
	for maxClaims := 2; maxClaims <= 48; maxClaims++ {
		for _, step := range []uint64{1 << 20, 512 << 20, gibibyte, 3 * gibibyte / 2} {
			g := shared(gpu(0, ""), maxClaims, step)
			if g.Shares.Check(g) != nil {
				continue
			}
			for name, c := range pool(t, "node-a", inventory(g)).Slices[0].Devices[0].Capacity {
				p := c.RequestPolicy
				if p == nil || p.Default == nil || p.Default.Cmp(c.Value) > 0 || p.Default.Sign() <= 0 {
					t.Fatalf("%d claims, step %d: capacity %s has policy %v", maxClaims, step, name, p)
				}
				if name == resourcemodel.CapacityShares {
					continue
				}
				low, high, by := p.ValidRange.Min.Value(), p.ValidRange.Max.Value(), p.ValidRange.Step.Value()
				if low < 0 || low > high || high > c.Value.Value() || p.Default.Value() < low || p.Default.Value() > high ||
					low+by > c.Value.Value() || (high-low)%by != 0 || (p.Default.Value()-low)%by != 0 {
					t.Errorf("%d claims, step %d: capacity %s of %s has policy %v", maxClaims, step, name, c.Value.String(), p)
				}
			}
		}
	}
}

func TestSharesAreNoWholeGPUs(t *testing.T) {
	g := shared(gpu(0, "node-a.0"), 4, gibibyte)
	d := pool(t, "node-a", inventory(g)).Slices[0].Devices[0]
	if d.Name != gpu(0, "").Name() {
		t.Errorf("the GPU has name %s, want that which it has as a whole", d.Name)
	}
	if got := *d.Attributes[resourcemodel.AttributeType].StringValue; got != resourcemodel.TypeShare {
		t.Errorf("type %s", got)
	}
	if got := *d.Attributes[resourcemodel.AttributeSharing].StringValue; got != "MPS" {
		t.Errorf("sharing %s", got)
	}
	if d.AllowMultipleAllocations == nil || !*d.AllowMultipleAllocations {
		t.Error("the GPU may not be allocated several times")
	}
	g.MIGEnabled = true
	if _, ok := resourcemodel.PartitionAttributes(device.Partition{GPU: g}, inventory(g))[resourcemodel.AttributeSharing]; ok {
		t.Error("a partition is shared")
	}
}

func TestWhatCannotBeShared(t *testing.T) {
	shares := device.Shares{Strategy: "MPS", MaxClaims: 4, MemoryStep: gibibyte}
	for name, test := range map[string]struct {
		change func(*device.GPU)
		refuse bool
	}{
		"a GPU as it is":                   {func(*device.GPU) {}, false},
		"one in MIG mode":                  {func(g *device.GPU) { g.MIGEnabled = true }, true},
		"one that was":                     {func(g *device.GPU) { g.MIG = &device.MIG{Withdrawn: true} }, true},
		"one whose memory is not known":    {func(g *device.GPU) { g.MemoryBytes = 0 }, true},
		"one of unknown multiprocessors":   {func(g *device.GPU) { g.Multiprocessors = 0 }, true},
		"one with less than a step each":   {func(g *device.GPU) { g.MemoryBytes = 4*gibibyte - 1 }, true},
		"one with a step each":             {func(g *device.GPU) { g.MemoryBytes = 4 * gibibyte }, false},
		"one with too few multiprocessors": {func(g *device.GPU) { g.Multiprocessors = 3 }, true},
		"one before Volta, by MPS":         {func(g *device.GPU) { g.ComputeCapability = "6.1" }, true},
	} {
		t.Run(name, func(t *testing.T) {
			g := gpu(0, "")
			test.change(&g)
			if err := shares.Check(g); (err != nil) != test.refuse {
				t.Errorf("Check = %v, want an error: %t", err, test.refuse)
			}
		})
	}
}
