// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/switchyard-dev/switchyard/pkg/device"
	"github.com/switchyard-dev/switchyard/pkg/resourcemodel"
)

// Platform is what the node's hardware is. *nvml.Library implements it.
type Platform interface {
	// Discover looks at the hardware. An error means that it cannot be looked at (NVML is not
	// installed or does not come up); a node without GPUs is an empty inventory. Discover is called
	// by one goroutine at a time and comes back to life by itself: it is simply called again.
	Discover(ctx context.Context) (device.Inventory, error)
}

// snapshot is what one look at the hardware came to. It is never changed once it is shared.
type snapshot struct {
	inventory device.Inventory
	// byName holds the GPUs and their partitions by device name.
	byName map[string]preparableDevice
	// observed is when the last look that did not fail ended; zero when this process had none yet.
	observed time.Time
	// judged is when the GPUs were judged by all that is known.
	judged time.Time
	// err is why the hardware could not be looked at; the inventory is then what is left to say
	// about the GPUs that were known before.
	err error
}

// preparableDevice is what preparing a claim needs to know of a device, ready for use.
type preparableDevice struct {
	// gpu is the device, or the GPU of a partition.
	gpu device.GPU
	// partition is the MIG partition that the device is; nil for a GPU.
	partition *device.Partition
	// attributes are the published attributes of a GPU; see snapshot.attributes.
	attributes map[string]resourceapi.DeviceAttribute
}

func newSnapshot(inv device.Inventory, observed, judged time.Time, err error) *snapshot {
	s := &snapshot{inventory: inv, byName: make(map[string]preparableDevice, len(inv.GPUs)), observed: observed, judged: judged, err: err}
	for _, gpu := range inv.GPUs {
		s.byName[gpu.Name()] = preparableDevice{gpu: gpu, attributes: byString(resourcemodel.Attributes(gpu, inv))}
		for _, p := range gpu.Partitions() {
			s.byName[p.Name()] = preparableDevice{gpu: gpu, partition: &p}
		}
	}
	return s
}

func byString(published map[resourceapi.QualifiedName]resourceapi.DeviceAttribute) map[string]resourceapi.DeviceAttribute {
	attributes := make(map[string]resourceapi.DeviceAttribute, len(published))
	for name, value := range published {
		attributes[string(name)] = value
	}
	return attributes
}

// attributes are the published attributes of a device, for the claim's device metadata (KEP-5304). Those of
// partitions are made when they are needed: there are many.
func (s *snapshot) attributes(name string) map[string]resourceapi.DeviceAttribute {
	known := s.byName[name]
	if known.partition != nil {
		return byString(resourcemodel.PartitionAttributes(*known.partition, s.inventory))
	}
	return known.attributes
}

// find returns a device; false for one that is not known, and for a snapshot that there is not yet.
func (s *snapshot) find(name string) (preparableDevice, bool) {
	if s == nil {
		return preparableDevice{}, false
	}
	known, ok := s.byName[name]
	return known, ok
}

// uuid returns the hardware behind a device, empty for a device that is not known and for a partition,
// which gets one when it is made.
func (s *snapshot) uuid(device string) string {
	known := s.byName[device]
	if known.partition != nil {
		return ""
	}
	return known.gpu.UUID
}

// hardware holds the newest snapshot and wakes those who wait for the next.
type hardware struct {
	mu      sync.Mutex
	current *snapshot
	next    chan struct{}
}

func newHardware() *hardware {
	return &hardware{next: make(chan struct{})}
}

// store makes s the newest snapshot.
func (h *hardware) store(s *snapshot) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.current = s
	close(h.next)
	h.next = make(chan struct{})
}

// load returns the newest snapshot, nil before the first, and a channel that is closed when there
// is a newer one.
func (h *hardware) load() (*snapshot, <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.current, h.next
}

// wait returns the newest snapshot, waiting for the first.
func (h *hardware) wait(ctx context.Context) (*snapshot, error) {
	for {
		current, next := h.load()
		if current != nil {
			return current, nil
		}
		select {
		case <-next:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
