// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/switchyard-dev/switchyard/pkg/cdi"
	"github.com/switchyard-dev/switchyard/pkg/device"
)

const testNode = "node-a"

// fakePlatform is hardware that says what it is told to.
type fakePlatform struct {
	mu    sync.Mutex
	inv   device.Inventory
	err   error
	looks int
}

func (p *fakePlatform) Discover(context.Context) (device.Inventory, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.looks++
	return p.inv, p.err
}

func (p *fakePlatform) set(inv device.Inventory, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inv, p.err = inv, err
}

// gpus returns an inventory of n healthy GPUs in one domain.
func gpus(n int) device.Inventory {
	inv := device.Inventory{NodeName: testNode, DriverVersion: "580.105.08", CUDADriverVersion: "13.0"}
	for i := range n {
		inv.GPUs = append(inv.GPUs, device.GPU{
			UUID:               fmt.Sprintf("GPU-%08d-0000-0000-0000-000000000000", i),
			Index:              i,
			Minor:              &i,
			ProductName:        "NVIDIA H100 80GB HBM3",
			Brand:              "Nvidia",
			Architecture:       "Hopper",
			ComputeCapability:  "9.0",
			PCIBusID:           fmt.Sprintf("0000:%02x:00.0", 16+i),
			MemoryBytes:        80 << 30,
			NVSwitchDomain:     device.LocalDomain(testNode, 0),
			NVSwitchDomainSize: n,
		})
	}
	return inv
}

// gpu is the device name of the i-th GPU.
func gpu(i int) string { return gpus(i + 1).GPUs[i].Name() }

// without returns the inventory without the i-th GPU: it fell off the bus.
func without(inv device.Inventory, i int) device.Inventory {
	inv.GPUs = slices.Delete(slices.Clone(inv.GPUs), i, i+1)
	return inv
}

// fakeSpecs is a directory of CDI specs in memory.
type fakeSpecs struct {
	mu     sync.Mutex
	specs  map[types.UID][]cdi.ClaimDevice
	writes int
	// refreshErr, checkErr and writeErr are what Refresh, Check and WriteClaim fail with.
	refreshErr, checkErr, writeErr error
	// beforeWrite is called without the lock held, before a claim is written.
	beforeWrite func(types.UID)
	// moved is what Moved says.
	moved bool
	// onRefresh is called without the lock held, while Refresh runs.
	onRefresh func()
}

func (s *fakeSpecs) Refresh(ctx context.Context, _ device.Inventory) error {
	if s.onRefresh != nil {
		s.onRefresh()
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refreshErr
}

func (s *fakeSpecs) Moved() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.moved
}

func (s *fakeSpecs) Check([]cdi.ClaimDevice) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.checkErr
}

func (s *fakeSpecs) WriteClaim(uid types.UID, devices []cdi.ClaimDevice) ([]string, error) {
	if s.beforeWrite != nil {
		s.beforeWrite(uid)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.writeErr != nil {
		return nil, s.writeErr
	}
	if s.specs == nil {
		s.specs = make(map[types.UID][]cdi.ClaimDevice)
	}
	if _, ok := s.specs[uid]; !ok {
		s.writes++
	}
	s.specs[uid] = devices
	names := make([]string, len(devices))
	for i, d := range devices {
		names[i] = fmt.Sprintf("gpu.switchyard.dev/claim=%s-%s", uid, d.Name)
		if d.ShareID != "" {
			names[i] += "-" + string(d.ShareID)
		}
	}
	return names, nil
}

func (s *fakeSpecs) RemoveClaim(uid types.UID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.specs, uid)
	return nil
}

func (s *fakeSpecs) Claims() ([]types.UID, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.specs)), nil
}

func (s *fakeSpecs) has(uid types.UID) bool {
	uids, _ := s.Claims() // it never fails
	return slices.Contains(uids, uid)
}

// clear empties the directory, as a reboot does with a tmpfs.
func (s *fakeSpecs) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.specs = nil
}

var errTest = errors.New("test error")

func must[T any](t *testing.T) func(T, error) T {
	t.Helper()
	return func(value T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}
