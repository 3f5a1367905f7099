// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"
	"k8s.io/klog/v2"

	"github.com/switchyard-dev/switchyard/pkg/simulator/profile"
)

func device(t *testing.T, n *Node, index int) nvml.Device {
	t.Helper()
	d, ret := n.NVML().DeviceGetHandleByIndex(index)
	if ret != nvml.SUCCESS {
		t.Fatalf("handle of GPU %d: %v", index, ret)
	}
	return d
}

func must[T any](t *testing.T) func(value T, ret nvml.Return) T {
	return func(value T, ret nvml.Return) T {
		t.Helper()
		if ret != nvml.SUCCESS {
			t.Fatalf("got %v", ret)
		}
		return value
	}
}

func text(s []int8) string {
	var b strings.Builder
	for _, c := range s {
		if c == 0 {
			break
		}
		b.WriteByte(byte(c))
	}
	return b.String()
}

func TestFactsOfEveryProfile(t *testing.T) {
	type facts struct {
		Count                 int
		Driver, Name, BusID   string
		CUDA, Cores, MIG      int
		Capability, ActiveNVL string
		MemoryMiB             uint64
		Module                int
	}
	want := map[string]facts{
		"dgx-a100":        {8, "570.148.08", "NVIDIA A100-SXM4-40GB", "00000000:07:00.0", 12080, 6912, 7, "8.0", "12", 40960, 1},
		"a100-2x4":        {8, "570.148.08", "NVIDIA A100-SXM4-40GB", "00000000:07:00.0", 12080, 6912, 7, "8.0", "12", 40960, 1},
		"a30-pcie":        {2, "570.148.08", "NVIDIA A30", "00000000:17:00.0", 12080, 3584, 4, "8.0", "4", 24576, 0},
		"hgx-h100":        {8, "580.105.08", "NVIDIA H100 80GB HBM3", "00000000:53:00.0", 13000, 16896, 7, "9.0", "18", 81559, 7},
		"hgx-h200":        {8, "580.105.08", "NVIDIA H200", "00000000:19:00.0", 13000, 16896, 7, "9.0", "18", 143771, 5},
		"hgx-b200":        {8, "580.105.08", "NVIDIA B200", "00000000:8F:00.0", 13000, 18944, 7, "10.0", "18", 183359, 6},
		"gb200-nvl72":     {4, "580.173.02", "NVIDIA GB200", "00000000:29:00.0", 13000, 19456, 7, "10.0", "18", 189471, 2},
		"dgx1-v100":       {8, "570.148.08", "Tesla V100-SXM2-32GB", "00000000:06:00.0", 12080, 5120, 0, "7.0", "6", 32768, 0},
		"a100-pcie-pairs": {4, "570.148.08", "NVIDIA A100 80GB PCIe", "00000000:01:00.0", 12080, 6912, 7, "8.0", "12", 81920, 0},
		"l40s-pcie":       {4, "595.91.07", "NVIDIA L40S", "00000000:30:00.0", 13020, 18176, 0, "8.9", "ERROR_NOT_SUPPORTED", 46068, 0},
		"t4":              {1, "595.91.07", "Tesla T4", "00000000:00:1E.0", 13020, 2560, 0, "7.5", "ERROR_NOT_SUPPORTED", 15360, 1},
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(want)), profile.Names()); diff != "" {
		t.Errorf("profiles:\n%s", diff)
	}
	for name, want := range want {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, name)
			lib, d := n.NVML(), device(t, n, 0)
			pci := must[nvml.PciInfo](t)(d.GetPciInfo())
			major, minor, ret := d.GetCudaComputeCapability()
			if ret != nvml.SUCCESS {
				t.Fatal(ret)
			}
			module, _ := d.GetModuleId()
			got := facts{
				Count:      must[int](t)(lib.DeviceGetCount()),
				Driver:     must[string](t)(lib.SystemGetDriverVersion()),
				CUDA:       must[int](t)(lib.SystemGetCudaDriverVersion_v2()),
				Name:       must[string](t)(d.GetName()),
				BusID:      text(pci.BusId[:]),
				Cores:      must[int](t)(d.GetNumGpuCores()),
				MIG:        must[int](t)(d.GetMaxMigDeviceCount()),
				Capability: fmt.Sprintf("%d.%d", major, minor),
				ActiveNVL:  activeLinks(d),
				MemoryMiB:  must[nvml.Memory](t)(d.GetMemoryInfo()).Total / mebibyte,
				Module:     module,
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
			if _, ret := d.GetBrand(); ret != nvml.SUCCESS {
				t.Error(ret)
			}
			if arch, ret := d.GetArchitecture(); ret != nvml.SUCCESS || arch == 0 {
				t.Error(arch, ret)
			}
		})
	}
}

