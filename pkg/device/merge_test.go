// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/switchyard-dev/switchyard/pkg/device"
)

// node returns an inventory with one healthy GPU per domain given; "" is a GPU without one. The UUIDs
// are GPU-0, GPU-1, ...
func node(domains ...string) device.Inventory {
	inventory := device.Inventory{NodeName: "n", DriverVersion: "580.105.08", CUDADriverVersion: "13.0"}
	for i, domain := range domains {
		inventory.GPUs = append(inventory.GPUs, device.GPU{
			UUID: fmt.Sprintf("GPU-%d", i), Index: i, ProductName: "H100", NVLinks: 18,
			PCIBusID: fmt.Sprintf("0000:%02x:00.0", i), NVSwitchDomain: domain,
		})
	}
	return count(inventory)
}

// count sets domain sizes, as discovery does.
func count(inventory device.Inventory) device.Inventory {
	for i := range inventory.GPUs {
		gpu := &inventory.GPUs[i]
		gpu.NVSwitchDomainSize = 0
		for _, other := range inventory.GPUs {
			if gpu.NVSwitchDomain != "" && other.NVSwitchDomain == gpu.NVSwitchDomain {
				gpu.NVSwitchDomainSize++
			}
		}
	}
	return inventory
}

// without removes GPUs, and moves the indexes of those behind as NVML does.
func without(inventory device.Inventory, uuids ...string) device.Inventory {
	inventory.GPUs = slices.Clone(inventory.GPUs)
	inventory.GPUs = slices.DeleteFunc(inventory.GPUs, func(gpu device.GPU) bool { return slices.Contains(uuids, gpu.UUID) })
	for i := range inventory.GPUs {
		inventory.GPUs[i].Index = i
	}
	return count(inventory)
}

// summary is a GPU a line: UUID, index, domain, domain size, health.
func summary(inventory device.Inventory) []string {
	var lines []string
	for _, gpu := range inventory.GPUs {
		lines = append(lines, fmt.Sprintf("%s #%d %s/%d %s", gpu.UUID, gpu.Index, gpu.NVSwitchDomain, gpu.NVSwitchDomainSize, gpu.Health.Reason))
	}
	return lines
}

