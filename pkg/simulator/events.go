// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"slices"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
)

// eventPoll is how often a waiting event set looks at the state file.
const eventPoll = 20 * time.Millisecond

// eventSet is made like library: its own methods hide the mock's.
type eventSet struct {
	*eventSetCalls
	eventSetRest
}

type eventSetRest struct{ mock.EventSet }

// eventSetCalls are the simulated functions of an event set.
type eventSetCalls struct {
	lib *libraryCalls

	mu    sync.Mutex
	freed bool
	// next is the first error that was not delivered yet, by the position of each registered GPU.
	next map[int]uint64
}

var _ nvml.EventSet = (*eventSet)(nil)

// EventSetCreate is nvmlEventSetCreate.
func (l *libraryCalls) EventSetCreate() (nvml.EventSet, nvml.Return) {
	if _, ret := l.enter("nvmlEventSetCreate"); ret != nvml.SUCCESS {
		return nil, ret
	}
	set := &eventSet{eventSetCalls: &eventSetCalls{lib: l, next: map[int]uint64{}}}
	fillUnset(&set.EventSet, "nvmlEventSet", l.node.reportUnsimulated)
	return set, nvml.SUCCESS
}

// EventSetWait is nvmlEventSetWait_v2.
func (l *libraryCalls) EventSetWait(set nvml.EventSet, timeout uint32) (nvml.EventData, nvml.Return) {
	if set == nil {
		return nvml.EventData{}, nvml.ERROR_INVALID_ARGUMENT
	}
	return set.Wait(timeout)
}

// EventSetFree is nvmlEventSetFree.
func (l *libraryCalls) EventSetFree(set nvml.EventSet) nvml.Return {
	if set == nil {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	return set.Free()
}

// GetSupportedEventTypes is nvmlDeviceGetSupportedEventTypes: XIDs only.
func (g *gpuCalls) GetSupportedEventTypes() (uint64, nvml.Return) {
	_, ret := g.cached("GetSupportedEventTypes")
	return nvml.EventTypeXidCriticalError, ret
}

// RegisterEvents is nvmlDeviceRegisterEvents. Errors that were raised before are not delivered.
func (g *gpuCalls) RegisterEvents(types uint64, set nvml.EventSet) nvml.Return {
	snap, ret := g.cached("RegisterEvents")
	if ret != nvml.SUCCESS {
		return ret
	}
	events, ok := set.(*eventSet)
	if !ok || events == nil || events.lib != g.lib {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	if types&^uint64(nvml.EventTypeXidCriticalError) != 0 {
		return nvml.ERROR_NOT_SUPPORTED
	}
	events.mu.Lock()
	defer events.mu.Unlock()
	if events.freed {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	if types != 0 {
		events.next[g.position] = snap.NextXID
	}
	return nvml.SUCCESS
}

// Wait is nvmlEventSetWait_v2; the timeout is in milliseconds. A lost GPU ends no wait: its XID 79 does.
func (e *eventSetCalls) Wait(timeout uint32) (nvml.EventData, nvml.Return) {
	deadline := time.NewTimer(time.Duration(timeout) * time.Millisecond)
	defer deadline.Stop()
	tick := time.NewTicker(eventPoll)
	defer tick.Stop()
	_, ret := e.lib.enter("nvmlEventSetWait")
	for ret == nvml.SUCCESS {
		var data nvml.EventData
		var found bool
		if data, found, ret = e.deliver(); found || ret != nvml.SUCCESS {
			return data, ret
		}
		select {
		case <-deadline.C:
			return nvml.EventData{}, nvml.ERROR_TIMEOUT
		case <-tick.C:
		}
	}
	return nvml.EventData{}, ret
}

// deliver takes the oldest error that was not delivered yet.
func (e *eventSetCalls) deliver() (nvml.EventData, bool, nvml.Return) {
	snap, err := e.lib.node.snapshot()
	if err != nil {
		return nvml.EventData{}, false, nvml.ERROR_UNKNOWN
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.freed {
		return nvml.EventData{}, false, nvml.ERROR_INVALID_ARGUMENT
	}
	for _, xid := range snap.XIDs {
		position := slices.IndexFunc(snap.GPUs, func(g GPUState) bool { return g.UUID == xid.GPU })
		next, registered := e.next[position]
		if !registered || xid.Sequence < next {
			continue
		}
		e.next[position] = xid.Sequence + 1
		return nvml.EventData{
			Device:    e.lib.device(position),
			EventType: nvml.EventTypeXidCriticalError,
			EventData: xid.Code,
			// What NVML says outside of MIG mode.
			GpuInstanceId:     0xFFFFFFFF,
			ComputeInstanceId: 0xFFFFFFFF,
		}, true, nvml.SUCCESS
	}
	return nvml.EventData{}, false, nvml.SUCCESS
}

// Free is nvmlEventSetFree.
func (e *eventSetCalls) Free() nvml.Return {
	if _, ret := e.lib.enter("nvmlEventSetFree"); ret != nvml.SUCCESS {
		return ret
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.freed {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	e.freed = true
	return nvml.SUCCESS
}
