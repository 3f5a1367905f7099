// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"slices"

	"github.com/switchyard-dev/switchyard/pkg/checkpoint"
	"github.com/switchyard-dev/switchyard/pkg/device"
	"github.com/switchyard-dev/switchyard/pkg/nvml"
)

// silentGPUs are those of which NVML did not answer a call for their partitions in this round of the
// reconciler. A second call would wait as long as the first, up to partitionTimeout, and a GPU may have seven
// partitions: the claims of other GPUs would wait for all of them.
type silentGPUs map[string]bool

// skip reports whether a record has a partition of such a GPU.
func (s silentGPUs) skip(record checkpoint.Record) bool {
	return slices.ContainsFunc(partitionedGPUs(record), func(gpu string) bool { return s[gpu] })
}

// note remembers the GPU of a record whose partitions could not be ensured. Of a record with partitions of more
// than one GPU it is not known which it was.
func (s silentGPUs) note(record checkpoint.Record, err error) {
	gpus := partitionedGPUs(record)
	silent := errors.Is(err, nvml.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded)
	if silent && len(gpus) == 1 {
		s[gpus[0]] = true
	}
}

// partitionedGPUs returns the GPUs, as device names, of which a record has partitions.
func partitionedGPUs(record checkpoint.Record) []string {
	var gpus []string
	for _, d := range record.Devices {
		if ref, ok := device.ParsePartitionName(d.Name); ok {
			gpus = append(gpus, ref.GPU)
		}
	}
	slices.Sort(gpus)
	return slices.Compact(gpus)
}
