// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/switchyard-dev/switchyard/pkg/simulator/profile"
)

// SetMIGMode turns MIG mode of a GPU on or off, which on hardware takes a reset. Turning it off
// destroys the GPU's instances.
func (n *Node) SetMIGMode(gpu int, enabled bool) error {
	return n.updateGPU(gpu, "set MIG mode of", func(s *State, g *GPUState) error {
		if g.MIG == nil {
			return fmt.Errorf("%s cannot be partitioned", s.Profile.Product.Name)
		}
		g.MIG.Enabled = enabled
		if !enabled {
			g.MIG.Instances = nil
		}
		return nil
	})
}

// CreatePartition makes a GPU instance of a profile ("1g.10gb"), with a compute instance of all its
// slices, at a memory slice, as an administrator does with nvidia-smi mig -cgi -C.
func (n *Node) CreatePartition(gpu int, profileName string, start int) (GPUInstance, error) {
	var made GPUInstance
	err := n.updateGPU(gpu, "create partition "+profileName+" on", func(s *State, g *GPUState) error {
		if err := inMIGMode(g); err != nil {
			return err
		}
		p, ok := s.Profile.Product.MIG.ByName(profileName)
		if !ok {
			return fmt.Errorf("there is no such profile; there are %s", strings.Join(profileNames(s.Profile.Product.MIG), ", "))
		}
		if start < 0 || !slices.Contains(p.Starts, uint32(start)) {
			return fmt.Errorf("it cannot start at memory slice %d, only at one of %d", start, p.Starts)
		}
		gi, ret := s.createInstance(gpu, p, uint32(start))
		if ret != nvml.SUCCESS {
			return fmt.Errorf("GPU instance at memory slice %d: %w", start, ret)
		}
		number, _ := fullCompute(p)
		if _, ret := s.createCompute(gpu, gi.ID, uint32(number), uint32(p.Slices)); ret != nvml.SUCCESS {
			return fmt.Errorf("compute instance: %w", ret)
		}
		made = *g.MIG.instance(gi.ID)
		return nil
	})
	return made, err
}

// DestroyPartition destroys a GPU instance with its compute instances. Nobody is asked whether it is in
// use.
func (n *Node) DestroyPartition(gpu int, id uint32) error {
	return n.updateGPU(gpu, fmt.Sprintf("destroy GPU instance %d of", id), func(s *State, g *GPUState) error {
		if err := inMIGMode(g); err != nil {
			return err
		}
		gi := g.MIG.instance(id)
		if gi == nil {
			return errors.New("there is none")
		}
		gi.Compute = nil
		if ret := s.destroyInstance(gpu, id); ret != nvml.SUCCESS {
			return ret
		}
		return nil
	})
}

// FailNextMIG lets the next change of a kind to the partitions of a GPU fail with an answer of NVML.
func (n *Node) FailNextMIG(gpu int, operation MIGOperation, ret nvml.Return) error {
	if !slices.Contains(MIGOperations(), operation) {
		return fmt.Errorf("no operation is called %q; there are %q", operation, MIGOperations())
	}
	return n.updateGPU(gpu, fmt.Sprintf("fail the next %s on", operation), func(_ *State, g *GPUState) error {
		if err := inMIGMode(g); err != nil {
			return err
		}
		if g.MIG.FailNext == nil {
			g.MIG.FailNext = map[MIGOperation]nvml.Return{}
		}
		g.MIG.FailNext[operation] = ret
		return nil
	})
}

// PossiblePartitions are the GPU instances of which NVML would make any one now, without their IDs; none for a GPU that is
// not in MIG mode.
func (s *State) PossiblePartitions(gpu int) []GPUInstance {
	if inMIGMode(&s.GPUs[gpu]) != nil {
		return nil
	}
	board, have := s.Profile.Product.MIG, s.GPUs[gpu].MIG.Instances
	var possible []GPUInstance
	for _, p := range board.Profiles {
		for _, start := range p.Starts {
			if refuseInstance(board, have, p, start) == nvml.SUCCESS {
				possible = append(possible, GPUInstance{ProfileID: p.ID, Start: start, Size: p.Size})
			}
		}
	}
	return possible
}

func inMIGMode(g *GPUState) error {
	if g.MIG == nil || !g.MIG.Enabled {
		return errors.New("it is not in MIG mode: switchyard-sim ctl mig GPU on")
	}
	return nil
}

func profileNames(board *profile.MIG) []string {
	names := make([]string, len(board.Profiles))
	for i, p := range board.Profiles {
		names[i] = p.Name
	}
	return names
}
