// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"errors"
	"slices"
	"testing"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
)

// eventful gives the fake NVML an event set. supported is what each GPU says it can report, register and wait
// are what the calls return.
func eventful(node *fakeNode, supported, register []gonvml.Return, wait func() (gonvml.EventData, gonvml.Return)) (*Library, *[]uint64) {
	node.t.Helper()
	masks := make([]uint64, len(node.gpus))
	set := &mock.EventSet{}
	lib := node.nvml().(*mock.Interface)
	lib.EventSetCreateFunc = func() (gonvml.EventSet, gonvml.Return) { return set, gonvml.SUCCESS }
	lib.EventSetFreeFunc = func(gonvml.EventSet) gonvml.Return { return gonvml.SUCCESS }
	lib.EventSetWaitFunc = func(gonvml.EventSet, uint32) (gonvml.EventData, gonvml.Return) { return wait() }
	handles := make([]*fakeHandle, len(node.gpus))
	for i := range handles {
		handles[i] = node.handle(i).(*fakeHandle)
		handles[i].GetSupportedEventTypesFunc = func() (uint64, gonvml.Return) { return gonvml.EventTypeAll, supported[i] }
		handles[i].RegisterEventsFunc = func(mask uint64, _ gonvml.EventSet) gonvml.Return {
			if register[i] != gonvml.SUCCESS && mask != gonvml.EventTypeXidCriticalError {
				return register[i]
			}
			masks[i] = mask
			return gonvml.SUCCESS
		}
	}
	lib.DeviceGetHandleByIndexFunc = func(index int) (gonvml.Device, gonvml.Return) { return handles[index], gonvml.SUCCESS }
	library, err := Open(Options{NodeName: "node-a", SysfsRoot: node.sysfs, Lib: lib})
	if err != nil {
		node.t.Fatal(err)
	}
	return library, &masks
}

func TestWatchHealthRegistersWhatEachGPUSupports(t *testing.T) {
	node := newNode(t, 3)
	waits := 0
	library, masks := eventful(node,
		[]gonvml.Return{gonvml.SUCCESS, gonvml.SUCCESS, gonvml.ERROR_NOT_SUPPORTED},
		[]gonvml.Return{gonvml.SUCCESS, gonvml.ERROR_NOT_SUPPORTED, gonvml.SUCCESS},
		func() (gonvml.EventData, gonvml.Return) {
			waits++
			return gonvml.EventData{}, map[bool]gonvml.Return{true: gonvml.ERROR_TIMEOUT, false: gonvml.ERROR_GPU_IS_LOST}[waits < 3]
		})
	var monitored, gpus int
	err := library.WatchHealth(t.Context(), func(m, g int) { monitored, gpus = m, g }, func(e HealthEvent) { t.Errorf("event %+v", e) })
	if !errors.Is(err, gonvml.ERROR_GPU_IS_LOST) || errors.Is(err, ErrUnavailable) {
		t.Errorf("it ended with %v, want what the wait returned", err)
	}
	if monitored != 2 || gpus != 3 {
		t.Errorf("%d of %d GPUs report events, want 2 of 3", monitored, gpus)
	}
	if (*masks)[0] != wantedEvents() || (*masks)[1] != gonvml.EventTypeXidCriticalError || (*masks)[2] != 0 {
		t.Errorf("registered for %#x", *masks)
	}
	if wantedEvents()&(gonvml.EventTypeClock|gonvml.EventTypePState|gonvml.EventTypeSingleBitEccError) != 0 {
		t.Error("events that say nothing of health are asked for")
	}
}

// The error of a GPU that is lost is often the first of several: what waits in the event set when NVML is left
// because of it must not go with the set.
func TestWatchHealthTellsWhatWaitsWhenNVMLIsLeft(t *testing.T) {
	for name, test := range map[string]struct{ waiting, told int }{
		"some":           {3, 3},
		"no end of them": {10 * maxLeftOver, maxLeftOver},
	} {
		t.Run(name, func(t *testing.T) {
			node := newNode(t, 2)
			ok := []gonvml.Return{gonvml.SUCCESS, gonvml.SUCCESS}
			var library *Library
			sets, waits := 0, 0
			library, _ = eventful(node, ok, ok, func() (gonvml.EventData, gonvml.Return) {
				waits++
				switch {
				case sets == 2:
					return gonvml.EventData{}, gonvml.ERROR_GPU_IS_LOST
				case waits == 1:
					node.gpus[1].ret = map[string]gonvml.Return{"nvmlDeviceGetUUID": gonvml.ERROR_GPU_IS_LOST}
					if _, err := library.Discover(t.Context()); err != nil {
						t.Error(err)
					}
				case waits <= 1+test.waiting:
					return gonvml.EventData{EventType: gonvml.EventTypeXidCriticalError, EventData: 119}, gonvml.SUCCESS
				}
				return gonvml.EventData{}, gonvml.ERROR_TIMEOUT
			})
			lib := library.lib.(*mock.Interface)
			create := lib.EventSetCreateFunc
			lib.EventSetCreateFunc = func() (gonvml.EventSet, gonvml.Return) {
				sets++
				return create()
			}
			var counts []int
			told := 0
			err := library.WatchHealth(t.Context(), func(monitored, _ int) {
				counts = append(counts, monitored)
			}, func(HealthEvent) { told++ })
			if !errors.Is(err, gonvml.ERROR_GPU_IS_LOST) {
				t.Errorf("it ended with %v, want what the wait of the second watch returned", err)
			}
			if told != test.told {
				t.Errorf("%d events were told, want %d", told, test.told)
			}
			if !slices.Equal(counts, []int{2, 1}) {
				t.Errorf("watches of %d GPUs were opened, want one of both and one of the other", counts)
			}
		})
	}
}

func TestWatchHealthWithoutEvents(t *testing.T) {
	never := func() (gonvml.EventData, gonvml.Return) { return gonvml.EventData{}, gonvml.ERROR_TIMEOUT }
	ok := []gonvml.Return{gonvml.SUCCESS}
	for name, library := range map[string]func(*fakeNode) *Library{
		"a library without the call": func(node *fakeNode) *Library {
			node.missing["nvmlEventSetWait_v2"] = true
			library, _ := eventful(node, ok, ok, never)
			return library
		},
		"GPUs that support none": func(node *fakeNode) *Library {
			library, _ := eventful(node, []gonvml.Return{gonvml.ERROR_NOT_SUPPORTED}, ok, never)
			return library
		},
	} {
		t.Run(name, func(t *testing.T) {
			node := newNode(t, 1)
			err := library(node).WatchHealth(t.Context(), func(int, int) { t.Error("events are on their way") }, func(HealthEvent) {})
			if !errors.Is(err, ErrEventsNotSupported) {
				t.Errorf("it ended with %v", err)
			}
			if len(node.calledMissing) > 0 {
				t.Errorf("called %q, which the library lacks", node.calledMissing)
			}
		})
	}
}

func TestEventNames(t *testing.T) {
	if got := eventName(gonvml.EventTypeGpuRecoveryAction); got != "GpuRecoveryAction" {
		t.Errorf("event 0x8000 is called %q", got)
	}
	if got := eventName(1 << 40); got != "0x10000000000" {
		t.Errorf("an unknown event is called %q", got)
	}
}
