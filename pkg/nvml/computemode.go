// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"fmt"
	"maps"
	"slices"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
)

// computeModes are the names of nvmlComputeMode_t, which says who may compute on a GPU.
var computeModes = map[string]gonvml.ComputeMode{
	"Default":          gonvml.COMPUTEMODE_DEFAULT,
	"ExclusiveThread":  gonvml.COMPUTEMODE_EXCLUSIVE_THREAD,
	"Prohibited":       gonvml.COMPUTEMODE_PROHIBITED,
	"ExclusiveProcess": gonvml.COMPUTEMODE_EXCLUSIVE_PROCESS,
}

// ComputeMode returns who may compute on a GPU, which is named as a device: Default, ExclusiveThread, Prohibited or
// ExclusiveProcess (nvmlDeviceGetComputeMode). It fails as the calls for partitions do.
func (l *Library) ComputeMode(ctx context.Context, gpu string) (string, error) {
	name := ""
	err := l.onGPU(ctx, gpu, "get its compute mode", func(handle gonvml.Device) error {
		mode, ret := handle.GetComputeMode()
		if ret != gonvml.SUCCESS {
			return migError("nvmlDeviceGetComputeMode", ret)
		}
		for _, known := range slices.Sorted(maps.Keys(computeModes)) {
			if computeModes[known] == mode {
				name = known
				return nil
			}
		}
		return fmt.Errorf("nvmlDeviceGetComputeMode: mode %d is not known", mode)
	})
	return name, err
}

// SetComputeMode sets who may compute on a GPU (nvmlDeviceSetComputeMode). It does not outlive a reboot. It fails as the
// calls for partitions do.
func (l *Library) SetComputeMode(ctx context.Context, gpu, mode string) error {
	return l.onGPU(ctx, gpu, "set its compute mode to "+mode, func(handle gonvml.Device) error {
		value, ok := computeModes[mode]
		if !ok {
			return fmt.Errorf("there is no compute mode %q", mode)
		}
		if ret := handle.SetComputeMode(value); ret != gonvml.SUCCESS {
			return migError("nvmlDeviceSetComputeMode", ret)
		}
		return nil
	})
}
