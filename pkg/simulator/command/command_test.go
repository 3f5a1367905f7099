// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"

	"github.com/switchyard-dev/switchyard/pkg/simulator"
	"github.com/switchyard-dev/switchyard/pkg/simulator/profile"
)

// run executes the command line with an input.
func run(t *testing.T, in string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	t.Setenv(envDir, "")
	t.Setenv(envProfile, "")
	cmd := New()
	var out, errs bytes.Buffer
	cmd.SetIn(strings.NewReader(in))
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	cmd.SetArgs(args)
	err = cmd.ExecuteContext(t.Context())
	return out.String(), errs.String(), err
}

func newNode(t *testing.T, profileName string) *simulator.Node {
	t.Helper()
	p, err := profile.Load(profileName)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := simulator.Create(dir, p, simulator.Options{NodeName: "node-a", DeviceNodes: simulator.DeviceNodesFiles}); err != nil {
		t.Fatal(err)
	}
	node, err := simulator.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return node
}

func TestControlChangesTheNode(t *testing.T) {
	node := newNode(t, "gb200-nvl72")
	before, err := node.State()
	if err != nil {
		t.Fatal(err)
	}
	steps := []struct {
		args  string
		check func(s simulator.State) bool
	}{
		{"lose 1", func(s simulator.State) bool { return s.GPUs[1].Health == simulator.HealthLost && s.XIDs[0].Code == 79 }},
		{"remove 2 3", func(s simulator.State) bool {
			return s.GPUs[2].Health == simulator.HealthRemoved && s.GPUs[3].Health == simulator.HealthRemoved
		}},
		{"require-reset " + strings.ToLower(before.GPUs[0].UUID), func(s simulator.State) bool { return s.GPUs[0].Health == simulator.HealthResetRequired }},
		{"recover all", func(s simulator.State) bool {
			return s.GPUs[0].Health == "" && s.GPUs[1].Health == "" && s.GPUs[2].Health == ""
		}},
		{"xid 3 48", func(s simulator.State) bool { return s.XIDs[1].Code == 48 && s.XIDs[1].GPU == s.GPUs[3].UUID }},
		{"recovery-action 3 drain-and-reset", func(s simulator.State) bool { return s.GPUs[3].Faults.RecoveryAction == 4 }},
		{"ecc 3 2", func(s simulator.State) bool { return s.GPUs[3].Faults.UncorrectableECC == 2 }},
		{"remap 3 pending", func(s simulator.State) bool {
			return s.GPUs[3].Faults.RowRemapPending && !s.GPUs[3].Faults.RowRemapFailure
		}},
		{"remap 3 failure", func(s simulator.State) bool { return s.GPUs[3].Faults.RowRemapFailure }},
		{"recover 3", func(s simulator.State) bool {
			f := s.GPUs[3].Faults
			return f.RecoveryAction == 0 && f.UncorrectableECC == 0 && !f.RowRemapFailure
		}},
		{"nvlink 0 17 down", func(s simulator.State) bool { return cmp.Equal(s.GPUs[0].LinksDown, []int{17}) }},
		{"nvlink 0 17 up", func(s simulator.State) bool { return len(s.GPUs[0].LinksDown) == 0 }},
		{"nvlink all all down", func(s simulator.State) bool { return len(s.GPUs[2].LinksDown) == 18 }},
		{"nvlink all all up", func(s simulator.State) bool { return len(s.GPUs[2].LinksDown) == 0 }},
		{"fabric InProgress", func(s simulator.State) bool {
			return s.Fabric.State == profile.FabricInProgress && s.Fabric.ClusterUUID == before.Fabric.ClusterUUID && s.Fabric.CliqueID == 2
		}},
		{"fabric Completed --cluster-uuid 00000002-0000-0000-0000-000000000000 --clique 0 --status 999", func(s simulator.State) bool {
			return s.Fabric.State == profile.FabricCompleted && s.Fabric.ClusterUUID[:8] == "00000002" && s.Fabric.CliqueID == 0 && s.Fabric.Status == 999
		}},
		{"fabric Completed --clique 7 --gpu 1", func(s simulator.State) bool {
			return s.GPUs[1].Fabric != nil && s.GPUs[1].Fabric.CliqueID == 7 && s.Fabric.CliqueID == 0
		}},
		{"fabric NotStarted", func(s simulator.State) bool {
			return s.GPUs[1].Fabric == nil && s.Fabric.State == profile.FabricNotStarted
		}},
		{"mig 2 on", func(s simulator.State) bool { return s.GPUs[2].MIG.Enabled && !s.GPUs[1].MIG.Enabled }},
		{"mig create 2 3g.93gb 4", func(s simulator.State) bool {
			gi := s.GPUs[2].MIG.Instances[0]
			return gi.ID == 2 && gi.ProfileID == 9 && gi.Start == 4 && gi.Size == 4 && strings.HasPrefix(gi.Compute[0].UUID, "MIG-")
		}},
		{"mig fail 2 DestroyGPUInstance --with InUse", func(s simulator.State) bool {
			return s.GPUs[2].MIG.FailNext[simulator.DestroyGPUInstance] == nvml.ERROR_IN_USE
		}},
		{"mig fail 2 DestroyGPUInstance", func(s simulator.State) bool {
			return s.GPUs[2].MIG.FailNext[simulator.DestroyGPUInstance] == nvml.ERROR_UNKNOWN
		}},
		{"mig 2 off", func(s simulator.State) bool { return !s.GPUs[2].MIG.Enabled && len(s.GPUs[2].MIG.Instances) == 0 }},
		{"driver broken", func(s simulator.State) bool { return s.Driver.Failure == simulator.DriverNotLoaded }},
		{"driver VersionMismatch", func(s simulator.State) bool { return s.Driver.Failure == simulator.DriverVersionMismatch }},
		{"driver ok", func(s simulator.State) bool { return s.Driver.Failure == "" }},
		{"delay 1500us", func(s simulator.State) bool { return s.Driver.CallDelay == 1500_000 }},
		{"delay 0", func(s simulator.State) bool { return s.Driver.CallDelay == 0 }},
		{"calls on", func(s simulator.State) bool { return s.RecordCalls }},
		{"calls off", func(s simulator.State) bool { return !s.RecordCalls }},
	}
	for _, step := range steps {
		args := append([]string{"ctl", "--sim-dir", node.Dir()}, strings.Fields(step.args)...)
		if _, _, err := run(t, "", args...); err != nil {
			t.Fatalf("%s: %v", step.args, err)
		}
		s, err := node.State()
		if err != nil {
			t.Fatal(err)
		}
		if !step.check(s) {
			t.Errorf("%s: the state is %+v", step.args, s)
		}
	}
}