func TestMerge(t *testing.T) {
	with := func(inventory device.Inventory, uuid string, change func(*device.GPU)) device.Inventory {
		inventory.GPUs = slices.Clone(inventory.GPUs)
		for i := range inventory.GPUs {
			if inventory.GPUs[i].UUID == uuid {
				change(&inventory.GPUs[i])
			}
		}
		return count(inventory)
	}
	tests := map[string]struct {
		known, seen device.Inventory
		want        []string
	}{
		"nothing known: what is seen": {
			seen: node("n.0", "n.0"),
			want: []string{"GPU-0 #0 n.0/2 ", "GPU-1 #1 n.0/2 "},
		},
		"a GPU that is not seen is lost, keeps its place and index, and leaves its domain": {
			known: node("n.0", "n.0", "n.0"), seen: without(node("n.0", "n.0", "n.0"), "GPU-1"),
			want: []string{"GPU-0 #0 n.0/2 ", "GPU-1 #1 /0 Lost", "GPU-2 #1 n.0/2 "},
		},
		"nothing is seen: all are lost": {
			known: node("n.0", "n.0"), seen: device.Inventory{},
			want: []string{"GPU-0 #0 /0 Lost", "GPU-1 #1 /0 Lost"},
		},
		"a lost GPU that is seen again is as it is seen": {
			known: device.Merge(node("n.0", "n.0"), without(node("n.0", "n.0"), "GPU-0")), seen: node("n.0", "n.0"),
			want: []string{"GPU-0 #0 n.0/2 ", "GPU-1 #1 n.0/2 "},
		},
		"a new GPU goes behind the known ones": {
			known: without(node("", "", ""), "GPU-1"), seen: node("", "", ""),
			want: []string{"GPU-0 #0 /0 ", "GPU-2 #2 /0 ", "GPU-1 #1 /0 "},
		},
		"a domain keeps its number when the one before is gone": {
			known: node("n.0", "n.0", "n.1", "n.1"),
			seen:  with(with(node("", "", "n.0", "n.0"), "GPU-0", noLinks), "GPU-1", noLinks),
			want:  []string{"GPU-0 #0 /0 ", "GPU-1 #1 /0 ", "GPU-2 #2 n.1/2 ", "GPU-3 #3 n.1/2 "},
		},
		"a domain keeps its number when the GPUs of the one before are lost": {
			known: node("n.0", "n.0", "n.1", "n.1"), seen: without(node("n.0", "n.0", "n.0", "n.0"), "GPU-0", "GPU-1"),
			want: []string{"GPU-0 #0 /0 Lost", "GPU-1 #1 /0 Lost", "GPU-2 #0 n.1/2 ", "GPU-3 #1 n.1/2 "},
		},
		"the number of a lost domain is not given to others": {
			known: device.Merge(node("n.0", "n.0"), device.Inventory{NodeName: "n"}),
			seen:  without(node("n.7", "n.7", "n.0", "n.0"), "GPU-0", "GPU-1"),
			want:  []string{"GPU-0 #0 /0 Lost", "GPU-1 #1 /0 Lost", "GPU-2 #0 n.1/2 ", "GPU-3 #1 n.1/2 "},
		},
		"of a domain that falls apart the larger part keeps the number": {
			known: node("n.0", "n.0", "n.0", "n.0", "n.0"), seen: node("n.0", "n.0", "n.1", "n.1", "n.1"),
			want: []string{"GPU-0 #0 n.1/2 ", "GPU-1 #1 n.1/2 ", "GPU-2 #2 n.0/3 ", "GPU-3 #3 n.0/3 ", "GPU-4 #4 n.0/3 "},
		},
		"of equal parts the first keeps the number": {
			known: node("n.0", "n.0", "n.0", "n.0"), seen: node("n.0", "n.0", "n.1", "n.1"),
			want: []string{"GPU-0 #0 n.0/2 ", "GPU-1 #1 n.0/2 ", "GPU-2 #2 n.1/2 ", "GPU-3 #3 n.1/2 "},
		},
		"domains that grow together take the lower number": {
			known: node("n.0", "n.0", "n.3", "n.3"), seen: node("n.0", "n.0", "n.0", "n.0"),
			want: []string{"GPU-0 #0 n.0/4 ", "GPU-1 #1 n.0/4 ", "GPU-2 #2 n.0/4 ", "GPU-3 #3 n.0/4 "},
		},
		"numbers are those of this node's name": {
			known: device.Inventory{NodeName: "old", GPUs: node("old.5", "old.5").GPUs}, seen: node("n.0", "n.0"),
			want: []string{"GPU-0 #0 n.0/2 ", "GPU-1 #1 n.0/2 "},
		},
		"a fabric's domain is never renamed": {
			known: node("n.0", "n.0"), seen: node("u-u.1", "u-u.1"),
			want: []string{"GPU-0 #0 u-u.1/2 ", "GPU-1 #1 u-u.1/2 "},
		},
		"a GPU that is seen twice is listed once": {
			seen: device.Inventory{GPUs: append(node("").GPUs, node("").GPUs...)},
			want: []string{"GPU-0 #0 /0 "},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			known, seen := clone(t, test.known), clone(t, test.seen)
			got := device.Merge(test.known, test.seen)
			if diff := cmp.Diff(test.want, summary(got)); diff != "" {
				t.Errorf("merged (-want +got):\n%s", diff)
			}
			if !reflect.DeepEqual(known, clone(t, test.known)) || !reflect.DeepEqual(seen, clone(t, test.seen)) {
				t.Error("Merge changed an argument")
			}
			if again := device.Merge(got, test.seen); !reflect.DeepEqual(summary(again), summary(got)) {
				t.Errorf("not idempotent:\n%s", cmp.Diff(summary(got), summary(again)))
			}
			if again := device.Merge(clone(t, got), test.seen); !reflect.DeepEqual(summary(again), summary(got)) {
				t.Errorf("other result once known was written and read:\n%s", cmp.Diff(summary(got), summary(again)))
			}
		})
	}
}

