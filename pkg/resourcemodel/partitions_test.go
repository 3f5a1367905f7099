// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package resourcemodel_test

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"sigs.k8s.io/yaml"

	"github.com/switchyard-dev/switchyard/pkg/device"
	"github.com/switchyard-dev/switchyard/pkg/mig"
	"github.com/switchyard-dev/switchyard/pkg/resourcemodel"
)

// partitionable puts a GPU in MIG mode, with two profiles on four memory slices.
func partitionable(g device.GPU) device.GPU {
	g.MIGEnabled, g.NVSwitchDomainSize = true, 0
	g.MIG = &device.MIG{Profiles: []mig.Profile{
		{ID: 14, Name: "1g.6gb", Slices: 1, MemoryBytes: 5949 << 20, Multiprocessors: 14, Engines: mig.Engines{Copy: 1, Decoders: 1}, MaxInstances: 4, Placements: []mig.Placement{{Start: 0, Size: 1}, {Start: 1, Size: 1}, {Start: 2, Size: 1}, {Start: 3, Size: 1}}},
		{ID: 5, Name: "2g.12gb", Slices: 2, MemoryBytes: 11971 << 20, Multiprocessors: 28, Engines: mig.Engines{Copy: 2, Decoders: 2}, MaxInstances: 2, Placements: []mig.Placement{{Start: 0, Size: 2}, {Start: 2, Size: 2}}},
	}}
	return g
}

func requireValidCounters(t *testing.T, p resourceslice.Pool) {
	t.Helper()
	sets := map[string]map[string]resourceapi.Counter{}
	for i, slice := range p.Slices {
		if len(slice.Devices) > 0 && len(slice.SharedCounters) > 0 {
			t.Errorf("slice %d has devices and counters", i)
		}
		if n := len(slice.SharedCounters); n > resourceapi.ResourceSliceMaxCounterSets {
			t.Errorf("slice %d has %d counter sets", i, n)
		}
		for _, set := range slice.SharedCounters {
			if n := len(set.Counters); n == 0 || n > resourceapi.ResourceSliceMaxCountersPerCounterSet {
				t.Errorf("set %s has %d counters", set.Name, n)
			}
			if _, twice := sets[set.Name]; twice || len(validation.IsDNS1123Label(set.Name)) > 0 {
				t.Errorf("counter set %q is there twice, or no DNS label", set.Name)
			}
			sets[set.Name] = set.Counters
			for name, counter := range set.Counters {
				if len(validation.IsDNS1123Label(name)) > 0 || counter.Value.Sign() <= 0 {
					t.Errorf("counter %q of %s is no DNS label, or not positive: %s", name, set.Name, counter.Value.String())
				}
			}
		}
	}
	for _, slice := range p.Slices {
		for _, d := range slice.Devices {
			if n := len(d.ConsumesCounters); n > 1 {
				t.Errorf("device %s consumes from %d sets", d.Name, n)
			}
			for _, consumption := range d.ConsumesCounters {
				if len(consumption.Counters) == 0 {
					t.Errorf("device %s consumes nothing", d.Name)
				}
				for name, counter := range consumption.Counters {
					if has, ok := sets[consumption.CounterSet][name]; !ok || counter.Value.Sign() <= 0 || counter.Value.Cmp(has.Value) > 0 {
						t.Errorf("device %s consumes %s of counter %s/%s, which has %s", d.Name, counter.Value.String(), consumption.CounterSet, name, has.Value.String())
					}
				}
			}
		}
	}
}

func TestGoldenPartitions(t *testing.T) {
	inv := inventory(gpu(0, "node-a.0"), partitionable(gpu(1, "node-a.0")))
	got, err := yaml.Marshal(pool(t, "node-a", inv).Slices)
	if err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "partitions.yaml")
	if *update {
		if err := os.WriteFile(golden, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("slices (-want +got), -update writes the file:\n%s", diff)
	}
}

