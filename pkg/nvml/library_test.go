// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
)

func TestOpenNeverTouchesNVML(t *testing.T) {
	node := newNode(t, 1)
	node.initRet = gonvml.ERROR_DRIVER_NOT_LOADED
	library := node.library()
	if node.inits != 0 {
		t.Error("Open initialised NVML")
	}
	if library.Interface() == nil {
		t.Error("no interface")
	}
	if err := library.Close(); err != nil || node.shutdowns != 0 {
		t.Errorf("Close of an NVML that was never used: %v, %d shutdowns", err, node.shutdowns)
	}
	if _, err := Open(Options{}); err == nil || !strings.Contains(err.Error(), "node name") {
		t.Errorf("Open without a node name: %v", err)
	}
}

func TestDiscoverTellsWhyNVMLIsUnavailableAndRecovers(t *testing.T) {
	for name, test := range map[string]struct {
		breaks func(*fakeNode)
		reason string
		text   string
	}{
		"library not found": {func(n *fakeNode) { n.initRet = gonvml.ERROR_LIBRARY_NOT_FOUND }, ReasonLibraryNotFound, "nvmlInit_v2"},
		"driver not loaded": {func(n *fakeNode) { n.initRet = gonvml.ERROR_DRIVER_NOT_LOADED }, ReasonDriverNotLoaded, "kernel driver is not loaded"},
		"driver and library mismatch": {
			func(n *fakeNode) { n.initRet = gonvml.ERROR_LIB_RM_VERSION_MISMATCH }, ReasonVersionMismatch, "reload the kernel driver or reboot",
		},
		"no permission":       {func(n *fakeNode) { n.initRet = gonvml.ERROR_NO_PERMISSION }, ReasonFailed, "device nodes"},
		"any other error":     {func(n *fakeNode) { n.initRet = gonvml.ERROR_UNKNOWN }, ReasonFailed, "ERROR_UNKNOWN"},
		"no driver version":   {func(n *fakeNode) { n.driverRet = gonvml.ERROR_UNINITIALIZED }, ReasonFailed, "nvmlSystemGetDriverVersion"},
		"no device count":     {func(n *fakeNode) { n.countRet = gonvml.ERROR_UNKNOWN }, ReasonFailed, "nvmlDeviceGetCount"},
		"gone at a handle":    {func(n *fakeNode) { n.gpus[1].ret["nvmlDeviceGetHandleByIndex_v2"] = gonvml.ERROR_UNINITIALIZED }, ReasonFailed, "index 1"},
		"gone at a UUID":      {func(n *fakeNode) { n.gpus[1].ret["nvmlDeviceGetUUID"] = gonvml.ERROR_DRIVER_NOT_LOADED }, ReasonDriverNotLoaded, "index 1"},
		"gone at a property":  {func(n *fakeNode) { n.gpus[1].ret["nvmlDeviceGetMigMode"] = gonvml.ERROR_UNINITIALIZED }, ReasonFailed, "nvmlDeviceGetMigMode"},
		"gone at the address": {func(n *fakeNode) { n.gpus[1].ret["nvmlDeviceGetPciInfo_v3"] = gonvml.ERROR_UNINITIALIZED }, ReasonFailed, "nvmlDeviceGetPciInfo_v3"},
	} {
		t.Run(name, func(t *testing.T) {
			node := newNode(t, 2)
			library := node.library()
			test.breaks(node)
			for range 2 {
				inventory, err := library.Discover(t.Context())
				var unavailable *UnavailableError
				if !errors.Is(err, ErrUnavailable) || !errors.As(err, &unavailable) || unavailable.Reason != test.reason {
					t.Fatalf("error %v, want an UnavailableError with reason %s", err, test.reason)
				}
				if !strings.Contains(err.Error(), test.text) || errors.Is(err, ErrRestartRequired) {
					t.Errorf("error %q, want it to tell about %q", err, test.text)
				}
				if len(inventory.GPUs) != 0 {
					t.Errorf("GPUs beside an error: %v", inventory.GPUs)
				}
			}
			node.initRet, node.driverRet, node.countRet = gonvml.SUCCESS, gonvml.SUCCESS, gonvml.SUCCESS
			clear(node.gpus[1].ret)
			inventory, err := library.Discover(t.Context())
			if err != nil || len(inventory.GPUs) != 2 {
				t.Fatalf("once NVML works: %d GPUs, %v", len(inventory.GPUs), err)
			}
		})
	}
}

