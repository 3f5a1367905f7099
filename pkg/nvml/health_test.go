// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/switchyard-dev/switchyard/pkg/health"
	"github.com/switchyard-dev/switchyard/pkg/nvml"
	"github.com/switchyard-dev/switchyard/pkg/simulator"
	"github.com/switchyard-dev/switchyard/pkg/simulator/profile"
)

// simulated opens the NVML of a simulated node.
func simulated(t *testing.T, profileName string) (*simulator.Node, *nvml.Library) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "sim")
	p, err := profile.Load(profileName)
	if err != nil {
		t.Fatal(err)
	}
	if err := simulator.Create(dir, p, simulator.Options{NodeName: "node-a", DeviceNodes: simulator.DeviceNodesFiles}); err != nil {
		t.Fatal(err)
	}
	node, err := simulator.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	library, err := nvml.Open(nvml.Options{NodeName: "node-a", SysfsRoot: node.SysfsRoot(), Lib: node.NVML()})
	if err != nil {
		t.Fatal(err)
	}
	return node, library
}

func uuids(t *testing.T, node *simulator.Node) []string {
	t.Helper()
	state, err := node.State()
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, gpu := range state.GPUs {
		all = append(all, gpu.UUID)
	}
	return all
}

func do(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// watching is a WatchHealth that runs.
type watching struct {
	t       *testing.T
	cancel  context.CancelFunc
	started chan [2]int // how many GPUs report events, of how many
	events  chan nvml.HealthEvent
	done    chan error
}

// watch watches and returns once events are on their way.
func watch(t *testing.T, library *nvml.Library, wantMonitored, wantGPUs int) *watching {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	w := &watching{t: t, cancel: cancel, started: make(chan [2]int, 10), events: make(chan nvml.HealthEvent, 100), done: make(chan error, 1)}
	go func() {
		w.done <- library.WatchHealth(ctx, func(monitored, gpus int) { w.started <- [2]int{monitored, gpus} },
			func(event nvml.HealthEvent) { w.events <- event })
	}()
	w.begins(wantMonitored, wantGPUs)
	return w
}

// begins waits until events are on their way.
func (w *watching) begins(wantMonitored, wantGPUs int) {
	w.t.Helper()
	select {
	case got := <-w.started:
		if got != [2]int{wantMonitored, wantGPUs} {
			w.t.Errorf("%d of %d GPUs report events, want %d of %d", got[0], got[1], wantMonitored, wantGPUs)
		}
	case err := <-w.done:
		w.t.Fatalf("watching ended before it began: %v", err)
	case <-time.After(30 * time.Second):
		w.t.Fatal("watching does not begin")
	}
}

func (w *watching) next() nvml.HealthEvent {
	w.t.Helper()
	select {
	case event := <-w.events:
		return event
	case err := <-w.done:
		w.t.Fatalf("watching ended: %v", err)
	case <-time.After(30 * time.Second):
		w.t.Fatal("no event comes")
	}
	return nvml.HealthEvent{}
}

func (w *watching) end() error {
	w.t.Helper()
	select {
	case err := <-w.done:
		return err
	case <-time.After(30 * time.Second):
		w.t.Fatal("watching does not end")
		return nil
	}
}

func TestWatchHealthTellsWhatGPUsReport(t *testing.T) {
	node, library := simulated(t, "hgx-h100")
	gpus := uuids(t, node)
	do(t, node.InjectXID(0, 48)) // before anybody listens
	w := watch(t, library, 8, 8)
	for name, test := range map[string]struct {
		happens func() error
		want    []nvml.HealthEvent
	}{
		"an XID":                           {func() error { return node.InjectXID(2, 31) }, []nvml.HealthEvent{{UUID: gpus[2], XID: 31, Type: "XidCriticalError"}}},
		"an XID with a recovery action":    {func() error { return node.InjectXID(3, 48) }, []nvml.HealthEvent{{UUID: gpus[3], XID: 48, Type: "XidCriticalError"}, {UUID: gpus[3], Type: "GpuRecoveryAction"}}},
		"a recovery action":                {func() error { return node.SetRecoveryAction(4, "drain-and-reset") }, []nvml.HealthEvent{{UUID: gpus[4], Type: "GpuRecoveryAction"}}},
		"uncorrected memory errors":        {func() error { return node.AddECCErrors(5, 2) }, []nvml.HealthEvent{{UUID: gpus[5], Type: "DoubleBitEccError"}}},
		"a GPU that has fallen of the bus": {func() error { return node.LoseGPU(6) }, []nvml.HealthEvent{{UUID: gpus[6], XID: 79, Type: "XidCriticalError"}, {UUID: gpus[6], Type: "GpuRecoveryAction"}}},
	} {
		do(t, test.happens())
		var got []nvml.HealthEvent
		for range test.want {
			got = append(got, w.next())
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s: events (-want +got):\n%s", name, diff)
		}
	}
	w.cancel()
	if err := w.end(); err != nil {
		t.Errorf("it ended with %v", err)
	}
	if len(w.events) > 0 {
		t.Errorf("there is another event: %+v", <-w.events)
	}
}

func TestWatchHealthLeavesOutAGPUThatDoesNotAnswer(t *testing.T) {
	node, library := simulated(t, "hgx-h100")
	do(t, node.LoseGPU(0))
	w := watch(t, library, 7, 8)
	do(t, node.InjectXID(1, 48))
	if got := w.next(); got.UUID != uuids(t, node)[1] {
		t.Errorf("event %+v", got)
	}
}

// NVML finds a GPU that came back only when everybody has left it.
func TestWatchHealthGoesOnWhenNVMLIsLeft(t *testing.T) {
	node, library := simulated(t, "hgx-h100")
	gpus := uuids(t, node)
	w := watch(t, library, 8, 8)
	do(t, node.LoseGPU(0))
	if _, err := library.Discover(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.begins(7, 8)
	if got := node.Calls()["nvmlShutdown"]; got < 2 {
		t.Errorf("NVML was left %d times, want by both", got)
	}
	do(t, node.InjectXID(1, 48))
	for got := w.next(); got.UUID != gpus[1]; got = w.next() {
		if got.UUID != gpus[0] {
			t.Errorf("event %+v", got)
		}
	}
	w.cancel()
	if err := w.end(); err != nil {
		t.Errorf("it ended with %v", err)
	}
}

func TestWatchHealthWithoutADriver(t *testing.T) {
	node, library := simulated(t, "hgx-h100")
	do(t, node.SetDriverFailure(simulator.DriverNotLoaded))
	err := library.WatchHealth(t.Context(), func(int, int) { t.Error("events are on their way") }, func(nvml.HealthEvent) {})
	if !errors.Is(err, nvml.ErrUnavailable) {
		t.Errorf("it ended with %v", err)
	}
	do(t, node.SetDriverFailure(""))
	w := watch(t, library, 8, 8)
	do(t, node.SetDriverFailure(simulator.DriverNotLoaded))
	if err := w.end(); !errors.Is(err, nvml.ErrUnavailable) {
		t.Errorf("with the driver unloaded it ended with %v", err)
	}
}

func TestReadHealth(t *testing.T) {
	yes, no, zero, none := true, false, uint64(0), health.RecoveryNone
	well := health.Readings{RecoveryAction: &none, UncorrectableECC: &zero, RowRemapPending: &no, RowRemapFailure: &no}
	for name, test := range map[string]struct {
		profile string
		happens func(*simulator.Node) error
		want    *health.Readings // of GPU 1; nil for a GPU that is left out
	}{
		"a GPU that is well": {"hgx-h100", nil, &well},
		"a recovery action": {"hgx-h100", func(n *simulator.Node) error { return n.SetRecoveryAction(1, "node-reboot") }, func() *health.Readings {
			r, action := well, health.RecoveryNodeReboot
			r.RecoveryAction = &action
			return &r
		}()},
		"uncorrected memory errors": {"hgx-h100", func(n *simulator.Node) error { return n.AddECCErrors(1, 3) }, func() *health.Readings {
			r, count := well, uint64(3)
			r.UncorrectableECC = &count
			return &r
		}()},
		"a pending row remapping": {"hgx-h100", func(n *simulator.Node) error { return n.SetRowRemap(1, true, false) }, func() *health.Readings {
			r := well
			r.RowRemapPending = &yes
			return &r
		}()},
		"a failed row remapping": {"hgx-h100", func(n *simulator.Node) error { return n.SetRowRemap(1, false, true) }, func() *health.Readings {
			r := well
			r.RowRemapFailure = &yes
			return &r
		}()},
		"a board that does not remap rows": {"dgx1-v100", nil, &health.Readings{RecoveryAction: &none, UncorrectableECC: &zero}},
		"a driver without recovery action": {"hgx-h100", func(n *simulator.Node) error {
			return n.Update(func(s *simulator.State) error { s.Profile.Driver.Version = "550.54.15"; return nil })
		}, &health.Readings{UncorrectableECC: &zero, RowRemapPending: &no, RowRemapFailure: &no}},
		"MIG mode, in which remapping is not told": {"hgx-h100", func(n *simulator.Node) error { return n.SetMIGMode(1, true) }, &health.Readings{RecoveryAction: &none, UncorrectableECC: &zero, Incomplete: true}},
		"a GPU that asks for a reset":              {"hgx-h100", func(n *simulator.Node) error { return n.RequireReset(1) }, &health.Readings{RecoveryAction: &none, Incomplete: true}},
		"a lost GPU":                               {"hgx-h100", func(n *simulator.Node) error { return n.LoseGPU(1) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			node, library := simulated(t, test.profile)
			if test.happens != nil {
				do(t, test.happens(node))
			}
			got, err := library.ReadHealth(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			gpus := uuids(t, node)
			readings, ok := got[gpus[1]]
			if ok != (test.want != nil) {
				t.Fatalf("GPU 1 is in the result: %v", ok)
			}
			if test.want != nil {
				if diff := cmp.Diff(*test.want, readings); diff != "" {
					t.Errorf("readings (-want +got):\n%s", diff)
				}
			}
			if _, ok := got[gpus[0]]; !ok {
				t.Error("GPU 0 is left out")
			}
		})
	}
	t.Run("without a driver it is unavailable", func(t *testing.T) {
		node, library := simulated(t, "t4")
		do(t, node.SetDriverFailure(simulator.DriverNotLoaded))
		if got, err := library.ReadHealth(t.Context()); !errors.Is(err, nvml.ErrUnavailable) {
			t.Errorf("ReadHealth = %v, %v", got, err)
		}
	})
	t.Run("it ends with the context while a call hangs", func(t *testing.T) {
		node, library := simulated(t, "t4")
		do(t, node.SetCallDelay(time.Second))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := library.ReadHealth(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("ReadHealth: %v", err)
		}
	})
}
