// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package health

import "fmt"

// RecoveryAction is what a GPU itself says must be done for it to work again
// (nvmlDeviceGpuRecoveryAction_t, field NVML_FI_DEV_GET_GPU_RECOVERY_ACTION).
type RecoveryAction uint32

// The recovery actions.
const (
	RecoveryNone              RecoveryAction = 0
	RecoveryGPUReset          RecoveryAction = 1
	RecoveryNodeReboot        RecoveryAction = 2
	RecoveryDrainP2P          RecoveryAction = 3
	RecoveryDrainAndReset     RecoveryAction = 4
	RecoveryRecoverIMEXDomain RecoveryAction = 5
	RecoveryBusReset          RecoveryAction = 6
	RecoverySystemReboot      RecoveryAction = 7
)

// recoveryActions are the name and the meaning of each action, whether nothing on the GPU can go on until it
// is done, and whether the GPU is reset by it.
var recoveryActions = map[RecoveryAction]struct {
	name, meaning string
	fatal         bool
	resets        bool
}{
	RecoveryNone:              {"None", "nothing needs to be done", false, false},
	RecoveryGPUReset:          {"GPUReset", "the GPU must be reset", true, true},
	RecoveryNodeReboot:        {"NodeReboot", "the node must be rebooted", true, true},
	RecoveryDrainP2P:          {"DrainP2P", "work that uses peer-to-peer access must end", false, false},
	RecoveryDrainAndReset:     {"DrainAndReset", "the GPU works on, and must be drained and reset", false, true},
	RecoveryRecoverIMEXDomain: {"RecoverIMEXDomain", "the IMEX domain must be recovered", false, false},
	RecoveryBusReset:          {"BusReset", "the GPU's PCIe bus must be reset", true, true},
	RecoverySystemReboot:      {"SystemReboot", "the system must be rebooted", true, true},
}

// String returns the action's name in CamelCase; one that a newer driver knows is "Action<number>".
func (a RecoveryAction) String() string {
	if known, ok := recoveryActions[a]; ok {
		return known.name
	}
	return fmt.Sprintf("Action%d", uint32(a))
}

// reason is that of a GPU which asks for the action.
func (a RecoveryAction) reason() string { return "Needs" + a.String() }

func (a RecoveryAction) message() string {
	meaning := recoveryActions[a].meaning
	if meaning == "" {
		meaning = "see the documentation of this driver's NVML"
	}
	return fmt.Sprintf("the GPU's recovery action is %s: %s", a, meaning)
}
