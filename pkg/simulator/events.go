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
	// registered is what was not delivered yet, by the position of each registered GPU.
	registered map[int]*registration
}

// registration is what a GPU reports to an event set.
type registration struct {
	// types are the events it was registered for.
	types uint64
	// nextXID is the first error that was not delivered yet; actions and ecc count the events that were.
	nextXID, actions, ecc uint64
}

var _ nvml.EventSet = (*eventSet)(nil)

// EventSetCreate is nvmlEventSetCreate.
func (l *libraryCalls) EventSetCreate() (nvml.EventSet, nvml.Return) {
	if _, ret := l.enter("nvmlEventSetCreate"); ret != nvml.SUCCESS {
		return nil, ret
	}
	set := &eventSet{eventSetCalls: &eventSetCalls{lib: l, registered: map[int]*registration{}}}
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

// GetSupportedEventTypes is nvmlDeviceGetSupportedEventTypes: XIDs, uncorrected memory errors and, where the
// driver has it, the recovery action.
func (g *gpuCalls) GetSupportedEventTypes() (uint64, nvml.Return) {
	snap, ret := g.cached("GetSupportedEventTypes")
	if ret != nvml.SUCCESS {
		return 0, ret
	}
	return snap.eventTypes(), nvml.SUCCESS
}

func (s *snapshot) eventTypes() uint64 {
	types := uint64(nvml.EventTypeXidCriticalError | nvml.EventTypeDoubleBitEccError)
	if s.tellsRecoveryAction() {
		types |= nvml.EventTypeGpuRecoveryAction
	}
	return types
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
	if types&^snap.eventTypes() != 0 {
		return nvml.ERROR_NOT_SUPPORTED
	}
	events.mu.Lock()
	defer events.mu.Unlock()
	if events.freed {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	if types != 0 {
		faults := snap.GPUs[g.position].Faults
		events.registered[g.position] = &registration{types: types, nextXID: snap.NextXID, actions: faults.ActionEvents, ecc: faults.ECCEvents}
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

// deliver takes an event that was not delivered yet: errors first, the oldest before.
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
		r := e.registered[position]
		if r == nil || r.types&nvml.EventTypeXidCriticalError == 0 || xid.Sequence < r.nextXID {
			continue
		}
		r.nextXID = xid.Sequence + 1
		return e.data(position, nvml.EventTypeXidCriticalError, xid.Code), true, nvml.SUCCESS
	}
	for position, gpu := range snap.GPUs {
		r := e.registered[position]
		switch {
		case r == nil:
		case r.types&nvml.EventTypeGpuRecoveryAction != 0 && r.actions < gpu.Faults.ActionEvents:
			r.actions = gpu.Faults.ActionEvents
			return e.data(position, nvml.EventTypeGpuRecoveryAction, 0), true, nvml.SUCCESS
		case r.types&nvml.EventTypeDoubleBitEccError != 0 && r.ecc < gpu.Faults.ECCEvents:
			r.ecc = gpu.Faults.ECCEvents
			return e.data(position, nvml.EventTypeDoubleBitEccError, 0), true, nvml.SUCCESS
		}
	}
	return nvml.EventData{}, false, nvml.SUCCESS
}

// data is an event as NVML tells it outside of MIG mode.
func (e *eventSetCalls) data(position int, eventType, value uint64) nvml.EventData {
	return nvml.EventData{
		Device:            e.lib.device(position),
		EventType:         eventType,
		EventData:         value,
		GpuInstanceId:     0xFFFFFFFF,
		ComputeInstanceId: 0xFFFFFFFF,
	}
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
