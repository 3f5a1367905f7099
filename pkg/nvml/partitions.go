// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/switchyard-dev/switchyard/pkg/device"
	"github.com/switchyard-dev/switchyard/pkg/mig"
)

var (
	// ErrGPUGone matches errors that say that the GPU of a partition is lost, or not listed any more.
	// With it, its partitions are gone as well.
	ErrGPUGone = errors.New("the GPU is gone")
	// ErrGPUFails matches errors that say that the GPU needs a reset, does not answer, or does not say what is
	// wrong (NVML_ERROR_RESET_REQUIRED, NVML_ERROR_TIMEOUT, NVML_ERROR_UNKNOWN). Its partitions may be there still.
	ErrGPUFails = errors.New("the GPU fails")
	// ErrPartitionInUse matches errors that say that a process still uses a partition
	// (NVML_ERROR_IN_USE).
	ErrPartitionInUse = errors.New("a process still uses the partition")
	// ErrNoRoom matches errors that say that what exists leaves no room for a partition
	// (NVML_ERROR_INSUFFICIENT_RESOURCES).
	ErrNoRoom = errors.New("there is no room for the partition")
)

// Instances returns the GPU instances of a GPU, which is named as a device, by ID. A GPU that is not in
// MIG mode has none.
//
// This and the other calls for partitions fail with an [*UnavailableError] if NVML is not usable, or does
// not answer before ctx ends, with ErrGPUGone and with ErrGPUFails. Calls for one GPU are made one after the other, those
// for different GPUs at the same time. MIG mode is never changed.
func (l *Library) Instances(ctx context.Context, gpu string) ([]mig.Instance, error) {
	var found []mig.Instance
	err := l.onGPU(ctx, gpu, "list its GPU instances", func(handle gonvml.Device) error {
		for number := range gonvml.GPU_INSTANCE_PROFILE_COUNT {
			info, ret := handle.GetGpuInstanceProfileInfo(number)
			if ret == gonvml.ERROR_NOT_SUPPORTED || ret == gonvml.ERROR_INVALID_ARGUMENT {
				continue
			}
			if ret != gonvml.SUCCESS {
				return migError("nvmlDeviceGetGpuInstanceProfileInfo", ret)
			}
			if info.InstanceCount == 0 {
				continue // as in partitioning
			}
			existing, ret := handle.GetGpuInstances(&info)
			if ret == gonvml.ERROR_NOT_SUPPORTED {
				continue // not in MIG mode: the profiles are told all the same
			}
			if ret != gonvml.SUCCESS {
				return migError("nvmlDeviceGetGpuInstances", ret)
			}
			for _, gi := range existing {
				instance, ret := readInstance(handle, gi)
				if ret == gonvml.ERROR_NOT_FOUND || ret == gonvml.ERROR_INVALID_ARGUMENT {
					continue // it is being destroyed
				}
				if ret != gonvml.SUCCESS {
					return migError("nvmlGpuInstanceGetInfo", ret)
				}
				found = append(found, instance)
			}
		}
		return nil
	})
	return found, err
}

// CreateGPUInstance makes the GPU instance of a partition (nvmlDeviceCreateGpuInstanceWithPlacement). It
// fails with ErrNoRoom where something is in its place.
func (l *Library) CreateGPUInstance(ctx context.Context, ref device.PartitionRef) error {
	return l.onGPU(ctx, ref.GPU, "create the GPU instance of partition "+ref.Name(), func(handle gonvml.Device) error {
		info, err := profileByID(handle, ref.ProfileID)
		if err != nil {
			return err
		}
		places, ret := handle.GetGpuInstancePossiblePlacements(&info)
		if ret != gonvml.SUCCESS {
			return migError("nvmlDeviceGetGpuInstancePossiblePlacements_v2", ret)
		}
		for _, place := range places {
			if int(place.Start) == ref.Start {
				if _, ret := handle.CreateGpuInstanceWithPlacement(&info, &place); ret != gonvml.SUCCESS {
					return migError("nvmlDeviceCreateGpuInstanceWithPlacement", ret)
				}
				return nil
			}
		}
		return fmt.Errorf("profile %d has no placement at memory slice %d", ref.ProfileID, ref.Start)
	})
}

