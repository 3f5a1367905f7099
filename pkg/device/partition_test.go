// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/switchyard-dev/switchyard/pkg/device"
	"github.com/switchyard-dev/switchyard/pkg/mig"
)

// partitionable returns a GPU in MIG mode with three places for partitions.
func partitionable() device.GPU {
	return device.GPU{UUID: "GPU-4404041a-04cf-1ccf-9e70-f139a9b1e23c", MIGEnabled: true, MIG: &device.MIG{Profiles: []mig.Profile{
		{ID: 0, Name: "2g.12gb", Slices: 2, MaxInstances: 1, Placements: []mig.Placement{{Start: 0, Size: 2}}},
		{ID: 14, Name: "1g.6gb", Slices: 1, MaxInstances: 2, Placements: []mig.Placement{{Start: 0, Size: 1}, {Start: 1, Size: 1}}},
	}}}
}

func TestPartitionNames(t *testing.T) {
	ids := map[string]bool{}
	var names []string
	for _, p := range partitionable().Partitions() {
		names = append(names, p.Name())
		ids[p.ID()] = true
		if problems := validation.IsDNS1123Label(p.Name()); len(problems) > 0 {
			t.Errorf("name %q: %v", p.Name(), problems)
		}
		if ref, ok := device.ParsePartitionName(p.Name()); !ok || ref != p.Ref() {
			t.Errorf("%q is read as %+v, %v", p.Name(), ref, ok)
		}
	}
	const gpu = "gpu-4404041a-04cf-1ccf-9e70-f139a9b1e23c"
	if diff := cmp.Diff([]string{gpu + "-mig-14-1", gpu + "-mig-14-0", gpu + "-mig-0-0"}, names); diff != "" {
		t.Error(diff)
	}
	if len(ids) != 3 {
		t.Errorf("IDs %v of three partitions", ids)
	}
	if got := (device.GPU{UUID: "GPU-0"}).Partitions(); got != nil {
		t.Errorf("a GPU without MIG has %v", got)
	}
	long := partitionable()
	long.UUID = strings.Repeat("x", 60)
	if got := long.Partitions(); got != nil {
		t.Errorf("a GPU whose name leaves no room for those of partitions has %v", got)
	}
}

func TestParsePartitionNameRefusesOtherNames(t *testing.T) {
	for _, name := range []string{"", "gpu-1", "gpu-1-mig-", "gpu-1-mig-1", "gpu-1-mig-1-", "gpu-1-mig--1", "gpu-1-mig-01-1", "gpu-1-mig-1-+1", "gpu-1-mig-1-1x", "-mig-1-1"} {
		if ref, ok := device.ParsePartitionName(name); ok {
			t.Errorf("%q is read as %+v", name, ref)
		}
	}
}

