// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"fmt"
	"strconv"
	"strings"
)

// StrategyMPS is the strategy with which claims are held to what their shares consume, by a daemon of the CUDA Multi-Process
// Service.
const StrategyMPS = "MPS"

// minMPSCapability is the major number of the first compute capability, Volta's, whose MPS isolates clients and limits
// them.
const minMPSCapability = 7

// Shares says that several claims may have a GPU at the same time, and how much of it one gets
// (KEP-5075, consumable capacity).
type Shares struct {
	// Strategy is how they share it: "MPS" or "TimeSlicing".
	Strategy string `json:"strategy"`
	// MaxClaims is how many claims may have a share, 2 or more.
	MaxClaims int `json:"maxClaims"`
	// MemoryStep is the least memory of a share in bytes, and what its memory is a multiple of.
	MemoryStep uint64 `json:"memoryStep"`
}

// DefaultMemory is the memory in bytes that a share of the GPU has when its claim does not say: an equal part,
// rounded down to whole steps.
func (s Shares) DefaultMemory(gpu GPU) uint64 {
	return gpu.MemoryBytes / uint64(s.MaxClaims) / s.MemoryStep * s.MemoryStep
}

// DefaultMultiprocessors is DefaultMemory for streaming multiprocessors.
func (s Shares) DefaultMultiprocessors(gpu GPU) int { return gpu.Multiprocessors / s.MaxClaims }

// MinMultiprocessors is the least that a share of the GPU has. MPS counts in percent, and a part of one is none.
func (s Shares) MinMultiprocessors(gpu GPU) int {
	if s.Strategy == StrategyMPS {
		return (gpu.Multiprocessors + 99) / 100
	}
	return 1
}

// ActiveThreadPercentage is the part of the GPU that a number of its multiprocessors is, in whole percent, as MPS takes
// it. It is rounded down: MPS rounds the multiprocessors of a percentage up. 0 is less than MinMultiprocessors.
func (g GPU) ActiveThreadPercentage(multiprocessors int64) int32 {
	if g.Multiprocessors == 0 {
		return 0
	}
	return int32(min(max(multiprocessors*100/int64(g.Multiprocessors), 0), 100))
}

// CheckMPS says why the GPU cannot be used through MPS with limits; nil if it can, or does not tell.
func (g GPU) CheckMPS() error {
	major, _, _ := strings.Cut(g.ComputeCapability, ".")
	if number, err := strconv.Atoi(major); err == nil && number < minMPSCapability {
		return fmt.Errorf("compute capability %s, and MPS takes %d.0 or later", g.ComputeCapability, minMPSCapability)
	}
	return nil
}

// Check says why the GPU cannot be shared like this; nil if it can.
func (s Shares) Check(gpu GPU) error {
	switch {
	case gpu.MIGEnabled || gpu.MIG != nil:
		return fmt.Errorf("it is in MIG mode, or was on this boot: switch MIG mode off and reboot the node, or take the GPU out of shares")
	case gpu.MemoryBytes == 0 || gpu.Multiprocessors == 0:
		return fmt.Errorf("NVML does not tell how much memory and how many multiprocessors it has")
	case s.DefaultMemory(gpu) == 0:
		return fmt.Errorf("its memory of %d MiB is not enough for %d claims with a step of %d MiB: choose a smaller maxClaims or memoryStep", gpu.MemoryBytes>>20, s.MaxClaims, s.MemoryStep>>20)
	case s.DefaultMultiprocessors(gpu) < s.MinMultiprocessors(gpu):
		return fmt.Errorf("its %d multiprocessors are not enough for %d claims: choose a smaller maxClaims", gpu.Multiprocessors, s.MaxClaims)
	}
	if s.Strategy == StrategyMPS {
		if err := gpu.CheckMPS(); err != nil {
			return fmt.Errorf("it has %w: choose strategy TimeSlicing", err)
		}
	}
	return nil
}
