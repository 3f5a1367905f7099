// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/switchyard-dev/switchyard/pkg/device"
	"github.com/switchyard-dev/switchyard/pkg/nvml"
)

func TestDiscoveryWait(t *testing.T) {
	m := newMachine(t, 1)
	p := m.start()
	interval := p.config.DiscoveryInterval
	if wait := p.discovery.look(p.ctx); wait != interval {
		t.Errorf("looks again after %v, want the interval %v", wait, interval)
	}
	settling := gpus(1)
	settling.Settling = true
	m.platform.set(settling, nil)
	if wait := p.discovery.look(p.ctx); wait != fastDiscovery {
		t.Errorf("looks again after %v while the fabric forms, want %v", wait, fastDiscovery)
	}
	m.platform.set(device.Inventory{}, errTest)
	var last time.Duration
	for range 8 {
		wait := p.discovery.look(p.ctx)
		if wait < last || wait > interval {
			t.Errorf("looks again after %v, then %v: want a wait that grows up to the interval", last, wait)
		}
		last = wait
	}
	if last != interval {
		t.Errorf("the wait grew to %v, want the interval %v", last, interval)
	}
}

func TestDiscoveryLosesPatience(t *testing.T) {
	for name, unsettle := range map[string]func(*testMachine, bool){
		"with a fabric that never forms": func(m *testMachine, on bool) {
			inv := gpus(1)
			inv.Settling = on
			m.platform.set(inv, nil)
		},
		"with CDI edits that cannot be computed": func(m *testMachine, on bool) {
			m.specs.refreshErr = nil
			if on {
				m.specs.refreshErr = errTest
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, 1)
			p := m.start()
			unsettle(m, true)
			looks := 0
			var wait time.Duration
			for begin := m.clock.Now(); m.clock.Since(begin) < 30*time.Minute; m.clock.Step(wait) {
				before := wait
				wait = p.discovery.look(p.ctx)
				looks++
				switch age := m.clock.Since(begin); {
				case wait < before:
					t.Fatalf("after %v the wait shrinks from %v to %v", age, before, wait)
				case age <= time.Minute && wait != fastDiscovery:
					t.Fatalf("after %v the wait is %v, want %v in the first minute", age, wait, fastDiscovery)
				case age >= 10*time.Minute && wait != p.config.DiscoveryInterval:
					t.Fatalf("after %v the wait is %v, want the interval", age, wait)
				}
			}
			if looks > 400 {
				t.Errorf("%d looks in half an hour", looks)
			}

			unsettle(m, false)
			if wait := p.discovery.look(p.ctx); wait != p.config.DiscoveryInterval {
				t.Errorf("settled, it looks again after %v", wait)
			}
			p.discovery.specsFor = nil
			unsettle(m, true)
			if wait := p.discovery.look(p.ctx); wait != fastDiscovery {
				t.Errorf("unsettled anew, it looks again after %v, want %v", wait, fastDiscovery)
			}
		})
	}
}

func TestOneFailedLookChangesNothing(t *testing.T) {
	m := newMachine(t, 1)
	p := m.ready()
	before := p.desired
	m.platform.set(device.Inventory{}, errTest)
	p.discovery.look(p.ctx)
	m.platform.set(gpus(1), nil)
	p.discovery.look(p.ctx)
	if p.desired != before {
		t.Errorf("published %v after a failure that was over at once", p.desired)
	}
}

func TestNothingIsPublishedThatCannotBePrepared(t *testing.T) {
	m := newMachine(t, 1)
	m.specs.refreshErr = errTest
	p := m.start()
	p.discovery.look(p.ctx)
	if p.desired != nil {
		t.Errorf("published %v before there are CDI edits", p.desired)
	}
	m.expectEvent("CDIFailed", errTest.Error())
	m.specs.refreshErr = nil
	p.discovery.look(p.ctx)
	if p.desired == nil {
		t.Error("not published although there are CDI edits now")
	}
}

