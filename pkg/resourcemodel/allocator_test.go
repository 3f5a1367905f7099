// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package resourcemodel_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/switchyard-dev/switchyard/pkg/device"
	"github.com/switchyard-dev/switchyard/pkg/mig"
	"github.com/switchyard-dev/switchyard/pkg/resourcemodel"
)

// h100 puts a GPU in MIG mode, with the profiles of an H100 as NVML reports them.
func h100(g device.GPU) device.GPU {
	profile := func(id int, name string, computeSlices, gib, most int, engines mig.Engines, size int, starts ...int) mig.Profile {
		p := mig.Profile{ID: id, Name: name, Slices: computeSlices, MemoryBytes: uint64(gib) << 30, Multiprocessors: 16 * computeSlices, MaxInstances: most, Engines: engines}
		for _, start := range starts {
			p.Placements = append(p.Placements, mig.Placement{Start: start, Size: size})
		}
		return p
	}
	g.MIGEnabled = true
	g.MIG = &device.MIG{Profiles: []mig.Profile{
		profile(19, "1g.10gb", 1, 9, 7, mig.Engines{Copy: 1, Decoders: 1, JPEG: 1}, 1, 0, 1, 2, 3, 4, 5, 6),
		profile(20, "1g.10gb+me", 1, 9, 1, mig.Engines{Copy: 1, Decoders: 1, JPEG: 1, OFA: 1}, 1, 0, 1, 2, 3, 4, 5, 6),
		profile(15, "1g.20gb", 1, 19, 4, mig.Engines{Copy: 1, Decoders: 1, JPEG: 1}, 2, 0, 2, 4, 6),
		profile(14, "2g.20gb", 2, 19, 3, mig.Engines{Copy: 2, Decoders: 2, JPEG: 2}, 2, 0, 2, 4),
		profile(9, "3g.40gb", 3, 39, 2, mig.Engines{Copy: 3, Decoders: 3, JPEG: 3}, 4, 0, 4),
		profile(5, "4g.40gb", 4, 39, 1, mig.Engines{Copy: 4, Decoders: 4, JPEG: 4}, 4, 0),
		profile(0, "7g.80gb", 7, 79, 1, mig.Engines{Copy: 8, Decoders: 7, JPEG: 7, OFA: 1}, 8, 0),
	}}
	return g
}

// scheduler allocates devices as kube-scheduler does, with its own allocator.
type scheduler struct {
	t       *testing.T
	slices  []*resourceapi.ResourceSlice
	state   structured.AllocatedState
	cache   *cel.Cache
	devices map[string]resourceapi.Device
}

func newScheduler(t *testing.T, inv device.Inventory) *scheduler {
	t.Helper()
	s := &scheduler{t: t, cache: cel.NewCache(10, cel.Features{}), devices: map[string]resourceapi.Device{}, state: structured.AllocatedState{
		AllocatedDevices: sets.New[structured.DeviceID](), AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](), AggregatedCapacity: structured.NewConsumedCapacityCollection(),
	}}
	p := pool(t, "node-a", inv)
	for i, slice := range p.Slices {
		s.slices = append(s.slices, &resourceapi.ResourceSlice{
			// As the library names them.
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%02x-gpu.switchyard.dev-node-a", i)},
			Spec: resourceapi.ResourceSliceSpec{
				Driver: "gpu.switchyard.dev", NodeName: new("node-a"), Devices: slice.Devices, SharedCounters: slice.SharedCounters,
				Pool: resourceapi.ResourcePool{Name: "node-a", ResourceSliceCount: int64(len(p.Slices))},
			},
		})
		for _, d := range slice.Devices {
			s.devices[d.Name] = d
		}
	}
	return s
}

// Get implements the lister of classes: every class has any device.
func (s *scheduler) Get(name string) (*resourceapi.DeviceClass, error) {
	return &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}}, nil
}

func (s *scheduler) List() ([]*resourceapi.DeviceClass, error) { return nil, nil }

