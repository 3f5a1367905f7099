// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"bytes"
	"debug/elf"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"k8s.io/dynamic-resource-allocation/deviceattribute"

	"github.com/switchyard-dev/switchyard/pkg/simulator/profile"
)

func TestSysfsIsReadByTheAttributeHelpers(t *testing.T) {
	cases := map[string]struct{ bus, root, numa string }{
		"hgx-h100":    {"0000:ca:00.0", "pci0000:c9", "1"},
		"dgx-a100":    {"0000:07:00.0", "pci0000:00", "3"},
		"gb200-nvl72": {"0000:9c:00.0", "pci0000:9b", "1"}, // not 18, the node of its memory
		"t4":          {"0000:00:1e.0", "pci0000:00", "none"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			sysfs := deviceattribute.WithFSFromRoot(newNode(t, name).SysfsRoot())
			root, err := deviceattribute.GetPCIeRootAttributeByPCIBusID(c.bus, sysfs)
			if err != nil {
				t.Fatal(err)
			}
			if *root.Value.StringValue != c.root {
				t.Errorf("PCIe root %s, want %s", *root.Value.StringValue, c.root)
			}
			numa, err := deviceattribute.GetNUMANodeAttributeByPCIBusID(c.bus, deviceattribute.ScalarAttribute, sysfs)
			switch {
			case c.numa == "none":
				if err == nil || !strings.Contains(err.Error(), "numa_node=-1") {
					t.Errorf("NUMA node of a device without: %v", err)
				}
			case err != nil:
				t.Error(err)
			case numa.Value.IntValue == nil || c.numa != string(rune('0'+*numa.Value.IntValue)):
				t.Errorf("NUMA node %+v, want %s", numa.Value, c.numa)
			}
		})
	}
}

func TestSysfsFollowsRemoval(t *testing.T) {
	n := newNode(t, "hgx-b200")
	entry := filepath.Join(n.SysfsRoot(), "bus/pci/devices/0000:90:00.0")
	neighbour := filepath.Join(n.SysfsRoot(), "bus/pci/devices/0000:8f:00.0/numa_node")
	steps := []struct {
		what   string
		change func() error
		want   error
	}{
		{"at first", func() error { return nil }, nil},
		{"lost, it is still there", func() error { return n.LoseGPU(1) }, nil},
		{"removed", func() error { return n.RemoveGPU(1) }, fs.ErrNotExist},
		{"recovered", func() error { return n.RecoverGPU(1) }, nil},
	}
	for _, step := range steps {
		if err := step.change(); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(entry); !errors.Is(err, step.want) {
			t.Errorf("%s: %v", step.what, err)
		}
		if _, err := os.Stat(neighbour); err != nil {
			t.Errorf("%s: the other GPU of the switch: %v", step.what, err)
		}
	}
}

func TestDeviceNodesWithoutPrivilege(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root may make device nodes")
	}
	p, err := profile.Load("t4")
	if err != nil {
		t.Fatal(err)
	}
	err = Create(t.TempDir(), p, Options{NodeName: "node-a"})
	if !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "CAP_MKNOD") {
		t.Errorf("got %v, want an error that says what is missing", err)
	}
}

// nodeWithDevices makes a node with real device nodes, where that is allowed.
func nodeWithDevices(t *testing.T, profileName string) *Node {
	t.Helper()
	p, err := profile.Load(profileName)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := Create(dir, p, Options{NodeName: "node-a"}); errors.Is(err, unix.EPERM) {
		t.Skipf("needs CAP_MKNOD: %v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	return open(t, dir)
}

func TestDeviceNodesNeverReachHardware(t *testing.T) {
	n := nodeWithDevices(t, "l40s-pcie")
	dev := filepath.Join(n.DevRoot(), "dev")
	entries, err := os.ReadDir(dev)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
		var stat unix.Stat_t
		if err := unix.Stat(filepath.Join(dev, entry.Name()), &stat); err != nil {
			t.Fatal(err)
		}
		if stat.Mode != unix.S_IFCHR|0o666 || unix.Major(stat.Rdev) != 1 || unix.Minor(stat.Rdev) != 3 {
			t.Errorf("%s: mode %o, device %d:%d", entry.Name(), stat.Mode, unix.Major(stat.Rdev), unix.Minor(stat.Rdev))
		}
	}
	want := []string{"nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools", "nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidiactl"}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Error(diff)
	}
}

func TestEnsureFilesRepairs(t *testing.T) {
	n := newNode(t, "t4")
	smi := filepath.Join(n.DriverRoot(), "usr/bin/nvidia-smi")
	before, err := os.Stat(smi)
	if err != nil {
		t.Fatal(err)
	}
	library := filepath.Join(n.DriverRoot(), libraryDir(), "libcuda.so.1")
	leftovers := []string{filepath.Join(n.Dir(), unfinished+"state.json.1"), filepath.Join(filepath.Dir(smi), unfinished+"nvidia-smi.2")}
	for _, path := range leftovers {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.RemoveAll(filepath.Join(n.DriverRoot(), "dev")), os.Remove(library), os.Symlink("elsewhere", library)); err != nil {
		t.Fatal(err)
	}
	if err := n.EnsureFiles(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(n.DevRoot(), "dev/nvidia0")); err != nil {
		t.Error(err)
	}
	if target, err := os.Readlink(library); err != nil || target != "libcuda.so.595.91.07" {
		t.Errorf("libcuda.so.1 leads to %q (%v)", target, err)
	}
	for _, path := range leftovers {
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is still there", path)
		}
	}
	after, err := os.Stat(smi)
	if err != nil {
		t.Fatal(err)
	}
	if !os.SameFile(before, after) {
		t.Error("a file that was right was replaced")
	}
}

