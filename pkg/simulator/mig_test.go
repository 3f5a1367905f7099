// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	nvdev "github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"

	"github.com/switchyard-dev/switchyard/pkg/simulator/profile"
)

// migNode returns a node whose first GPU is in MIG mode.
func migNode(t *testing.T, profileName string) *Node {
	t.Helper()
	n := newNode(t, profileName)
	if err := n.SetMIGMode(0, true); err != nil {
		t.Fatal(err)
	}
	return n
}

// infoOf returns a profile as NVML has it.
func infoOf(t *testing.T, n *Node, gpu int, name string) nvml.GpuInstanceProfileInfo {
	t.Helper()
	s, err := n.State()
	if err != nil {
		t.Fatal(err)
	}
	p, ok := s.Profile.Product.MIG.ByName(name)
	if !ok {
		t.Fatalf("no profile %s", name)
	}
	return must[nvml.GpuInstanceProfileInfo](t)(device(t, n, gpu).GetGpuInstanceProfileInfo(slices.Index(profile.MIGKinds, p.Kind)))
}

// create tries to make a GPU instance.
func create(t *testing.T, n *Node, gpu int, name string, start uint32) (nvml.GpuInstance, nvml.Return) {
	t.Helper()
	info := infoOf(t, n, gpu, name)
	placements := must[[]nvml.GpuInstancePlacement](t)(device(t, n, gpu).GetGpuInstancePossiblePlacements(&info))
	return device(t, n, gpu).CreateGpuInstanceWithPlacement(&info, &nvml.GpuInstancePlacement{Start: start, Size: placements[0].Size})
}

// createOn makes a GPU instance with a compute instance of all of it.
func createOn(t *testing.T, n *Node, gpu int, name string, start uint32) nvml.GpuInstance {
	t.Helper()
	gi := must[nvml.GpuInstance](t)(create(t, n, gpu, name, start))
	slicesOf := infoOf(t, n, gpu, name).SliceCount
	for number := range nvml.COMPUTE_INSTANCE_PROFILE_COUNT {
		if ci, ret := gi.GetComputeInstanceProfileInfo(number, 0); ret == nvml.SUCCESS && ci.SliceCount == slicesOf {
			must[nvml.ComputeInstance](t)(gi.CreateComputeInstance(&ci))
		}
	}
	return gi
}