func TestShutdownDuringALookIsNoFailure(t *testing.T) {
	m := newMachine(t, 1)
	p := m.start()
	ctx, cancel := context.WithCancel(p.ctx)
	m.specs.onRefresh = cancel
	p.discovery.look(ctx)
	if len(m.events.Events) > 0 {
		t.Errorf("an Event says %q", <-m.events.Events)
	}
	if problems := p.conditions.problems(string(conditionRegistration)); len(problems) > 0 {
		t.Errorf("readiness says %q", problems)
	}
}

func TestLostGPUStaysListedOverARestart(t *testing.T) {
	m := newMachine(t, 2)
	m.ready()
	m.platform.set(without(gpus(2), 1), nil)
	m.ready()
	p := m.ready() // knows the lost GPU from the file only
	if got := len(p.desired.Pools[testNode].Slices[0].Devices); got != 2 {
		t.Errorf("%d devices are published, want 2", got)
	}
	m.reboot()
	p = m.ready()
	if got := len(p.desired.Pools[testNode].Slices[0].Devices); got != 1 {
		t.Errorf("%d devices are published after a reboot, want 1", got)
	}
}

func TestSavedInventory(t *testing.T) {
	for name, test := range map[string]struct {
		content string
		gpus    int
		err     bool
	}{
		"of this boot":          {`{"version":1,"bootID":"b","inventory":{"gpus":[{"uuid":"GPU-1"}]}}`, 1, false},
		"of another boot":       {`{"version":1,"bootID":"a","inventory":{"gpus":[{"uuid":"GPU-1"}]}}`, 0, false},
		"of an unknown version": {`{"version":2,"bootID":"b","inventory":{"gpus":[{"uuid":"GPU-1"}]}}`, 0, false},
		"cut off":               {`{"version":1,"bootID":"b","inv`, 0, true},
		"empty":                 {"", 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, inventoryFileName), []byte(test.content), 0o600); err != nil {
				t.Fatal(err)
			}
			inv, err := loadInventory(dir, "b")
			if (err != nil) != test.err || len(inv.GPUs) != test.gpus {
				t.Errorf("loadInventory = %v, %v; want %d GPUs, an error: %v", inv, err, test.gpus, test.err)
			}
		})
	}
	t.Run("none", func(t *testing.T) {
		if inv, err := loadInventory(t.TempDir(), "b"); err != nil || len(inv.GPUs) != 0 {
			t.Errorf("loadInventory = %v, %v", inv, err)
		}
	})
}

func TestReplacedLibraryEndsTheProcess(t *testing.T) {
	m := newMachine(t, 1)
	p := m.ready()
	var cause error
	p.cancel = func(err error) { cause = err }
	m.platform.set(device.Inventory{}, &nvml.UnavailableError{Reason: nvml.ReasonRestartRequired, Message: "replaced"})
	p.discovery.look(p.ctx)
	if !errors.Is(cause, nvml.ErrRestartRequired) {
		t.Errorf("ended with %v, want that a restart is required", cause)
	}
}

func TestUnidentifiedGPUIsToldOnce(t *testing.T) {
	m := newMachine(t, 1)
	m.platform.inv.Unidentified = []string{"index 1 does not tell its UUID"}
	p := m.ready()
	p.discovery.look(p.ctx)
	m.expectEvent("GPUUnidentified", "index 1")
	if len(m.seen) != 0 || len(m.events.Events) != 0 {
		t.Errorf("told again: %q", m.seen)
	}
}

// Driver files that come after the plugin are told of to containers, and the specs of claims are looked at again.
func TestDriverFilesThatComeAreLookedAt(t *testing.T) {
	m := newMachine(t, 1)
	p := m.start()
	p.discovery.look(p.ctx)
	refreshes := 0
	m.specs.onRefresh = func() { refreshes++ }
	p.discovery.look(p.ctx)
	if refreshes != 0 {
		t.Fatalf("the same GPUs and files are looked at %d times", refreshes)
	}
	m.specs.moved = true
	p.discovery.look(p.ctx)
	if refreshes != 1 {
		t.Errorf("files that have changed are looked at %d times, want once", refreshes)
	}
}