func TestControlRefuses(t *testing.T) {
	node := newNode(t, "l40s-pcie")
	cases := map[string]struct{ args, want string }{
		"no such GPU":       {"lose 4", `no GPU is called "4": GPUs are 0 to 3`},
		"a GPU of letters":  {"lose first", `no GPU is called "first"`},
		"one of two GPUs":   {"lose 0 4", `no GPU is called "4"`},
		"no GPU":            {"lose", "requires at least 1 arg"},
		"XID 0":             {"xid 0 0", "XID 0 is none"},
		"XID of letters":    {"xid 0 bad", `XID "bad" must be a whole number`},
		"XID too large":     {"xid 0 4294967296", "from 1 to 4294967295"},
		"action of letters": {"recovery-action 0 bad", `recovery action "bad" is none of`},
		"count of letters":  {"ecc 0 bad", `count of errors "bad" must be a whole number`},
		"remap of letters":  {"remap 0 bad", `row remapping "bad" is none of`},
		"link of letters":   {"nvlink 0 one down", `link "one" is neither a number`},
		"link sideways":     {"nvlink 0 1 sideways", `"sideways" must be "up" or "down"`},
		"no NVLink":         {"nvlink 0 all down", "has no NVLink"},
		"no fabric":         {"fabric Completed", "has no fabric"},
		"no MIG":            {"mig 0 on", "cannot be partitioned"},
		"partition, no MIG": {"mig create 0 1g.5gb 0", "not in MIG mode"},
		"memory slice one":  {"mig create 0 1g.5gb one", `memory slice "one" is not a number`},
		"instance one":      {"mig destroy 0 one", `GPU instance "one" is not a number`},
		"unknown operation": {"mig fail 0 Explode", `no operation is called "Explode"`},
		"unknown error":     {"mig fail 0 CreateGPUInstance --with Fire", `--with "Fire"`},
		"MIG maybe":         {"mig 0 maybe", `"maybe" must be "on" or "off"`},
		"unknown failure":   {"driver tired", `no failure is called "tired"`},
		"delay of letters":  {"delay long", `delay "long" is not a duration`},
		"calls of letters":  {"calls maybe", `or "show"`},
		"unknown output":    {"show -o xml", `--output "xml"`},
		"unknown command":   {"explode", "unknown"},
		"argument for show": {"show 1", "unknown command"},
	}
	before, err := node.State()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"ctl", "--sim-dir", node.Dir()}, strings.Fields(c.args)...)
			if _, _, err := run(t, "", args...); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an error with %q", err, c.want)
			}
			after, err := node.State()
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(before, after); diff != "" {
				t.Errorf("state changed:\n%s", diff)
			}
		})
	}
	t.Run("no directory", func(t *testing.T) {
		if _, _, err := run(t, "", "ctl", "show"); err == nil || !strings.Contains(err.Error(), "--sim-dir must be set") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a directory without a node", func(t *testing.T) {
		if _, _, err := run(t, "", "ctl", "lose", "0", "--sim-dir", t.TempDir()); err == nil || !strings.Contains(err.Error(), "holds no simulated node") {
			t.Errorf("got %v", err)
		}
	})
}