// TestMIGProfilesAreTheMeasuredOnes reads every table through NVML, as nvidia-smi mig -lgip and -lgipp do.
func TestMIGProfilesAreTheMeasuredOnes(t *testing.T) {
	const all = "0 1 2 3 4 5 6:1"
	for profileName, want := range map[string]string{
		"a30-pcie": `14 4 5949 14 1/1/0/0/0 0 1 2 3:1
5 2 11971 28 2/2/0/0/0 0 2:2
0 1 24003 56 4/4/0/1/1 0:4
21 1 5949 14 1/1/0/1/1 0 1 2 3:1
6 1 11971 28 2/2/0/1/1 0 2:2`,
		"dgx-a100": `19 7 4864 14 1/0/0/0/0 ` + all + `
14 3 9851 28 2/1/0/0/0 0 2 4:2
9 2 19968 42 3/2/0/0/0 0 4:4
5 1 19968 56 4/2/0/0/0 0:4
0 1 40192 98 7/5/0/1/1 0:8
20 1 4864 14 1/1/0/1/1 ` + all + `
15 4 9851 14 1/1/0/0/0 0 2 4 6:2`,
		"hgx-h100": `19 7 9984 16 1/1/0/1/0 ` + all + `
14 3 20091 32 2/2/0/2/0 0 2 4:2
9 2 40448 60 3/3/0/3/0 0 4:4
5 1 40448 64 4/4/0/4/0 0:4
0 1 81152 132 8/7/0/7/1 0:8
20 1 9984 16 1/1/0/1/1 ` + all + `
15 4 20091 26 1/1/0/1/0 0 2 4 6:2`,
	} {
		t.Run(profileName, func(t *testing.T) {
			n := migNode(t, profileName)
			var lines []string
			for number := range nvml.GPU_INSTANCE_PROFILE_COUNT {
				info, ret := device(t, n, 0).GetGpuInstanceProfileInfo(number)
				if ret == nvml.ERROR_NOT_SUPPORTED {
					continue
				}
				if ret != nvml.SUCCESS {
					t.Fatal(ret)
				}
				placements := must[[]nvml.GpuInstancePlacement](t)(device(t, n, 0).GetGpuInstancePossiblePlacements(&info))
				var starts []string
				for _, p := range placements {
					starts = append(starts, fmt.Sprint(p.Start))
				}
				lines = append(lines, fmt.Sprintf("%d %d %d %d %d/%d/%d/%d/%d %s:%d", info.Id, info.InstanceCount, info.MemorySizeMB, info.MultiprocessorCount,
					info.CopyEngineCount, info.DecoderCount, info.EncoderCount, info.JpegCount, info.OfaCount, strings.Join(starts, " "), placements[0].Size))
			}
			if diff := cmp.Diff(want, strings.Join(lines, "\n")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestMIGInstancesThatExcludeEachOther(t *testing.T) {
	const h100, a30 = "hgx-h100", "a30-pcie"
	type step struct {
		name  string
		start uint32
		want  nvml.Return
	}
	const ok, full, invalid = nvml.SUCCESS, nvml.ERROR_INSUFFICIENT_RESOURCES, nvml.ERROR_INVALID_ARGUMENT
	for name, test := range map[string]struct {
		profile string
		steps   []step
	}{
		"seven of the smallest":                       {h100, []step{{"1g.10gb", 0, ok}, {"1g.10gb", 1, ok}, {"1g.10gb", 2, ok}, {"1g.10gb", 3, ok}, {"1g.10gb", 4, ok}, {"1g.10gb", 5, ok}, {"1g.10gb", 6, ok}, {"1g.10gb", 6, full}}},
		"a memory slice is used once":                 {h100, []step{{"3g.40gb", 4, ok}, {"1g.10gb", 6, full}, {"2g.20gb", 4, full}, {"4g.40gb", 0, ok}, {"1g.10gb", 0, full}}},
		"a place that the profile does not have":      {h100, []step{{"3g.40gb", 2, invalid}, {"1g.10gb", 7, invalid}}},
		"all of the GPU excludes everything":          {h100, []step{{"7g.80gb", 0, ok}, {"1g.10gb", 6, full}}},
		"3g takes four memory slices, not three":      {h100, []step{{"3g.40gb", 0, ok}, {"1g.10gb", 3, full}, {"3g.40gb", 4, ok}}},
		"one with the media extension":                {h100, []step{{"1g.10gb+me", 0, ok}, {"1g.10gb+me", 1, full}, {"1g.10gb", 1, ok}}},
		"the media extensions are those of all sizes": {a30, []step{{"2g.12gb+me", 0, ok}, {"1g.6gb+me", 2, full}, {"2g.12gb", 2, ok}}},
	} {
		t.Run(name, func(t *testing.T) {
			n := migNode(t, test.profile)
			for _, s := range test.steps {
				if _, ret := create(t, n, 0, s.name, s.start); ret != s.want {
					t.Errorf("%s at %d: %v, want %v", s.name, s.start, ret, s.want)
				}
			}
		})
	}
}

// TestMIGDevicesAsLibrariesSeeThem has go-nvlib, which nvcdi is built on, find and name MIG devices.
func TestMIGDevicesAsLibrariesSeeThem(t *testing.T) {
	for _, profileName := range []string{"a30-pcie", "dgx-a100", "a100-pcie-pairs", "hgx-h100", "hgx-h200", "hgx-b200", "gb200-nvl72"} {
		t.Run(profileName, func(t *testing.T) {
			n := migNode(t, profileName)
			s, err := n.State()
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range s.Profile.Product.MIG.Profiles {
				gi := createOn(t, n, 0, p.Name, p.Starts[0])
				var names []string
				err := nvdev.New(n.NVML()).VisitMigDevices(func(_ int, _ nvdev.Device, _ int, mig nvdev.MigDevice) error {
					found, err := mig.GetProfile()
					if err == nil {
						names = append(names, found.String())
					}
					return err
				})
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff([]string{p.Name}, names); diff != "" {
					t.Error(diff)
				}
				if ret := gi.Destroy(); ret != nvml.ERROR_IN_USE {
					t.Errorf("destroying a GPU instance that has a compute instance: %v", ret)
				}
				ci := must[nvml.ComputeInstance](t)(gi.GetComputeInstanceById(0))
				if ret := ci.Destroy(); ret != nvml.SUCCESS {
					t.Error(ret)
				}
				if ret := gi.Destroy(); ret != nvml.SUCCESS {
					t.Error(ret)
				}
				if _, ret := gi.GetInfo(); ret != nvml.ERROR_NOT_FOUND {
					t.Errorf("the handle of an instance that is gone: %v", ret)
				}
			}
		})
	}
}

func TestMIGInstanceIDsAreTheDriversOnes(t *testing.T) {
	n := migNode(t, "dgx-a100")
	for _, test := range []struct {
		name      string
		start, id uint32
	}{{"7g.40gb", 0, 0}, {"4g.20gb", 0, 1}, {"3g.20gb", 0, 1}, {"3g.20gb", 4, 2}, {"2g.10gb", 0, 3}, {"2g.10gb", 4, 5}, {"1g.5gb", 0, 7}, {"1g.5gb", 6, 13}} {
		gi := must[nvml.GpuInstance](t)(create(t, n, 0, test.name, test.start))
		if info := must[nvml.GpuInstanceInfo](t)(gi.GetInfo()); info.Id != test.id {
			t.Errorf("%s at %d has ID %d, want %d", test.name, test.start, info.Id, test.id)
		}
		if ret := gi.Destroy(); ret != nvml.SUCCESS {
			t.Fatal(ret)
		}
	}
}

func TestMIGComputeInstances(t *testing.T) {
	n := migNode(t, "dgx-a100")
	gi := must[nvml.GpuInstance](t)(create(t, n, 0, "3g.20gb", 4))
	// As in NVIDIA's user guide, nvidia-smi mig -lcip: 1c, 2c and 3g with 14, 28 and 42 multiprocessors.
	var rows []string
	for number := range nvml.COMPUTE_INSTANCE_PROFILE_COUNT {
		if info, ret := gi.GetComputeInstanceProfileInfo(number, 0); ret == nvml.SUCCESS {
			left := must[int](t)(gi.GetComputeInstanceRemainingCapacity(&info))
			rows = append(rows, fmt.Sprintf("%d: %d slices, %d of %d, %d SM", info.Id, info.SliceCount, left, info.InstanceCount, info.MultiprocessorCount))
		}
	}
	if diff := cmp.Diff([]string{"0: 1 slices, 3 of 3, 14 SM", "1: 2 slices, 1 of 1, 28 SM", "2: 3 slices, 1 of 1, 42 SM"}, rows); diff != "" {
		t.Error(diff)
	}
	one := must[nvml.ComputeInstanceProfileInfo](t)(gi.GetComputeInstanceProfileInfo(0, 0))
	three := must[nvml.ComputeInstanceProfileInfo](t)(gi.GetComputeInstanceProfileInfo(2, 0))
	must[nvml.ComputeInstance](t)(gi.CreateComputeInstance(&one))
	if _, ret := gi.CreateComputeInstance(&three); ret != nvml.ERROR_INSUFFICIENT_RESOURCES {
		t.Errorf("all of an instance of which a part is used: %v", ret)
	}
	second := must[nvml.ComputeInstance](t)(gi.CreateComputeInstance(&one))
	info := must[nvml.ComputeInstanceInfo](t)(second.GetInfo())
	if info.Id != 1 || info.Placement != (nvml.ComputeInstancePlacement{Start: 1, Size: 1}) {
		t.Errorf("the second compute instance: %+v", info)
	}
}

func TestMIGNeedsMIGMode(t *testing.T) {
	n := newNode(t, "hgx-h100")
	// Which profiles there are NVML tells without.
	info, ret := device(t, n, 0).GetGpuInstanceProfileInfo(nvml.GPU_INSTANCE_PROFILE_1_SLICE)
	if ret != nvml.SUCCESS {
		t.Errorf("the profile of one slice: %v", ret)
	}
	if _, ret := device(t, n, 0).GetGpuInstances(&info); ret != nvml.ERROR_NOT_SUPPORTED {
		t.Errorf("the instances of a GPU that is not in MIG mode: %v", ret)
	}
	if err := n.SetMIGMode(0, true); err != nil {
		t.Fatal(err)
	}
	gi := createOn(t, n, 0, "1g.10gb", 6)
	if err := n.SetMIGMode(0, false); err != nil {
		t.Fatal(err)
	}
	if _, ret := gi.GetInfo(); ret != nvml.ERROR_NOT_FOUND {
		t.Errorf("an instance after MIG mode was turned off: %v", ret)
	}
	if ret := gi.Destroy(); ret != nvml.ERROR_NOT_FOUND {
		t.Errorf("destroying it: %v", ret)
	}
}

func TestMIGStateSurvivesARestart(t *testing.T) {
	n := migNode(t, "hgx-h100")
	createOn(t, n, 0, "2g.20gb", 2)
	again, err := Open(n.Dir())
	if err != nil {
		t.Fatal(err)
	}
	if ret := again.NVML().Init(); ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	mig := must[nvml.Device](t)(device(t, again, 0).GetMigDeviceHandleByIndex(0))
	uuid := must[string](t)(mig.GetUUID())
	if found := must[nvml.Device](t)(again.NVML().DeviceGetHandleByUUID(uuid)); found != mig {
		t.Error("the UUID leads to another device")
	}
	if _, ret := create(t, again, 0, "1g.10gb", 3); ret != nvml.ERROR_INSUFFICIENT_RESOURCES {
		t.Errorf("a restart made room: %v", ret)
	}
	if err := again.LoseGPU(0); err != nil {
		t.Fatal(err)
	}
	if _, ret := mig.GetUUID(); ret != nvml.ERROR_GPU_IS_LOST {
		t.Errorf("a MIG device of a lost GPU: %v", ret)
	}
}

func TestMIGOperationsFailOnceWhenTold(t *testing.T) {
	n := migNode(t, "hgx-h100")
	for _, operation := range MIGOperations() {
		if err := n.FailNextMIG(0, operation, nvml.ERROR_UNKNOWN); err != nil {
			t.Fatal(err)
		}
	}
	failsOnce := func(what string, do func() nvml.Return) {
		t.Helper()
		if first, second := do(), do(); first != nvml.ERROR_UNKNOWN || second != nvml.SUCCESS {
			t.Errorf("%s: %v, then %v", what, first, second)
		}
	}
	var gi nvml.GpuInstance
	var ci nvml.ComputeInstance
	failsOnce("create GPU instance", func() (ret nvml.Return) {
		gi, ret = create(t, n, 0, "1g.10gb", 0)
		return ret
	})
	info := must[nvml.ComputeInstanceProfileInfo](t)(gi.GetComputeInstanceProfileInfo(0, 0))
	failsOnce("create compute instance", func() (ret nvml.Return) {
		ci, ret = gi.CreateComputeInstance(&info)
		return ret
	})
	failsOnce("destroy compute instance", func() nvml.Return { return ci.Destroy() })
	failsOnce("destroy GPU instance", func() nvml.Return { return gi.Destroy() })
}

// TestMIGCapabilities follows the path that nvcdi goes: the minor number of a capability from the table,
// and its node.
func TestMIGCapabilities(t *testing.T) {
	n := migNode(t, "hgx-h100")
	table, err := os.ReadFile(filepath.Join(n.ProcRoot(), "driver/nvidia-caps/mig-minors"))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"config 1", "monitor 2", "gpu0/gi0/access 3", "gpu0/gi0/ci0/access 4", "gpu0/gi1/access 12", "gpu1/gi0/access 138"} {
		if !slices.Contains(strings.Split(string(table), "\n"), line) {
			t.Errorf("mig-minors has no line %q", line)
		}
	}
	there := func() (files []string) {
		t.Helper()
		entries, err := os.ReadDir(filepath.Join(n.DevRoot(), "dev/nvidia-caps"))
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range entries {
			files = append(files, entry.Name())
		}
		return files
	}
	always := []string{"nvidia-cap1", "nvidia-cap2"}
	if diff := cmp.Diff(always, there()); diff != "" {
		t.Error(diff)
	}
	gi, err := n.CreatePartition(0, "3g.40gb", 4)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"nvidia-cap1", "nvidia-cap2", "nvidia-cap21", "nvidia-cap22"}, there()); diff != "" {
		t.Error(diff)
	}
	access := filepath.Join(n.ProcRoot(), "driver/nvidia/capabilities/gpu0/mig/gi2/ci0/access")
	if content, err := os.ReadFile(access); err != nil || !strings.Contains(string(content), "DeviceFileMinor: 22\n") {
		t.Errorf("%s: %q, %v", access, content, err)
	}
	if err := n.DestroyPartition(0, gi.ID); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(always, there()); diff != "" {
		t.Error(diff)
	}
	if _, err := os.Stat(filepath.Dir(filepath.Dir(access))); !os.IsNotExist(err) {
		t.Errorf("the directory of an instance that is gone: %v", err)
	}
}

func TestPossiblePartitionsAreThoseThatCanBeMade(t *testing.T) {
	n := migNode(t, "hgx-h100")
	possible := func() []string {
		s, err := n.State()
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, gi := range s.PossiblePartitions(0) {
			p, _ := s.Profile.Product.MIG.ByID(gi.ProfileID)
			names = append(names, fmt.Sprintf("%s@%d", p.Name, gi.Start))
		}
		return names
	}
	for _, beside := range []string{"", "2g.20gb@2", "1g.10gb+me@0", "3g.40gb@4"} {
		if name, at, ok := strings.Cut(beside, "@"); ok {
			start, _ := strconv.Atoi(at)
			createOn(t, n, 0, name, uint32(start))
		}
		s, err := n.State()
		if err != nil {
			t.Fatal(err)
		}
		var made []string
		for _, p := range s.Profile.Product.MIG.Profiles {
			for _, start := range p.Starts {
				if gi, ret := create(t, n, 0, p.Name, start); ret == nvml.SUCCESS {
					made = append(made, fmt.Sprintf("%s@%d", p.Name, start))
					if ret := gi.Destroy(); ret != nvml.SUCCESS {
						t.Fatal(ret)
					}
				}
			}
		}
		if diff := cmp.Diff(made, possible()); diff != "" {
			t.Errorf("beside %q (-could be made +possible):\n%s", beside, diff)
		}
	}
	if s, err := n.State(); err != nil || len(s.PossiblePartitions(1)) > 0 {
		t.Errorf("of a GPU that is not in MIG mode: %v, %v", s.PossiblePartitions(1), err)
	}
}
