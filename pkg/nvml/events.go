// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"errors"
	"fmt"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/klog/v2"
)

// ErrEventsNotSupported matches the error of [Library.WatchHealth] where no GPU of the node, or not its
// NVML, reports events: its health is found by looking only.
var ErrEventsNotSupported = errors.New("NVML reports no events on this node")

// HealthEvent is something that NVML reported by itself.
type HealthEvent struct {
	// UUID is the GPU's; empty where NVML does not say which one it is, or it is about all of them.
	UUID string
	// XID is the error's number; 0 for an event that only says that it is time to look at the GPU: the
	// recovery action changed, or there was a memory error.
	XID uint64
	// Type is the name of the event's type, for people.
	Type string
}

// eventTypes are the events that say something of a GPU's health, with their names.
var eventTypes = []struct {
	mask uint64
	name string
}{
	{gonvml.EventTypeXidCriticalError, "XidCriticalError"},
	{gonvml.EventTypeDoubleBitEccError, "DoubleBitEccError"},
	{gonvml.EventTypeDramRetirementEvent, "DramRetirementEvent"},
	{gonvml.EventTypeDramRetirementFailure, "DramRetirementFailure"},
	{gonvml.EventTypeNonFatalPoisonError, "NonFatalPoisonError"},
	{gonvml.EventTypeFatalPoisonError, "FatalPoisonError"},
	{gonvml.EventTypeGpuUnavailableError, "GpuUnavailableError"},
	{gonvml.EventTypeGpuRecoveryAction, "GpuRecoveryAction"},
}

func wantedEvents() uint64 {
	var mask uint64
	for _, t := range eventTypes {
		mask |= t.mask
	}
	return mask
}

func eventName(mask uint64) string {
	for _, t := range eventTypes {
		if t.mask == mask {
			return t.name
		}
	}
	return fmt.Sprintf("%#x", mask)
}

// eventWait is how long one call waits for an event, in milliseconds, and so how long it may take until a
// watch notices that it is over. An event ends the wait at once.
const eventWait = 500

// maxLeftOver is how many events of a session that is over are told at most: GPUs that never stop reporting must
// not keep NVML from being initialised anew.
const maxLeftOver = 256

// WatchHealth tells what NVML reports of the GPUs' health, one event after the other, until ctx ends, which
// is no error. started is called once events are on their way, with how many GPUs report any and how many
// there are; what happened before is found by looking. It is called again when NVML was initialised anew, as
// after a discovery that found a GPU in trouble; [Library.Discover] says when. All that was reported until then is
// told; what happens in the moment between is not.
//
// It returns an error when there are no events any more: one that matches [ErrEventsNotSupported] or
// [ErrUnavailable], or another. The caller watches again; what happens in between is not told. A call that hangs
// is left behind when ctx ends.
func (l *Library) WatchHealth(ctx context.Context, started func(monitored, gpus int), tell func(HealthEvent)) error {
	news := make(chan watchNews)
	stop := make(chan struct{})
	defer close(stop)
	go l.watchOn(ctx, func(n watchNews) bool {
		select {
		case news <- n:
			return true
		case <-stop:
			return false
		}
	})
	for {
		select {
		case <-ctx.Done():
			return nil
		case n := <-news:
			switch {
			case n.over != nil:
				return n.over
			case n.opened:
				started(n.monitored, n.gpus)
			default:
				tell(n.event)
			}
		}
	}
}

// watchNews is an event, or that a watch is open, or why there are no events any more.
type watchNews struct {
	event           HealthEvent
	opened          bool
	monitored, gpus int
	over            error
}

// watchOn sends the news of one watch after the other, until there are none any more or ctx ends.
func (l *Library) watchOn(ctx context.Context, send func(watchNews) bool) {
	for {
		w, err := l.openWatch(ctx)
		if err != nil {
			send(watchNews{over: err})
			return
		}
		listening := send(watchNews{opened: true, monitored: len(w.uuids), gpus: w.gpus})
		for listening && err == nil && ctx.Err() == nil {
			var event HealthEvent
			var found bool
			if event, found, err = w.next(); found {
				listening = send(watchNews{event: event})
			}
		}
		w.close()
		if !errors.Is(err, errSessionOver) {
			send(watchNews{over: err})
			return
		}
	}
}

// watch is a set of events that GPUs report to. It holds an initialisation of NVML of its own.
type watch struct {
	library *Library
	lib     gonvml.Interface
	set     gonvml.EventSet
	// session is that of the library when the watch began.
	session uint64
	// uuids are the GPUs that report events, by handle.
	uuids map[gonvml.Device]string
	gpus  int
	// leftOver is how many events were told after the session was over.
	leftOver int
}