func noLinks(gpu *device.GPU) { gpu.NVLinks, gpu.NVSwitchDomain = 0, "" }

// clone writes the inventory as JSON, as it is kept over a restart, and reads it.
func clone(t *testing.T, inventory device.Inventory) device.Inventory {
	t.Helper()
	data, err := json.Marshal(inventory)
	if err != nil {
		t.Fatal(err)
	}
	var copied device.Inventory
	if err := json.Unmarshal(data, &copied); err != nil {
		t.Fatal(err)
	}
	return copied
}

func TestMergeKeepsWhatAnUnhealthyGPUNoLongerAnswers(t *testing.T) {
	full := device.GPU{
		UUID: "GPU-0", Index: 3, Minor: new(3), ProductName: "H100", Brand: "Nvidia", Architecture: "Hopper", ComputeCapability: "9.0",
		PCIBusID: "0000:53:00.0", PCIeRoot: "pci0000:50", NUMANode: new(1), MemoryBytes: 80 << 30, Multiprocessors: 132,
		NVLinks: 18, MIGEnabled: true,
	}
	known := device.Inventory{DriverVersion: "580.105.08", CUDADriverVersion: "13.0", GPUs: []device.GPU{full}}
	sick := device.GPU{UUID: "GPU-0", Index: 3, Health: device.Health{Reason: device.ReasonResetRequired, Message: "says NVML"}}

	got := device.Merge(known, device.Inventory{GPUs: []device.GPU{sick}})
	want := full
	want.NVLinks, want.Health = 0, sick.Health
	if diff := cmp.Diff(want, got.GPUs[0]); diff != "" {
		t.Errorf("GPU (-want +got):\n%s", diff)
	}
	if got.DriverVersion != "580.105.08" || got.CUDADriverVersion != "13.0" {
		t.Errorf("versions %q, %q forgotten", got.DriverVersion, got.CUDADriverVersion)
	}

	// A healthy one that tells less has changed, say MIG mode was switched off.
	well := device.GPU{UUID: "GPU-0", ProductName: "H100"}
	if got := device.Merge(known, device.Inventory{GPUs: []device.GPU{well}}); !cmp.Equal(well, got.GPUs[0]) {
		t.Errorf("healthy GPU: %s", cmp.Diff(well, got.GPUs[0]))
	}
}

func TestMergeTellsWhatWasSeenNow(t *testing.T) {
	seen := node("")
	seen.Settling, seen.Unidentified = true, []string{"GPU at index 1: no UUID"}
	got := device.Merge(device.Inventory{}, seen)
	if !got.Settling || !reflect.DeepEqual(got.Unidentified, seen.Unidentified) {
		t.Errorf("settling %v, unidentified %q", got.Settling, got.Unidentified)
	}
	if got := device.Merge(got, node("")); got.Settling || len(got.Unidentified) != 0 {
		t.Errorf("once settled: settling %v, unidentified %q", got.Settling, got.Unidentified)
	}
}

