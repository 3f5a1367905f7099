// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"

	"github.com/switchyard-dev/switchyard/pkg/device"
)

func TestInventoryHoldsEverythingNVMLAndSysfsTell(t *testing.T) {
	node := newNode(t, 2).bridge(0, 1, 4)
	node.gpus[1].busID = "00000018:06:00.0"
	for _, link := range node.gpus[0].links {
		link.busID = node.gpus[1].busID
	}
	node.gpus[1].minor = 7
	node.writeSysfs("0000:10:00.0", "pci0000:0f", "0")
	node.writeSysfs("0018:06:00.0", "pci0018:00", "1")

	got := discover(t, node)
	gpu := device.GPU{
		UUID: "GPU-00000000-0000-0000-0000-000000000000", Index: 0, Minor: new(0), ProductName: "NVIDIA H100 80GB HBM3",
		Brand: "Nvidia", Architecture: "Hopper", ComputeCapability: "9.0", PCIBusID: "0000:10:00.0", PCIeRoot: "pci0000:0f",
		NUMANode: new(0), MemoryBytes: 81559 << 20, Multiprocessors: 132, NVLinks: 4, NVSwitchDomain: "node-a.0", NVSwitchDomainSize: 2, NVLinksPerPeer: 4,
	}
	second := gpu
	second.UUID, second.Index, second.Minor = "GPU-00000001-0000-0000-0000-000000000000", 1, new(7)
	second.PCIBusID, second.PCIeRoot, second.NUMANode = "0018:06:00.0", "pci0018:00", new(1)
	want := device.Inventory{NodeName: "node-a", DriverVersion: "580.105.08", CUDADriverVersion: "13.0", GPUs: []device.GPU{gpu, second}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("inventory (-want +got):\n%s", diff)
	}
	if again := discover(t, node); !reflect.DeepEqual(got, again) {
		t.Error("the same node gave another inventory the second time")
	}
}

func TestANodeWithoutGPUsIsNoError(t *testing.T) {
	if got := discover(t, newNode(t, 0)); len(got.GPUs) != 0 || got.DriverVersion == "" {
		t.Errorf("inventory %+v, want no GPUs", got)
	}
}