func TestNVMLStaysInitialisedWhileAllIsWell(t *testing.T) {
	node := newNode(t, 2)
	library := node.library()
	for range 3 {
		if _, err := library.Discover(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if node.inits != 1 || node.shutdowns != 0 {
		t.Errorf("%d inits, %d shutdowns; want 1, 0", node.inits, node.shutdowns)
	}
	if err := library.Close(); err != nil || node.shutdowns != 1 {
		t.Errorf("Close: %v, %d shutdowns", err, node.shutdowns)
	}
	if err := library.Close(); err != nil || node.shutdowns != 1 {
		t.Errorf("second Close: %v, %d shutdowns", err, node.shutdowns)
	}
}

func TestALostGPUMakesTheNextDiscoveryStartAnew(t *testing.T) {
	for name, breaks := range map[string]func(*fakeGPU){
		"unhealthy":    func(g *fakeGPU) { g.ret["nvmlDeviceGetMemoryInfo"] = gonvml.ERROR_GPU_IS_LOST },
		"unidentified": func(g *fakeGPU) { g.ret["nvmlDeviceGetHandleByIndex_v2"] = gonvml.ERROR_GPU_IS_LOST },
	} {
		t.Run(name, func(t *testing.T) {
			node := newNode(t, 2)
			library := node.library()
			breaks(node.gpus[0])
			for want := 1; want <= 2; want++ {
				if _, err := library.Discover(t.Context()); err != nil {
					t.Fatal(err)
				}
				if node.inits != want || node.shutdowns != want {
					t.Errorf("%d inits, %d shutdowns; want %d of each: the GPU cannot be reset while NVML holds it", node.inits, node.shutdowns, want)
				}
				node.after(10 * time.Second)
			}
			clear(node.gpus[0].ret)
			if inventory, err := library.Discover(t.Context()); err != nil || len(inventory.GPUs) != 2 || !inventory.GPUs[0].Health.Healthy() {
				t.Errorf("once the GPU is back: %+v, %v", inventory.GPUs, err)
			}
		})
	}
}

// A watch of events ends whenever NVML is left.
func TestALostGPUDoesNotMakeTheNodeDeaf(t *testing.T) {
	node := newNode(t, 3)
	library := node.library()
	look := func() {
		t.Helper()
		if _, err := library.Discover(t.Context()); err != nil {
			t.Fatal(err)
		}
		node.after(10 * time.Second)
	}
	memory := func(i int, ret gonvml.Return) { node.gpus[i].ret["nvmlDeviceGetMemoryInfo"] = ret }

	memory(0, gonvml.ERROR_GPU_IS_LOST)
	for range 360 { // an hour
		look()
	}
	if node.shutdowns < 12 || node.shutdowns > 20 {
		t.Errorf("in an hour NVML is left %d times because of one GPU, want it every five minutes", node.shutdowns)
	}
	lefts := func(what string, least, most int, do func()) {
		t.Helper()
		before := node.shutdowns
		do()
		if got := node.shutdowns - before; got < least || got > most {
			t.Errorf("%s: NVML is left %d times, want %d to %d", what, got, least, most)
		}
	}
	lefts("another GPU is lost", 1, 1, func() { memory(1, gonvml.ERROR_RESET_REQUIRED); look() })
	lefts("it is well by turns for an hour", 12, 20, func() {
		for range 180 {
			memory(1, gonvml.SUCCESS)
			look()
			memory(1, gonvml.ERROR_RESET_REQUIRED)
			look()
		}
	})
	memory(0, gonvml.SUCCESS)
	memory(1, gonvml.SUCCESS)
	lefts("all are well", 0, 0, func() {
		for range 31 {
			look()
		}
	})
	lefts("one is lost after some time", 1, 1, func() { memory(0, gonvml.ERROR_GPU_IS_LOST); look() })
	memory(0, gonvml.SUCCESS)
	lefts("a GPU is not listed any more", 2, 2, func() {
		node.gpus = node.gpus[:2]
		look()
		look()
	})
}

func TestAHangingCallDoesNotHangDiscover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := newNode(t, 2)
		node.block = make(chan struct{})
		library := node.library()

		start := time.Now()
		_, err := library.Discover(t.Context())
		var unavailable *UnavailableError
		if !errors.As(err, &unavailable) || unavailable.Reason != ReasonNotResponding || !strings.Contains(err.Error(), "nvmlInit_v2") {
			t.Fatalf("error %v, want that nvmlInit_v2 does not answer", err)
		}
		if waited := time.Since(start); waited != DefaultTimeout {
			t.Errorf("returned after %v, want %v", waited, DefaultTimeout)
		}
		if err := library.Close(); err == nil || !strings.Contains(err.Error(), "nvmlInit_v2") {
			t.Errorf("Close while a call hangs: %v", err)
		}

		// Others wait for the same call, as long as they like.
		var waiting sync.WaitGroup
		for range 5 {
			waiting.Go(func() {
				short, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if _, err := library.Discover(short); !errors.Is(err, ErrUnavailable) {
					t.Errorf("error %v", err)
				}
			})
		}
		waiting.Wait()
		cancelled, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := library.Discover(cancelled); !errors.Is(err, context.Canceled) || errors.Is(err, ErrUnavailable) {
			t.Errorf("error %v, want that of the context", err)
		}

		// The call returns at last.
		close(node.block)
		synctest.Wait()
		if inventory, err := library.Discover(t.Context()); err != nil || len(inventory.GPUs) != 2 {
			t.Errorf("once the call returned: %d GPUs, %v", len(inventory.GPUs), err)
		}
		if node.inits != 1 {
			t.Errorf("%d calls of nvmlInit_v2, want one", node.inits)
		}
	})
}

func TestAHangingShutdownDoesNotHangClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := newNode(t, 1)
		node.blockShutdown = make(chan struct{})
		library := node.library()
		if _, err := library.Discover(t.Context()); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if err := library.Close(); err == nil || !strings.Contains(err.Error(), "nvmlShutdown") || time.Since(start) != closeTimeout {
			t.Errorf("Close after %v: %v, want that nvmlShutdown hangs after %v", time.Since(start), err, closeTimeout)
		}
		if err := library.Close(); err == nil {
			t.Error("a second Close does not tell that the first is in flight")
		}
		close(node.blockShutdown)
	})
}

func TestAWaitingDiscoverGetsTheResultOfTheCallInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := newNode(t, 1)
		node.block = make(chan struct{})
		library := node.library()
		var done sync.WaitGroup
		for range 3 {
			done.Go(func() {
				inventory, err := library.Discover(t.Context())
				if err != nil || len(inventory.GPUs) != 1 {
					t.Errorf("%d GPUs, %v", len(inventory.GPUs), err)
					return
				}
				inventory.GPUs[0].UUID = "changed" // by one caller, unseen by the others
			})
		}
		synctest.Wait()
		close(node.block)
		done.Wait()
		if node.inits != 1 {
			t.Errorf("%d calls, want one for all", node.inits)
		}
	})
}
