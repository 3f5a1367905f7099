// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"fmt"
	"maps"
	"slices"
)

// The names of counters; each is a DNS label, as the API wants it. That of memory slice 3 is
// "memory-slice-3", that of a profile "profile-19".
const (
	CounterComputeSlices = "compute-slices"
	CounterCopyEngines   = "copy-engines"
	CounterDecoders      = "decoders"
	CounterEncoders      = "encoders"
	CounterJPEGEngines   = "jpeg-engines"
	CounterOFAEngines    = "ofa-engines"

	memorySlicePrefix = "memory-slice-"
	profilePrefix     = "profile-"
)

// MaxCounters is how many counters a GPU may have: the API allows 32 in a set.
const MaxCounters = 32

// Counts are numbers by the names of counters.
type Counts map[string]int

// Budget is what a GPU has and what each of its partitions takes.
type Budget struct {
	total    Counts
	profiles []Profile
}

// NewBudget returns the budget of a GPU with the profiles.
func NewBudget(profiles []Profile) Budget {
	b := Budget{total: Counts{}, profiles: profiles}
	for _, p := range profiles {
		for _, place := range p.Placements {
			for slice := range place.Size {
				b.total[memorySlice(place.Start+slice)] = 1
			}
		}
		for name, has := range p.counts() {
			b.total[name] = max(b.total[name], has, has*p.MaxInstances)
		}
	}
	maps.DeleteFunc(b.total, func(_ string, total int) bool { return total == 0 })
	for _, p := range profiles {
		if len(b.total) < MaxCounters && b.fits(p) > p.MaxInstances {
			b.total[profileCounter(p.ID)] = p.MaxInstances
		}
	}
	return b
}

// counts is what an instance takes besides its memory slices.
func (p Profile) counts() Counts {
	return Counts{
		CounterComputeSlices: p.Slices,
		CounterCopyEngines:   p.Engines.Copy,
		CounterDecoders:      p.Engines.Decoders,
		CounterEncoders:      p.Engines.Encoders,
		CounterJPEGEngines:   p.Engines.JPEG,
		CounterOFAEngines:    p.Engines.OFA,
	}
}

// fits is how many instances of a profile the counters so far allow.
func (b Budget) fits(p Profile) int {
	places := slices.SortedFunc(slices.Values(p.Placements), func(a, b Placement) int { return a.Start - b.Start })
	count, end := 0, 0
	for _, place := range places {
		if place.Start >= end {
			count, end = count+1, place.Start+place.Size
		}
	}
	for name, takes := range p.counts() {
		if takes > 0 {
			count = min(count, b.total[name]/takes)
		}
	}
	return count
}

// Total is all that the GPU has, which is also what the whole GPU takes.
func (b Budget) Total() Counts { return maps.Clone(b.total) }

// Of is what a partition takes. Nothing of it is 0.
func (b Budget) Of(p Partition) Counts {
	takes := p.Profile.counts()
	maps.DeleteFunc(takes, func(_ string, n int) bool { return n == 0 })
	for slice := range p.Placement.Size {
		takes[memorySlice(p.Placement.Start+slice)] = 1
	}
	if name := profileCounter(p.Profile.ID); b.total[name] > 0 {
		takes[name] = 1
	}
	return takes
}

// Allows reports whether a partition fits beside GPU instances that exist. Instances of profiles that
// are not known take their memory slices, as far as one can tell.
func (b Budget) Allows(p Partition, beside []Instance) bool {
	left := b.Total()
	for _, instance := range beside {
		i := slices.IndexFunc(b.profiles, func(p Profile) bool { return p.ID == instance.ProfileID })
		other := Partition{Profile: Profile{ID: -1}, Placement: instance.Placement}
		if i >= 0 {
			other.Profile = b.profiles[i]
		}
		for name, takes := range b.Of(other) {
			left[name] -= takes
		}
	}
	for name, takes := range b.Of(p) {
		if left[name] < takes {
			return false
		}
	}
	return true
}

func memorySlice(slice int) string { return fmt.Sprintf("%s%d", memorySlicePrefix, slice) }

func profileCounter(id int) string { return fmt.Sprintf("%s%d", profilePrefix, id) }
