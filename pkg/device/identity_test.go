// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"testing"

	"github.com/switchyard-dev/switchyard/pkg/device"
)

func TestNameAndIDDependOnTheUUIDAlone(t *testing.T) {
	gpu := device.GPU{UUID: "GPU-4404041A-04cf-1ccf-9e70-f139a9b1e23c", Index: 3, Minor: new(3), PCIBusID: "0000:53:00.0"}
	moved := device.GPU{UUID: gpu.UUID, Index: 2, PCIBusID: "0000:64:00.0", NVSwitchDomain: "n.1"}
	if gpu.Name() != moved.Name() || gpu.ID() != moved.ID() {
		t.Errorf("name %q then %q, id %q then %q", gpu.Name(), moved.Name(), gpu.ID(), moved.ID())
	}
	if gpu.Name() != "gpu-4404041a-04cf-1ccf-9e70-f139a9b1e23c" {
		t.Errorf("name %q", gpu.Name())
	}
	// An ID is pinned by plans: it must not change between releases.
	if got := gpu.ID(); got != "y7jvdudy" {
		t.Errorf("id %q, want that of all releases", got)
	}
	if other := (device.GPU{UUID: "GPU-4404041A-04cf-1ccf-9e70-f139a9b1e23d"}); other.ID() == gpu.ID() {
		t.Error("two GPUs have one id")
	}
}

func TestByName(t *testing.T) {
	inventory := node("", "")
	if gpu, ok := inventory.ByName("gpu-1"); !ok || gpu.UUID != "GPU-1" {
		t.Errorf("gpu-1: %v, %v", gpu, ok)
	}
	if _, ok := inventory.ByName("GPU-1"); ok {
		t.Error("a UUID was taken for a name")
	}
}
