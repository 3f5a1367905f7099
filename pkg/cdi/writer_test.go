// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"
	oci "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/switchyard-dev/switchyard/pkg/simulator"
)

func write(t *testing.T, w *Writer, claim types.UID, devices ...ClaimDevice) []string {
	t.Helper()
	names, err := w.WriteClaim(claim, devices)
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// readSpec reads a spec as a container runtime does, which refuses unknown fields.
func readSpec(t *testing.T, path string) *specs.Spec {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	spec, err := cdi.ParseSpec(data)
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

// inject does with CDI names what a container runtime does, and returns the container's device nodes.
func inject(t *testing.T, specDir string, names ...string) []string {
	t.Helper()
	cache, err := cdi.NewCache(cdi.WithSpecDirs(specDir), cdi.WithAutoRefresh(false))
	if err != nil {
		t.Fatal(err)
	}
	for path, errs := range cache.GetErrors() {
		t.Errorf("spec %s: %v", path, errs)
	}
	var container oci.Spec
	if unresolved, err := cache.InjectDevices(&container, names...); err != nil {
		t.Fatalf("inject: %v (unresolved %v)", err, unresolved)
	}
	var nodes []string
	for _, node := range container.Linux.Devices {
		nodes = append(nodes, node.Path)
	}
	slices.Sort(nodes)
	return nodes
}

var controlNodes = []string{"/dev/nvidia-modeset", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidiactl"}

func TestContainersGetExactlyTheClaimedDevices(t *testing.T) {
	s := newSimulated(t, "dgx-a100")
	gpus := s.refreshed(t)
	a := write(t, s.Writer, "claim-a", devicesOf(gpus[1], gpus[6])...)
	b := write(t, s.Writer, "claim-b", devicesOf(gpus[3])...)
	all := write(t, s.Writer, "claim-all", devicesOf(gpus...)...)

	want := "gpu.switchyard.dev/claim=claim-a-" + gpus[1].Name()
	if a[0] != want {
		t.Errorf("name is %s, want %s", a[0], want)
	}
	for name, test := range map[string]struct {
		names []string
		want  []string
	}{
		"one device of two":             {a[:1], []string{"/dev/nvidia1"}},
		"both devices of a claim":       {a, []string{"/dev/nvidia1", "/dev/nvidia6"}},
		"devices of two claims":         {append(slices.Clone(a), b...), []string{"/dev/nvidia1", "/dev/nvidia3", "/dev/nvidia6"}},
		"all devices of the node":       {all, []string{"/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia2", "/dev/nvidia3", "/dev/nvidia4", "/dev/nvidia5", "/dev/nvidia6", "/dev/nvidia7"}},
		"one device through two claims": {[]string{a[0], all[1]}, []string{"/dev/nvidia1"}},
	} {
		t.Run(name, func(t *testing.T) {
			want := slices.Sorted(slices.Values(append(slices.Clone(controlNodes), test.want...)))
			if diff := cmp.Diff(want, inject(t, s.specDir, test.names...)); diff != "" {
				t.Errorf("device nodes (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWriteClaimMakesNoNVMLCall(t *testing.T) {
	s := newSimulated(t, "dgx-a100")
	gpus := s.refreshed(t)
	before := s.Calls()
	write(t, s.Writer, "a", devicesOf(gpus...)...)
	write(t, s.Writer, "a", devicesOf(gpus...)...)
	if diff := cmp.Diff(before, s.Calls()); diff != "" {
		t.Errorf("NVML calls (-before +after):\n%s", diff)
	}
}

// Two shares of one device in one claim got the same CDI name.
func TestFieldCase13_SharesOfOneDeviceHaveNamesOfTheirOwn(t *testing.T) {
	s := newSimulated(t, "t4")
	gpu := s.refreshed(t)[0]
	one, two := ClaimDevice{Name: gpu.Name(), ShareID: "share-1"}, ClaimDevice{Name: gpu.Name(), ShareID: "share-2"}
	names := write(t, s.Writer, "a", one, two, ClaimDevice{Name: gpu.Name()}, ClaimDevice{Name: gpu.Name()})
	prefix := "gpu.switchyard.dev/claim=a-" + gpu.Name()
	if diff := cmp.Diff([]string{prefix + "-share-1", prefix + "-share-2", prefix, prefix}, names); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	if got := len(readSpec(t, s.specPath("a")).Devices); got != 3 {
		t.Errorf("the spec has %d devices, want 3", got)
	}
	inject(t, s.specDir, names[:3]...)
}

// The spec was deleted under a running pod, re-prepare did not write it, and the container's restart
// failed with "unresolvable CDI devices".
func TestFieldCase13b_SpecIsEnsuredAgain(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, s *simulated, path string) error{
		"deleted":         func(_ *testing.T, _ *simulated, path string) error { return os.Remove(path) },
		"emptied":         func(_ *testing.T, _ *simulated, path string) error { return os.Truncate(path, 0) },
		"cut":             func(_ *testing.T, _ *simulated, path string) error { return os.Truncate(path, 100) },
		"of another size": func(_ *testing.T, _ *simulated, path string) error { return os.WriteFile(path, []byte("{}"), 0o644) },
		"changed, same size": func(_ *testing.T, _ *simulated, path string) error {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			return os.WriteFile(path, []byte(strings.ReplaceAll(string(data), "/dev/nvidia0", "/dev/nvidia9")), 0o644)
		},
		"not readable for others": func(_ *testing.T, _ *simulated, path string) error { return os.Chmod(path, 0o600) },
		"a symbolic link": func(t *testing.T, _ *simulated, path string) error {
			elsewhere := filepath.Join(t.TempDir(), "spec.json")
			return errors.Join(os.Rename(path, elsewhere), os.Symlink(elsewhere, path))
		},
		"gone with its directory": func(_ *testing.T, s *simulated, _ string) error { return os.RemoveAll(s.specDir) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newSimulated(t, "t4")
			devices := devicesOf(s.refreshed(t)[0])
			write(t, s.Writer, "a", devices...)
			path := s.specPath("a")
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := damage(t, s, path); err != nil {
				t.Fatal(err)
			}
			write(t, s.Writer, "a", devices...)
			info, err := os.Lstat(path)
			if err != nil || info.Mode() != 0o644 {
				t.Fatalf("mode %v, %v", info.Mode(), err)
			}
			if got, err := os.ReadFile(path); err != nil || string(got) != string(want) {
				t.Errorf("spec was not restored: %v\n%s", err, cmp.Diff(string(want), string(got)))
			}
			if got := s.specFiles(t); len(got) != 1 {
				t.Errorf("spec directory holds %v", got)
			}
		})
	}
}

func TestSpecThatIsRightIsNotWrittenAgain(t *testing.T) {
	s := newSimulated(t, "dgx-a100")
	devices := devicesOf(s.refreshed(t)...)
	write(t, s.Writer, "a", devices...)
	before, err := os.Stat(s.specPath("a"))
	if err != nil {
		t.Fatal(err)
	}
	s.refreshed(t)
	write(t, s.Writer, "a", devices...)
	after, err := os.Stat(s.specPath("a"))
	if err != nil {
		t.Fatal(err)
	}
	if !os.SameFile(before, after) || !before.ModTime().Equal(after.ModTime()) {
		t.Error("the file was replaced or written to")
	}
}

func TestSpecsAreTheSameWhoeverWritesThem(t *testing.T) {
	s := newSimulated(t, "dgx-a100")
	devices := devicesOf(s.refreshed(t)...)
	write(t, s.Writer, "a", devices...)
	want, err := os.ReadFile(s.specPath("a"))
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		another, err := NewWriter(s.ctx, s.options)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(another.Refresh(s.ctx, s.inventory(t)), os.Remove(s.specPath("a"))); err != nil {
			t.Fatal(err)
		}
		write(t, another, "a", devices...)
		if got, err := os.ReadFile(s.specPath("a")); err != nil || string(got) != string(want) {
			t.Fatalf("%v; spec (-first +now):\n%s", err, cmp.Diff(string(want), string(got)))
		}
	}
}

// Killed mid-prepare: temporary files piled up in the CDI directory.
func TestFieldCase13c_TemporaryFilesAreRemovedAtStart(t *testing.T) {
	s := newSimulated(t, "t4")
	write(t, s.Writer, "a", devicesOf(s.refreshed(t)[0])...)
	stay := []string{
		".gpu.switchyard.dev_metadata_a_gpus.json.1.tmp", // The helper's.
		".nvidia.com-gpu.json.77.tmp", "spec.123.tmp",    // Of other vendors.
		"nvidia.com-gpu.json",
	}
	for _, name := range append([]string{".gpu.switchyard.dev-claim_b.json.4711.tmp", ".gpu.switchyard.dev-claim_a.json.1.tmp"}, stay...) {
		if err := os.WriteFile(filepath.Join(s.specDir, name), []byte(`{"half`), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := NewWriter(s.ctx, s.options); err != nil {
		t.Fatal(err)
	}
	want := slices.Sorted(slices.Values(append(stay, "gpu.switchyard.dev-claim_a.json")))
	if diff := cmp.Diff(want, s.specFiles(t)); diff != "" {
		t.Errorf("spec directory (-want +got):\n%s", diff)
	}
}

func TestClaimsAndRemoveClaim(t *testing.T) {
	s := newSimulated(t, "t4")
	if claims, err := s.Claims(); err != nil || len(claims) != 0 {
		t.Errorf("without a directory: %v, %v", claims, err)
	}
	device := devicesOf(s.refreshed(t)[0])
	foreign := []string{"nvidia.com-gpu.json", "gpu.switchyard.dev_metadata_a_gpus.json", "gpu.switchyard.dev-claim_x.yaml", "gpu.switchyard.dev-claim_..json"}
	for _, uid := range []types.UID{"b", "a", "c"} {
		write(t, s.Writer, uid, device...)
	}
	for _, name := range foreign {
		if err := os.WriteFile(filepath.Join(s.specDir, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if claims, err := s.Claims(); err != nil || !slices.Equal(claims, []types.UID{"a", "b", "c"}) {
		t.Errorf("claims are %v, %v", claims, err)
	}
	for _, uid := range []types.UID{"b", "b", "never", "", "../../x", "."} {
		if err := s.RemoveClaim(uid); err != nil {
			t.Errorf("remove %q: %v", uid, err)
		}
	}
	if claims, err := s.Claims(); err != nil || !slices.Equal(claims, []types.UID{"a", "c"}) {
		t.Errorf("claims are %v, %v", claims, err)
	}
	for _, name := range foreign {
		if _, err := os.Stat(filepath.Join(s.specDir, name)); err != nil {
			t.Errorf("a foreign file is gone: %v", err)
		}
	}
}

func TestWriteClaimRefuses(t *testing.T) {
	s := newSimulated(t, "t4")
	if _, err := s.WriteClaim("a", []ClaimDevice{{Name: "gpu-x"}}); !errors.Is(err, ErrNotReady) {
		t.Errorf("before Refresh: %v, want ErrNotReady", err)
	}
	known := s.refreshed(t)[0].Name()
	for name, test := range map[string]struct {
		claim   types.UID
		devices []ClaimDevice
		want    string
	}{
		"no claim UID":                            {"", []ClaimDevice{{Name: known}}, `claim UID "": must be`},
		"a claim UID that is a path":              {"../../etc/x", []ClaimDevice{{Name: known}}, `claim UID "../../etc/x": must be`},
		"a claim UID that ends CDI names wrongly": {"a-", []ClaimDevice{{Name: known}}, `claim UID "a-": must be`},
		"no devices":                              {"a", nil, "no device"},
		"a device without name":                   {"a", []ClaimDevice{{}}, "has no name"},
		"a device name with a slash":              {"a", []ClaimDevice{{Name: "gpu/0"}}, `device "gpu/0" of claim UID a cannot be named in CDI`},
		"a share ID with an equals sign":          {"a", []ClaimDevice{{Name: known, ShareID: "s=1"}}, "cannot be named in CDI"},
		"a device of another node":                {"a", []ClaimDevice{{Name: known}, {Name: "gpu-elsewhere"}}, "device gpu-elsewhere is not among the GPUs of this node"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := s.WriteClaim(test.claim, test.devices)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v does not say %q", err, test.want)
			}
			if got := s.specFiles(t); len(got) != 0 {
				t.Errorf("spec directory holds %v", got)
			}
		})
	}
}

func TestManyClaimsAtOnceWhileRefreshing(t *testing.T) {
	s := newSimulated(t, "dgx-a100")
	gpus := s.refreshed(t)
	inv := s.inventory(t)
	var group sync.WaitGroup
	group.Go(func() {
		for range 5 {
			if err := s.Refresh(s.ctx, inv); err != nil {
				t.Error(err)
			}
		}
	})
	for i := range 16 {
		group.Go(func() {
			uid := types.UID(fmt.Sprintf("claim-%d", i))
			for range 5 {
				if _, err := s.WriteClaim(uid, devicesOf(gpus[i%8])); err != nil {
					t.Error(err)
				}
				if i%2 == 0 {
					if err := s.RemoveClaim(uid); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	group.Wait()
	if claims, err := s.Claims(); err != nil || len(claims) != 8 {
		t.Errorf("claims are %v, %v; want the 8 odd ones", claims, err)
	}
}

// A container runtime reads while we write: it must see the spec as it was or as it is.
func TestFieldCase06_SpecsAreReadWhileWritten(t *testing.T) {
	s := newSimulated(t, "dgx-a100")
	gpus := s.refreshed(t)
	write(t, s.Writer, "a", devicesOf(gpus[0])...)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 100 {
			if _, err := s.WriteClaim("a", devicesOf(gpus[:1+i%8]...)); err != nil {
				t.Error(err)
			}
		}
	}()
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		if spec := readSpec(t, s.specPath("a")); len(spec.Devices) == 0 {
			t.Fatal("a spec without devices was seen")
		}
	}
}

func TestFullDiskKeepsTheOldSpec(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting a small file system needs root")
	}
	s := newSimulated(t, "dgx-a100")
	gpus := s.refreshed(t)
	if err := os.MkdirAll(s.specDir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", s.specDir, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatalf("mount a small tmpfs: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(s.specDir, unix.MNT_DETACH) })
	write(t, s.Writer, "a", devicesOf(gpus[0])...)
	if err := os.WriteFile(filepath.Join(s.specDir, "filler"), make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("filling the disk: %v, want ENOSPC", err)
	}
	for _, uid := range []types.UID{"a", "b"} {
		if _, err := s.WriteClaim(uid, devicesOf(gpus...)); !errors.Is(err, unix.ENOSPC) {
			t.Errorf("claim %s: %v, want ENOSPC", uid, err)
		}
	}
	if got := len(readSpec(t, s.specPath("a")).Devices); got != 1 {
		t.Errorf("the old spec has %d devices, want 1", got)
	}
	if diff := cmp.Diff([]string{"filler", "gpu.switchyard.dev-claim_a.json"}, s.specFiles(t)); diff != "" {
		t.Errorf("spec directory (-want +got):\n%s", diff)
	}
}

func TestOptionsNameWhatIsWrong(t *testing.T) {
	library := func() gonvml.Interface { return nil }
	for name, test := range map[string]struct {
		options Options
		want    string
	}{
		"no spec directory":      {Options{NVML: library}, "SpecDir"},
		"a relative directory":   {Options{NVML: library, SpecDir: "cdi"}, `SpecDir: must be an absolute path, not "cdi"`},
		"a relative driver root": {Options{NVML: library, SpecDir: "/cdi", DriverRoot: "driver"}, "DriverRoot"},
		"a relative hook":        {Options{NVML: library, SpecDir: "/cdi", HookPath: "nvidia-cdi-hook"}, "HookPath"},
		"a relative dev root":    {Options{NVML: library, SpecDir: "/cdi", DevRoot: "dev"}, "DevRoot"},
		"no NVML":                {Options{SpecDir: "/cdi"}, "NVML"},
		"two roots at one place": {Options{NVML: library, SpecDir: "/cdi", DriverRoot: "/run/nvidia/driver", DriverRootMount: "/"}, "DriverRootMount: must not be /"},
	} {
		if _, err := NewWriter(t.Context(), test.options); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v does not say %q", name, err, test.want)
		}
	}
}

func TestRefreshWithoutNVML(t *testing.T) {
	s := newSimulated(t, "t4")
	inv := s.inventory(t)
	w, err := NewWriter(s.ctx, Options{SpecDir: s.specDir, NVML: func() gonvml.Interface { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Refresh(s.ctx, inv); !errors.Is(err, errNoNVML) {
		t.Errorf("error is %v", err)
	}
	if err := s.SetDriverFailure(simulator.DriverNotLoaded); err != nil {
		t.Fatal(err)
	}
	if err := s.Refresh(s.ctx, inv); err == nil || !strings.Contains(err.Error(), "compute CDI edits") {
		t.Errorf("error is %v", err)
	}
	if err := s.Check(devicesOf(inv.GPUs...)); !errors.Is(err, ErrNotReady) {
		t.Errorf("check: %v, want ErrNotReady", err)
	}
	if err := s.SetDriverFailure(""); err != nil {
		t.Fatal(err)
	}
	write(t, s.Writer, "a", devicesOf(s.refreshed(t)...)...)
}
