// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package resourcemodel_test

import (
	"math/rand/v2"
	"path/filepath"
	"testing"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/switchyard-dev/switchyard/pkg/device"
	"github.com/switchyard-dev/switchyard/pkg/nvml"
	"github.com/switchyard-dev/switchyard/pkg/resourcemodel"
	"github.com/switchyard-dev/switchyard/pkg/simulator"
	"github.com/switchyard-dev/switchyard/pkg/simulator/profile"
)

// TestCountersAllowExactlyWhatNVMLAllows visits sets of partitions that a GPU can have, and compares for each
// further partition whether the published counters leave enough (as KEP-4815 has it) with whether NVML makes
// it: all sets of a kind of GPU with few, and of one with many.
func TestCountersAllowExactlyWhatNVMLAllows(t *testing.T) {
	for profileName, sets := range map[string]int{"a30-pcie": 76, "hgx-h100": 2319} {
		t.Run(profileName, func(t *testing.T) {
			t.Parallel()
			w := newWalk(t, profileName)
			w.from(0)
			// Counted here, lest a walk that goes nowhere passes.
			if w.sets != sets || w.refused == 0 {
				t.Errorf("%d sets, want %d; %d extensions were refused", w.sets, sets, w.refused)
			}
		})
	}
}

// TestCountersAllowWhatNVMLAllowsOnOtherGPUs fills GPUs with partitions in orders drawn from a fixed seed. To visit
// all sets of these too would take minutes.
func TestCountersAllowWhatNVMLAllowsOnOtherGPUs(t *testing.T) {
	const rounds = 20
	for _, profileName := range []string{"dgx-a100", "a100-pcie-pairs", "hgx-h200", "hgx-b200", "gb200-nvl72"} {
		t.Run(profileName, func(t *testing.T) {
			t.Parallel()
			w := newWalk(t, profileName)
			random := rand.New(rand.NewPCG(719, 4815))
			for range rounds {
				w.fill(random.Perm(len(w.places)))
			}
			if w.sets < 2*rounds || w.refused == 0 {
				t.Errorf("%d sets in %d rounds; %d extensions were refused", w.sets, rounds, w.refused)
			}
		})
	}
}

// walk is a walk through the sets of partitions of one GPU.
type walk struct {
	t     *testing.T
	gpu   gonvml.Device
	infos map[int]gonvml.GpuInstanceProfileInfo // by profile ID
	// places and devices are the same partitions, as NVML and as the scheduler know them.
	places  []device.Partition
	devices []resourceapi.Device
	whole   resourceapi.Device
	left    map[string]int64

	// sets counts the sets visited, size is of how many partitions the current one is.
	sets, size, refused int
}

func newWalk(t *testing.T, profileName string) *walk {
	t.Helper()
	p, err := profile.Load(profileName)
	if err != nil {
		t.Fatal(err)
	}
	// One GPU is enough, and quicker.
	p.GPUs, p.NVLink, p.Fabric = p.GPUs[:1], nil, nil
	p.Product.MIG.Enabled = true
	dir := filepath.Join(t.TempDir(), "sim")
	if err := simulator.Create(dir, p, simulator.Options{NodeName: "node-a", DeviceNodes: simulator.DeviceNodesFiles}); err != nil {
		t.Fatal(err)
	}
	node, err := simulator.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	library, err := nvml.Open(nvml.Options{NodeName: "node-a", SysfsRoot: node.SysfsRoot(), Lib: node.NVML()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = library.Close() })
	inv, err := library.Discover(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	handle, ret := node.NVML().DeviceGetHandleByIndex(0)
	if ret != gonvml.SUCCESS {
		t.Fatal(ret)
	}
	w := &walk{t: t, gpu: handle, infos: map[int]gonvml.GpuInstanceProfileInfo{}, places: inv.GPUs[0].Partitions(), left: map[string]int64{}}
	for number := range gonvml.GPU_INSTANCE_PROFILE_COUNT {
		if info, ret := handle.GetGpuInstanceProfileInfo(number); ret == gonvml.SUCCESS {
			w.infos[int(info.Id)] = info
		}
	}
	resources := pool(t, "node-a", inv)
	requireValidCounters(t, resources)
	published := map[string]resourceapi.Device{}
	for _, slice := range resources.Slices {
		for _, set := range slice.SharedCounters {
			for name, counter := range set.Counters {
				w.left[name] = counter.Value.Value()
			}
		}
		for _, d := range slice.Devices {
			published[d.Name] = d
		}
	}
	w.whole = published[inv.GPUs[0].Name()]
	for _, place := range w.places {
		d, ok := published[place.Name()]
		if !ok {
			t.Fatalf("partition %s is not published", place.Name())
		}
		w.devices = append(w.devices, d)
	}
	if len(published) != len(w.devices)+1 || *w.whole.Attributes[resourcemodel.AttributeType].StringValue != resourcemodel.TypeGPU {
		t.Fatalf("%d devices are published, want the GPU and %d partitions", len(published), len(w.devices))
	}
	return w
}

// fits says whether what is left of the counters is enough for a device.
func (w *walk) fits(d resourceapi.Device) bool {
	for name, counter := range d.ConsumesCounters[0].Counters {
		if w.left[name] < counter.Value.Value() {
			return false
		}
	}
	return true
}

// take consumes what a device takes, or gives it back.
func (w *walk) take(d resourceapi.Device, sign int64) {
	for name, counter := range d.ConsumesCounters[0].Counters {
		w.left[name] -= sign * counter.Value.Value()
	}
}

// visit counts the current set, and asks whether the whole GPU can be had beside it.
func (w *walk) visit() {
	w.sets++
	if w.fits(w.whole) != (w.size == 0) {
		w.t.Errorf("set %d: the whole GPU fits beside partitions, or not beside none", w.sets)
	}
}

// extend adds a place to the current set, if NVML makes it, visits what follows, and takes it back.
func (w *walk) extend(i int, then func()) (made bool) {
	place := w.places[i]
	info := w.infos[place.Profile.ID]
	at := gonvml.GpuInstancePlacement{Start: uint32(place.Placement.Start), Size: uint32(place.Placement.Size)}
	instance, ret := w.gpu.CreateGpuInstanceWithPlacement(&info, &at)
	if got, want := w.fits(w.devices[i]), ret == gonvml.SUCCESS; got != want {
		w.t.Fatalf("set %d: the counters allow %s at %d: %v, NVML: %v", w.sets, place.Profile.Name, place.Placement.Start, got, ret)
	}
	if ret != gonvml.SUCCESS {
		w.refused++
		return false
	}
	w.take(w.devices[i], 1)
	w.size++
	then()
	w.size--
	w.take(w.devices[i], -1)
	if ret := instance.Destroy(); ret != gonvml.SUCCESS {
		w.t.Fatal(ret)
	}
	return true
}

// from visits the sets that extend the current one by partitions from index next on, so that each is
// visited once.
func (w *walk) from(next int) {
	w.visit()
	for i := next; i < len(w.places); i++ {
		w.extend(i, func() { w.from(i + 1) })
	}
}

// fill visits the current set and those that come of adding places in the given order, as far as they fit.
func (w *walk) fill(order []int) {
	w.visit()
	for n, i := range order {
		if w.extend(i, func() { w.fill(order[n+1:]) }) {
			return
		}
	}
}
