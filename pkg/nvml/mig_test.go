// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"

	"github.com/switchyard-dev/switchyard/pkg/device"
	"github.com/switchyard-dev/switchyard/pkg/mig"
	"github.com/switchyard-dev/switchyard/pkg/simulator"
	"github.com/switchyard-dev/switchyard/pkg/simulator/profile"
)

// simulated returns simulated hardware, the GPUs on of which are in MIG mode, and its NVML.
func simulated(t *testing.T, profileName string, options Options, on ...int) (*simulator.Node, *Library) {
	t.Helper()
	p, err := profile.Load(profileName)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "sim")
	if err := simulator.Create(dir, p, simulator.Options{NodeName: "node-a", DeviceNodes: simulator.DeviceNodesFiles}); err != nil {
		t.Fatal(err)
	}
	node, err := simulator.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, gpu := range on {
		if err := node.SetMIGMode(gpu, true); err != nil {
			t.Fatal(err)
		}
	}
	options.NodeName, options.SysfsRoot, options.Lib = "node-a", node.SysfsRoot(), node.NVML()
	library, err := Open(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := library.Close(); err != nil {
			t.Error(err)
		}
	})
	return node, library
}

func inventoryOf(t *testing.T, library *Library) device.Inventory {
	t.Helper()
	inv, err := library.Discover(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return inv
}

func TestPartitioningIsReadFromNVML(t *testing.T) {
	node, library := simulated(t, "hgx-h100", Options{}, 1)
	if _, err := node.CreatePartition(1, "3g.40gb", 4); err != nil {
		t.Fatal(err)
	}
	inv := inventoryOf(t, library)
	if inv.GPUs[0].MIG != nil || !inv.GPUs[0].Health.Healthy() {
		t.Errorf("a GPU that is not in MIG mode: %+v", inv.GPUs[0])
	}
	got := inv.GPUs[1].MIG
	if got == nil {
		t.Fatal("the GPU in MIG mode cannot be partitioned")
	}
	var names []string
	for _, p := range got.Profiles {
		names = append(names, fmt.Sprintf("%d %s %d", p.ID, p.Name, len(p.Placements)))
	}
	if diff := cmp.Diff([]string{"0 7g.80gb 1", "5 4g.40gb 1", "9 3g.40gb 2", "14 2g.20gb 3", "15 1g.20gb 4", "19 1g.10gb 7", "20 1g.10gb+me 7"}, names); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(mig.Profile{
		ID: 9, Name: "3g.40gb", Slices: 3, MemoryBytes: 40448 << 20, Multiprocessors: 60, MaxInstances: 2,
		Engines: mig.Engines{Copy: 3, Decoders: 3, JPEG: 3}, Placements: []mig.Placement{{Start: 0, Size: 4}, {Start: 4, Size: 4}},
	}, got.Profiles[2]); diff != "" {
		t.Error(diff)
	}
	if len(got.Instances) != 1 || got.Instances[0].Placement != (mig.Placement{Start: 4, Size: 4}) || len(got.Instances[0].Compute) != 1 || got.Instances[0].Compute[0].UUID == "" {
		t.Errorf("instances %+v", got.Instances)
	}
	if calls := node.Unsimulated(); len(calls) > 0 {
		t.Errorf("what is not simulated was called: %v", calls)
	}
}

func TestOnlySelectedGPUsArePartitioned(t *testing.T) {
	for text, want := range map[string][]bool{"all": {true, true}, "none": {false, false}, "1": {false, true}} {
		selection, err := device.ParseSelection(text)
		if err != nil {
			t.Fatal(err)
		}
		_, library := simulated(t, "a30-pcie", Options{MIG: selection}, 0, 1)
		for i, gpu := range inventoryOf(t, library).GPUs {
			if got := gpu.MIG != nil; got != want[i] || !gpu.MIGEnabled {
				t.Errorf("%s: GPU %d can be partitioned: %v", text, i, got)
			}
		}
	}
}

func TestPartitionsAreMadeAndDestroyed(t *testing.T) {
	node, library := simulated(t, "hgx-h100", Options{}, 0)
	gpu := inventoryOf(t, library).GPUs[0].Name()
	ref := device.PartitionRef{GPU: gpu, ProfileID: 14, Start: 2}
	ctx := t.Context()
	instances := func() []mig.Instance {
		t.Helper()
		found, err := library.Instances(ctx, gpu)
		if err != nil {
			t.Fatal(err)
		}
		return found
	}

	if err := library.CreateComputeInstance(ctx, ref); err == nil {
		t.Error("a compute instance without a GPU instance")
	}
	if err := library.CreateGPUInstance(ctx, ref); err != nil {
		t.Fatal(err)
	}
	if got := instances(); len(got) != 1 || len(got[0].Compute) != 0 {
		t.Errorf("after the GPU instance: %+v", got)
	}
	if err := library.CreateGPUInstance(ctx, ref); !errors.Is(err, ErrNoRoom) {
		t.Errorf("once more: %v", err)
	}
	if err := library.CreateComputeInstance(ctx, ref); err != nil {
		t.Fatal(err)
	}
	if _, whole := instances()[0].Whole(2); !whole {
		t.Errorf("after the compute instance: %+v", instances())
	}
	if err := library.DestroyGPUInstance(ctx, ref); !errors.Is(err, ErrPartitionInUse) {
		t.Errorf("destroying a GPU instance with a compute instance: %v", err)
	}
	if err := node.FailNextMIG(0, simulator.DestroyComputeInstance, gonvml.ERROR_IN_USE); err != nil {
		t.Fatal(err)
	}
	if err := library.DestroyComputeInstances(ctx, ref); !errors.Is(err, ErrPartitionInUse) {
		t.Errorf("destroying a compute instance in use: %v", err)
	}
	for range 2 { // the second time nothing is there
		if err := errors.Join(library.DestroyComputeInstances(ctx, ref), library.DestroyGPUInstance(ctx, ref)); err != nil {
			t.Error(err)
		}
	}
	if got := instances(); len(got) != 0 {
		t.Errorf("left: %+v", got)
	}
	for name, bad := range map[string]device.PartitionRef{
		"an unknown profile":            {GPU: gpu, ProfileID: 77},
		"a place that does not exist":   {GPU: gpu, ProfileID: 14, Start: 1},
		"a GPU that is not in MIG mode": {GPU: inventoryOf(t, library).GPUs[1].Name(), ProfileID: 14},
		"a GPU that does not exist":     {GPU: "gpu-none", ProfileID: 14},
	} {
		if err := library.CreateGPUInstance(ctx, bad); err == nil {
			t.Errorf("%s: made", name)
		}
	}
	if got := library.DestroyGPUInstance(ctx, device.PartitionRef{GPU: "gpu-none"}); !errors.Is(got, ErrGPUGone) {
		t.Errorf("destroying on a GPU that does not exist: %v", got)
	}
	if err := node.LoseGPU(0); err != nil {
		t.Fatal(err)
	}
	if _, err := library.Instances(ctx, gpu); !errors.Is(err, ErrGPUGone) {
		t.Errorf("a lost GPU: %v", err)
	}
	if err := node.SetDriverFailure(simulator.DriverNotLoaded); err != nil {
		t.Fatal(err)
	}
	if _, err := library.Instances(ctx, gpu); !errors.Is(err, ErrUnavailable) {
		t.Errorf("without a driver: %v", err)
	}
	if err := node.SetDriverFailure(""); err != nil {
		t.Fatal(err)
	}
}

// hangingCreate is an NVML whose creation of GPU instances waits.
type hangingCreate struct {
	gonvml.Interface
	gpu  int
	wait chan struct{}
}

func (h hangingCreate) DeviceGetHandleByIndex(index int) (gonvml.Device, gonvml.Return) {
	handle, ret := h.Interface.DeviceGetHandleByIndex(index)
	if index == h.gpu && ret == gonvml.SUCCESS {
		handle = hangingGPU{handle, h.wait}
	}
	return handle, ret
}

type hangingGPU struct {
	gonvml.Device
	wait chan struct{}
}

func (g hangingGPU) CreateGpuInstanceWithPlacement(info *gonvml.GpuInstanceProfileInfo, at *gonvml.GpuInstancePlacement) (gonvml.GpuInstance, gonvml.Return) {
	<-g.wait
	return g.Device.CreateGpuInstanceWithPlacement(info, at)
}

func TestACreationThatHangsHoldsUpItsGPUOnly(t *testing.T) {
	_, library := simulated(t, "a30-pcie", Options{}, 0, 1)
	gpus := inventoryOf(t, library).GPUs
	release := make(chan struct{})
	library.mu.Lock()
	library.lib = hangingCreate{library.lib, 0, release}
	library.mu.Unlock()

	// Long enough for the first call to be on its way.
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	var unavailable *UnavailableError
	for start := range 2 { // the second waits for the first
		err := library.CreateGPUInstance(ctx, device.PartitionRef{GPU: gpus[0].Name(), ProfileID: 14, Start: start})
		if !errors.As(err, &unavailable) || unavailable.Reason != ReasonNotResponding {
			t.Errorf("creation %d: %v", start, err)
		}
	}
	if err := library.CreateGPUInstance(t.Context(), device.PartitionRef{GPU: gpus[1].Name(), ProfileID: 14}); err != nil {
		t.Errorf("the other GPU: %v", err)
	}
	close(release)
	// What was in flight ends before the next call for the GPU begins.
	found, err := library.Instances(t.Context(), gpus[0].Name())
	if err != nil || len(found) != 1 {
		t.Errorf("afterwards: %+v, %v", found, err)
	}
}

func TestPartitionsOfManyAtOnce(t *testing.T) {
	_, library := simulated(t, "hgx-h100", Options{}, 0, 1)
	gpus := inventoryOf(t, library).GPUs
	var all sync.WaitGroup
	for _, gpu := range gpus[:2] {
		for start := range 7 {
			all.Go(func() {
				ref := device.PartitionRef{GPU: gpu.Name(), ProfileID: 19, Start: start}
				if err := errors.Join(library.CreateGPUInstance(t.Context(), ref), library.CreateComputeInstance(t.Context(), ref)); err != nil {
					t.Error(err)
				}
			})
		}
	}
	all.Wait()
	for _, gpu := range inventoryOf(t, library).GPUs[:2] {
		if len(gpu.MIG.Instances) != 7 {
			t.Errorf("%d instances of %s", len(gpu.MIG.Instances), gpu.Name())
		}
	}
}

// failingGPU is an NVML one GPU of which answers calls for its partitions with ret from call number after on.
type failingGPU struct {
	gonvml.Interface
	after int
	ret   gonvml.Return
	calls *int
}

func (f failingGPU) DeviceGetHandleByIndex(index int) (gonvml.Device, gonvml.Return) {
	handle, ret := f.Interface.DeviceGetHandleByIndex(index)
	if index == 0 && ret == gonvml.SUCCESS {
		handle = failingHandle{handle, f}
	}
	return handle, ret
}

type failingHandle struct {
	gonvml.Device
	failingGPU
}

// fails counts a call, and reports whether it is to fail.
func (f failingGPU) fails() bool {
	*f.calls++
	return *f.calls > f.after
}

func (h failingHandle) GetGpuInstanceProfileInfo(number int) (gonvml.GpuInstanceProfileInfo, gonvml.Return) {
	if h.fails() {
		return gonvml.GpuInstanceProfileInfo{}, h.ret
	}
	return h.Device.GetGpuInstanceProfileInfo(number)
}

func (h failingHandle) GetGpuInstancePossiblePlacements(info *gonvml.GpuInstanceProfileInfo) ([]gonvml.GpuInstancePlacement, gonvml.Return) {
	if h.fails() {
		return nil, h.ret
	}
	return h.Device.GetGpuInstancePossiblePlacements(info)
}

func (h failingHandle) GetGpuInstances(info *gonvml.GpuInstanceProfileInfo) ([]gonvml.GpuInstance, gonvml.Return) {
	if h.fails() {
		return nil, h.ret
	}
	return h.Device.GetGpuInstances(info)
}

// use makes a library call another NVML.
func use(library *Library, lib gonvml.Interface) {
	library.mu.Lock()
	defer library.mu.Unlock()
	library.lib = lib
}

func TestPartitioningIsReadAsAWholeOrNotAtAll(t *testing.T) {
	_, library := simulated(t, "a30-pcie", Options{}, 0)
	lib, calls := library.lib, 0
	use(library, failingGPU{lib, 1 << 30, gonvml.SUCCESS, &calls})
	known := inventoryOf(t, library)
	places := len(known.GPUs[0].Partitions())
	if calls < gonvml.GPU_INSTANCE_PROFILE_COUNT || places == 0 {
		t.Fatalf("%d calls, %d places", calls, places)
	}
	for after := range calls {
		for ret, reason := range map[gonvml.Return]string{gonvml.ERROR_GPU_IS_LOST: device.ReasonLost, gonvml.ERROR_UNKNOWN: device.ReasonNotAnswering} {
			again := 0
			use(library, failingGPU{lib, after, ret, &again})
			seen := inventoryOf(t, library)
			if gpu := seen.GPUs[0]; gpu.MIG != nil || gpu.Health.Reason != reason {
				t.Errorf("%v from call %d on: MIG %+v, health %+v", ret, after, gpu.MIG, gpu.Health)
			}
			if gpu := device.Merge(known, seen).GPUs[0]; len(gpu.Partitions()) != places || gpu.MIG.Withdrawn {
				t.Errorf("%v from call %d on: %d places of %d, withdrawn: %v", ret, after, len(gpu.Partitions()), places, gpu.MIG.Withdrawn)
			}
		}
	}
	use(library, lib)
}

func TestDestroyingWhereNothingCanBeDestroyed(t *testing.T) {
	node, library := simulated(t, "a30-pcie", Options{}, 0)
	ref := device.PartitionRef{GPU: inventoryOf(t, library).GPUs[0].Name(), ProfileID: 5, Start: 2}
	destroy := func() error {
		return errors.Join(library.DestroyComputeInstances(t.Context(), ref), library.DestroyGPUInstance(t.Context(), ref))
	}
	for _, ret := range []gonvml.Return{gonvml.ERROR_RESET_REQUIRED, gonvml.ERROR_TIMEOUT, gonvml.ERROR_UNKNOWN} {
		if _, err := node.CreatePartition(0, "2g.12gb", 2); err != nil {
			t.Fatal(err)
		}
		if err := node.FailNextMIG(0, simulator.DestroyComputeInstance, ret); err != nil {
			t.Fatal(err)
		}
		if err := library.DestroyComputeInstances(t.Context(), ref); !errors.Is(err, ErrGPUFails) {
			t.Errorf("%v: %v", ret, err)
		}
		if err := destroy(); err != nil {
			t.Error(err)
		}
	}
	if err := node.SetMIGMode(0, false); err != nil {
		t.Fatal(err)
	}
	if err := destroy(); err != nil {
		t.Errorf("MIG mode is off: %v", err)
	}
	if found, err := library.Instances(t.Context(), ref.GPU); err != nil || len(found) != 0 {
		t.Errorf("MIG mode is off: %v, %v", found, err)
	}
}