func TestFieldCase14_AGPUAndItsPartitionsExcludeEachOther(t *testing.T) {
	p := pool(t, "node-a", inventory(partitionable(gpu(0, ""))))
	requireValidCounters(t, p)
	total := p.Slices[1].SharedCounters[0]
	for _, slice := range p.Slices {
		for _, d := range slice.Devices {
			if len(d.ConsumesCounters) != 1 || d.ConsumesCounters[0].CounterSet != total.Name {
				t.Errorf("device %s does not consume from %s: %+v", d.Name, total.Name, d.ConsumesCounters)
			}
		}
	}
	if diff := cmp.Diff(total.Counters, p.Slices[0].Devices[0].ConsumesCounters[0].Counters); diff != "" {
		t.Errorf("the whole GPU does not take all there is:\n%s", diff)
	}
}

func TestFieldCase16_GPUWithoutPartitionsHasNoCounters(t *testing.T) {
	off := gpu(1, "")
	off.MIGEnabled = true // on, and this node does not let it be partitioned
	for i, slice := range pool(t, "node-a", inventory(gpu(0, ""), off)).Slices {
		if len(slice.SharedCounters) > 0 || len(slice.Devices) != 2 {
			t.Errorf("slice %d: %d counter sets, %d devices", i, len(slice.SharedCounters), len(slice.Devices))
		}
		for _, d := range slice.Devices {
			if d.ConsumesCounters != nil {
				t.Errorf("device %s consumes %v", d.Name, d.ConsumesCounters)
			}
		}
	}
}

func TestPartitionsAreCutIntoSlicesOfOneGPU(t *testing.T) {
	var gpus []device.GPU
	for i := range 10 {
		gpus = append(gpus, partitionable(gpu(i, "")))
	}
	p := pool(t, "node-a", inventory(gpus...))
	requireValidCounters(t, p)
	var shape [][2]int
	for _, slice := range p.Slices {
		shape = append(shape, [2]int{len(slice.Devices), len(slice.SharedCounters)})
	}
	want := [][2]int{{10, 0}, {0, 8}, {0, 2}}
	for range 10 {
		want = append(want, [2]int{6, 0})
	}
	if diff := cmp.Diff(want, shape); diff != "" {
		t.Errorf("devices and counter sets of the slices:\n%s", diff)
	}
}

func TestTurningMIGModeOnAddsSlicesAndDevicesToNone(t *testing.T) {
	before := pool(t, "node-a", inventory(gpu(0, ""), partitionable(gpu(1, ""))))
	after := pool(t, "node-a", inventory(partitionable(gpu(0, "")), partitionable(gpu(1, ""))))
	sizes := map[string]int{}
	for _, slice := range before.Slices {
		if len(slice.Devices) > 0 {
			sizes[slice.Devices[0].Name] = len(slice.Devices)
		}
	}
	for _, slice := range after.Slices {
		if len(slice.Devices) == 0 {
			continue
		}
		if size, known := sizes[slice.Devices[0].Name]; known && size != len(slice.Devices) {
			t.Errorf("the slice of %s has %d devices, before %d", slice.Devices[0].Name, len(slice.Devices), size)
		}
	}
}

