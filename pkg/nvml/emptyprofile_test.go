// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"errors"
	"testing"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"

	"github.com/switchyard-dev/switchyard/pkg/device"
)

// emptyProfileGPU is an NVML that tells of a profile of which there can be no instance, at the number of one that the
// GPU does not have. go-nvml asks NVML nothing about those.
type emptyProfileGPU struct{ gonvml.Interface }

func (l emptyProfileGPU) DeviceGetHandleByIndex(index int) (gonvml.Device, gonvml.Return) {
	handle, ret := l.Interface.DeviceGetHandleByIndex(index)
	return emptyProfileHandle{handle}, ret
}

type emptyProfileHandle struct{ gonvml.Device }

func (h emptyProfileHandle) GetGpuInstanceProfileInfo(number int) (gonvml.GpuInstanceProfileInfo, gonvml.Return) {
	info, ret := h.Device.GetGpuInstanceProfileInfo(number)
	if ret == gonvml.ERROR_NOT_SUPPORTED {
		return gonvml.GpuInstanceProfileInfo{Id: 1000 + uint32(number), SliceCount: 1}, gonvml.SUCCESS
	}
	return info, ret
}

func (h emptyProfileHandle) GetGpuInstancePossiblePlacements(info *gonvml.GpuInstanceProfileInfo) ([]gonvml.GpuInstancePlacement, gonvml.Return) {
	if info.InstanceCount == 0 {
		return []gonvml.GpuInstancePlacement{{Start: 0, Size: 1}}, gonvml.SUCCESS
	}
	return h.Device.GetGpuInstancePossiblePlacements(info)
}

func (h emptyProfileHandle) GetGpuInstances(info *gonvml.GpuInstanceProfileInfo) ([]gonvml.GpuInstance, gonvml.Return) {
	if info.InstanceCount == 0 {
		return nil, gonvml.ERROR_INVALID_ARGUMENT
	}
	found, ret := h.Device.GetGpuInstances(info)
	for i := range found {
		found[i] = emptyProfileInstance{found[i]}
	}
	return found, ret
}

type emptyProfileInstance struct{ gonvml.GpuInstance }

func (i emptyProfileInstance) GetComputeInstanceProfileInfo(number, engine int) (gonvml.ComputeInstanceProfileInfo, gonvml.Return) {
	info, ret := i.GpuInstance.GetComputeInstanceProfileInfo(number, engine)
	if ret != gonvml.SUCCESS {
		return gonvml.ComputeInstanceProfileInfo{Id: 1000 + uint32(number)}, gonvml.SUCCESS
	}
	return info, ret
}

func (i emptyProfileInstance) GetComputeInstances(info *gonvml.ComputeInstanceProfileInfo) ([]gonvml.ComputeInstance, gonvml.Return) {
	if info.InstanceCount == 0 {
		return nil, gonvml.ERROR_INVALID_ARGUMENT
	}
	return i.GpuInstance.GetComputeInstances(info)
}

func TestAProfileWithoutInstancesCostsNothing(t *testing.T) {
	node, library := simulated(t, "a30-pcie", Options{}, 0)
	want := inventoryOf(t, library).GPUs[0]
	ref := device.PartitionRef{GPU: want.Name(), ProfileID: 5, Start: 2}
	lib := library.lib
	use(library, emptyProfileGPU{lib})
	if got := inventoryOf(t, library).GPUs[0]; !cmp.Equal(got, want) {
		t.Errorf("the GPU is another:\n%s", cmp.Diff(want, got))
	}
	if _, err := node.CreatePartition(0, "2g.12gb", 2); err != nil {
		t.Fatal(err)
	}
	found, err := library.Instances(t.Context(), ref.GPU)
	if err != nil || len(found) != 1 || len(found[0].Compute) != 1 {
		t.Errorf("instances %+v, %v", found, err)
	}
	if err := errors.Join(library.DestroyComputeInstances(t.Context(), ref), library.DestroyGPUInstance(t.Context(), ref)); err != nil {
		t.Error(err)
	}
	use(library, lib)
}