// activeLinks counts the links that are up, or says why it cannot.
func activeLinks(d nvml.Device) string {
	count := 0
	for link := range nvml.NVLINK_MAX_LINKS {
		state, ret := d.GetNvLinkState(link)
		switch {
		case ret == nvml.ERROR_INVALID_ARGUMENT:
			continue
		case ret != nvml.SUCCESS:
			return ret.Error()
		case state == nvml.FEATURE_ENABLED:
			count++
		}
	}
	return fmt.Sprint(count)
}

// mesh is who reaches whom over NVLink: row by row, x for yes.
func mesh(t *testing.T, n *Node) []string {
	t.Helper()
	count := must[int](t)(n.NVML().DeviceGetCount())
	rows := make([]string, count)
	for i := range count {
		a, ret := n.NVML().DeviceGetHandleByIndex(i)
		if ret != nvml.SUCCESS {
			rows[i] = "lost"
			continue
		}
		for j := range count {
			cell := "?"
			if b, ret := n.NVML().DeviceGetHandleByIndex(j); ret == nvml.SUCCESS {
				switch status, ret := a.GetP2PStatus(b, nvml.P2P_CAPS_INDEX_NVLINK); {
				case ret == nvml.SUCCESS && status == nvml.P2P_STATUS_OK:
					cell = "x"
				case ret == nvml.SUCCESS && status == nvml.P2P_STATUS_NOT_SUPPORTED:
					cell = "."
				}
			}
			rows[i] += cell
		}
	}
	return rows
}