func TestShow(t *testing.T) {
	node := newNode(t, "hgx-h100")
	if err := node.LoseGPU(2); err != nil {
		t.Fatal(err)
	}
	if err := node.SetNVLink(5, 3, false); err != nil {
		t.Fatal(err)
	}
	if err := node.SetDriverFailure(simulator.DriverNotLoaded); err != nil {
		t.Fatal(err)
	}
	s, err := node.State()
	if err != nil {
		t.Fatal(err)
	}
	out, _, err := run(t, "", "ctl", "show", "--sim-dir", node.Dir())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"hgx-h100", "NVIDIA H100 80GB HBM3", "580.105.08, CUDA 13.0, broken: NotLoaded",
		s.GPUs[2].UUID + "  0000:75:00.0  2      0     18          off  Lost",
		s.GPUs[5].UUID + "  0000:a8:00.0  5      1     18, 1 down  off  ok",
		"79   " + s.GPUs[2].UUID,
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	out, _, err = run(t, "", "ctl", "show", "-o", "json", "--sim-dir", node.Dir())
	if err != nil {
		t.Fatal(err)
	}
	var decoded simulator.State
	if err := json.Unmarshal([]byte(out), &decoded); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(s, decoded); diff != "" {
		t.Error(diff)
	}
}

func TestCallsAreShown(t *testing.T) {
	node := newNode(t, "t4")
	if err := node.SetRecordCalls(true); err != nil {
		t.Fatal(err)
	}
	if ret := node.NVML().Init(); ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	for range 2 {
		if _, ret := node.NVML().DeviceGetCount(); ret != nvml.SUCCESS {
			t.Fatal(ret)
		}
	}
	out, _, err := run(t, "", "ctl", "calls", "show", "--sim-dir", node.Dir())
	if err != nil {
		t.Fatal(err)
	}
	if want := "     2  nvmlDeviceGetCount\n     1  nvmlInit\n     3  in all\n"; out != want {
		t.Errorf("got\n%swant\n%s", out, want)
	}
}

func TestProfiles(t *testing.T) {
	out, _, err := run(t, "", "profiles")
	if err != nil {
		t.Fatal(err)
	}
	if lines := strings.Split(strings.TrimSpace(out), "\n"); len(lines) != len(profile.Names()) || !strings.HasPrefix(lines[0], "a100-2x4         8x A100 40GB, two NVSwitch domains of 4") {
		t.Errorf("got\n%s", out)
	}
	out, _, err = run(t, "", "profiles", "t4")
	if err != nil {
		t.Fatal(err)
	}
	if p, err := profile.Parse([]byte(out)); err != nil || p.Name != "t4" || !strings.HasPrefix(out, "# ") {
		t.Errorf("got %v and\n%s", err, out)
	}
	if _, _, err := run(t, "", "profiles", "h100"); err == nil || !strings.Contains(err.Error(), `no profile is called "h100"`) {
		t.Errorf("got %v", err)
	}
}

