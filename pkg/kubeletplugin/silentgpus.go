// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"sync"

	"github.com/switchyard-dev/switchyard/pkg/checkpoint"
	"github.com/switchyard-dev/switchyard/pkg/device"
	"github.com/switchyard-dev/switchyard/pkg/nvml"
)

// silentGPUs are those of which NVML did not answer the last call for their partitions in time. Another call
// would wait as long, up to partitionTimeout, and a GPU may have seven partitions. So what can wait is not asked of
// them before the reconciler's next round, which forgets them at its begin. It is safe for concurrent use.
type silentGPUs struct {
	mu sync.Mutex
	// why has the error of each, by the GPU's device name.
	why map[string]error
}

// note remembers how a call for the partitions of a GPU ended.
func (s *silentGPUs) note(gpu string, err error) {
	unavailable, _ := errors.AsType[*nvml.UnavailableError](err)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case unavailable != nil && unavailable.Reason == nvml.ReasonNotResponding || errors.Is(err, context.DeadlineExceeded):
		if s.why == nil {
			s.why = make(map[string]error)
		}
		s.why[gpu] = err
	case !errors.Is(err, context.Canceled): // which says nothing
		delete(s.why, gpu)
	}
}

// forget has all GPUs asked again.
func (s *silentGPUs) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.why = nil
}

// of returns why a GPU should not be asked now, or nil.
func (s *silentGPUs) of(gpu string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.why[gpu]
}

// ofRecord returns why the GPU of one of a record's partitions should not be asked now, or nil.
func (s *silentGPUs) ofRecord(record checkpoint.Record) error {
	for _, d := range record.Devices {
		if ref, ok := device.ParsePartitionName(d.Name); ok {
			if why := s.of(ref.GPU); why != nil {
				return why
			}
		}
	}
	return nil
}