func TestPartitionTaints(t *testing.T) {
	change := func(change func(*device.GPU)) device.GPU {
		g := partitionable(gpu(0, ""))
		change(&g)
		return g
	}
	static := func(profile, start, size int, compute ...mig.ComputeInstance) device.GPU {
		return change(func(g *device.GPU) {
			g.MIG.Static = []mig.Instance{{ID: 9, ProfileID: profile, Placement: mig.Placement{Start: start, Size: size}, Compute: compute}}
		})
	}
	all := []string{"1g.6gb@0", "1g.6gb@1", "1g.6gb@2", "1g.6gb@3", "2g.12gb@0", "2g.12gb@2"}
	for name, test := range map[string]struct {
		gpu     device.GPU
		key     string
		tainted []string
	}{
		"none":                           {partitionable(gpu(0, "")), "", nil},
		"a sick GPU has sick partitions": {change(func(g *device.GPU) { g.Health.Reason = device.ReasonLost }), resourcemodel.TaintUnhealthy, all},
		"MIG mode was turned off":        {change(func(g *device.GPU) { g.MIGEnabled, g.MIG.Withdrawn = false, true }), resourcemodel.TaintMIGUnavailable, all},
		"the node does not let it be partitioned now":      {change(func(g *device.GPU) { g.MIG.Withdrawn = true }), resourcemodel.TaintMIGUnavailable, all},
		"a static partition is one that can be used":       {static(14, 0, 1, mig.ComputeInstance{Slices: 1}), resourcemodel.TaintMIGOccupied, []string{"2g.12gb@0"}},
		"a GPU instance without a compute instance is not": {static(5, 2, 2), resourcemodel.TaintMIGOccupied, []string{"1g.6gb@2", "1g.6gb@3", "2g.12gb@2"}},
		"nor one of which only a part is used":             {static(5, 2, 2, mig.ComputeInstance{Slices: 1}), resourcemodel.TaintMIGOccupied, []string{"1g.6gb@2", "1g.6gb@3", "2g.12gb@2"}},
		"an instance of a profile that is not known":       {static(77, 1, 1), resourcemodel.TaintMIGOccupied, []string{"1g.6gb@1", "2g.12gb@0"}},
	} {
		t.Run(name, func(t *testing.T) {
			var tainted []string
			for _, p := range test.gpu.Partitions() {
				for _, taint := range resourcemodel.PartitionTaints(p) {
					if taint.Key != test.key || taint.Effect != resourceapi.DeviceTaintEffectNoSchedule {
						t.Errorf("taint %+v", taint)
					}
					tainted = append(tainted, p.Profile.Name+"@"+string(rune('0'+p.Placement.Start)))
				}
			}
			slices.Sort(tainted)
			if !reflect.DeepEqual(tainted, test.tainted) {
				t.Errorf("tainted are %v, want %v", tainted, test.tainted)
			}
		})
	}
}

func TestTheTablesDocumentPartitions(t *testing.T) {
	g := partitionable(gpu(0, "node-a.0"))
	of := resourcemodel.PartitionAttributes(g.Partitions()[0], inventory(g))
	wants := map[resourceapi.QualifiedName]bool{}
	for _, field := range resourcemodel.AttributeTable() {
		wants[field.Name] = true
	}
	for _, left := range []resourceapi.QualifiedName{
		resourcemodel.AttributeUUID, resourcemodel.AttributeIndex, resourcemodel.AttributeMinor, resourcemodel.AttributeNVLinks, resourcemodel.AttributeNVLinksPerPeer, resourcemodel.AttributeNVSwitchDomainSize,
		resourcemodel.AttributeLastNVSwitchDomain,
	} {
		delete(wants, left)
	}
	for _, field := range resourcemodel.PartitionAttributeTable() {
		wants[field.Name] = true
	}
	got := map[resourceapi.QualifiedName]bool{}
	for name := range of {
		got[name] = true
	}
	if diff := cmp.Diff(wants, got); diff != "" {
		t.Errorf("attributes, documented and published:\n%s", diff)
	}
	for _, field := range resourcemodel.PartitionCapacityTable() {
		if value, ok := pool(t, "node-a", inventory(g)).Slices[2].Devices[0].Capacity[field.Name]; !ok || value.Value.Sign() < 0 {
			t.Errorf("capacity %s: %v", field.Name, value)
		}
	}
	if got, want := len(pool(t, "node-a", inventory(g)).Slices[2].Devices[0].Capacity), len(resourcemodel.PartitionCapacityTable()); got != want {
		t.Errorf("%d capacities, %d are documented", got, want)
	}
}