const pairs = "\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\n" +
	"GPU0\t X \tNV12\tSYS\tSYS\tSYS\t0-23\t0\n" +
	"GPU1\tNV12\t X \tSYS\tSYS\tSYS\t24-47\t1\n" +
	"GPU2\tSYS\tSYS\t X \tNV12\tSYS\t48-71\t2\n" +
	"GPU3\tSYS\tSYS\tNV12\t X \tSYS\t72-95\t3\n"

func TestTopologyDomains(t *testing.T) {
	file := filepath.Join(t.TempDir(), "Topo of node 1.txt")
	if err := os.WriteFile(file, []byte(pairs), 0o600); err != nil {
		t.Fatal(err)
	}
	for what, args := range map[string][]string{"file": {"topo", "domains", file}, "standard input": {"topo", "domains", "-"}} {
		out, stderr, err := run(t, pairs, args...)
		if err != nil {
			t.Fatal(err)
		}
		if out != "0,1\n2,3\n" {
			t.Errorf("%s: got %q", what, out)
		}
		// The NIC's row is missing: nothing that matters here.
		if !strings.Contains(stderr, "warning: ") || !strings.Contains(stderr, "NIC0") {
			t.Errorf("%s: on standard error %q", what, stderr)
		}
	}
	t.Run("nobody has a domain", func(t *testing.T) {
		out, _, err := run(t, "\tGPU0\tGPU1\nGPU0\tX\tSYS\nGPU1\tSYS\tX\n", "topo", "domains", "-")
		if err != nil || out != "" {
			t.Errorf("got %q, %v", out, err)
		}
	})
	t.Run("damage among the GPUs names line and column", func(t *testing.T) {
		out, _, err := run(t, strings.Replace(pairs, "NV12\t X \tSYS\tSYS", "NV12\t X \tS?S\tSYS", 1), "topo", "domains", "-")
		if err == nil || !strings.Contains(err.Error(), "standard input: line 3, column ") || out != "" {
			t.Errorf("got %q, %v", out, err)
		}
	})
	t.Run("no such file", func(t *testing.T) {
		if _, _, err := run(t, "", "topo", "domains", "/nowhere.txt"); err == nil || !strings.Contains(err.Error(), "/nowhere.txt") {
			t.Errorf("got %v", err)
		}
	})
}

func TestTopologyImport(t *testing.T) {
	file := filepath.Join(t.TempDir(), "Topo of node 1.txt")
	if err := os.WriteFile(file, []byte(pairs), 0o600); err != nil {
		t.Fatal(err)
	}
	out, _, err := run(t, "", "topo", "import", file)
	if err != nil {
		t.Fatal(err)
	}
	p, err := profile.Parse([]byte(out))
	if err != nil {
		t.Fatal(err)
	}
	if p.Name != "topo-of-node-1" || len(p.GPUs) != 4 || len(p.NVLink.Peers) != 2 || p.GPUs[3].CPUs != "72-95" {
		t.Errorf("got\n%s", out)
	}
	out, _, err = run(t, pairs, "topo", "import", "-", "--name", "mine", "--like", "a100-pcie-pairs")
	if err != nil {
		t.Fatal(err)
	}
	if p, err = profile.Parse([]byte(out)); err != nil || p.Name != "mine" || p.Product.Name != "NVIDIA A100 80GB PCIe" {
		t.Errorf("got %v and\n%s", err, out)
	}
	if _, _, err := run(t, pairs, "topo", "import", "-", "--like", "a100"); err == nil || !strings.Contains(err.Error(), "import standard input") {
		t.Errorf("got %v", err)
	}
}

func TestProfileName(t *testing.T) {
	for path, want := range map[string]string{
		"a/b/H100 (rack 7).txt": "h100-rack-7", "-": "imported", "...": "imported",
		strings.Repeat("x", 62) + "--y": strings.Repeat("x", 62), "topo": "topo",
	} {
		if got := profileName(path); got != want {
			t.Errorf("%q: %q, want %q", path, got, want)
		}
	}
}