// allocate allocates a claim of so many devices that an expression selects, and returns what they are;
// nil if there is no room.
func (s *scheduler) allocate(count int64, expression string, constraints ...resourceapi.DeviceConstraint) []string {
	s.t.Helper()
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "claim", Namespace: "default"}, Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
		Constraints: constraints,
		Requests: []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{
			DeviceClassName: "any", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count,
			Selectors:   []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}},
			Tolerations: []resourceapi.DeviceToleration{{Key: resourcemodel.TaintMIGEnabled, Operator: resourceapi.DeviceTolerationOpExists}},
		}}},
	}}}
	allocator, err := structured.NewAllocator(context.Background(), structured.Features{DeviceTaints: true, PartitionableDevices: true}, s.state, s, s.slices, s.cache)
	if err != nil {
		s.t.Fatal(err)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}
	results, err := allocator.Allocate(context.Background(), node, []*resourceapi.ResourceClaim{claim})
	if err != nil {
		s.t.Fatal(err)
	}
	if len(results) == 0 {
		return nil
	}
	var got []string
	for _, result := range results[0].Devices.Results {
		s.state.AllocatedDevices.Insert(structured.MakeDeviceID(result.Driver, result.Pool, result.Device))
		d := s.devices[result.Device]
		what := "whole"
		if profile, ok := d.Attributes[resourcemodel.AttributeProfile]; ok {
			what = fmt.Sprintf("%s@%d", *profile.StringValue, *d.Attributes[resourcemodel.AttributePlacementStart].IntValue)
		}
		got = append(got, what)
	}
	return got
}

const ofGPU = `device.attributes["gpu.switchyard.dev"]`

func ofProfile(name string) string { return ofGPU + `.?profile.orValue("") == "` + name + `"` }

func TestSchedulerAllocatesPartitions(t *testing.T) {
	const whole = ofGPU + `.type == "gpu"`
	const with20Gi = ofGPU + `.type == "mig" && device.capacity["gpu.switchyard.dev"].memory.compareTo(quantity("20Gi")) >= 0`
	sameGPU := resourceapi.DeviceConstraint{MatchAttribute: new(resourceapi.FullyQualifiedName("gpu.switchyard.dev/parentUUID"))}
	type step struct {
		count       int64
		expression  string
		constraints []resourceapi.DeviceConstraint
		want        []string
	}
	one := func(expression string, want ...string) step { return step{1, expression, nil, want} }
	small := ofProfile("1g.10gb")
	for name, test := range map[string]struct {
		gpus  int
		steps []step
	}{
		"seven of the smallest fill a GPU": {1, []step{
			one(small, "1g.10gb@6"), one(small, "1g.10gb@5"), one(small, "1g.10gb@4"), one(small, "1g.10gb@3"),
			one(small, "1g.10gb@2"), one(small, "1g.10gb@1"), one(small, "1g.10gb@0"), one(small),
		}},
		"small ones leave room for a large one": {1, []step{
			one(small, "1g.10gb@6"), one(small, "1g.10gb@5"), one(small, "1g.10gb@4"), one(ofProfile("4g.40gb"), "4g.40gb@0"), one(small),
		}},
		"a GPU and its partitions exclude each other": {1, []step{one(small, "1g.10gb@6"), one(whole)}},
		"and the other way round":                     {1, []step{one(whole, "whole"), one(small)}},
		"by what is needed the smallest that has it":  {1, []step{one(with20Gi, "3g.40gb@4"), one(with20Gi, "3g.40gb@0"), one(with20Gi)}},
		"two partitions of one GPU": {2, []step{
			one(ofProfile("4g.40gb"), "4g.40gb@0"), // on the first GPU
			{2, ofProfile("3g.40gb"), []resourceapi.DeviceConstraint{sameGPU}, []string{"3g.40gb@4", "3g.40gb@0"}},
		}},
		"no two partitions of one GPU that has room for one": {1, []step{
			one(ofProfile("4g.40gb"), "4g.40gb@0"), {2, ofProfile("3g.40gb"), []resourceapi.DeviceConstraint{sameGPU}, nil},
		}},
		"one with the media engines": {1, []step{one(ofProfile("1g.10gb+me"), "1g.10gb+me@6"), one(ofProfile("1g.10gb+me")), one(small, "1g.10gb@5")}},
	} {
		t.Run(name, func(t *testing.T) {
			var gpus []device.GPU
			for i := range test.gpus {
				gpus = append(gpus, h100(gpu(i, "")))
			}
			s := newScheduler(t, inventory(gpus...))
			for i, step := range test.steps {
				if got := s.allocate(step.count, step.expression, step.constraints...); !slices.Equal(got, step.want) {
					t.Errorf("step %d: got %v, want %v", i, got, step.want)
				}
			}
		})
	}
}
