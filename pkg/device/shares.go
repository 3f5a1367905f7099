// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import "fmt"

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

// Check says why the GPU cannot be shared like this; nil if it can.
func (s Shares) Check(gpu GPU) error {
	switch {
	case gpu.MIGEnabled || gpu.MIG != nil:
		return fmt.Errorf("it is in MIG mode, or was on this boot: switch MIG mode off and reboot the node, or take the GPU out of shares")
	case gpu.MemoryBytes == 0 || gpu.Multiprocessors == 0:
		return fmt.Errorf("NVML does not tell how much memory and how many multiprocessors it has")
	case s.DefaultMemory(gpu) == 0:
		return fmt.Errorf("its memory of %d MiB is not enough for %d claims with a step of %d MiB: choose a smaller maxClaims or memoryStep", gpu.MemoryBytes>>20, s.MaxClaims, s.MemoryStep>>20)
	case s.DefaultMultiprocessors(gpu) == 0:
		return fmt.Errorf("its %d multiprocessors are not enough for %d claims: choose a smaller maxClaims", gpu.Multiprocessors, s.MaxClaims)
	}
	return nil
}