// silent is a logger that logs nothing: nvcdi has a lot to say about what is not installed.
type silent struct{}

func (silent) Debugf(string, ...any)   {}
func (silent) Errorf(string, ...any)   {}
func (silent) Info(...any)             {}
func (silent) Infof(string, ...any)    {}
func (silent) Warning(...any)          {}
func (silent) Warningf(string, ...any) {}
func (silent) Tracef(string, ...any)   {}

func TestSharedObjectIsALibrary(t *testing.T) {
	file, err := elf.NewFile(bytes.NewReader(sharedObject("libcuda.so.1")))
	if err != nil {
		t.Fatal(err)
	}
	if soname, err := file.DynString(elf.DT_SONAME); err != nil || !slices.Equal(soname, []string{"libcuda.so.1"}) || file.Type != elf.ET_DYN {
		t.Errorf("type %v, SONAME %q (%v)", file.Type, soname, err)
	}
}

// TestNvcdi feeds the node to the library that makes CDI specs on real nodes.
func TestNvcdi(t *testing.T) {
	n := nodeWithDevices(t, "hgx-h100")
	if err := n.RemoveGPU(1); err != nil { // so that index and minor number differ
		t.Fatal(err)
	}
	lib, err := nvcdi.New(
		nvcdi.WithMode(nvcdi.ModeNvml),
		nvcdi.WithNvmlLib(n.NVML()),
		nvcdi.WithDriverRoot(n.DriverRoot()),
		nvcdi.WithDevRoot(n.DevRoot()),
		nvcdi.WithNVIDIACDIHookPath("/opt/hook"),
		nvcdi.WithFeatureFlags(nvcdi.FeatureDisableNvsandboxUtils),
		nvcdi.WithLogger(silent{}),
	)
	if err != nil {
		t.Fatal(err)
	}
	common, err := lib.GetCommonEdits()
	if err != nil {
		t.Fatal(err)
	}
	var nodes, mounts []string
	for _, node := range common.DeviceNodes {
		nodes = append(nodes, node.Path+" from "+strings.TrimPrefix(node.HostPath, n.DevRoot()))
	}
	for _, mount := range common.Mounts {
		if mount.HostPath == "/dev/null" {
			continue // nvcdi's own, it stands for "no devices"
		}
		mounts = append(mounts, mount.ContainerPath)
		if mount.HostPath != filepath.Join(n.DriverRoot(), mount.ContainerPath) {
			t.Errorf("%s comes from %s", mount.ContainerPath, mount.HostPath)
		}
	}
	slices.Sort(nodes)
	slices.Sort(mounts)
	if diff := cmp.Diff([]string{
		"/dev/nvidia-modeset from /dev/nvidia-modeset", "/dev/nvidia-uvm from /dev/nvidia-uvm",
		"/dev/nvidia-uvm-tools from /dev/nvidia-uvm-tools", "/dev/nvidiactl from /dev/nvidiactl",
	}, nodes); diff != "" {
		t.Errorf("device nodes:\n%s", diff)
	}
	const version = "580.105.08"
	for _, want := range []string{
		"/usr/bin/nvidia-smi", "/lib/firmware/nvidia/" + version + "/gsp_ga10x.bin",
		"/" + libraryDir() + "/libcuda.so." + version, "/" + libraryDir() + "/libnvidia-ml.so." + version,
	} {
		if !slices.Contains(mounts, want) {
			t.Errorf("no mount of %s among %v", want, mounts)
		}
	}
	hooks := map[string]string{}
	for _, hook := range common.Hooks {
		if hook.Path != "/opt/hook" {
			t.Errorf("hook %v runs %s", hook.Args, hook.Path)
		}
		hooks[hook.Args[1]] = strings.Join(hook.Args[2:], " ")
	}
	for hook, want := range map[string]string{
		"create-symlinks": "libcuda.so." + version + "::/" + libraryDir() + "/libcuda.so.1", // from the SONAME
		"update-ldcache":  "--folder /" + libraryDir(),
	} {
		if !strings.Contains(hooks[hook], want) {
			t.Errorf("hook %s has no %q: %q", hook, want, hooks[hook])
		}
	}

	uuid, ret := device(t, n, 1).GetUUID()
	if ret != 0 {
		t.Fatal(ret)
	}
	specs, err := lib.GetDeviceSpecsByID(uuid)
	if err != nil {
		t.Fatal(err)
	}
	if len(specs) != 1 || len(specs[0].ContainerEdits.DeviceNodes) != 1 || specs[0].ContainerEdits.DeviceNodes[0].Path != "/dev/nvidia2" {
		t.Errorf("specs of the GPU with minor number 2: %+v", specs)
	}
	if got := n.Unsimulated(); len(got) > 0 {
		t.Errorf("nvcdi called what is not simulated: %v", got)
	}
}