func TestOccupied(t *testing.T) {
	p := partitionable().Partitions()[0] // at 1
	for name, test := range map[string]struct {
		static mig.Instance
		want   bool
	}{
		"a whole partition in the very place": {mig.Instance{ProfileID: 14, Placement: p.Placement, Compute: []mig.ComputeInstance{{Slices: 1}}}, false},
		"half a partition in the very place":  {mig.Instance{ProfileID: 14, Placement: p.Placement}, true},
		"a larger one over it":                {mig.Instance{ProfileID: 0, Placement: mig.Placement{Start: 0, Size: 2}}, true},
		"one beside it":                       {mig.Instance{ProfileID: 14, Placement: mig.Placement{Start: 0, Size: 1}}, false},
	} {
		p.GPU.MIG.Static = []mig.Instance{test.static}
		if got := p.Occupied(); got != test.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	p.GPU.MIG = nil
	if p.Occupied() {
		t.Error("occupied without MIG")
	}
}

func TestMergeKeepsPartitionsListed(t *testing.T) {
	known := device.Inventory{GPUs: []device.GPU{partitionable()}}
	merge := func(change func(*device.GPU)) device.GPU {
		seen := partitionable()
		change(&seen)
		return device.Merge(known, device.Inventory{GPUs: []device.GPU{seen}}).GPUs[0]
	}
	for name, test := range map[string]struct {
		change func(*device.GPU)
		offers bool
	}{
		"as before":                     {func(*device.GPU) {}, true},
		"MIG mode was turned off":       {func(g *device.GPU) { g.MIGEnabled, g.MIG = false, nil }, false},
		"the node does not want it so":  {func(g *device.GPU) { g.MIG = nil }, false},
		"NVML tells less":               {func(g *device.GPU) { g.MIG.Profiles = g.MIG.Profiles[1:] }, true},
		"a sick GPU that tells less":    {func(g *device.GPU) { g.MIG.Profiles, g.Health.Reason = g.MIG.Profiles[:1], device.ReasonLost }, true},
		"a sick GPU that does not tell": {func(g *device.GPU) { g.MIGEnabled, g.MIG, g.Health.Reason = false, nil, device.ReasonResetRequired }, true},
	} {
		got := merge(test.change)
		if len(got.Partitions()) != 3 || got.OffersPartitions() != test.offers {
			t.Errorf("%s: %d partitions, offered %v", name, len(got.Partitions()), got.OffersPartitions())
		}
	}
	off := merge(func(g *device.GPU) { g.MIGEnabled, g.MIG = false, nil })
	again := device.Merge(device.Inventory{GPUs: []device.GPU{off}}, device.Inventory{GPUs: []device.GPU{partitionable()}}).GPUs[0]
	if !again.OffersPartitions() {
		t.Error("withdrawn although MIG mode is on again")
	}
	if known.GPUs[0].MIG.Withdrawn {
		t.Error("Merge changed its argument")
	}
	lost := device.Merge(known, device.Inventory{}).GPUs[0]
	if len(lost.Partitions()) != 3 {
		t.Error("a lost GPU lost its partitions")
	}
}

func TestMergeCountsGPUsInMIGModeInNoDomain(t *testing.T) {
	inventory := node("n.0", "n.0", "n.0")
	inventory.GPUs[0].MIGEnabled = true
	if got := device.Merge(device.Inventory{}, inventory).GPUs[1].NVSwitchDomainSize; got != 2 {
		t.Errorf("a domain of two GPUs and one in MIG mode has size %d", got)
	}
}

// uuidStem is the UUID of a GPU but for its last digit.
const uuidStem = "GPU-4404041a-04cf-1ccf-9e70-f139a9b1e23"

func TestSelection(t *testing.T) {
	gpus := []device.GPU{{UUID: uuidStem + "a", Index: 0}, {UUID: uuidStem + "b", Index: 1}, {UUID: uuidStem + "c", Index: 12}}
	for text, want := range map[string]string{
		"all": "abc", "none": "", "0": "a", "1, 12": "bc", strings.ToLower(uuidStem) + "B,0": "ab", uuidStem + "f": "", "2": "", "00,+12": "ac",
	} {
		s, err := device.ParseSelection(text)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, gpu := range gpus {
			if s.Selects(gpu) {
				got += gpu.UUID[len(uuidStem):]
			}
		}
		if got != want {
			t.Errorf("%q selects %q, want %q", text, got, want)
		}
		if again, err := device.ParseSelection(s.String()); err != nil || again.String() != s.String() {
			t.Errorf("%q is written as %q, %v", text, s, err)
		}
	}
	for _, text := range []string{"", "0,,1", "-1", "first", "ALL", "GPU-", "GPU-4404041a", uuidStem + "aa"} {
		if _, err := device.ParseSelection(text); err == nil {
			t.Errorf("%q is a selection", text)
		}
	}
}

func TestSelectionExcept(t *testing.T) {
	parse := func(text string) device.Selection {
		t.Helper()
		s, err := device.ParseSelection(text)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	gpus := []device.GPU{{Index: 0, UUID: uuidStem + "a"}, {Index: 1, UUID: uuidStem + "b"}, {Index: 2, UUID: uuidStem + "c"}}
	for name, test := range map[string]struct {
		selection device.Selection
		want      []bool
		text      string
	}{
		"all but a list":       {parse("all").Except(parse("0," + uuidStem + "c")), []bool{false, true, false}, "all except 0," + uuidStem + "c"},
		"all but two lists":    {parse("all").Except(parse("0")).Except(parse("1")), []bool{false, false, true}, "all except 0,1"},
		"all but all":          {parse("all").Except(parse("all")), []bool{false, false, false}, "all except all"},
		"all but none":         {parse("all").Except(parse("none")), []bool{true, true, true}, "all except none"},
		"a list but one of it": {parse("0,1").Except(parse(uuidStem + "A")), []bool{false, true, false}, "0,1 except " + uuidStem + "A"},
	} {
		t.Run(name, func(t *testing.T) {
			for i, gpu := range gpus {
				if got := test.selection.Selects(gpu); got != test.want[i] {
					t.Errorf("GPU %d: selected %t, want %t", i, got, test.want[i])
				}
			}
			if got := test.selection.String(); got != test.text {
				t.Errorf("text %q, want %q", got, test.text)
			}
		})
	}
}
