// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// recoveryAction asks a GPU.
func recoveryAction(t *testing.T, n *Node, gpu int) (uint32, nvml.Return) {
	t.Helper()
	values := []nvml.FieldValue{{FieldId: nvml.FI_DEV_GET_GPU_RECOVERY_ACTION}, {FieldId: nvml.FI_DEV_ECC_CURRENT}}
	if ret := device(t, n, gpu).GetFieldValues(values); ret != nvml.SUCCESS {
		return 0, ret
	}
	if nvml.Return(values[1].NvmlReturn) != nvml.ERROR_NOT_SUPPORTED {
		t.Errorf("a field that is not simulated: %v", nvml.Return(values[1].NvmlReturn))
	}
	return uint32(values[0].Value[0]), nvml.Return(values[0].NvmlReturn)
}

func TestErrorsSetTheRecoveryActionUntilTheGPUIsReset(t *testing.T) {
	n := newNode(t, "hgx-h100")
	for _, step := range []struct {
		what    string
		happens func() error
		want    uint32
	}{
		{"nothing happened", func() error { return nil }, 0},
		{"an error of an application", func() error { return n.InjectXID(1, 31) }, 0},
		{"an error that the action does not summarise", func() error { return n.InjectXID(1, 119) }, 0},
		{"an error of the device", func() error { return n.InjectXID(1, 48) }, 1},
		{"a worse one", func() error { return n.InjectXID(1, 79) }, 2},
		{"a lesser one does not lower it", func() error { return n.InjectXID(1, 48) }, 2},
		{"a reset", func() error { return n.RecoverGPU(1) }, 0},
		{"one that is set", func() error { return n.SetRecoveryAction(1, "drain-and-reset") }, 4},
	} {
		if err := step.happens(); err != nil {
			t.Fatalf("%s: %v", step.what, err)
		}
		// Another process sees it, too.
		other := open(t, n.Dir())
		if got, ret := recoveryAction(t, other, 1); got != step.want || ret != nvml.SUCCESS {
			t.Errorf("%s: recovery action %d, %v, want %d", step.what, got, ret, step.want)
		}
	}
	if got, ret := recoveryAction(t, n, 0); got != 0 || ret != nvml.SUCCESS {
		t.Errorf("another GPU has recovery action %d, %v", got, ret)
	}
}

func TestMemoryErrorsLastUntilTheGPUIsReset(t *testing.T) {
	n := newNode(t, "hgx-h100")
	read := func() (uint64, bool, bool) {
		t.Helper()
		count := must[uint64](t)(device(t, n, 0).GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC))
		_, _, pending, failure, ret := device(t, n, 0).GetRemappedRows()
		if ret != nvml.SUCCESS {
			t.Fatal(ret)
		}
		return count, pending, failure
	}
	for _, err := range []error{n.AddECCErrors(0, 2), n.AddECCErrors(0, 1), n.SetRowRemap(0, true, true)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if count, pending, failure := read(); count != 3 || !pending || !failure {
		t.Errorf("%d errors, remapping pending %v, failed %v", count, pending, failure)
	}
	if corrected := must[uint64](t)(device(t, n, 0).GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.VOLATILE_ECC)); corrected != 0 {
		t.Errorf("%d corrected errors", corrected)
	}
	if err := n.RecoverGPU(0); err != nil {
		t.Fatal(err)
	}
	if count, pending, failure := read(); count != 0 || pending || failure {
		t.Errorf("after a reset %d errors, remapping pending %v, failed %v", count, pending, failure)
	}
}

func TestHealthEvents(t *testing.T) {
	n := newNode(t, "hgx-h100")
	if err := n.AddECCErrors(0, 1); err != nil { // before anybody listens
		t.Fatal(err)
	}
	set, ret := n.NVML().EventSetCreate()
	if ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	types := must[uint64](t)(device(t, n, 0).GetSupportedEventTypes())
	if ret := device(t, n, 0).RegisterEvents(types, set); ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	for _, err := range []error{n.AddECCErrors(0, 1), n.InjectXID(0, 48), n.SetRecoveryAction(0, "gpu-reset"), n.SetRecoveryAction(1, "gpu-reset")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for i, want := range []uint64{nvml.EventTypeXidCriticalError, nvml.EventTypeGpuRecoveryAction, nvml.EventTypeDoubleBitEccError} {
		if data, ret := set.Wait(5000); ret != nvml.SUCCESS || data.EventType != want || data.Device != device(t, n, 0) {
			t.Errorf("event %d: %+v, %v, want type %#x", i, data, ret, want)
		}
	}
	if data, ret := set.Wait(0); ret != nvml.ERROR_TIMEOUT {
		t.Errorf("another event: %+v, %v", data, ret)
	}
}

func TestWhatOlderDriversAndBoardsDoNotTell(t *testing.T) {
	old := newNode(t, "hgx-h100")
	if err := old.Update(func(s *State) error { s.Profile.Driver.Version = "550.54.15"; return nil }); err != nil {
		t.Fatal(err)
	}
	if err := old.InjectXID(0, 48); err != nil {
		t.Fatal(err)
	}
	if _, ret := recoveryAction(t, old, 0); ret != nvml.ERROR_NOT_SUPPORTED {
		t.Errorf("driver 550 tells the recovery action: %v", ret)
	}
	if types := must[uint64](t)(device(t, old, 0).GetSupportedEventTypes()); types&nvml.EventTypeGpuRecoveryAction != 0 {
		t.Error("driver 550 reports the recovery action")
	}
	if err := old.SetRecoveryAction(0, "gpu-reset"); err == nil {
		t.Error("driver 550 takes a recovery action")
	}
	volta := newNode(t, "dgx1-v100")
	if _, _, _, _, ret := device(t, volta, 0).GetRemappedRows(); ret != nvml.ERROR_NOT_SUPPORTED {
		t.Errorf("Volta remaps rows: %v", ret)
	}
	if err := volta.SetRowRemap(0, true, false); err == nil {
		t.Error("Volta takes a row remapping")
	}
	if err := volta.SetRecoveryAction(0, "prayer"); err == nil {
		t.Error("an unknown recovery action is taken")
	}
}