func TestWhoReachesWhomOverNVLink(t *testing.T) {
	cases := map[string]struct {
		profile string
		change  func(n *Node) error
		want    []string
	}{
		"NVSwitches join all":         {profile: "dgx-a100", want: all(8)},
		"a fabric joins all":          {profile: "gb200-nvl72", want: all(4)},
		"without NVLink nobody":       {profile: "l40s-pcie", want: []string{"....", "....", "....", "...."}},
		"bridges join pairs":          {profile: "a100-pcie-pairs", want: []string{".x..", "x...", "...x", "..x."}},
		"boards of four":              {profile: "a100-2x4", want: []string{".xxx....", "x.xx....", "xx.x....", "xxx.....", ".....xxx", "....x.xx", "....xx.x", "....xxx."}},
		"a hybrid cube mesh":          {profile: "dgx1-v100", want: []string{".xxxx...", "x.xx.x..", "xx.x..x.", "xxx....x", "x....xxx", ".x..x.xx", "..x.xx.x", "...xxxx."}},
		"some links down, still on":   {profile: "dgx-a100", change: func(n *Node) error { return n.SetNVLink(0, 3, false) }, want: all(8)},
		"all links down, off":         {profile: "gb200-nvl72", change: func(n *Node) error { return n.SetNVLinks(1, false) }, want: []string{"..xx", "....", "x..x", "x.x."}},
		"MIG mode rules it out":       {profile: "gb200-nvl72", change: func(n *Node) error { return n.SetMIGMode(3, true) }, want: []string{".xx.", "x.x.", "xx..", "...."}},
		"a lost GPU is out":           {profile: "a100-pcie-pairs", change: func(n *Node) error { return n.LoseGPU(1) }, want: []string{".?..", "lost", ".?.x", ".?x."}},
		"a removed GPU is not listed": {profile: "a100-pcie-pairs", change: func(n *Node) error { return n.RemoveGPU(0) }, want: []string{"...", "..x", ".x."}},
		"an unfinished fabric": {profile: "gb200-nvl72", change: func(n *Node) error {
			return n.SetFabric(2, FabricState{Fabric: profile.Fabric{State: profile.FabricInProgress, ClusterUUID: "00000001-0000-0000-0000-000000000001"}})
		}, want: []string{".x.x", "x..x", "....", "xx.."}},
		"cliques are apart": {profile: "gb200-nvl72", change: func(n *Node) error { return n.SetFabric(0, completed("00000001-0000-0000-0000-000000000001")) }, want: []string{"....", "..xx", ".x.x", ".xx."}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, c.profile)
			if c.change != nil {
				if err := c.change(n); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(c.want, mesh(t, n)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func all(n int) []string {
	rows := make([]string, n)
	for i := range rows {
		rows[i] = strings.Repeat("x", i) + "." + strings.Repeat("x", n-i-1)
	}
	return rows
}

func TestFarEndOfLinks(t *testing.T) {
	type end struct {
		kind nvml.IntNvLinkDeviceType
		bus  string
		ret  nvml.Return
	}
	hidden, err := profile.Load("a100-2x4")
	if err != nil {
		t.Fatal(err)
	}
	hidden.NVLink.Remotes = profile.RemotesHidden
	cases := map[string]struct {
		node *Node
		link int
		want end
	}{
		"a switch":         {newNode(t, "hgx-h100"), 17, end{nvml.NVLINK_DEVICE_TYPE_SWITCH, "00000000:08:00.0", nvml.SUCCESS}},
		"a GPU":            {newNode(t, "a100-2x4"), 11, end{nvml.NVLINK_DEVICE_TYPE_GPU, "00000000:12:00.0", nvml.SUCCESS}},
		"an opaque switch": {newNode(t, "gb200-nvl72"), 0, end{nvml.NVLINK_DEVICE_TYPE_SWITCH, "FFFFFFFF:FFFF:FF.F", nvml.SUCCESS}},
		"hidden":           {newNodeOf(t, hidden), 0, end{nvml.NVLINK_DEVICE_TYPE_UNKNOWN, "FFFFFFFF:FFFF:FF.F", nvml.SUCCESS}},
		"no such link":     {newNode(t, "dgx1-v100"), 6, end{nvml.NVLINK_DEVICE_TYPE_UNKNOWN, "", nvml.ERROR_INVALID_ARGUMENT}},
		"no NVLink":        {newNode(t, "t4"), 0, end{nvml.NVLINK_DEVICE_TYPE_UNKNOWN, "", nvml.ERROR_NOT_SUPPORTED}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			d := device(t, c.node, 0)
			kind, ret := d.GetNvLinkRemoteDeviceType(c.link)
			info, ret2 := d.GetNvLinkRemotePciInfo(c.link)
			if got := (end{kind, text(info.BusId[:]), ret}); got != c.want || ret2 != c.want.ret {
				t.Errorf("got %+v and %v, want %+v", got, ret2, c.want)
			}
		})
	}
}

func TestLinkIsUpWhenBothEndsAre(t *testing.T) {
	n := newNode(t, "a100-pcie-pairs")
	states := func() string {
		var s []string
		for i := range 2 {
			state, ret := device(t, n, i).GetNvLinkState(4)
			s = append(s, fmt.Sprintf("%d/%v", state, ret))
		}
		return strings.Join(s, " ")
	}
	up, down := "1/SUCCESS 1/SUCCESS", "0/SUCCESS 0/SUCCESS"
	for _, step := range []struct {
		what   string
		change func() error
		want   string
	}{
		{"at first", func() error { return nil }, up},
		{"one end down", func() error { return n.SetNVLink(0, 4, false) }, down},
		{"the same again", func() error { return n.SetNVLink(0, 4, false) }, down},
		{"up from the other end", func() error { return n.SetNVLink(1, 4, true) }, up},
		{"all down", func() error { return n.SetNVLinks(1, false) }, down},
		{"recovered", func() error { return n.RecoverGPU(0) }, up},
		{"all down again", func() error { return n.SetNVLinks(1, false) }, down},
		{"all up", func() error { return n.SetNVLinks(0, true) }, up},
	} {
		if err := step.change(); err != nil {
			t.Fatal(err)
		}
		if got := strings.ReplaceAll(states(), "Success", "SUCCESS"); !strings.EqualFold(got, step.want) {
			t.Errorf("%s: %s, want %s", step.what, got, step.want)
		}
	}
}

func TestDistances(t *testing.T) {
	n := newNode(t, "a100-2x4")
	first := device(t, n, 0)
	want := []nvml.GpuTopologyLevel{nvml.TOPOLOGY_INTERNAL, nvml.TOPOLOGY_SINGLE, nvml.TOPOLOGY_HOSTBRIDGE, nvml.TOPOLOGY_HOSTBRIDGE, nvml.TOPOLOGY_SYSTEM}
	for i, level := range want {
		got, ret := first.GetTopologyCommonAncestor(device(t, n, i))
		if ret != nvml.SUCCESS || got != level {
			t.Errorf("GPU 0 to GPU %d: %v (%v), want %v", i, got, ret, level)
		}
	}
	near, ret := first.GetTopologyNearestGpus(nvml.TOPOLOGY_HOSTBRIDGE)
	if ret != nvml.SUCCESS || len(near) != 2 || near[0] != device(t, n, 2) {
		t.Errorf("GPUs at the same host bridge: %v (%v)", near, ret)
	}
	if _, ret := first.GetTopologyCommonAncestor(device(t, newNode(t, "t4"), 0)); ret != nvml.ERROR_INVALID_ARGUMENT {
		t.Errorf("a handle of another node: %v", ret)
	}
}

func TestFabricInfo(t *testing.T) {
	rack := [16]uint8{0, 0, 0, 1, 15: 1}
	cases := map[string]struct {
		profile string
		fabric  *FabricState
		want    nvml.GpuFabricInfo
		ret     nvml.Return
	}{
		"before Hopper":                    {profile: "dgx-a100", ret: nvml.ERROR_NOT_SUPPORTED},
		"a single board":                   {profile: "hgx-h100", want: nvml.GpuFabricInfo{State: nvml.GPU_FABRIC_STATE_COMPLETED}},
		"a rack":                           {profile: "gb200-nvl72", want: nvml.GpuFabricInfo{State: nvml.GPU_FABRIC_STATE_COMPLETED, ClusterUuid: rack, CliqueId: 2}},
		"in progress, it names no cluster": {profile: "gb200-nvl72", fabric: &FabricState{Fabric: profile.Fabric{State: profile.FabricInProgress, ClusterUUID: "00000001-0000-0000-0000-000000000001", CliqueID: 2}}, want: nvml.GpuFabricInfo{State: nvml.GPU_FABRIC_STATE_IN_PROGRESS}},
		"not started":                      {profile: "hgx-h100", fabric: &FabricState{Fabric: profile.Fabric{State: profile.FabricNotStarted, ClusterUUID: "00000000-0000-0000-0000-000000000000"}}, want: nvml.GpuFabricInfo{State: nvml.GPU_FABRIC_STATE_NOT_STARTED}},
		"completed with an error":          {profile: "hgx-h100", fabric: &FabricState{Fabric: completed("").Fabric, Status: 999}, want: nvml.GpuFabricInfo{State: nvml.GPU_FABRIC_STATE_COMPLETED, Status: 999}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, c.profile)
			if c.fabric != nil {
				if err := n.SetFabric(AllGPUs, *c.fabric); err != nil {
					t.Fatal(err)
				}
			}
			got, ret := device(t, n, 1).GetGpuFabricInfo()
			if diff := cmp.Diff(c.want, got); diff != "" || ret != c.ret {
				t.Errorf("%v:\n%s", ret, diff)
			}
			v4, ret := device(t, n, 1).GetGpuFabricInfo_v4()
			if ret != c.ret || v4.State != c.want.State || v4.ClusterUuid != c.want.ClusterUuid || v4.Cliques[0].Id != c.want.CliqueId {
				t.Errorf("version 4: %v %+v", ret, v4)
			}
		})
	}
}

func TestHealth(t *testing.T) {
	n := newNode(t, "l40s-pcie")
	lib := n.NVML()
	uuid := must[string](t)(device(t, n, 1).GetUUID())
	handle := device(t, n, 1)

	t.Run("a lost GPU is counted and answers nothing", func(t *testing.T) {
		if err := n.LoseGPU(1); err != nil {
			t.Fatal(err)
		}
		if count := must[int](t)(lib.DeviceGetCount()); count != 4 {
			t.Errorf("%d GPUs", count)
		}
		for what, ret := range map[string]nvml.Return{
			"by index": second(lib.DeviceGetHandleByIndex(1)), "by UUID": second(lib.DeviceGetHandleByUUID(uuid)),
			"old handle": second(handle.GetUUID()), "its memory": second(handle.GetMemoryInfo()), "its links": second(handle.GetNvLinkState(0)),
		} {
			if ret != nvml.ERROR_GPU_IS_LOST {
				t.Errorf("%s: %v", what, ret)
			}
		}
		if got := must[string](t)(device(t, n, 2).GetUUID()); got == uuid {
			t.Error("indexes shifted")
		}
	})
	t.Run("losing it again raises no second XID", func(t *testing.T) {
		if err := n.LoseGPU(1); err != nil {
			t.Fatal(err)
		}
		s, err := n.State()
		if err != nil {
			t.Fatal(err)
		}
		if len(s.XIDs) != 1 || s.XIDs[0].Code != xidFallenOffBus || s.XIDs[0].GPU != uuid {
			t.Errorf("XIDs %+v", s.XIDs)
		}
	})
	t.Run("a removed GPU shifts the indexes and no minor number", func(t *testing.T) {
		if err := n.RemoveGPU(1); err != nil {
			t.Fatal(err)
		}
		if count := must[int](t)(lib.DeviceGetCount()); count != 3 {
			t.Errorf("%d GPUs", count)
		}
		if _, ret := lib.DeviceGetHandleByUUID(uuid); ret != nvml.ERROR_NOT_FOUND {
			t.Errorf("by UUID: %v", ret)
		}
		behind := device(t, n, 1)
		if index, minor := must[int](t)(behind.GetIndex()), must[int](t)(behind.GetMinorNumber()); index != 1 || minor != 2 {
			t.Errorf("the next GPU has index %d and minor %d", index, minor)
		}
		if _, ret := lib.DeviceGetHandleByIndex(3); ret != nvml.ERROR_INVALID_ARGUMENT {
			t.Errorf("index 3: %v", ret)
		}
	})
	t.Run("a recovered GPU is back as it was", func(t *testing.T) {
		if err := n.RecoverGPU(1); err != nil {
			t.Fatal(err)
		}
		if got := must[string](t)(device(t, n, 1).GetUUID()); got != uuid {
			t.Errorf("UUID %s", got)
		}
		if device(t, n, 1) != handle {
			t.Error("its handle changed")
		}
	})
	t.Run("a GPU that needs a reset answers from the cache only", func(t *testing.T) {
		if err := n.RequireReset(1); err != nil {
			t.Fatal(err)
		}
		if got := must[string](t)(device(t, n, 1).GetUUID()); got != uuid {
			t.Errorf("UUID %s", got)
		}
		if _, ret := device(t, n, 1).GetMemoryInfo(); ret != nvml.ERROR_RESET_REQUIRED {
			t.Errorf("memory: %v", ret)
		}
	})
}

func second[T any](_ T, ret nvml.Return) nvml.Return { return ret }

func TestHandlesAreFoundByEveryName(t *testing.T) {
	n := newNode(t, "hgx-h100")
	want := device(t, n, 5)
	for what, got := range map[string]func() (nvml.Device, nvml.Return){
		"UUID": func() (nvml.Device, nvml.Return) {
			return n.NVML().DeviceGetHandleByUUID(must[string](t)(want.GetUUID()))
		},
		"serial": func() (nvml.Device, nvml.Return) {
			return n.NVML().DeviceGetHandleBySerial(must[string](t)(want.GetSerial()))
		},
		"PCI address":           func() (nvml.Device, nvml.Return) { return n.NVML().DeviceGetHandleByPciBusId("0000:a8:00.0") },
		"PCI address of NVML's": func() (nvml.Device, nvml.Return) { return n.NVML().DeviceGetHandleByPciBusId("00000000:A8:00.0") },
	} {
		if d, ret := got(); ret != nvml.SUCCESS || d != want {
			t.Errorf("by %s: %v", what, ret)
		}
	}
}

func TestBrokenDriver(t *testing.T) {
	want := map[DriverFailure]nvml.Return{
		DriverNotLoaded:        nvml.ERROR_DRIVER_NOT_LOADED,
		DriverVersionMismatch:  nvml.ERROR_LIB_RM_VERSION_MISMATCH,
		DriverLibraryMissing:   nvml.ERROR_LIBRARY_NOT_FOUND,
		DriverUnknownError:     nvml.ERROR_UNKNOWN,
		DriverInsufficientPerm: nvml.ERROR_NO_PERMISSION,
	}
	n := newNode(t, "t4")
	for _, failure := range DriverFailures() {
		t.Run(string(failure), func(t *testing.T) {
			if err := n.SetDriverFailure(failure); err != nil {
				t.Fatal(err)
			}
			if ret := n.NVML().Init(); ret != want[failure] {
				t.Errorf("Init: %v, want %v", ret, want[failure])
			}
			if _, ret := n.NVML().DeviceGetCount(); ret != want[failure] {
				t.Errorf("DeviceGetCount: %v, want %v", ret, want[failure])
			}
			if err := n.SetDriverFailure(""); err != nil {
				t.Fatal(err)
			}
			if count, ret := n.NVML().DeviceGetCount(); ret != nvml.SUCCESS || count != 1 {
				t.Errorf("after the repair: %d, %v", count, ret)
			}
		})
	}
}

func TestInitAndShutdownAreCounted(t *testing.T) {
	n := newNode(t, "t4") // has called Init
	lib := n.NVML()
	steps := []struct {
		what string
		do   func() nvml.Return
		want nvml.Return
	}{
		{"second Init", lib.Init, nvml.SUCCESS},
		{"first Shutdown", lib.Shutdown, nvml.SUCCESS},
		{"call in between", func() nvml.Return { return second(lib.DeviceGetCount()) }, nvml.SUCCESS},
		{"last Shutdown", lib.Shutdown, nvml.SUCCESS},
		{"call after it", func() nvml.Return { return second(lib.DeviceGetCount()) }, nvml.ERROR_UNINITIALIZED},
		{"Shutdown too many", lib.Shutdown, nvml.ERROR_UNINITIALIZED},
		{"Init anew", func() nvml.Return { return lib.InitWithFlags(0) }, nvml.SUCCESS},
		{"call", func() nvml.Return { return second(lib.DeviceGetCount()) }, nvml.SUCCESS},
	}
	for _, step := range steps {
		if ret := step.do(); ret != step.want {
			t.Errorf("%s: %v, want %v", step.what, ret, step.want)
		}
	}
}

func TestSlowCalls(t *testing.T) {
	n := newNode(t, "t4")
	const delay = 30 * time.Millisecond
	if err := n.SetCallDelay(delay); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if _, ret := n.NVML().DeviceGetCount(); ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	if took := time.Since(start); took < delay {
		t.Errorf("the call took %v", took)
	}
}

func TestCallsAreRecordedForOtherProcesses(t *testing.T) {
	n := newNode(t, "t4")
	observer, err := Open(n.Dir())
	if err != nil {
		t.Fatal(err)
	}
	call := func() { must[string](t)(device(t, n, 0).GetName()) }
	recorded := func() []string {
		t.Helper()
		calls, err := observer.RecordedCalls()
		if err != nil {
			t.Fatal(err)
		}
		return calls
	}
	call()
	if got := recorded(); len(got) != 0 {
		t.Errorf("recorded without being asked: %v", got)
	}
	for range 2 { // the second time starts anew
		if err := observer.SetRecordCalls(true); err != nil {
			t.Fatal(err)
		}
		call()
		if diff := cmp.Diff([]string{"nvmlDeviceGetHandleByIndex", "nvmlDeviceGetName"}, recorded()); diff != "" {
			t.Error(diff)
		}
	}
	if err := observer.SetRecordCalls(false); err != nil {
		t.Fatal(err)
	}
	call()
	if got := recorded(); len(got) != 2 {
		t.Errorf("recorded after the end: %v", got)
	}
	if got := n.Calls()["nvmlDeviceGetName"]; got != 4 {
		t.Errorf("%d calls counted in the process", got)
	}
}

func TestLookupSymbol(t *testing.T) {
	n := newNode(t, "t4")
	for symbol, want := range map[string]bool{
		"nvmlInit_v2": true, "nvmlDeviceGetCount_v2": true, "nvmlDeviceGetP2PStatus": true, "nvmlDeviceGetNvLinkRemotePciInfo_v2": true,
		"nvmlDeviceGetGpuFabricInfo": true, "nvmlEventSetWait_v2": true, "nvmlSystemGetCudaDriverVersion_v2": true,
		"nvmlDeviceGetGpuFabricInfoV": false, "nvmlDeviceGetFanSpeed": false, "": false,
	} {
		if err := n.NVML().Extensions().LookupSymbol(symbol); (err == nil) != want {
			t.Errorf("%q: %v", symbol, err)
		}
	}
}

// TestSymbolsAreTheSimulatedFunctions holds the list of names to the methods.
func TestSymbolsAreTheSimulatedFunctions(t *testing.T) {
	var want []string
	for prefix, calls := range map[string]reflect.Type{
		"nvml":         reflect.TypeFor[*libraryCalls](),
		"nvmlDevice":   reflect.TypeFor[*gpuCalls](),
		"nvmlEventSet": reflect.TypeFor[*eventSetCalls](),
		// Of a MIG device the functions are those of a device.
		"nvmlDevice ":         reflect.TypeFor[*migDeviceCalls](),
		"nvmlGpuInstance":     reflect.TypeFor[*gpuInstanceCalls](),
		"nvmlComputeInstance": reflect.TypeFor[*computeInstanceCalls](),
	} {
		for method := range calls.Methods() {
			if name := withoutVersion(strings.TrimSpace(prefix) + method.Name); name != "nvmlExtensions" {
				want = append(want, name)
			}
		}
	}
	slices.Sort(want)
	if diff := cmp.Diff(slices.Compact(want), simulated); diff != "" {
		t.Error(diff)
	}
}

// TestNoCallPanics calls every function of every interface with zero arguments: whether it is simulated
// or not, it returns.
func TestNoCallPanics(t *testing.T) {
	n := newNode(t, "hgx-h100")
	n.logger = klog.Logger{} // it would name some hundred functions
	set, ret := n.NVML().EventSetCreate()
	if ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	if err := n.SetMIGMode(7, true); err != nil {
		t.Fatal(err)
	}
	partition := createOn(t, n, 7, "3g.40gb", 4)
	mig := must[nvml.Device](t)(device(t, n, 7).GetMigDeviceHandleByIndex(0))
	compute := must[nvml.ComputeInstance](t)(partition.GetComputeInstanceById(0))
	for _, subject := range []any{device(t, n, 0), mig, compute, partition, set, n.NVML(), n.NVML().Extensions()} {
		value := reflect.ValueOf(subject)
		for i := range value.NumMethod() {
			name := value.Type().Method(i).Name
			if strings.HasSuffix(name, "Calls") {
				continue // the mock's own
			}
			args := make([]reflect.Value, value.Method(i).Type().NumIn())
			for j := range args {
				args[j] = reflect.Zero(value.Method(i).Type().In(j))
			}
			func() {
				defer func() {
					if r := recover(); r != nil {
						t.Errorf("%T.%s: %v", subject, name, r)
					}
				}()
				value.Method(i).Call(args)
			}()
		}
	}
	if got := n.Unsimulated(); !slices.Contains(got, "nvmlDeviceGetFanSpeed") || slices.Contains(got, "nvmlDeviceGetName") {
		t.Errorf("not simulated: %v", got)
	}
}

func TestCallThatIsNotSimulated(t *testing.T) {
	n := newNode(t, "t4")
	for range 2 {
		if _, ret := device(t, n, 0).GetFanSpeed(); ret != nvml.ERROR_FUNCTION_NOT_FOUND {
			t.Errorf("of the device: %v", ret)
		}
	}
	if _, ret := n.NVML().UnitGetCount(); ret != nvml.ERROR_FUNCTION_NOT_FOUND {
		t.Errorf("of the library: %v", ret)
	}
	if diff := cmp.Diff([]string{"Interface.UnitGetCount", "nvmlDeviceGetFanSpeed"}, n.Unsimulated()); diff != "" {
		t.Error(diff)
	}
	if got := n.Calls()["nvmlDeviceGetFanSpeed"]; got != 2 {
		t.Errorf("%d calls counted", got)
	}
}

// TestEverySimulatedCallIsCounted holds each simulated function to its own name.
func TestEverySimulatedCallIsCounted(t *testing.T) {
	n := newNode(t, "hgx-h100")
	set, ret := n.NVML().EventSetCreate()
	if ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	delegated := map[string]string{
		"nvmlEventSetWait": "", "nvmlEventSetFree": "", "nvmlExtensions": "", // of the library: the set's, and go-nvml's own
		"nvmlDeviceGetGpuFabricInfo_v4": "nvmlDeviceGetGpuFabricInfo",
	}
	check := func(subject any, prefix string) {
		value := reflect.ValueOf(subject)
		for i := range value.NumMethod() {
			name := prefix + value.Type().Method(i).Name
			if to, ok := delegated[name]; ok && (to != "" || prefix == "nvml") {
				if name = to; name == "" {
					continue
				}
			}
			before := n.Calls()[name]
			args := make([]reflect.Value, value.Method(i).Type().NumIn())
			for j := range args {
				args[j] = reflect.Zero(value.Method(i).Type().In(j))
			}
			value.Method(i).Call(args)
			if n.Calls()[name] != before+1 {
				t.Errorf("%s is not counted under its name", name)
			}
		}
	}
	d, ok := device(t, n, 0).(*gpu)
	if !ok {
		t.Fatal("a device is no *gpu")
	}
	events, ok := set.(*eventSet)
	if !ok {
		t.Fatal("an event set is no *eventSet")
	}
	check(d.gpuCalls, "nvmlDevice")
	check(events.eventSetCalls, "nvmlEventSet")
	check(n.lib.libraryCalls, "nvml")
}

func TestEvents(t *testing.T) {
	n := newNode(t, "hgx-h100")
	if err := n.InjectXID(2, 13); err != nil { // before anybody listens
		t.Fatal(err)
	}
	set, ret := n.NVML().EventSetCreate()
	if ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	for i := range 4 {
		if ret := device(t, n, i).RegisterEvents(nvml.EventTypeXidCriticalError, set); ret != nvml.SUCCESS {
			t.Fatal(ret)
		}
	}
	if _, ret := set.Wait(1); ret != nvml.ERROR_TIMEOUT {
		t.Errorf("nothing happened: %v", ret)
	}

	other, err := Open(n.Dir())
	if err != nil {
		t.Fatal(err)
	}
	handles := []nvml.Device{device(t, n, 1), device(t, n, 3)}
	for _, change := range []func() error{
		func() error { return other.InjectXID(7, 94) }, // not registered
		func() error { return other.InjectXID(1, 48) },
		func() error { return other.LoseGPU(3) },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
	}
	for i, want := range []uint64{48, 79} {
		data, ret := n.NVML().EventSetWait(set, 5000)
		if ret != nvml.SUCCESS || data.EventData != want || data.EventType != nvml.EventTypeXidCriticalError || data.Device != handles[i] {
			t.Errorf("event %d: %+v, %v", i, data, ret)
		}
	}
	if _, ret := set.Wait(0); ret != nvml.ERROR_TIMEOUT {
		t.Errorf("an event came twice: %v", ret)
	}

	woken := make(chan nvml.Return, 1)
	go func() { woken <- second(set.Wait(60_000)) }()
	if err := other.InjectXID(0, 31); err != nil {
		t.Fatal(err)
	}
	if ret := <-woken; ret != nvml.SUCCESS {
		t.Errorf("a waiting set: %v", ret)
	}

	if ret := n.NVML().EventSetFree(set); ret != nvml.SUCCESS {
		t.Error(ret)
	}
	if _, ret := set.Wait(0); ret != nvml.ERROR_INVALID_ARGUMENT {
		t.Errorf("after Free: %v", ret)
	}
	if ret := device(t, n, 0).RegisterEvents(nvml.EventTypeXidCriticalError, set); ret != nvml.ERROR_INVALID_ARGUMENT {
		t.Errorf("registering with a freed set: %v", ret)
	}
	if ret := device(t, n, 0).RegisterEvents(nvml.EventTypeClock, set); ret != nvml.ERROR_NOT_SUPPORTED {
		t.Errorf("an event that is not simulated: %v", ret)
	}
}

func TestMIGMode(t *testing.T) {
	n := newNode(t, "hgx-h100")
	if err := n.SetMIGMode(1, true); err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{nvml.DEVICE_MIG_DISABLE, nvml.DEVICE_MIG_ENABLE} {
		current, pending, ret := device(t, n, i).GetMigMode()
		if ret != nvml.SUCCESS || current != want || pending != want {
			t.Errorf("GPU %d: %d, %d, %v", i, current, pending, ret)
		}
	}
	if _, ret := device(t, n, 1).GetMigDeviceHandleByIndex(0); ret != nvml.ERROR_NOT_FOUND {
		t.Errorf("MIG device 0: %v", ret)
	}
	if _, _, ret := device(t, newNode(t, "t4"), 0).GetMigMode(); ret != nvml.ERROR_NOT_SUPPORTED {
		t.Errorf("a board without MIG: %v", ret)
	}
}

func TestFactsThatSomeBoardsLack(t *testing.T) {
	grace, t4 := device(t, newNode(t, "gb200-nvl72"), 1), device(t, newNode(t, "dgx1-v100"), 0)
	if node := must[int](t)(grace.GetNumaNodeId()); node != 10 {
		t.Errorf("memory node %d", node)
	}
	if mode := must[nvml.DeviceAddressingMode](t)(grace.GetAddressingMode()); nvml.DeviceAddressingModeType(mode.Value) != nvml.DEVICE_ADDRESSING_MODE_ATS {
		t.Errorf("addressing mode %d", mode.Value)
	}
	if part := must[string](t)(grace.GetBoardPartNumber()); part != "900-2G548-A801-000" {
		t.Errorf("board part number %q", part)
	}
	for what, ret := range map[string]nvml.Return{
		"memory node": second(t4.GetNumaNodeId()), "addressing mode": second(t4.GetAddressingMode()),
		"board part number": second(t4.GetBoardPartNumber()), "module": second(t4.GetModuleId()),
	} {
		if ret != nvml.ERROR_NOT_SUPPORTED {
			t.Errorf("%s: %v", what, ret)
		}
	}
}