// CreateComputeInstance makes the compute instance of a partition, of all slices of its GPU instance
// (nvmlGpuInstanceCreateComputeInstance).
func (l *Library) CreateComputeInstance(ctx context.Context, ref device.PartitionRef) error {
	return l.onInstance(ctx, ref, "create the compute instance of", func(info gonvml.GpuInstanceProfileInfo, gi gonvml.GpuInstance) error {
		for number := range gonvml.COMPUTE_INSTANCE_PROFILE_COUNT {
			profile, ret := gi.GetComputeInstanceProfileInfo(number, gonvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
			if ret != gonvml.SUCCESS || profile.InstanceCount == 0 || profile.SliceCount != info.SliceCount {
				continue
			}
			if _, ret := gi.CreateComputeInstance(&profile); ret != gonvml.SUCCESS {
				return migError("nvmlGpuInstanceCreateComputeInstance", ret)
			}
			return nil
		}
		return fmt.Errorf("NVML has no compute instance profile of all %d slices", info.SliceCount)
	})
}

// DestroyComputeInstances destroys the compute instances of a partition (nvmlComputeInstanceDestroy). It
// fails with ErrPartitionInUse while a process runs in one. Where there is none nothing happens.
func (l *Library) DestroyComputeInstances(ctx context.Context, ref device.PartitionRef) error {
	return l.onInstance(ctx, ref, "destroy the compute instance of", func(_ gonvml.GpuInstanceProfileInfo, gi gonvml.GpuInstance) error {
		for number := range gonvml.COMPUTE_INSTANCE_PROFILE_COUNT {
			profile, ret := gi.GetComputeInstanceProfileInfo(number, gonvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
			if ret != gonvml.SUCCESS || profile.InstanceCount == 0 {
				continue
			}
			existing, ret := gi.GetComputeInstances(&profile)
			if ret != gonvml.SUCCESS {
				return migError("nvmlGpuInstanceGetComputeInstances", ret)
			}
			for _, ci := range existing {
				if ret := ci.Destroy(); !destroyed(ret) {
					return migError("nvmlComputeInstanceDestroy", ret)
				}
			}
		}
		return nil
	})
}

// DestroyGPUInstance destroys the GPU instance of a partition, which has no compute instance any more
// (nvmlGpuInstanceDestroy). Where there is none nothing happens.
func (l *Library) DestroyGPUInstance(ctx context.Context, ref device.PartitionRef) error {
	return l.onInstance(ctx, ref, "destroy the GPU instance of", func(_ gonvml.GpuInstanceProfileInfo, gi gonvml.GpuInstance) error {
		if ret := gi.Destroy(); !destroyed(ret) {
			return migError("nvmlGpuInstanceDestroy", ret)
		}
		return nil
	})
}

// destroyed reports whether what was to be destroyed is not there any more: also when it never was, or MIG mode is
// turned off.
func destroyed(ret gonvml.Return) bool {
	return ret == gonvml.SUCCESS || ret == gonvml.ERROR_NOT_FOUND || ret == gonvml.ERROR_NOT_SUPPORTED
}

// errNoInstance ends a call for a GPU instance that is not there.
var errNoInstance = errors.New("there is no such GPU instance")

// onInstance does something with the GPU instance of a partition. Without one, only creating fails.
func (l *Library) onInstance(ctx context.Context, ref device.PartitionRef, what string, do func(gonvml.GpuInstanceProfileInfo, gonvml.GpuInstance) error) error {
	creates := strings.HasPrefix(what, "create")
	return l.onGPU(ctx, ref.GPU, what+" partition "+ref.Name(), func(handle gonvml.Device) error {
		info, err := profileByID(handle, ref.ProfileID)
		if err != nil {
			if !creates && errors.Is(err, errNoProfile) {
				return nil // as when another driver was loaded
			}
			return err
		}
		existing, ret := handle.GetGpuInstances(&info)
		if ret == gonvml.ERROR_NOT_SUPPORTED && !creates {
			return nil // as when MIG mode was turned off
		}
		if ret != gonvml.SUCCESS {
			return migError("nvmlDeviceGetGpuInstances", ret)
		}
		for _, gi := range existing {
			at, ret := gi.GetInfo()
			if ret != gonvml.SUCCESS {
				return migError("nvmlGpuInstanceGetInfo", ret)
			}
			if int(at.Placement.Start) == ref.Start {
				return do(info, gi)
			}
		}
		if creates {
			return errNoInstance
		}
		return nil
	})
}

var errNoProfile = errors.New("the GPU has no such profile, or is not in MIG mode")

func profileByID(handle gonvml.Device, id int) (gonvml.GpuInstanceProfileInfo, error) {
	for number := range gonvml.GPU_INSTANCE_PROFILE_COUNT {
		info, ret := handle.GetGpuInstanceProfileInfo(number)
		switch {
		case ret == gonvml.ERROR_NOT_SUPPORTED || ret == gonvml.ERROR_INVALID_ARGUMENT:
		case ret != gonvml.SUCCESS:
			return info, migError("nvmlDeviceGetGpuInstanceProfileInfo", ret)
		case int(info.Id) == id:
			return info, nil
		}
	}
	return gonvml.GpuInstanceProfileInfo{}, fmt.Errorf("MIG profile %d: %w", id, errNoProfile)
}

// migError describes what NVML said to a call for a partition.
func migError(call string, ret gonvml.Return) error {
	switch ret {
	case gonvml.ERROR_GPU_IS_LOST:
		return fmt.Errorf("%w: %s: %w", ErrGPUGone, call, ret)
	case gonvml.ERROR_RESET_REQUIRED, gonvml.ERROR_TIMEOUT, gonvml.ERROR_UNKNOWN:
		return fmt.Errorf("%w: %s: %w", ErrGPUFails, call, ret)
	case gonvml.ERROR_IN_USE:
		return fmt.Errorf("%w: %s: %w", ErrPartitionInUse, call, ret)
	case gonvml.ERROR_INSUFFICIENT_RESOURCES:
		return fmt.Errorf("%w: %s: %w", ErrNoRoom, call, ret)
	case gonvml.ERROR_NO_PERMISSION:
		return fmt.Errorf("%s: no permission to change MIG partitions: run privileged (%w)", call, ret)
	default:
		if nvmlGone(ret) {
			return unavailable(call, ret)
		}
		return fmt.Errorf("%s: %w", call, ret)
	}
}

// onGPU calls NVML for one GPU, after those who were before. A call that hangs keeps the GPU, and nobody
// else.
func (l *Library) onGPU(ctx context.Context, gpu, what string, call func(gonvml.Device) error) error {
	fail := func(err error) error { return fmt.Errorf("GPU %s: %s: %w", gpu, what, err) }
	busy := l.partitioning.of(gpu)
	select {
	case busy <- struct{}{}:
	case <-ctx.Done():
		return fail(&UnavailableError{ReasonNotResponding, "an earlier call for the GPU is still in flight"})
	}
	done := make(chan error, 1)
	go func() {
		defer func() { <-busy }()
		done <- l.callGPU(gpu, call)
	}()
	select {
	case err := <-done:
		if err != nil {
			return fail(err)
		}
		return nil
	case <-ctx.Done():
		return fail(&UnavailableError{ReasonNotResponding, "no answer in time: the GPU or the driver hangs, see the kernel log of the node"})
	}
}

// callGPU calls NVML for one GPU. It has its own initialisation, which NVML counts: discovery may leave
// NVML at any time.
func (l *Library) callGPU(gpu string, call func(gonvml.Device) error) error {
	lib := l.Interface()
	if ret := lib.Init(); ret != gonvml.SUCCESS {
		return unavailable("nvmlInit_v2", ret)
	}
	defer func() { _ = lib.Shutdown() }() // an error would change nothing
	count, ret := lib.DeviceGetCount()
	if ret != gonvml.SUCCESS {
		return unavailable("nvmlDeviceGetCount_v2", ret)
	}
	for index := range count {
		handle, ret := lib.DeviceGetHandleByIndex(index)
		if ret != gonvml.SUCCESS {
			continue // another GPU may be lost
		}
		if uuid, ret := handle.GetUUID(); ret == gonvml.SUCCESS && (device.GPU{UUID: uuid}).Name() == gpu {
			return call(handle)
		}
	}
	return fmt.Errorf("%w: NVML does not list it", ErrGPUGone)
}

// gpuTokens has a channel for each GPU, which is full while somebody calls NVML for it.
type gpuTokens struct {
	mu     sync.Mutex
	tokens map[string]chan struct{}
}

func (t *gpuTokens) of(gpu string) chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.tokens == nil {
		t.tokens = make(map[string]chan struct{})
	}
	if t.tokens[gpu] == nil {
		t.tokens[gpu] = make(chan struct{}, 1)
	}
	return t.tokens[gpu]
}