func TestWhatNVMLDoesNotTellIsLeftOut(t *testing.T) {
	optional := []string{
		"nvmlDeviceGetMinorNumber", "nvmlDeviceGetBrand", "nvmlDeviceGetArchitecture", "nvmlDeviceGetCudaComputeCapability",
		"nvmlDeviceGetNumGpuCores", "nvmlDeviceGetMigMode", "nvmlDeviceGetNvLinkState", "nvmlDeviceGetGpuFabricInfo", "nvmlDeviceGetP2PStatus",
	}
	bare := device.GPU{
		UUID: "GPU-00000000-0000-0000-0000-000000000000", ProductName: "NVIDIA H100 80GB HBM3",
		PCIBusID: "0000:10:00.0", MemoryBytes: 81559 << 20,
	}
	t.Run("functions that an old library lacks are not called", func(t *testing.T) {
		node := newNode(t, 1)
		for _, symbol := range append(optional, "nvmlSystemGetCudaDriverVersion_v2", "nvmlSystemGetCudaDriverVersion") {
			node.missing[symbol] = true
		}
		got := discover(t, node)
		if diff := cmp.Diff([]device.GPU{bare}, got.GPUs); diff != "" || got.CUDADriverVersion != "" {
			t.Errorf("CUDA %q, GPUs (-want +got):\n%s", got.CUDADriverVersion, diff)
		}
	})
	for _, ret := range []gonvml.Return{
		gonvml.ERROR_NOT_SUPPORTED, gonvml.ERROR_INVALID_ARGUMENT, gonvml.ERROR_NO_PERMISSION, gonvml.ERROR_UNKNOWN,
		gonvml.ERROR_TIMEOUT, gonvml.ERROR_FUNCTION_NOT_FOUND, gonvml.ERROR_ARGUMENT_VERSION_MISMATCH, gonvml.ERROR_NOT_READY,
	} {
		t.Run("optional calls may return "+ret.Error(), func(t *testing.T) {
			node := newNode(t, 1)
			for _, symbol := range optional {
				node.gpus[0].ret[symbol] = ret
			}
			if diff := cmp.Diff([]device.GPU{bare}, discover(t, node).GPUs); diff != "" {
				t.Errorf("GPUs (-want +got):\n%s", diff)
			}
		})
	}
	t.Run("memory that is not supported is no fault, as on boards that share the system's", func(t *testing.T) {
		node := newNode(t, 1)
		node.gpus[0].ret["nvmlDeviceGetMemoryInfo"] = gonvml.ERROR_NOT_SUPPORTED
		if gpu := discover(t, node).GPUs[0]; !gpu.Health.Healthy() || gpu.MemoryBytes != 0 {
			t.Errorf("health %+v, memory %d", gpu.Health, gpu.MemoryBytes)
		}
	})
	t.Run("brand and architecture without a name", func(t *testing.T) {
		node := newNode(t, 1)
		node.gpus[0].brand, node.gpus[0].arch = gonvml.BRAND_UNKNOWN, gonvml.DEVICE_ARCH_UNKNOWN
		if gpu := discover(t, node).GPUs[0]; gpu.Brand != "" || gpu.Architecture != "" {
			t.Errorf("brand %q, architecture %q, want none", gpu.Brand, gpu.Architecture)
		}
	})
	t.Run("no sysfs entry", func(t *testing.T) {
		if gpu := discover(t, newNode(t, 1)).GPUs[0]; gpu.PCIeRoot != "" || gpu.NUMANode != nil {
			t.Errorf("root %q, NUMA node %v, want none", gpu.PCIeRoot, gpu.NUMANode)
		}
	})
	t.Run("NUMA node -1", func(t *testing.T) {
		node := newNode(t, 1)
		node.writeSysfs("0000:10:00.0", "pci0000:00", "-1")
		if gpu := discover(t, node).GPUs[0]; gpu.NUMANode != nil || gpu.PCIeRoot != "pci0000:00" {
			t.Errorf("root %q, NUMA node %v", gpu.PCIeRoot, gpu.NUMANode)
		}
	})
}

