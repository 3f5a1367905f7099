// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"

	"github.com/switchyard-dev/switchyard/pkg/simulator/profile"
)

// newNode makes a node of an embedded profile, with files for device nodes, and initialises its NVML.
func newNode(t *testing.T, profileName string) *Node {
	t.Helper()
	p, err := profile.Load(profileName)
	if err != nil {
		t.Fatal(err)
	}
	return newNodeOf(t, p)
}

func newNodeOf(t *testing.T, p Profile) *Node {
	t.Helper()
	dir := t.TempDir()
	if err := Create(dir, p, Options{NodeName: "node-a", DeviceNodes: DeviceNodesFiles}); err != nil {
		t.Fatal(err)
	}
	return open(t, dir)
}

func open(t *testing.T, dir string) *Node {
	t.Helper()
	n, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if ret := n.NVML().Init(); ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	return n
}

func TestIdentityIsStable(t *testing.T) {
	p, err := profile.Load("hgx-h100")
	if err != nil {
		t.Fatal(err)
	}
	uuids := func(o Options) []string {
		var all []string
		for _, gpu := range newState(p, o).GPUs {
			all = append(all, gpu.UUID)
		}
		return all
	}
	base := uuids(Options{NodeName: "node-a"})
	if diff := cmp.Diff(base, uuids(Options{NodeName: "node-a"})); diff != "" {
		t.Errorf("equal node and seed give other UUIDs:\n%s", diff)
	}
	// The derivation must not change: published devices and tests rely on it.
	if want := "GPU-c0a65757-dc5c-5fc2-af93-d373092ebbfc"; base[0] != want {
		t.Errorf("GPU 0 of node-a: UUID %s, want %s", base[0], want)
	}
	seen := map[string]bool{}
	for _, list := range [][]string{base, uuids(Options{NodeName: "node-b"}), uuids(Options{NodeName: "node-a", Seed: "1"})} {
		for _, uuid := range list {
			if seen[uuid] {
				t.Errorf("%s is the UUID of two GPUs", uuid)
			}
			seen[uuid] = true
		}
	}
}