// openWatch registers for the events of all GPUs.
func (l *Library) openWatch(ctx context.Context) (_ *watch, err error) {
	select {
	case l.busy <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-l.busy }()
	if err := l.initialise(); err != nil {
		return nil, err
	}
	r := newReader(l.lib, l.options, l.progress)
	for _, symbol := range []string{"nvmlEventSetCreate", "nvmlEventSetFree", "nvmlEventSetWait_v2", "nvmlDeviceGetSupportedEventTypes", "nvmlDeviceRegisterEvents"} {
		if !r.has(symbol) {
			return nil, fmt.Errorf("%w: the library has no %s", ErrEventsNotSupported, symbol)
		}
	}
	l.progress("nvmlInit_v2 for events")
	if ret := l.lib.Init(); ret != gonvml.SUCCESS {
		return nil, unavailable("nvmlInit_v2", ret)
	}
	w := &watch{library: l, lib: l.lib, session: l.session.Load(), uuids: map[gonvml.Device]string{}}
	l.progress("nvmlEventSetCreate")
	set, ret := l.lib.EventSetCreate()
	if ret != gonvml.SUCCESS {
		_ = l.lib.Shutdown()
		return nil, watchError("nvmlEventSetCreate", ret)
	}
	w.set = set
	if err := w.register(ctx, r); err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

// register has every GPU report what it can. One that reports nothing, or does not answer, costs the others
// nothing.
func (w *watch) register(ctx context.Context, r *reader) error {
	r.progress("nvmlDeviceGetCount_v2")
	count, ret := r.lib.DeviceGetCount()
	if ret != gonvml.SUCCESS {
		return unavailable("nvmlDeviceGetCount_v2", ret)
	}
	w.gpus = count
	for index := range count {
		r.progress(fmt.Sprintf("registering for events of GPU at index %d", index))
		handle, ret := r.lib.DeviceGetHandleByIndex(index)
		var uuid string
		if ret == gonvml.SUCCESS {
			uuid, ret = handle.GetUUID()
		}
		if ret == gonvml.SUCCESS {
			ret = registerEvents(handle, w.set)
		}
		if ret != gonvml.SUCCESS {
			klog.FromContext(ctx).V(2).Info("A GPU reports no events, its health is found by looking only", "index", index, "uuid", uuid, "nvml", ret.Error())
			continue
		}
		w.uuids[handle] = uuid
	}
	if count > 0 && len(w.uuids) == 0 {
		return fmt.Errorf("%w: none of its %d GPUs supports any", ErrEventsNotSupported, count)
	}
	return nil
}

func registerEvents(handle gonvml.Device, set gonvml.EventSet) gonvml.Return {
	supported, ret := handle.GetSupportedEventTypes()
	if ret != gonvml.SUCCESS {
		return ret
	}
	mask := supported & wantedEvents()
	if mask == 0 {
		return gonvml.ERROR_NOT_SUPPORTED
	}
	ret = handle.RegisterEvents(mask, set)
	if ret == gonvml.ERROR_NOT_SUPPORTED && mask&gonvml.EventTypeXidCriticalError != 0 {
		// As on boards without ECC, which list its events all the same.
		ret = handle.RegisterEvents(gonvml.EventTypeXidCriticalError, set)
	}
	return ret
}

// errSessionOver says that NVML has to be initialised anew.
var errSessionOver = errors.New("NVML is being initialised anew")

// next waits for the next event, not for long. Of a session that is over it tells what still waits in the set,
// which goes with it: the error that made one GPU trouble is often the first of several.
func (w *watch) next() (HealthEvent, bool, error) {
	over, wait := w.session != w.library.session.Load(), uint32(eventWait)
	if over {
		wait = 0
		w.leftOver++
	}
	if w.leftOver > maxLeftOver {
		return HealthEvent{}, false, errSessionOver
	}
	data, ret := w.lib.EventSetWait(w.set, wait)
	switch {
	case ret == gonvml.SUCCESS:
		return w.event(data), true, nil
	case over:
		return HealthEvent{}, false, errSessionOver
	case ret == gonvml.ERROR_TIMEOUT:
		return HealthEvent{}, false, nil
	default:
		// It may say that a GPU is lost, and not which: for discovery to find out.
		return HealthEvent{}, false, watchError("nvmlEventSetWait_v2", ret)
	}
}

func (w *watch) event(data gonvml.EventData) HealthEvent {
	event := HealthEvent{UUID: w.uuids[data.Device], Type: eventName(data.EventType)}
	if event.UUID == "" && data.Device != nil {
		// A handle that NVML did not give out before, such as that of a MIG device.
		event.UUID, _ = data.Device.GetUUID()
	}
	if data.EventType == gonvml.EventTypeXidCriticalError {
		event.XID = data.EventData
	}
	return event
}

// close gives the set and the initialisation back. An error would change nothing.
func (w *watch) close() {
	_ = w.lib.EventSetFree(w.set)
	_ = w.lib.Shutdown()
}

// watchError describes why there are no events.
func watchError(call string, ret gonvml.Return) error {
	switch ret {
	case gonvml.ERROR_NOT_SUPPORTED, gonvml.ERROR_FUNCTION_NOT_FOUND:
		return fmt.Errorf("%w: %s: %w", ErrEventsNotSupported, call, ret)
	case gonvml.ERROR_UNINITIALIZED, gonvml.ERROR_DRIVER_NOT_LOADED:
		return unavailable(call, ret)
	default:
		return fmt.Errorf("wait for events of the GPUs: %s: %w", call, ret)
	}
}