func TestMergeRemembersTheMostLinks(t *testing.T) {
	with := func(uuid string, links int) device.Inventory {
		return device.Inventory{GPUs: []device.GPU{{UUID: uuid, NVLinks: links}}}
	}
	known := device.Merge(device.Inventory{}, with("GPU-0", 16))
	for _, step := range []struct {
		seen        device.Inventory
		links, most int
	}{
		{with("GPU-0", 18), 18, 18},
		{with("GPU-0", 17), 17, 18},
		{device.Inventory{}, 0, 18}, // lost
		{with("GPU-0", 18), 18, 18},
	} {
		known = device.Merge(known, step.seen)
		if got := known.GPUs[0]; got.NVLinks != step.links || got.MaxNVLinks != step.most {
			t.Errorf("%d links, %d at most, want %d and %d", got.NVLinks, got.MaxNVLinks, step.links, step.most)
		}
	}
}

func TestMergeKeepsTheReasonOfAGPUThatIsLostAnyway(t *testing.T) {
	known := node("")
	known.GPUs[0].Health = device.Health{Reason: device.ReasonLost, Message: "nvmlDeviceGetMemoryInfo: GPU is lost"}
	if got := device.Merge(known, device.Inventory{}).GPUs[0].Health; got != known.GPUs[0].Health {
		t.Errorf("health %+v", got)
	}
	known.GPUs[0].Health.Reason = device.ReasonResetRequired
	if got := device.Merge(known, device.Inventory{}).GPUs[0].Health; got.Reason != device.ReasonLost {
		t.Errorf("health %+v, want lost", got)
	}
}

func TestMergePutsGPUsThatAppearLaterIntoABatchOfTheirOwn(t *testing.T) {
	all := node("", "", "", "")
	inventory := device.Merge(device.Inventory{}, without(all, "GPU-1", "GPU-3"))
	inventory = device.Merge(inventory, without(all, "GPU-3"))
	inventory = device.Merge(inventory, without(all, "GPU-0", "GPU-3"))
	inventory = device.Merge(inventory, all)
	got := map[string]int{}
	for _, gpu := range inventory.GPUs {
		got[gpu.UUID] = gpu.Batch
	}
	if want := map[string]int{"GPU-0": 0, "GPU-2": 0, "GPU-1": 1, "GPU-3": 2}; !reflect.DeepEqual(got, want) {
		t.Errorf("batches %v, want %v", got, want)
	}
}

func TestLocalDomain(t *testing.T) {
	long := strings.Repeat("a", 253)
	for name, test := range map[string]struct {
		node string
		n    int
	}{
		"short":                   {"node-a", 0},
		"62 characters still fit": {strings.Repeat("a", 62), 9},
		"63 characters":           {strings.Repeat("a", 63), 0},
		"253 characters":          {long, 0},
		"cut at a dot":            {strings.Repeat("a", 44) + "." + strings.Repeat("b", 100), 0},
	} {
		got := device.LocalDomain(test.node, test.n)
		if len(got) > device.MaxDomainLength {
			t.Errorf("%s: %q has %d characters", name, got, len(got))
		}
		plain := fmt.Sprintf("%s.%d", test.node, test.n)
		if fits := len(plain) <= device.MaxDomainLength; fits != (got == plain) {
			t.Errorf("%s: %q", name, got)
		}
		if strings.Contains(got, ".-") || strings.Contains(got, "--") {
			t.Errorf("%s: %q is cut badly", name, got)
		}
	}
	seen := map[string]bool{}
	for _, node := range []string{long, long[1:] + "b", long[1:] + "c", long[:100], long[:101]} {
		for n := range 12 {
			seen[device.LocalDomain(node, n)] = true
		}
	}
	if len(seen) != 60 {
		t.Errorf("%d different domains of 5 nodes with 12 each", len(seen))
	}
}

func TestFabricDomain(t *testing.T) {
	uuid := [16]byte{0xc4, 0x3e, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x09, 0x0a, 0x0b, 0x0c, 0x0d, 0x0e}
	if got, want := device.FabricDomain(uuid, 32766), "c43e0102-0304-0506-0708-090a0b0c0d0e.32766"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := device.FabricDomain(uuid, 1<<32-1); len(got) > device.MaxDomainLength {
		t.Errorf("%q is too long", got)
	}
}