func TestCreate(t *testing.T) {
	p, err := profile.Load("t4")
	if err != nil {
		t.Fatal(err)
	}
	options := Options{NodeName: "node-a", DeviceNodes: DeviceNodesFiles}

	t.Run("a second node in a directory is refused", func(t *testing.T) {
		dir := t.TempDir()
		if err := Create(dir, p, options); err != nil {
			t.Fatal(err)
		}
		if err := Create(dir, p, options); !errors.Is(err, ErrExists) {
			t.Errorf("got %v, want ErrExists", err)
		}
	})
	t.Run("of many at once one succeeds", func(t *testing.T) {
		dir := t.TempDir()
		var wg sync.WaitGroup
		results := make([]error, 8)
		for i := range results {
			wg.Go(func() { results[i] = Create(dir, p, options) })
		}
		wg.Wait()
		created := 0
		for _, err := range results {
			switch {
			case err == nil:
				created++
			case !errors.Is(err, ErrExists):
				t.Error(err)
			}
		}
		if created != 1 {
			t.Errorf("%d succeeded", created)
		}
	})
	t.Run("what a killed Create left behind is completed", func(t *testing.T) {
		dir := t.TempDir()
		if err := materialize(dir, newState(p, options)); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir); err == nil {
			t.Error("a node without state was opened")
		}
		if err := Create(dir, p, options); err != nil {
			t.Error(err)
		}
	})
	t.Run("a bad profile names the field", func(t *testing.T) {
		bad := p
		bad.GPUs = []profile.GPU{{BusID: "00:1e.0", PCIeRoot: "pci0000:00"}}
		err := Create(t.TempDir(), bad, options)
		if err == nil || !strings.Contains(err.Error(), "gpus[0].busID") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a bad node name is refused", func(t *testing.T) {
		err := Create(t.TempDir(), p, Options{NodeName: "Node A", DeviceNodes: DeviceNodesFiles})
		if err == nil || !strings.Contains(err.Error(), `node name "Node A"`) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("an unknown kind of device nodes is refused", func(t *testing.T) {
		err := Create(t.TempDir(), p, Options{NodeName: "node-a", DeviceNodes: "files"})
		if err == nil || !strings.Contains(err.Error(), `"files": use Character or Files`) {
			t.Errorf("got %v", err)
		}
	})
}

func TestOpenRefusesForeignState(t *testing.T) {
	cases := map[string]struct{ content, want string }{
		"no file":         {"", "holds no simulated node"},
		"damaged":         {`{"version": 1,`, "unexpected end of JSON"},
		"another version": {`{"version": 2}`, "has version 2, this program knows version 1"},
		"GPUs missing":    {`{"version": 1, "profile": {"gpus": [{}]}}`, "has the state of 0 GPUs, and a profile of 1"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if c.content != "" {
				if err := os.WriteFile(filepath.Join(dir, stateFile), []byte(c.content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an error with %q", err, c.want)
			}
		})
	}
}

func TestStateSurvivesRestart(t *testing.T) {
	n := newNode(t, "hgx-h100")
	if err := errors.Join(n.LoseGPU(3), n.SetNVLink(0, 17, false), n.SetMIGMode(5, true)); err != nil {
		t.Fatal(err)
	}
	again := open(t, n.Dir())
	before, err := n.State()
	if err != nil {
		t.Fatal(err)
	}
	after, err := again.State()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, after); diff != "" {
		t.Error(diff)
	}
	if _, ret := again.NVML().DeviceGetHandleByIndex(3); ret != nvml.ERROR_GPU_IS_LOST {
		t.Errorf("GPU 3: %v", ret)
	}
}

func TestConcurrentUpdatesAreAllKept(t *testing.T) {
	n := newNode(t, "hgx-h100")
	other := open(t, n.Dir())
	var wg sync.WaitGroup
	for gpu := range 8 {
		for link := range 4 {
			user := n
			if link%2 == 1 {
				user = other
			}
			wg.Go(func() {
				if err := user.SetNVLink(gpu, link, false); err != nil {
					t.Error(err)
				}
			})
		}
	}
	wg.Wait()
	s, err := n.State()
	if err != nil {
		t.Fatal(err)
	}
	if s.Generation != 32 {
		t.Errorf("generation %d after 32 changes", s.Generation)
	}
	for i, gpu := range s.GPUs {
		if diff := cmp.Diff([]int{0, 1, 2, 3}, gpu.LinksDown); diff != "" {
			t.Errorf("GPU %d:\n%s", i, diff)
		}
	}
}

func TestEveryUpdateIsSeenByARunningNode(t *testing.T) {
	n := newNode(t, "hgx-h100")
	control := open(t, n.Dir())
	device, ret := n.NVML().DeviceGetHandleByIndex(0)
	if ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	// Quick changes of equal size: neither size nor a coarse clock may hide one.
	for i := range 200 {
		up := i%2 == 1
		if err := control.SetNVLink(0, 0, up); err != nil {
			t.Fatal(err)
		}
		state, ret := device.GetNvLinkState(0)
		if ret != nvml.SUCCESS || (state == nvml.FEATURE_ENABLED) != up {
			t.Fatalf("change %d: link is %v (%v), want up %v", i, state, ret, up)
		}
	}
}

func TestFailedUpdateChangesNothing(t *testing.T) {
	n := newNode(t, "l40s-pcie")
	before, err := n.State()
	if err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct {
		change func() error
		want   string
	}{
		"no such GPU":       {func() error { return n.LoseGPU(4) }, "lose GPU 4: there is none: GPUs are numbered 0 to 3"},
		"negative GPU":      {func() error { return n.InjectXID(-2, 31) }, "GPU -2"},
		"no NVLink":         {func() error { return n.SetNVLink(0, 0, false) }, `profile "l40s-pcie" has no NVLink`},
		"no MIG":            {func() error { return n.SetMIGMode(0, true) }, "NVIDIA L40S cannot be partitioned"},
		"no fabric":         {func() error { return n.SetFabric(AllGPUs, completed("")) }, `profile "l40s-pcie" has no fabric`},
		"no fabric, one":    {func() error { return n.SetFabric(0, completed("")) }, `profile "l40s-pcie" has no fabric`},
		"bad cluster UUID":  {func() error { return n.SetFabric(0, completed("rack-1")) }, "fabric.clusterUUID"},
		"unknown failure":   {func() error { return n.SetDriverFailure("Tired") }, `no failure is called "Tired"`},
		"negative duration": {func() error { return n.SetCallDelay(-1) }, "negative"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if err := c.change(); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an error with %q", err, c.want)
			}
			after, err := n.State()
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(before, after); diff != "" {
				t.Errorf("state changed:\n%s", diff)
			}
		})
	}
}

// completed is a complete fabric, of the all-zero cluster unless one is named.
func completed(cluster string) FabricState {
	if cluster == "" {
		cluster = "00000000-0000-0000-0000-000000000000"
	}
	return FabricState{Fabric: profile.Fabric{State: profile.FabricCompleted, ClusterUUID: cluster}}
}

func TestStateFileRemembersTheLastXIDs(t *testing.T) {
	s := State{GPUs: []GPUState{{UUID: "GPU-0"}}, NextXID: 7}
	for range keptXIDs + 3 {
		s.raise(0, 31, time.Time{})
	}
	if len(s.XIDs) != keptXIDs || s.XIDs[0].Sequence != 10 || s.XIDs[keptXIDs-1].Sequence != 9+keptXIDs {
		t.Errorf("%d errors, from %d to %d", len(s.XIDs), s.XIDs[0].Sequence, s.XIDs[len(s.XIDs)-1].Sequence)
	}
}
