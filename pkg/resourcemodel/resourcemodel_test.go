// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package resourcemodel_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"sigs.k8s.io/yaml"

	"github.com/switchyard-dev/switchyard/pkg/device"
	"github.com/switchyard-dev/switchyard/pkg/resourcemodel"
)

// semver is the part of semver.org 2.0.0 that we use.
var semver = regexp.MustCompile(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)$`)

var update = flag.Bool("update", false, "write the golden files")

// gpu returns a healthy H100 with everything known.
func gpu(i int, domain string) device.GPU {
	return device.GPU{
		UUID: fmt.Sprintf("GPU-%08d-04cf-1ccf-9e70-f139a9b1e23c", i), Index: i, Minor: new(i),
		ProductName: "NVIDIA H100 80GB HBM3", Brand: "Nvidia", Architecture: "Hopper", ComputeCapability: "9.0",
		PCIBusID: fmt.Sprintf("0000:%02x:00.0", i), PCIeRoot: fmt.Sprintf("pci0000:%02x", i), NUMANode: new(0),
		MemoryBytes: 81559 << 20, Multiprocessors: 132, NVLinks: 18, NVSwitchDomain: domain, NVSwitchDomainSize: 4, NVLinksPerPeer: 18,
	}
}

func inventory(gpus ...device.GPU) device.Inventory {
	return device.Inventory{NodeName: "node-a", DriverVersion: "580.105.08", CUDADriverVersion: "13.0", GPUs: gpus}
}

// pool returns the only pool of the resources.
func pool(t *testing.T, nodeName string, inv device.Inventory) resourceslice.Pool {
	t.Helper()
	resources := resourcemodel.DriverResources(nodeName, inv)
	if len(resources.Pools) != 1 {
		t.Fatalf("%d pools, want one", len(resources.Pools))
	}
	result, ok := resources.Pools[nodeName]
	if !ok {
		t.Fatalf("no pool is named after the node: %v", resources.Pools)
	}
	requireValid(t, result)
	return result
}

// names returns the device names by slice.
func names(p resourceslice.Pool) [][]string {
	var result [][]string
	for _, slice := range p.Slices {
		var devices []string
		for _, d := range slice.Devices {
			devices = append(devices, d.Name)
		}
		result = append(result, devices)
	}
	return result
}

// order returns the indexes of the GPUs in the order in which they are published.
func order(t *testing.T, inv device.Inventory) []int {
	t.Helper()
	var indexes []int
	for _, slice := range pool(t, "node-a", inv).Slices {
		for _, d := range slice.Devices {
			found, ok := inv.ByName(d.Name)
			if !ok {
				t.Fatalf("device %s is not in the inventory", d.Name)
			}
			indexes = append(indexes, found.Index)
		}
	}
	return indexes
}

// requireValid applies the limits of the API (pkg/apis/resource/validation in k8s.io/kubernetes).
func requireValid(t *testing.T, p resourceslice.Pool) {
	t.Helper()
	seen := map[string]bool{}
	for i, slice := range p.Slices {
		if n := len(slice.Devices); n == 0 && len(slice.SharedCounters) == 0 || n > resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures {
			t.Errorf("slice %d: %d devices", i, n)
		}
		for _, d := range slice.Devices {
			if seen[d.Name] {
				t.Errorf("device %s is listed twice", d.Name)
			}
			seen[d.Name] = true
			if problems := validation.IsDNS1123Label(d.Name); len(problems) > 0 {
				t.Errorf("device name %q: %v", d.Name, problems)
			}
			if n := len(d.Attributes) + len(d.Capacity); n > resourceapi.ResourceSliceMaxAttributesAndCapacitiesPerDevice {
				t.Errorf("device %s: %d attributes and capacities", d.Name, n)
			}
			if len(d.Taints) > resourceapi.DeviceTaintsMaxLength {
				t.Errorf("device %s: %d taints", d.Name, len(d.Taints))
			}
			for name, value := range d.Attributes {
				requireValidName(t, string(name))
				requireValidAttribute(t, string(name), value)
			}
			for name := range d.Capacity {
				requireValidName(t, string(name))
			}
			for _, taint := range d.Taints {
				if problems := append(content.IsLabelKey(taint.Key), validation.IsValidLabelValue(taint.Value)...); len(problems) > 0 {
					t.Errorf("taint %v: %v", taint, problems)
				}
				if taint.Effect != resourceapi.DeviceTaintEffectNoSchedule {
					t.Errorf("taint %v: effect", taint)
				}
			}
		}
	}
}

func requireValidName(t *testing.T, name string) {
	t.Helper()
	id := name
	if domain, rest, qualified := strings.Cut(name, "/"); qualified {
		id = rest
		if problems := validation.IsDNS1123Subdomain(domain); len(problems) > 0 {
			t.Errorf("name %q: %v", name, problems)
		}
	}
	if problems := content.IsCIdentifier(id); len(problems) > 0 || len(id) > resourceapi.DeviceMaxIDLength {
		t.Errorf("name %q is no C identifier of at most %d characters", name, resourceapi.DeviceMaxIDLength)
	}
}

func requireValidAttribute(t *testing.T, name string, value resourceapi.DeviceAttribute) {
	t.Helper()
	kinds := 0
	if value.IntValue != nil {
		kinds++
	}
	if value.StringValue != nil {
		kinds++
		if n := len(*value.StringValue); n == 0 || n > resourceapi.DeviceAttributeMaxValueLength {
			t.Errorf("attribute %s: %q has %d bytes", name, *value.StringValue, n)
		}
	}
	if value.VersionValue != nil {
		kinds++
		if !semver.MatchString(*value.VersionValue) || len(*value.VersionValue) > resourceapi.DeviceAttributeMaxValueLength {
			t.Errorf("attribute %s: %q is no semantic version", name, *value.VersionValue)
		}
	}
	if kinds != 1 || value.BoolValue != nil || value.IntValues != nil || value.StringValues != nil {
		t.Errorf("attribute %s has not exactly one plain value: %+v", name, value)
	}
}

func TestGoldenSlice(t *testing.T) {
	lost := gpu(1, "")
	lost.Health, lost.LastDomain, lost.NVLinks = device.Health{Reason: device.ReasonLost}, "node-a.0", 0
	mig := gpu(2, "")
	mig.MIGEnabled = true
	bare := device.GPU{UUID: "GPU-00000003-04cf-1ccf-9e70-f139a9b1e23c", Index: 3}
	got, err := yaml.Marshal(pool(t, "node-a", inventory(gpu(0, "node-a.0"), lost, mig, bare)).Slices)
	if err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "slices.yaml")
	if *update {
		if err := os.WriteFile(golden, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("slices (-want +got; -update writes them):\n%s", diff)
	}
}

func TestTheTableDocumentsWhatIsPublished(t *testing.T) {
	kind := func(value resourceapi.DeviceAttribute) string {
		switch {
		case value.StringValue != nil:
			return "string"
		case value.IntValue != nil:
			return "int"
		default:
			return "version"
		}
	}
	full := resourcemodel.Attributes(gpu(0, "node-a.0"), inventory())
	dropped := gpu(0, "")
	dropped.LastDomain = "node-a.0"
	maps.Copy(full, resourcemodel.Attributes(dropped, inventory()))
	bare := resourcemodel.Attributes(device.GPU{UUID: "GPU-0"}, device.Inventory{})
	documented := map[resourceapi.QualifiedName]bool{}
	for _, field := range resourcemodel.AttributeTable() {
		documented[field.Name] = true
		value, published := full[field.Name]
		if !published || kind(value) != field.Type {
			t.Errorf("attribute %s: documented as %s, published as %+v", field.Name, field.Type, value)
		}
		if _, always := bare[field.Name]; always != field.Always {
			t.Errorf("attribute %s: published of a GPU of which nothing is known: %v, documented %v", field.Name, always, field.Always)
		}
		if !strings.HasSuffix(field.Meaning, ".") {
			t.Errorf("attribute %s: meaning %q is no sentence", field.Name, field.Meaning)
		}
	}
	for name := range full {
		if !documented[name] {
			t.Errorf("attribute %s is not documented", name)
		}
	}
	slice := pool(t, "node-a", inventory(gpu(0, ""))).Slices[0]
	var capacities []resourceapi.QualifiedName
	for _, field := range resourcemodel.CapacityTable() {
		capacities = append(capacities, field.Name)
		if _, ok := slice.Devices[0].Capacity[field.Name]; !ok || field.Type != "quantity" {
			t.Errorf("capacity %s is documented as %s, published: %v", field.Name, field.Type, ok)
		}
	}
	if len(slice.Devices[0].Capacity) != len(capacities) {
		t.Errorf("capacities %v, documented %v", slice.Devices[0].Capacity, capacities)
	}
}

func TestVersionsAreSemver(t *testing.T) {
	for given, want := range map[string]string{
		"580.105.08":                   "580.105.8",
		"580.173.02":                   "580.173.2",
		"470.82":                       "470.82.0",
		"13.0":                         "13.0.0",
		"9.0":                          "9.0.0",
		"32.0.15.6094":                 "32.0.15",
		"580.65.06-rc1":                "580.65.6",
		"":                             "",
		"unknown":                      "",
		"580.x.1":                      "",
		"580..1":                       "",
		strings.Repeat("9", 70) + ".1": "",
	} {
		inv := inventory()
		inv.DriverVersion = given
		got := ""
		if value, ok := resourcemodel.Attributes(gpu(0, ""), inv)[resourcemodel.AttributeDriverVersion]; ok {
			requireValidAttribute(t, "driverVersion", value)
			got = *value.VersionValue
		}
		if got != want {
			t.Errorf("version %q is published as %q, want %q", given, got, want)
		}
	}
}

func TestStringsFitTheAPI(t *testing.T) {
	for name, test := range map[string]struct{ given, want string }{
		"64 bytes are kept":             {strings.Repeat("x", 64), strings.Repeat("x", 64)},
		"more are cut":                  {strings.Repeat("x", 65), strings.Repeat("x", 64)},
		"a character is not split":      {strings.Repeat("x", 63) + "é", strings.Repeat("x", 63)},
		"no blank is left at the end":   {strings.Repeat("x", 63) + " y", strings.Repeat("x", 63)},
		"blanks around are dropped":     {"  H100 ", "H100"},
		"what is not UTF-8 is dropped":  {"H1\xff00", "H100"},
		"an empty one is not published": {"", ""},
		"blanks alone are not either":   {"  ", ""},
	} {
		g := gpu(0, "")
		g.ProductName = test.given
		got := ""
		if value, ok := resourcemodel.Attributes(g, inventory())[resourcemodel.AttributeProductName]; ok {
			requireValidAttribute(t, "productName", value)
			got = *value.StringValue
		}
		if got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

func TestIdentifiersAreNeverCut(t *testing.T) {
	g := gpu(0, strings.Repeat("d", 65))
	g.PCIBusID, g.PCIeRoot = "10000:01:00.0", strings.Repeat("p", 65)
	attributes := resourcemodel.Attributes(g, inventory())
	for _, name := range []resourceapi.QualifiedName{resourcemodel.AttributeNVSwitchDomain, resourcemodel.AttributePCIBusID, resourcemodel.AttributePCIeRoot} {
		if value, ok := attributes[name]; ok {
			t.Errorf("attribute %s: %+v", name, value)
		}
	}
	g = gpu(0, "")
	g.NUMANode = new(-1)
	if value, ok := resourcemodel.Attributes(g, inventory())[resourcemodel.AttributeNUMANode]; ok {
		t.Errorf("NUMA node -1 is published: %+v", value)
	}
}

func TestANodeNameOf253CharactersGivesAValidPool(t *testing.T) {
	nodeName := strings.TrimSuffix(strings.Repeat(strings.Repeat("n", 63)+".", 4), ".")[:253]
	var gpus []device.GPU
	for i := range 16 {
		gpus = append(gpus, gpu(i, device.LocalDomain(nodeName, i/8)))
	}
	p := pool(t, nodeName, inventory(gpus...))
	domains := map[string]int{}
	for _, d := range p.Slices[0].Devices {
		domains[*d.Attributes[resourcemodel.AttributeNVSwitchDomain].StringValue]++
	}
	if len(domains) != 2 || len(p.Slices[0].Devices) != 16 {
		t.Errorf("%d devices in domains %v, want 16 in two", len(p.Slices[0].Devices), domains)
	}
}

func TestSlices(t *testing.T) {
	many := func(n int) []device.GPU {
		var gpus []device.GPU
		for i := range n {
			gpus = append(gpus, gpu(i, ""))
		}
		return gpus
	}
	lengths := func(p resourceslice.Pool) []int {
		var result []int
		for _, slice := range p.Slices {
			result = append(result, len(slice.Devices))
		}
		return result
	}
	for name, test := range map[string]struct {
		gpus []device.GPU
		want []int
	}{
		"a node without GPUs has a pool without slices": {nil, nil},
		"16 GPUs are one slice":                         {many(16), []int{16}},
		"64 GPUs are one slice":                         {many(64), []int{64}},
		"more GPUs are several":                         {many(130), []int{64, 64, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := lengths(pool(t, "node-a", inventory(test.gpus...))); !reflect.DeepEqual(got, test.want) {
				t.Errorf("slices of %v, want %v", got, test.want)
			}
			sick := slices.Clone(test.gpus)
			for i := range sick {
				sick[i].Health = device.Health{Reason: device.ReasonLost}
			}
			if got := lengths(pool(t, "node-a", inventory(sick...))); !reflect.DeepEqual(got, test.want) {
				t.Errorf("with taints: slices of %v, want %v", got, test.want)
			}
		})
	}
}

func TestNoSliceEverGainsADevice(t *testing.T) {
	var all []device.GPU
	for i := range 8 {
		all = append(all, gpu(i, fmt.Sprintf("node-a.%d", i/4)))
	}
	inv := device.Merge(device.Inventory{}, inventory(all[:3]...))
	before := names(pool(t, "node-a", inv))
	inv = device.Merge(inv, inventory(all...)) // five appear
	after := names(pool(t, "node-a", inv))
	if len(after) != 2 || !reflect.DeepEqual(after[0], before[0]) || len(after[1]) != 5 {
		t.Errorf("slices %v, then %v: want the first as it was, and the new GPUs in a second", before, after)
	}
	inv = device.Merge(inv, inventory(all[4:]...)) // four are lost
	if lost := names(pool(t, "node-a", inv)); !reflect.DeepEqual(lost, after) {
		t.Errorf("slices %v, then %v once GPUs are lost", after, lost)
	}
}

func TestOrder(t *testing.T) {
	domain := func(i int, name string) device.GPU { return gpu(i, name) }
	numa := func(i int, name string, node *int) device.GPU {
		g := gpu(i, name)
		g.NUMANode = node
		return g
	}
	for name, test := range map[string]struct {
		gpus []device.GPU
		want []int
	}{
		"by index": {[]device.GPU{domain(0, "d"), domain(1, "d"), domain(2, "d")}, []int{0, 1, 2}},
		"contiguous by domain, that of the smallest index first": {
			[]device.GPU{domain(0, "z"), domain(1, "a"), domain(2, "z"), domain(3, "a")}, []int{0, 2, 1, 3},
		},
		"more than ten domains in order": {
			[]device.GPU{
				domain(0, "n.0"), domain(1, "n.1"), domain(2, "n.2"), domain(3, "n.3"), domain(4, "n.4"), domain(5, "n.5"),
				domain(6, "n.6"), domain(7, "n.7"), domain(8, "n.8"), domain(9, "n.9"), domain(10, "n.10"), domain(11, "n.2"),
			}, []int{0, 1, 2, 11, 3, 4, 5, 6, 7, 8, 9, 10},
		},
		"GPUs without a domain first":                 {[]device.GPU{domain(0, "d"), domain(1, ""), domain(2, "d"), domain(3, "")}, []int{1, 3, 0, 2}},
		"by NUMA node inside a domain, unknown first": {[]device.GPU{numa(0, "d", new(1)), numa(1, "d", new(0)), numa(2, "d", nil), numa(3, "d", new(1))}, []int{2, 1, 0, 3}},
	} {
		if got := order(t, inventory(test.gpus...)); !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}

func TestADeviceStaysInItsPlace(t *testing.T) {
	board := func(domains string) device.Inventory {
		var gpus []device.GPU
		for i, d := range domains {
			g := gpu(i, "")
			if d != ' ' {
				g.NVSwitchDomain = device.LocalDomain("node-a", int(d-'0'))
			}
			gpus = append(gpus, g)
		}
		return inventory(gpus...)
	}
	first := device.Merge(device.Inventory{}, board("00001111"))
	place := names(pool(t, "node-a", first))
	stays := func(what string, inv device.Inventory) {
		t.Helper()
		if got := names(pool(t, "node-a", inv)); !reflect.DeepEqual(got, place) {
			t.Errorf("%s: devices moved:\n%s", what, cmp.Diff(place, got))
		}
	}
	shifted := board("00001111")
	shifted.GPUs = slices.Delete(shifted.GPUs, 1, 3)
	for i := range shifted.GPUs {
		shifted.GPUs[i].Index = i
	}
	lost := device.Merge(first, shifted)
	stays("two GPUs are lost, indexes shift", lost)
	stays("they come back", device.Merge(lost, board("00001111")))
	stays("NVML is gone", device.Merge(first, device.Inventory{NodeName: "node-a"}))
	stays("a GPU's links go down", device.Merge(first, board("00 01111")))
	stays("a domain is gone", device.Merge(first, board("    0000")))

	split := device.Merge(first, board("01012222"))
	want := [][]string{{place[0][0], place[0][2], place[0][1], place[0][3], place[0][4], place[0][5], place[0][6], place[0][7]}}
	if got := names(pool(t, "node-a", split)); !reflect.DeepEqual(got, want) {
		t.Errorf("once a domain split: %v, want it contiguous again: %v", got, want)
	}
}

func TestTaints(t *testing.T) {
	for name, test := range map[string]struct {
		gpu  device.GPU
		want []string
	}{
		"a healthy GPU has none":      {device.GPU{}, nil},
		"a note is no taint":          {device.GPU{Health: device.Health{Message: "fabric runs degraded"}}, nil},
		"an unhealthy GPU":            {device.GPU{Health: device.Health{Reason: device.ReasonLost}}, []string{"gpu.switchyard.dev/unhealthy=Lost:NoSchedule"}},
		"an unhealthy GPU to drain":   {device.GPU{Health: device.Health{Reason: device.ReasonLost, Evict: true}}, []string{"gpu.switchyard.dev/unhealthy=Lost:NoExecute"}},
		"a degraded GPU":              {device.GPU{Health: device.Health{Degraded: "NVLinkDown"}}, []string{"gpu.switchyard.dev/degraded=NVLinkDown:None"}},
		"unhealthy and degraded":      {device.GPU{Health: device.Health{Reason: "XID48", Degraded: "NVLinkDown"}}, []string{"gpu.switchyard.dev/unhealthy=XID48:NoSchedule", "gpu.switchyard.dev/degraded=NVLinkDown:None"}},
		"a GPU in MIG mode":           {device.GPU{MIGEnabled: true}, []string{"gpu.switchyard.dev/mig-enabled=:NoSchedule"}},
		"both":                        {device.GPU{MIGEnabled: true, Health: device.Health{Reason: "ResetRequired"}}, []string{"gpu.switchyard.dev/unhealthy=ResetRequired:NoSchedule", "gpu.switchyard.dev/mig-enabled=:NoSchedule"}},
		"a reason that is no label":   {device.GPU{Health: device.Health{Reason: "not a label"}}, []string{"gpu.switchyard.dev/unhealthy=:NoSchedule"}},
		"a reason of 100 characters ": {device.GPU{Health: device.Health{Reason: strings.Repeat("x", 100)}}, []string{"gpu.switchyard.dev/unhealthy=:NoSchedule"}},
	} {
		var got []string
		for _, taint := range resourcemodel.Taints(test.gpu) {
			got = append(got, fmt.Sprintf("%s=%s:%s", taint.Key, taint.Value, taint.Effect))
		}
		if !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

// Slices were rewritten at every restart because devices came in map order.
func TestFieldCase13d_EqualInventoriesGiveEqualSlices(t *testing.T) {
	inv := inventory(gpu(0, "node-a.0"), gpu(1, "node-a.0"), gpu(2, "node-a.1"), gpu(3, ""))
	first, err := json.Marshal(resourcemodel.DriverResources("node-a", inv))
	if err != nil {
		t.Fatal(err)
	}
	for range 50 {
		again, err := json.Marshal(resourcemodel.DriverResources("node-a", inv))
		if err != nil {
			t.Fatal(err)
		}
		if string(again) != string(first) {
			t.Fatalf("slices differ:\n%s\n%s", first, again)
		}
	}
}
