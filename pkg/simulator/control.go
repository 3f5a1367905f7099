// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/switchyard-dev/switchyard/pkg/simulator/profile"
)

// A GPU is named by its position in the profile, which is its NVML index as long as none is removed.

// LoseGPU lets a GPU fall off the bus: XID 79.
//
// Errors also set the recovery action, as drivers from R565 on do.
func (n *Node) LoseGPU(gpu int) error {
	return n.updateGPU(gpu, "lose", func(s *State, g *GPUState) error {
		if g.Health != HealthLost {
			g.Health = HealthLost
			s.report(gpu, xidFallenOffBus, n.now())
		}
		return nil
	})
}

// RemoveGPU takes a GPU off the bus, so that NVML does not count it any more.
func (n *Node) RemoveGPU(gpu int) error {
	return n.updateGPU(gpu, "remove", func(_ *State, g *GPUState) error {
		g.Health = HealthRemoved
		return nil
	})
}

// RequireReset lets a GPU answer from the driver's cache only.
func (n *Node) RequireReset(gpu int) error {
	return n.updateGPU(gpu, "require reset of", func(_ *State, g *GPUState) error {
		g.Health = HealthResetRequired
		return nil
	})
}

// RecoverGPU makes a GPU healthy, as a reset or a repair does, and brings its links up.
func (n *Node) RecoverGPU(gpu int) error {
	return n.updateGPU(gpu, "recover", func(s *State, g *GPUState) error {
		g.Health = HealthOK
		g.LinksDown = nil
		g.Faults.reset()
		links := s.Profile.Links()
		if links == nil {
			return nil
		}
		for _, end := range links[gpu] {
			if end.Kind == profile.EndGPU {
				peer := &s.GPUs[end.GPU]
				peer.LinksDown = slices.DeleteFunc(peer.LinksDown, func(link int) bool { return link == end.Link })
			}
		}
		return nil
	})
}

// InjectXID raises an error of a GPU. The GPU goes on answering: what an XID means is for the driver to
// say, which from R565 on sets the recovery action with those that need one.
func (n *Node) InjectXID(gpu int, code uint64) error {
	return n.updateGPU(gpu, "raise XID of", func(s *State, _ *GPUState) error {
		s.report(gpu, code, n.now())
		return nil
	})
}

// SetNVLink takes a link of a GPU down or up. A link between two GPUs is up when both ends are.
func (n *Node) SetNVLink(gpu, link int, up bool) error {
	return n.updateGPU(gpu, "set NVLink of", func(s *State, g *GPUState) error {
		if s.Profile.NVLink == nil {
			return fmt.Errorf("profile %q has no NVLink", s.Profile.Name)
		}
		if link < 0 || link >= s.Profile.NVLink.LinksPerGPU {
			return fmt.Errorf("no link %d: links are numbered 0 to %d", link, s.Profile.NVLink.LinksPerGPU-1)
		}
		setLinkDown(g, link, !up)
		if end := s.Profile.Links()[gpu][link]; up && end.Kind == profile.EndGPU {
			setLinkDown(&s.GPUs[end.GPU], end.Link, false)
		}
		return nil
	})
}

// SetNVLinks takes all links of a GPU down or up.
func (n *Node) SetNVLinks(gpu int, up bool) error {
	return n.updateGPU(gpu, "set NVLinks of", func(s *State, g *GPUState) error {
		links := s.Profile.Links()
		if links == nil {
			return fmt.Errorf("profile %q has no NVLink", s.Profile.Name)
		}
		for link, end := range links[gpu] {
			setLinkDown(g, link, !up)
			if up && end.Kind == profile.EndGPU {
				setLinkDown(&s.GPUs[end.GPU], end.Link, false)
			}
		}
		return nil
	})
}

func setLinkDown(g *GPUState, link int, down bool) {
	i, found := slices.BinarySearch(g.LinksDown, link)
	switch {
	case down && !found:
		g.LinksDown = slices.Insert(g.LinksDown, i, link)
	case !down && found:
		g.LinksDown = slices.Delete(g.LinksDown, i, i+1)
	}
}

// AllGPUs stands for every GPU of the node in SetFabric.
const AllGPUs = -1

// SetFabric sets what one GPU, or AllGPUs, say of their fabric.
func (n *Node) SetFabric(gpu int, fabric FabricState) error {
	if err := profile.ValidateFabric(fabric.Fabric, field.NewPath("fabric")).ToAggregate(); err != nil {
		return fmt.Errorf("set fabric: %w", err)
	}
	if gpu != AllGPUs {
		return n.updateGPU(gpu, "set fabric of", func(s *State, g *GPUState) error {
			if s.Fabric == nil {
				return fmt.Errorf("profile %q has no fabric", s.Profile.Name)
			}
			g.Fabric = &fabric
			return nil
		})
	}
	return n.Update(func(s *State) error {
		if s.Fabric == nil {
			return fmt.Errorf("set fabric: profile %q has no fabric", s.Profile.Name)
		}
		s.Fabric = &fabric
		for i := range s.GPUs {
			s.GPUs[i].Fabric = nil
		}
		return nil
	})
}

// SetDriverFailure breaks the driver, or with the empty string repairs it.
func (n *Node) SetDriverFailure(failure DriverFailure) error {
	if failure != "" && !slices.Contains(DriverFailures(), failure) {
		return fmt.Errorf("set driver failure: no failure is called %q; there are %q", failure, DriverFailures())
	}
	return n.Update(func(s *State) error {
		s.Driver.Failure = failure
		return nil
	})
}

// SetCallDelay makes every NVML call take a time.
func (n *Node) SetCallDelay(delay time.Duration) error {
	if delay < 0 {
		return fmt.Errorf("set call delay: %s is negative", delay)
	}
	return n.Update(func(s *State) error {
		s.Driver.CallDelay = Duration(delay)
		return nil
	})
}

func (n *Node) updateGPU(gpu int, verb string, change func(*State, *GPUState) error) error {
	err := n.Update(func(s *State) error {
		if gpu < 0 || gpu >= len(s.GPUs) {
			return fmt.Errorf("there is none: GPUs are numbered 0 to %d", len(s.GPUs)-1)
		}
		return change(s, &s.GPUs[gpu])
	})
	if err != nil {
		return fmt.Errorf("%s GPU %d: %w", verb, gpu, err)
	}
	return nil
}
