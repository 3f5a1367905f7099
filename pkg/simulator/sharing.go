// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/switchyard-dev/switchyard/pkg/simulator/driver"
)

// GetComputeMode is nvmlDeviceGetComputeMode.
func (g *gpuCalls) GetComputeMode() (nvml.ComputeMode, nvml.Return) {
	snap, ret := g.probing("GetComputeMode")
	if ret != nvml.SUCCESS {
		return 0, ret
	}
	return snap.GPUs[g.position].ComputeMode, nvml.SUCCESS
}

// SetComputeMode is nvmlDeviceSetComputeMode. A GPU in MIG mode has none to set.
func (g *gpuCalls) SetComputeMode(mode nvml.ComputeMode) nvml.Return {
	snap, ret := g.probing("SetComputeMode")
	if ret != nvml.SUCCESS {
		return ret
	}
	if mig := snap.GPUs[g.position].MIG; mig != nil && mig.Enabled {
		return nvml.ERROR_NOT_SUPPORTED
	}
	if mode < 0 || mode >= nvml.COMPUTEMODE_COUNT {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	if err := g.lib.node.Update(func(s *State) error {
		s.GPUs[g.position].ComputeMode = mode
		return nil
	}); err != nil {
		g.lib.node.logger.Error(err, "Setting the compute mode of a simulated GPU failed", "gpu", g.position)
		return nvml.ERROR_UNKNOWN
	}
	return nvml.SUCCESS
}

// TimeSlice is the time slice that nvidia-smi has set for a GPU: 0 for the driver's choice, else 1 to 3.
func (n *Node) TimeSlice(gpu int) (int, error) {
	state, err := n.State()
	if err != nil {
		return 0, err
	}
	return driver.TimeSlice(n.dir, state.GPUs[gpu].UUID)
}

// MPSDaemons are the control daemons of MPS that run.
func (n *Node) MPSDaemons() ([]driver.Running, error) { return driver.Daemons(n.dir) }

// SetMPSFailure says how control daemons of MPS are to fail; the zero value is not at all.
func (n *Node) SetMPSFailure(failure driver.Failure) error { return driver.SetFailure(n.dir, failure) }
