// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/switchyard-dev/switchyard/pkg/device"
	"github.com/switchyard-dev/switchyard/pkg/nvml"
	"github.com/switchyard-dev/switchyard/pkg/simulator"
	"github.com/switchyard-dev/switchyard/pkg/simulator/profile"
)

// simulated is a simulated GPU node with a Writer on it.
type simulated struct {
	*simulator.Node
	*Writer
	specDir string
	library *nvml.Library
	ctx     context.Context
}

// newSimulated makes a node of a profile. The options may be changed before the Writer is made; what
// the simulator leaves to say is filled in.
func newSimulated(t testing.TB, profileName string, change ...func(*Options)) *simulated {
	t.Helper()
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.Verbosity(2)))
	ctx := klog.NewContext(context.Background(), logger)
	dir := t.TempDir()
	p, err := profile.Load(profileName)
	if err != nil {
		t.Fatal(err)
	}
	if err := simulator.Create(filepath.Join(dir, "sim"), p, simulator.Options{NodeName: "node-a"}); err != nil {
		t.Fatal(err)
	}
	node, err := simulator.Open(filepath.Join(dir, "sim"))
	if err != nil {
		t.Fatal(err)
	}
	if err := node.EnsureFiles(); err != nil {
		t.Fatal(err)
	}
	library, err := nvml.Open(nvml.Options{NodeName: "node-a", SysfsRoot: node.SysfsRoot(), Lib: node.NVML()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = library.Close() })
	s := &simulated{Node: node, specDir: filepath.Join(dir, "cdi"), library: library, ctx: ctx}
	options := Options{SpecDir: s.specDir, NVML: library.Interface, DriverRoot: node.DriverRoot()}
	for _, c := range change {
		c(&options)
	}
	settled(t) // so that nvcdi is asked for no other reason than what a test does
	if s.Writer, err = NewWriter(ctx, options); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *simulated) inventory(t testing.TB) device.Inventory {
	t.Helper()
	inv, err := s.library.Discover(s.ctx)
	if err != nil {
		t.Fatal(err)
	}
	return inv
}

// refreshed refreshes and returns the GPUs.
func (s *simulated) refreshed(t testing.TB) []device.GPU {
	t.Helper()
	inv := s.inventory(t)
	if err := s.Refresh(s.ctx, inv); err != nil {
		t.Fatal(err)
	}
	return inv.GPUs
}

func (s *simulated) specPath(claim string) string {
	return filepath.Join(s.specDir, "gpu.switchyard.dev-claim_"+claim+".json")
}

func (s *simulated) dev(name string) string { return filepath.Join(s.DriverRoot(), "dev", name) }

// specFiles are the names in the spec directory.
func (s *simulated) specFiles(t testing.TB) []string {
	t.Helper()
	entries, err := os.ReadDir(s.specDir)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	names := []string{}
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	slices.Sort(names)
	return names
}

// asUID is a string that a claim or a share may be called.
func asUID(s string) types.UID { return types.UID(s) }

func devicesOf(gpus ...device.GPU) []ClaimDevice {
	devices := make([]ClaimDevice, 0, len(gpus))
	for _, gpu := range gpus {
		devices = append(devices, ClaimDevice{Name: gpu.Name()})
	}
	return devices
}
