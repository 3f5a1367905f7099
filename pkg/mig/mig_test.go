// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package mig_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/switchyard-dev/switchyard/pkg/mig"
)

const mib = 1 << 20

// places returns placements of a size.
func places(size int, starts ...int) []mig.Placement {
	result := make([]mig.Placement, len(starts))
	for i, start := range starts {
		result[i] = mig.Placement{Start: start, Size: size}
	}
	return result
}

// a100 are the profiles of an A100 40GB as NVML reports them.
func a100() []mig.Profile {
	small := []int{0, 1, 2, 3, 4, 5, 6}
	return []mig.Profile{
		{ID: 19, Name: "1g.5gb", Slices: 1, MaxInstances: 7, Engines: mig.Engines{Copy: 1}, Placements: places(1, small...)},
		{ID: 14, Name: "2g.10gb", Slices: 2, MaxInstances: 3, Engines: mig.Engines{Copy: 2, Decoders: 1}, Placements: places(2, 0, 2, 4)},
		{ID: 9, Name: "3g.20gb", Slices: 3, MaxInstances: 2, Engines: mig.Engines{Copy: 3, Decoders: 2}, Placements: places(4, 0, 4)},
		{ID: 5, Name: "4g.20gb", Slices: 4, MaxInstances: 1, Engines: mig.Engines{Copy: 4, Decoders: 2}, Placements: places(4, 0)},
		{ID: 0, Name: "7g.40gb", Slices: 7, MaxInstances: 1, Engines: mig.Engines{Copy: 7, Decoders: 5, JPEG: 1, OFA: 1}, Placements: places(8, 0)},
		{ID: 20, Name: "1g.5gb+me", Slices: 1, MaxInstances: 1, Engines: mig.Engines{Copy: 1, Decoders: 1, JPEG: 1, OFA: 1}, Placements: places(1, small...)},
		{ID: 15, Name: "1g.10gb", Slices: 1, MaxInstances: 4, Engines: mig.Engines{Copy: 1, Decoders: 1}, Placements: places(2, 0, 2, 4, 6)},
	}
}

func find(profiles []mig.Profile, name string, start int) mig.Partition {
	for _, p := range profiles {
		for _, place := range p.Placements {
			if p.Name == name && place.Start == start {
				return mig.Partition{Profile: p, Placement: place}
			}
		}
	}
	panic("no " + name)
}

// TestNamesAreThoseOfNvidiaSMI has the memory of instances and GPUs as measured.
func TestNamesAreThoseOfNvidiaSMI(t *testing.T) {
	for want, test := range map[string]struct {
		number, slices int
		memory, gpu    uint64
	}{
		"1g.5gb":     {0, 1, 4864, 40960},
		"1g.10gb":    {9, 1, 9851, 40960},
		"7g.40gb":    {4, 7, 40192, 40960},
		"3g.40gb":    {2, 3, 40192, 81920}, // 3g.39gb on drivers 535 and 545
		"1g.10gb+me": {7, 1, 9984, 81559},
		"1g.18gb":    {0, 1, 16384, 143771},
		"3g.71gb":    {2, 3, 71168, 143771},
		"1g.23gb":    {0, 1, 20992, 183359}, // 1g.24gb on early boards
		"2g.47gb":    {1, 2, 46592, 189471},
		"2g.12gb+me": {8, 2, 11971, 24576},
		"1g.24gb-me": {13, 1, 24100, 97887},
		"2g.48gb+gfx": {
			11, 2, 48200, 97887,
		},
		"1g.24gb+me.all": {15, 1, 24100, 97887},
	} {
		if got := mig.Name(test.number, test.slices, test.memory*mib, test.gpu*mib); got != want {
			t.Errorf("%s is called %s", want, got)
		}
	}
}

func TestBudgetOfAnA100(t *testing.T) {
	b := mig.NewBudget(a100())
	want := mig.Counts{"compute-slices": 7, "copy-engines": 7, "decoders": 5, "jpeg-engines": 1, "ofa-engines": 1}
	for slice := range 8 {
		want[fmt.Sprintf("memory-slice-%d", slice)] = 1
	}
	if diff := cmp.Diff(want, b.Total()); diff != "" {
		t.Errorf("total:\n%s", diff)
	}
	for name, test := range map[string]struct {
		partition mig.Partition
		want      mig.Counts
	}{
		"what is 0 is left out":                  {find(a100(), "1g.5gb", 6), mig.Counts{"compute-slices": 1, "copy-engines": 1, "memory-slice-6": 1}},
		"3g takes four memory slices":            {find(a100(), "3g.20gb", 4), mig.Counts{"compute-slices": 3, "copy-engines": 3, "decoders": 2, "memory-slice-4": 1, "memory-slice-5": 1, "memory-slice-6": 1, "memory-slice-7": 1}},
		"the largest profile takes all there is": {find(a100(), "7g.40gb", 0), b.Total()},
	} {
		if diff := cmp.Diff(test.want, b.Of(test.partition)); diff != "" {
			t.Errorf("%s:\n%s", name, diff)
		}
	}
}

