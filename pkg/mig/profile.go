// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// Profile is a kind of GPU instance (nvmlGpuInstanceProfileInfo_t).
type Profile struct {
	// ID is the driver's number of it, as in nvidia-smi mig -cgi 19.
	ID int `json:"id"`
	// Name is for example "1g.10gb+me"; see Name.
	Name string `json:"name"`
	// Slices is the number of compute slices.
	Slices int `json:"slices"`
	// MemoryBytes is the memory of an instance.
	MemoryBytes uint64 `json:"memoryBytes"`
	// Multiprocessors is the number of streaming multiprocessors.
	Multiprocessors int     `json:"multiprocessors"`
	Engines         Engines `json:"engines,omitzero"`
	// MaxInstances is how many fit on an empty GPU.
	MaxInstances int `json:"maxInstances"`
	// Placements are where an instance may be, on an empty GPU.
	Placements []Placement `json:"placements"`
}

// Engines counts engines beside the multiprocessors.
type Engines struct {
	Copy     int `json:"copy,omitempty"`
	Decoders int `json:"decoders,omitempty"`
	Encoders int `json:"encoders,omitempty"`
	JPEG     int `json:"jpeg,omitempty"`
	OFA      int `json:"ofa,omitempty"`
}

// total is the number of engines of all kinds.
func (e Engines) total() int { return e.Copy + e.Decoders + e.Encoders + e.JPEG + e.OFA }

// Placement is a run of memory slices.
type Placement struct {
	Start int `json:"start"`
	Size  int `json:"size"`
}

// Overlaps reports whether the two have a memory slice in common.
func (p Placement) Overlaps(other Placement) bool {
	return p.Start < other.Start+other.Size && other.Start < p.Start+p.Size
}

// Instance is a GPU instance that exists.
type Instance struct {
	// ID is NVML's; it says little about the place.
	ID        int       `json:"id"`
	ProfileID int       `json:"profileID"`
	Placement Placement `json:"placement"`
	// Compute are its compute instances.
	Compute []ComputeInstance `json:"compute,omitempty"`
}

// ComputeInstance is a compute instance that exists.
type ComputeInstance struct {
	ID int `json:"id"`
	// Slices is the number of compute slices it takes.
	Slices int `json:"slices"`
	// UUID is that of the MIG device.
	UUID string `json:"uuid"`
}

// Whole returns the compute instance that takes all of a GPU instance with so many slices: then the
// instance is a partition.
func (i Instance) Whole(slices int) (ComputeInstance, bool) {
	if len(i.Compute) == 1 && i.Compute[0].Slices == slices {
		return i.Compute[0], true
	}
	return ComputeInstance{}, false
}

// Partition is one place for a partition on a GPU.
type Partition struct {
	Profile   Profile
	Placement Placement
}

// suffixes say which engines a kind of profile has beside or without the common ones, by the number of
// NVML_GPU_INSTANCE_PROFILE_*.
var suffixes = map[int]string{
	7: "+me", 8: "+me", // _REV1: media extensions
	10: "+gfx", 11: "+gfx", 12: "+gfx", 17: "+gfx",
	13: "-me", 14: "-me",
	15: "+me.all", 16: "+me.all",
}

// Name returns the name of a profile: slices, memory in GB, and what is special about it. number is that
// of NVML_GPU_INSTANCE_PROFILE_*; memory is that of an instance and of the GPU, in bytes.
//
// The memory in the name is that of the GPU as it is sold, in eighths: an H200 with 140.4 GiB has a
// 1g.18gb of 16 GiB. Drivers of some versions print 3g.39gb or 7g.79gb instead; this is what all others,
// and NVIDIA's device plugin, call it.
func Name(number, slices int, memory, gpuMemory uint64) string {
	const gib, eighths = 1 << 30, 8
	sold := math.Ceil(float64(gpuMemory) / gib)
	part := math.Ceil(float64(memory) / float64(gpuMemory) * eighths)
	return fmt.Sprintf("%dg.%dgb%s", slices, int(math.Round(part*sold/eighths)), suffixes[number])
}

// Order returns every place for a partition on a GPU, in the order in which they should be used: the
// scheduler takes the first that fits. Small profiles come before large ones, so that who asks for memory
// gets the smallest part that has it. Of the places of one profile, that comes first which leaves most room
// for others; of those that leave as much, the last one, as the driver chooses.
func Order(profiles []Profile) []Partition {
	sorted := slices.Clone(profiles)
	slices.SortStableFunc(sorted, func(a, b Profile) int {
		return cmp.Or(cmp.Compare(size(a), size(b)), cmp.Compare(a.Slices, b.Slices),
			cmp.Compare(a.Engines.total(), b.Engines.total()), cmp.Compare(a.ID, b.ID))
	})
	var order []Partition
	for _, p := range sorted {
		var used []Placement
		left := slices.Clone(p.Placements)
		for len(left) > 0 {
			best := slices.MinFunc(left, func(a, b Placement) int {
				return cmp.Or(cmp.Compare(loss(profiles, used, a), loss(profiles, used, b)), cmp.Compare(b.Start, a.Start))
			})
			order = append(order, Partition{p, best})
			used = append(used, best)
			left = slices.DeleteFunc(left, func(other Placement) bool { return other == best })
		}
	}
	return order
}

// size is the number of memory slices of a profile's instances.
func size(p Profile) int {
	if len(p.Placements) == 0 {
		return 0
	}
	return p.Placements[0].Size
}

// loss weighs the places that are still open beside used and would not be beside next: large ones count
// more.
func loss(profiles []Profile, used []Placement, next Placement) int {
	total := 0
	for _, p := range profiles {
		for _, place := range p.Placements {
			if place.Overlaps(next) && !slices.ContainsFunc(used, place.Overlaps) {
				total += place.Size * place.Size
			}
		}
	}
	return total
}