func TestCUDADriverVersion(t *testing.T) {
	tests := map[string]struct {
		change func(*fakeNode)
		want   string
	}{
		"of libcuda": {func(*fakeNode) {}, "13.0"},
		"of the driver where libcuda is not found": {func(n *fakeNode) { n.cudaV2Ret = gonvml.ERROR_LIBRARY_NOT_FOUND }, "13.0"},
		"with a minor version":                     {func(n *fakeNode) { n.cudaVersion = 12080 }, "12.8"},
		"with minor version 10":                    {func(n *fakeNode) { n.cudaVersion = 12100 }, "12.10"},
		"nonsense":                                 {func(n *fakeNode) { n.cudaVersion = 0 }, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			node := newNode(t, 0)
			test.change(node)
			if got := discover(t, node).CUDADriverVersion; got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestABadGPUNeverCostsTheOthers(t *testing.T) {
	everyCall := []string{
		"nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetName", "nvmlDeviceGetMinorNumber", "nvmlDeviceGetMemoryInfo",
		"nvmlDeviceGetCudaComputeCapability", "nvmlDeviceGetNumGpuCores", "nvmlDeviceGetMigMode",
		"nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkRemoteDeviceType", "nvmlDeviceGetNvLinkRemotePciInfo_v2",
		"nvmlDeviceGetGpuFabricInfo",
	}
	essential := []string{"nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetName", "nvmlDeviceGetMemoryInfo"}
	check := func(t *testing.T, symbol string, ret gonvml.Return, reason string) {
		t.Helper()
		node := newNode(t, 4).switched(0, 3, 2, dgxSwitches...).register(zeroCluster)
		node.gpus[1].ret[symbol] = ret
		inventory := discover(t, node)
		if got, want := domainsOf(inventory), []string{"node-a.0", "", "node-a.0", "node-a.0"}; !reflect.DeepEqual(got, want) {
			t.Errorf("domains %q, want %q", got, want)
		}
		for i, gpu := range inventory.GPUs {
			switch {
			case i != 1 && !gpu.Health.Healthy():
				t.Errorf("GPU %d suffers: %+v", i, gpu.Health)
			case i == 1 && gpu.Health.Reason != reason:
				t.Errorf("GPU 1: health %+v, want reason %q", gpu.Health, reason)
			case i == 1 && !strings.Contains(gpu.Health.Message, symbol):
				t.Errorf("GPU 1: message %q does not name %s", gpu.Health.Message, symbol)
			}
		}
	}
	for _, symbol := range everyCall {
		t.Run("lost at "+symbol, func(t *testing.T) { check(t, symbol, gonvml.ERROR_GPU_IS_LOST, device.ReasonLost) })
		t.Run("reset required at "+symbol, func(t *testing.T) {
			check(t, symbol, gonvml.ERROR_RESET_REQUIRED, device.ReasonResetRequired)
		})
	}
	for _, symbol := range essential {
		for _, ret := range []gonvml.Return{gonvml.ERROR_UNKNOWN, gonvml.ERROR_TIMEOUT, gonvml.ERROR_NO_PERMISSION} {
			t.Run(ret.Error()+" at "+symbol, func(t *testing.T) { check(t, symbol, ret, device.ReasonNotAnswering) })
		}
	}
	for name, test := range map[string]struct {
		first, then gonvml.Return
		want        string
	}{
		"lost outweighs reset required":      {gonvml.ERROR_RESET_REQUIRED, gonvml.ERROR_GPU_IS_LOST, device.ReasonLost},
		"reset required leaves lost":         {gonvml.ERROR_GPU_IS_LOST, gonvml.ERROR_RESET_REQUIRED, device.ReasonLost},
		"reset required outweighs no answer": {gonvml.ERROR_UNKNOWN, gonvml.ERROR_RESET_REQUIRED, device.ReasonResetRequired},
		"no answer leaves reset required":    {gonvml.ERROR_RESET_REQUIRED, gonvml.ERROR_UNKNOWN, device.ReasonResetRequired},
	} {
		t.Run(name, func(t *testing.T) {
			node := newNode(t, 1)
			node.gpus[0].ret["nvmlDeviceGetName"] = test.first
			node.gpus[0].ret["nvmlDeviceGetMemoryInfo"] = test.then
			if got := discover(t, node).GPUs[0].Health.Reason; got != test.want {
				t.Errorf("reason %q, want %q", got, test.want)
			}
		})
	}
}

func TestAGPUThatCannotBeIdentifiedIsLeftOutAndTold(t *testing.T) {
	for name, test := range map[string]struct {
		change     func(*fakeGPU)
		want       string
		unanswered int
	}{
		"no handle":            {func(g *fakeGPU) { g.ret["nvmlDeviceGetHandleByIndex_v2"] = gonvml.ERROR_GPU_IS_LOST }, "ERROR_GPU_IS_LOST", 0},
		"handle is unknown":    {func(g *fakeGPU) { g.ret["nvmlDeviceGetHandleByIndex_v2"] = gonvml.ERROR_UNKNOWN }, "ERROR_UNKNOWN", 1},
		"no UUID":              {func(g *fakeGPU) { g.ret["nvmlDeviceGetUUID"] = gonvml.ERROR_RESET_REQUIRED }, "nvmlDeviceGetUUID", 0},
		"UUID is empty":        {func(g *fakeGPU) { g.uuid = "" }, "device name", 1},
		"UUID is no DNS label": {func(g *fakeGPU) { g.uuid = "GPU_0/1" }, `"GPU_0/1"`, 1},
		"UUID is too long":     {func(g *fakeGPU) { g.uuid = strings.Repeat("a", 64) }, "at most 63", 1},
		"UUID is taken":        {func(g *fakeGPU) { g.uuid = "gpu-00000000-0000-0000-0000-000000000000" }, "another GPU", 0},
	} {
		t.Run(name, func(t *testing.T) {
			node := newNode(t, 3)
			test.change(node.gpus[1])
			inventory := discover(t, node)
			if len(inventory.GPUs) != 2 || inventory.GPUs[0].Index != 0 || inventory.GPUs[1].Index != 2 {
				t.Errorf("GPUs %+v, want those at index 0 and 2", inventory.GPUs)
			}
			if len(inventory.Unidentified) != 1 || !strings.Contains(inventory.Unidentified[0], "index 1") || !strings.Contains(inventory.Unidentified[0], test.want) {
				t.Errorf("unidentified %q, want one line about index 1 and %q", inventory.Unidentified, test.want)
			}
			if inventory.Unanswered != test.unanswered {
				t.Errorf("%d may be known GPUs that do not answer, want %d", inventory.Unanswered, test.unanswered)
			}
		})
	}
}

// NV#1017 and others: one lost GPU tainted all GPUs of the node.
func TestFieldCase21_OneLostGPUCostsOnlyItself(t *testing.T) {
	node := newNode(t, 8).switched(0, 7, 2, dgxSwitches...)
	known := discover(t, node)
	node.gpus[3].ret["nvmlDeviceGetHandleByIndex_v2"] = gonvml.ERROR_GPU_IS_LOST
	merged := device.Merge(known, discover(t, node))
	if len(merged.GPUs) != 8 {
		t.Fatalf("%d GPUs listed, want all 8", len(merged.GPUs))
	}
	for i, gpu := range merged.GPUs {
		if lost := gpu.Health.Reason == device.ReasonLost; lost != (i == 3) {
			t.Errorf("GPU %d: health %+v", i, gpu.Health)
		}
		if i != 3 && gpu.NVSwitchDomainSize != 7 {
			t.Errorf("GPU %d: domain of %d, want 7", i, gpu.NVSwitchDomainSize)
		}
	}
}

// NV#1201: WSL has no minor number. NV#1242: on Grace, NVML's NUMA node is the GPU's own memory; the
// fake has no nvmlDeviceGetNumaNodeId, so that calling it would fail the test.
func TestFieldCase29_NoMinorNumberAndNUMANodeOfThePCIDevice(t *testing.T) {
	node := newNode(t, 1)
	node.gpus[0].ret["nvmlDeviceGetMinorNumber"] = gonvml.ERROR_NOT_SUPPORTED
	node.writeSysfs("0000:10:00.0", "pci0000:00", "1")
	gpu := discover(t, node).GPUs[0]
	if gpu.Minor != nil || !gpu.Health.Healthy() {
		t.Errorf("minor %v, health %+v", gpu.Minor, gpu.Health)
	}
	if gpu.NUMANode == nil || *gpu.NUMANode != 1 {
		t.Errorf("NUMA node %v, want that of sysfs", gpu.NUMANode)
	}
	if gpu.Name() != "gpu-00000000-0000-0000-0000-000000000000" {
		t.Errorf("name %q depends on the minor", gpu.Name())
	}
}

func TestDisplayGPUsOfADGXStationAreNotListed(t *testing.T) {
	node := newNode(t, 5)
	node.gpus[3].name = "NVIDIA DGX Display"
	inventory := discover(t, node)
	if len(inventory.GPUs) != 4 || len(inventory.Unidentified) != 0 {
		t.Errorf("%d GPUs, unidentified %q", len(inventory.GPUs), inventory.Unidentified)
	}
}

func TestMultiprocessors(t *testing.T) {
	for name, test := range map[string]struct {
		cores      int
		capability string
		want       int
	}{
		"V100":                  {5120, "7.0", 80},
		"T4":                    {2560, "7.5", 40},
		"A100":                  {6912, "8.0", 108},
		"A40":                   {10752, "8.6", 84},
		"L40S":                  {18176, "8.9", 142},
		"H100":                  {16896, "9.0", 132},
		"B200":                  {18944, "10.0", 148},
		"P100":                  {3584, "6.0", 56},
		"P40":                   {3840, "6.1", 30},
		"unknown capability":    {1000, "", 0},
		"capability to come":    {1280, "99.0", 0},
		"cores that do not fit": {129, "9.0", 0},
		"no cores":              {0, "9.0", 0},
	} {
		if got := multiprocessors(test.cores, test.capability); got != test.want {
			t.Errorf("%s: %d, want %d", name, got, test.want)
		}
	}
}

func TestPCIAddress(t *testing.T) {
	legacy := gonvml.PciInfo{}
	copy(legacy.BusIdLegacy[:], []int8{'0', '0', '0', '0', ':', 'C', 'A', ':', '0', '0', '.', '0'})
	for name, test := range map[string]struct {
		info gonvml.PciInfo
		want string
	}{
		"eight digits of domain become four": {pciInfo("00000000:53:00.0"), "0000:53:00.0"},
		"letters become lower case":          {pciInfo("00000000:CA:00.0"), "0000:ca:00.0"},
		"the domain is kept, as on GB300":    {pciInfo("00000018:06:00.0"), "0018:06:00.0"},
		"a domain of five digits is not cut": {pciInfo("00010000:01:00.0"), "10000:01:00.0"},
		"four digits of domain":              {pciInfo("0008:06:00.0"), "0008:06:00.0"},
		"the function is kept":               {pciInfo("00000000:00:1E.7"), "0000:00:1e.7"},
		"the legacy field":                   {legacy, "0000:ca:00.0"},
		"numbers":                            {gonvml.PciInfo{Domain: 8, Bus: 0xab, Device: 1}, "0008:ab:01.0"},
		"nothing":                            {gonvml.PciInfo{}, ""},
		"zeros":                              {pciInfo("00000000:00:00.0"), ""},
		"only F":                             {pciInfo(hiddenBusID), ""},
		"only F, as wide as the kernel's":    {pciInfo("FFFFFFFF:FFFF:FF.F"), ""},
		"a domain of F":                      {pciInfo("FFFFFFFF:01:00.0"), ""},
		"numbers of F":                       {gonvml.PciInfo{Domain: 0xffffffff, Bus: 0xffffffff, Device: 0xffffffff}, ""},
		"no address":                         {pciInfo("GPU-0"), ""},
		"no hexadecimal":                     {pciInfo("0000000G:53:00.0"), ""},
		"a function that cannot exist":       {pciInfo("00000000:53:00.8"), ""},
	} {
		if got := pciAddress(test.info); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

func TestGPUsThatDifferInThePCIDomainOnlyStayApart(t *testing.T) {
	node := newNode(t, 4)
	for i, domain := range []string{"0008", "0009", "0018", "0019"} {
		node.gpus[i].busID = "0000" + domain + ":06:00.0"
		node.writeSysfs(domain+":06:00.0", "pci"+domain+":00", "0")
	}
	node.bridge(0, 2, 4)
	inventory := discover(t, node)
	if got, want := domainsOf(inventory), []string{"node-a.0", "", "node-a.0", ""}; !reflect.DeepEqual(got, want) {
		t.Errorf("domains %q, want %q", got, want)
	}
	var roots []string
	for _, gpu := range inventory.GPUs {
		roots = append(roots, gpu.PCIeRoot)
	}
	if slices.Sort(roots); len(slices.Compact(roots)) != 4 {
		t.Errorf("PCIe roots %q, want four", roots)
	}
}