func TestBudgetNeverForbidsWhatNVMLAllows(t *testing.T) {
	t.Run("more engines in seven small instances than the largest profile is said to have", func(t *testing.T) {
		profiles := []mig.Profile{
			{ID: 19, Slices: 1, MaxInstances: 7, Engines: mig.Engines{Decoders: 1}, Placements: places(1, 0, 1, 2, 3, 4, 5, 6)},
			{ID: 0, Slices: 7, MaxInstances: 1, Engines: mig.Engines{Decoders: 1}, Placements: places(8, 0)},
		}
		if got := mig.NewBudget(profiles).Total()["decoders"]; got != 7 {
			t.Errorf("%d decoders", got)
		}
	})
	t.Run("a profile that NVML limits by number gets a counter of its own", func(t *testing.T) {
		profiles := []mig.Profile{
			{ID: 19, Slices: 1, MaxInstances: 4, Placements: places(1, 0, 1, 2, 3)},
			{ID: 21, Slices: 1, MaxInstances: 1, Placements: places(1, 0, 1, 2, 3)},
		}
		b := mig.NewBudget(profiles)
		if got := b.Total()["profile-21"]; got != 1 {
			t.Errorf("profile 21 has a counter of %d", got)
		}
		if _, needless := b.Total()["profile-19"]; needless {
			t.Error("profile 19 has a counter that says nothing")
		}
		one := mig.Instance{ProfileID: 21, Placement: mig.Placement{Start: 0, Size: 1}}
		if b.Allows(mig.Partition{Profile: profiles[1], Placement: profiles[1].Placements[1]}, []mig.Instance{one}) {
			t.Error("two of a profile of which there is one")
		}
		if !b.Allows(mig.Partition{Profile: profiles[0], Placement: profiles[0].Placements[1]}, []mig.Instance{one}) {
			t.Error("the other profile is limited too")
		}
	})
	t.Run("no profiles, no counters", func(t *testing.T) {
		if got := mig.NewBudget(nil).Total(); len(got) != 0 {
			t.Errorf("counters %v", got)
		}
	})
}

func TestBudgetFitsTheLimitOfTheAPI(t *testing.T) {
	var profiles []mig.Profile
	for id := range 40 {
		profiles = append(profiles, mig.Profile{ID: id, Slices: 1, MaxInstances: 1, Placements: places(1, 0, 1, 2, 3)})
	}
	if got := len(mig.NewBudget(append(profiles, mig.Profile{ID: 99, Slices: 4, MaxInstances: 1, Placements: places(4, 0)})).Total()); got > mig.MaxCounters {
		t.Errorf("%d counters", got)
	}
}

func TestAllowsBesideInstancesOfUnknownProfiles(t *testing.T) {
	b := mig.NewBudget(a100())
	stranger := mig.Instance{ID: 3, ProfileID: 77, Placement: mig.Placement{Start: 0, Size: 2}}
	for name, test := range map[string]struct {
		partition mig.Partition
		want      bool
	}{
		"where it is":           {find(a100(), "1g.5gb", 1), false},
		"beside it":             {find(a100(), "1g.5gb", 2), true},
		"the largest":           {find(a100(), "7g.40gb", 0), false},
		"all of the other half": {find(a100(), "3g.20gb", 4), true},
	} {
		if got := b.Allows(test.partition, []mig.Instance{stranger}); got != test.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestFieldCase18_SmallPartitionsLeaveRoomForLargeOnes(t *testing.T) {
	byProfile := map[string][]string{}
	var profiles []string
	for _, p := range mig.Order(a100()) {
		if !slices.Contains(profiles, p.Profile.Name) {
			profiles = append(profiles, p.Profile.Name)
		}
		byProfile[p.Profile.Name] = append(byProfile[p.Profile.Name], fmt.Sprint(p.Placement.Start))
	}
	if got, want := strings.Join(profiles, " "), "1g.5gb 1g.5gb+me 1g.10gb 2g.10gb 3g.20gb 4g.20gb 7g.40gb"; got != want {
		t.Errorf("profiles in the order %s, want %s", got, want)
	}
	want := map[string]string{
		"1g.5gb": "6 5 4 3 2 1 0", "1g.5gb+me": "6 5 4 3 2 1 0", "1g.10gb": "6 4 2 0", "2g.10gb": "4 2 0", "3g.20gb": "4 0", "4g.20gb": "0", "7g.40gb": "0",
	}
	for name := range maps.Keys(want) {
		if got := strings.Join(byProfile[name], " "); got != want[name] {
			t.Errorf("%s at %s, want %s", name, got, want[name])
		}
	}

	// Three small ones, taken in that order, leave the half that a 4g.20gb needs.
	var used []mig.Instance
	for _, p := range mig.Order(a100())[:3] {
		used = append(used, mig.Instance{ProfileID: p.Profile.ID, Placement: p.Placement})
	}
	if !mig.NewBudget(a100()).Allows(find(a100(), "4g.20gb", 0), used) {
		t.Error("three 1g.5gb block a 4g.20gb")
	}
}

func TestOrderIsThatOfEqualProfilesInAnyOrder(t *testing.T) {
	reversed := a100()
	slices.Reverse(reversed)
	if diff := cmp.Diff(mig.Order(a100()), mig.Order(reversed)); diff != "" {
		t.Error(diff)
	}
	if got := mig.Order([]mig.Profile{{ID: 1, Name: "nowhere"}}); len(got) != 0 {
		t.Errorf("a profile without a place: %v", got)
	}
}

func TestWhole(t *testing.T) {
	one := mig.ComputeInstance{ID: 0, Slices: 3, UUID: "MIG-1"}
	for name, test := range map[string]struct {
		compute []mig.ComputeInstance
		want    bool
	}{
		"a compute instance of all slices": {[]mig.ComputeInstance{one}, true},
		"none":                             {nil, false},
		"one of a part":                    {[]mig.ComputeInstance{{Slices: 1}}, false},
		"several":                          {[]mig.ComputeInstance{{Slices: 1}, {Slices: 2}}, false},
	} {
		ci, got := mig.Instance{Compute: test.compute}.Whole(3)
		if got != test.want || got && ci != one {
			t.Errorf("%s: %v, %v", name, ci, got)
		}
	}
}
