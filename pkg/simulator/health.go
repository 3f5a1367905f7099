// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Faults are what a GPU that answers says of its health. They last until it is reset.
type Faults struct {
	// RecoveryAction is nvmlDeviceGpuRecoveryAction_t, 0 for none. Drivers before R565 do not tell it.
	RecoveryAction uint32 `json:"recoveryAction,omitempty"`
	// UncorrectableECC counts uncorrected memory errors since the last reset.
	UncorrectableECC uint64 `json:"uncorrectableECC,omitempty"`
	// RowRemapPending and RowRemapFailure are what nvmlDeviceGetRemappedRows tells.
	RowRemapPending bool `json:"rowRemapPending,omitempty"`
	RowRemapFailure bool `json:"rowRemapFailure,omitempty"`

	// ActionEvents and ECCEvents count the events of each kind that there were. A reset does not set them back.
	ActionEvents uint64 `json:"actionEvents,omitempty"`
	ECCEvents    uint64 `json:"eccEvents,omitempty"`
}

// recoveryActions are the names of the recovery actions, by number.
var recoveryActions = []string{"none", "gpu-reset", "node-reboot", "drain-p2p", "drain-and-reset", "recover-imex-domain", "bus-reset", "system-reboot"}

// The recovery actions that errors lead to.
const (
	actionNone       = 0
	actionGPUReset   = 1
	actionNodeReboot = 2
)

// RecoveryActions are the names of the recovery actions that SetRecoveryAction knows.
func RecoveryActions() []string { return slices.Clone(recoveryActions) }

// actionOfXID is the recovery action that the driver sets with an XID: of those that the XID catalog links
// with XID 154 and that need something to be done at once.
var actionOfXID = map[uint64]uint32{
	48: actionGPUReset, 62: actionGPUReset, 64: actionGPUReset, 74: actionGPUReset, 79: actionNodeReboot, 95: actionGPUReset,
	109: actionGPUReset, 110: actionGPUReset, 120: actionGPUReset, 136: actionGPUReset, 143: actionGPUReset,
	155: actionGPUReset, 156: actionGPUReset, 158: actionGPUReset,
}

// firstWithRecoveryAction is the first driver release that tells the recovery action.
const firstWithRecoveryAction = 565

// tellsRecoveryAction reports whether the driver has NVML_FI_DEV_GET_GPU_RECOVERY_ACTION.
func (s *State) tellsRecoveryAction() bool {
	major, _, _ := strings.Cut(s.Profile.Driver.Version, ".")
	release, err := strconv.Atoi(major)
	return err == nil && release >= firstWithRecoveryAction
}

// setAction changes the recovery action, and has the GPU report it.
func (f *Faults) setAction(action uint32) {
	if f.RecoveryAction != action {
		f.RecoveryAction = action
		f.ActionEvents++
	}
}

// reset is what a reset of the GPU does.
func (f *Faults) reset() {
	f.setAction(actionNone)
	*f = Faults{ActionEvents: f.ActionEvents, ECCEvents: f.ECCEvents}
}

// SetRecoveryAction sets what a GPU says must be done for it to work again, by a name of RecoveryActions.
func (n *Node) SetRecoveryAction(gpu int, action string) error {
	return n.updateGPU(gpu, "set recovery action of", func(s *State, g *GPUState) error {
		number := slices.Index(recoveryActions, action)
		switch {
		case number < 0:
			return fmt.Errorf("%q is none of %q", action, recoveryActions)
		case !s.tellsRecoveryAction():
			return fmt.Errorf("driver %s knows none: it came with R%d", s.Profile.Driver.Version, firstWithRecoveryAction)
		}
		g.Faults.setAction(uint32(number))
		return nil
	})
}

// AddECCErrors adds uncorrected memory errors of a GPU, and has it report them. It raises no XID.
func (n *Node) AddECCErrors(gpu int, count uint64) error {
	return n.updateGPU(gpu, "add ECC errors of", func(_ *State, g *GPUState) error {
		g.Faults.UncorrectableECC += count
		if count > 0 {
			g.Faults.ECCEvents++
		}
		return nil
	})
}

// SetRowRemap sets what a GPU says of the remapping of memory rows: that a reset is pending for one, and
// that one failed.
func (n *Node) SetRowRemap(gpu int, pending, failure bool) error {
	return n.updateGPU(gpu, "set row remapping of", func(s *State, g *GPUState) error {
		if !s.remapsRows() {
			return fmt.Errorf("%s does not remap rows: Ampere and newer do", s.Profile.Product.Name)
		}
		g.Faults.RowRemapPending, g.Faults.RowRemapFailure = pending, failure
		return nil
	})
}

// remapsRows reports whether the board does: Ampere and newer.
func (s *State) remapsRows() bool {
	return s.Profile.Product.Architecture != "Volta" && s.Profile.Product.Architecture != "Turing"
}

// GetFieldValues is nvmlDeviceGetFieldValues: the recovery action only.
func (g *gpuCalls) GetFieldValues(values []nvml.FieldValue) nvml.Return {
	snap, ret := g.cached("GetFieldValues")
	if ret != nvml.SUCCESS {
		return ret
	}
	for i := range values {
		if values[i].FieldId != nvml.FI_DEV_GET_GPU_RECOVERY_ACTION || !snap.tellsRecoveryAction() {
			values[i].NvmlReturn = uint32(nvml.ERROR_NOT_SUPPORTED)
			continue
		}
		values[i].NvmlReturn = uint32(nvml.SUCCESS)
		values[i].ValueType = uint32(nvml.VALUE_TYPE_UNSIGNED_INT)
		values[i].Value = [8]byte{}
		binary.LittleEndian.PutUint32(values[i].Value[:], snap.GPUs[g.position].Faults.RecoveryAction)
	}
	return nvml.SUCCESS
}

// GetTotalEccErrors is nvmlDeviceGetTotalEccErrors. There are no corrected errors, and none from before the
// last reset.
func (g *gpuCalls) GetTotalEccErrors(kind nvml.MemoryErrorType, _ nvml.EccCounterType) (uint64, nvml.Return) {
	snap, ret := g.probing("GetTotalEccErrors")
	if ret != nvml.SUCCESS || kind != nvml.MEMORY_ERROR_TYPE_UNCORRECTED {
		return 0, ret
	}
	return snap.GPUs[g.position].Faults.UncorrectableECC, nvml.SUCCESS
}

// GetRemappedRows is nvmlDeviceGetRemappedRows, which says nothing in MIG mode.
func (g *gpuCalls) GetRemappedRows() (corrected, uncorrected int, pending, failure bool, ret nvml.Return) {
	snap, ret := g.probing("GetRemappedRows")
	switch {
	case ret != nvml.SUCCESS:
	case !snap.remapsRows() || snap.migEnabled(g.position):
		ret = nvml.ERROR_NOT_SUPPORTED
	default:
		faults := snap.GPUs[g.position].Faults
		if faults.RowRemapPending {
			uncorrected = 1
		}
		return 0, uncorrected, faults.RowRemapPending, faults.RowRemapFailure, nvml.SUCCESS
	}
	return 0, 0, false, false, ret
}
