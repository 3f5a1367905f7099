// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/klog/v2/ktesting"

	"github.com/switchyard-dev/switchyard/pkg/cdi"
	"github.com/switchyard-dev/switchyard/pkg/device"
	"github.com/switchyard-dev/switchyard/pkg/nvml"
	"github.com/switchyard-dev/switchyard/pkg/simulator"
	"github.com/switchyard-dev/switchyard/pkg/simulator/profile"
)

// TestSimulatedNode runs the plugin on everything that is real but the GPUs and the API server: NVML
// discovery, nvcdi's edits, the checkpoint, gRPC over sockets.
func TestSimulatedNode(t *testing.T) {
	m := newMachine(t, 0)
	hardware, config := simulatedHardware(t, m, "a100-2x4")
	p := m.run("", config)
	m.eventually("the plugin is ready", func(ctx context.Context) bool { return p.Ready(ctx) == nil })
	m.eventually("the GPUs are published", func(context.Context) bool { return len(m.slices()) == 1 })
	devices := m.slices()[0].Spec.Devices
	if len(devices) != 8 {
		t.Fatalf("%d devices are published, want 8", len(devices))
	}
	for i, d := range devices {
		domain := *d.Attributes["nvswitchDomain"].StringValue
		if want := device.LocalDomain(testNode, i/4); domain != want {
			t.Errorf("device %d is in domain %s, want %s", i, domain, want)
		}
	}

	claim := m.claim("train", devices[0].Name, devices[1].Name)
	for _, attempt := range []string{"first", "repeated"} {
		got := p.nodePrepare(claim)[string(claim.UID)]
		if got.GetError() != "" || len(got.GetDevices()) != 2 {
			t.Fatalf("%s prepare: %v", attempt, got)
		}
	}
	specs := must[[]os.DirEntry](t)(os.ReadDir(p.config.CDIDir))
	if len(specs) != 2 {
		t.Errorf("%v are in the CDI directory, want a spec of the claim and one of its metadata", specs)
	}

	t.Run("a GPU that falls off the bus is tainted, stays listed, and is not prepared", func(t *testing.T) {
		if err := hardware.LoseGPU(2); err != nil {
			t.Fatal(err)
		}
		m.eventually("a device is tainted", func(context.Context) bool {
			tainted := 0
			for _, d := range m.slices()[0].Spec.Devices {
				tainted += len(d.Taints)
			}
			return tainted == 1 && len(m.slices()[0].Spec.Devices) == 8
		})
		lost := m.claim("lost", devices[2].Name)
		if message := p.nodePrepare(lost)[string(lost.UID)].GetError(); !strings.Contains(message, device.ReasonLost) {
			t.Errorf("preparing it = %q, want that it is lost", message)
		}
		if err := hardware.RecoverGPU(2); err != nil {
			t.Fatal(err)
		}
		m.eventually("the taint is gone", func(context.Context) bool {
			for _, d := range m.slices()[0].Spec.Devices {
				if len(d.Taints) > 0 {
					return false
				}
			}
			return true
		})
		if message := p.nodePrepare(lost)[string(lost.UID)].GetError(); message != "" {
			t.Errorf("preparing it after recovery: %s", message)
		}
	})

	t.Run("a missing device node is refused with its name", func(t *testing.T) {
		node := filepath.Join(hardware.DevRoot(), "dev", "nvidia5")
		if err := os.Remove(node); err != nil {
			t.Fatal(err)
		}
		broken := m.claim("broken", devices[5].Name)
		if message := p.nodePrepare(broken)[string(broken.UID)].GetError(); !containsAll(message, []string{"nvidia5", devices[5].Name}) {
			t.Errorf("preparing = %q, want it to name the node and the device", message)
		}
		if _, ok := p.store.Get(broken.UID); ok {
			t.Error("the refused claim has a record")
		}
	})
}

// simulatedHardware makes simulated GPUs of a profile and returns how to run a plugin on them.
func simulatedHardware(t *testing.T, m *testMachine, profileName string) (*simulator.Node, func(*Config)) {
	t.Helper()
	_, ctx := ktesting.NewTestContext(t)
	dir := filepath.Join(m.dir, "sim")
	p := must[simulator.Profile](t)(profile.Load(profileName))
	if err := simulator.Create(dir, p, simulator.Options{NodeName: testNode}); err != nil {
		t.Fatal(err)
	}
	hardware := must[*simulator.Node](t)(simulator.Open(dir))
	if err := hardware.EnsureFiles(); err != nil {
		t.Fatal(err)
	}
	library := must[*nvml.Library](t)(nvml.Open(nvml.Options{NodeName: testNode, SysfsRoot: hardware.SysfsRoot(), Lib: hardware.NVML()}))
	t.Cleanup(func() { _ = library.Close() })
	return hardware, func(c *Config) {
		c.Platform, c.Partitions = library, library
		c.Specs = must[*cdi.Writer](t)(cdi.NewWriter(ctx, cdi.Options{SpecDir: c.CDIDir, NVML: library.Interface, DriverRoot: hardware.DriverRoot(), ProcRoot: hardware.ProcRoot()}))
	}
}
