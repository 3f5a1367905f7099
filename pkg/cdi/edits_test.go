// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/switchyard-dev/switchyard/pkg/device"
	"github.com/switchyard-dev/switchyard/pkg/simulator"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestGoldenSpecs(t *testing.T) {
	for name, hook := range map[string]string{"spec.json": "/usr/bin/nvidia-cdi-hook", "spec-without-hooks.json": ""} {
		t.Run(name, func(t *testing.T) {
			s := newSimulated(t, "dgx-a100", func(o *Options) { o.HookPath = hook })
			gpus := s.refreshed(t)
			claim := "7a1d1b5e-5d0c-4f5e-9c0b-0e6c5a3f9d11"
			write(t, s.Writer, "7a1d1b5e-5d0c-4f5e-9c0b-0e6c5a3f9d11", ClaimDevice{Name: gpus[0].Name()},
				ClaimDevice{Name: gpus[5].Name(), ShareID: "b5e2f1d0-6c0a-4f38-93a1-2f0c9f1f5e77"})
			data, err := os.ReadFile(s.specPath(claim))
			if err != nil {
				t.Fatal(err)
			}
			var got bytes.Buffer
			if err := json.Indent(&got, data, "", "  "); err != nil {
				t.Fatal(err)
			}
			// What depends on the machine that runs the test.
			text := strings.NewReplacer(s.DriverRoot(), "/run/nvidia/driver", "aarch64-linux-gnu", "x86_64-linux-gnu").Replace(got.String())
			path := filepath.Join("testdata", name)
			if *update {
				if err := os.WriteFile(path, []byte(text), 0o644); err != nil { //nolint:gosec // A test file.
					t.Fatal(err)
				}
			}
			golden, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(golden), text); diff != "" {
				t.Errorf("spec (-golden +now):\n%s", diff)
			}
		})
	}
}

// hostPaths are all paths of a spec that the container runtime uses on the host.
func hostPaths(spec *specs.Spec) []string {
	edits := []specs.ContainerEdits{spec.ContainerEdits}
	for _, d := range spec.Devices {
		edits = append(edits, d.ContainerEdits)
	}
	var paths []string
	for _, e := range edits {
		for _, n := range e.DeviceNodes {
			if n.HostPath == "" {
				n.HostPath = n.Path
			}
			paths = append(paths, n.HostPath)
		}
		for _, m := range e.Mounts {
			paths = append(paths, m.HostPath)
		}
	}
	return paths
}

func TestPathsAreTranslatedToTheHost(t *testing.T) {
	for name, test := range map[string]struct {
		// devRoot is relative to the simulated driver root.
		devRoot string
		driver  string
		want    func(driverRootMount string) (driver, dev string)
	}{
		"a driver container with its own nodes": {"", "/run/nvidia/driver", func(string) (string, string) {
			return "/run/nvidia/driver/", "/run/nvidia/driver/dev/"
		}},
		"a host driver seen through a mount": {"", "/", func(string) (string, string) { return "/", "/dev/" }},
		"nodes elsewhere keep their path": {"-nodes", "/run/nvidia/driver", func(mount string) (string, string) {
			// The name begins with that of the mount: it is not inside.
			return "/run/nvidia/driver/", mount + "-nodes/dev/"
		}},
	} {
		t.Run(name, func(t *testing.T) {
			var mount string
			s := newSimulated(t, "t4", func(o *Options) {
				mount = o.DriverRoot
				o.DriverRootMount, o.DriverRoot = mount, test.driver
				o.HookPath = mount + "-hooks/nvidia-cdi-hook"
				if test.devRoot != "" {
					o.DevRoot = mount + test.devRoot
					if err := errors.Join(os.MkdirAll(o.DevRoot, 0o755), os.Rename(filepath.Join(mount, "dev"), filepath.Join(o.DevRoot, "dev"))); err != nil {
						t.Fatal(err)
					}
				}
			})
			write(t, s.Writer, "a", devicesOf(s.refreshed(t)[0])...)
			spec := readSpec(t, s.specPath("a"))
			driver, dev := test.want(mount)
			devices, files := 0, 0
			for _, path := range hostPaths(spec) {
				switch {
				case path == "/dev/null": // nvcdi's mark for its own runtime.
				case strings.HasPrefix(path, dev+"nvidia"):
					devices++
				case strings.HasPrefix(path, driver+"usr/") || strings.HasPrefix(path, driver+"lib/"):
					files++
				default:
					t.Errorf("path %s is on no root of the host", path)
				}
			}
			if devices != 5 || files < 8 {
				t.Errorf("%d device nodes and %d files, want 5 and at least 8", devices, files)
			}
			for _, m := range spec.ContainerEdits.Mounts {
				if strings.HasPrefix(m.ContainerPath, mount) || strings.HasPrefix(m.ContainerPath, "/run/nvidia/driver") {
					t.Errorf("path %s in the container has a root", m.ContainerPath)
				}
			}
			for _, h := range spec.ContainerEdits.Hooks {
				if h.Path != mount+"-hooks/nvidia-cdi-hook" {
					t.Errorf("hook is %s", h.Path)
				}
			}
		})
	}
}

func TestHooks(t *testing.T) {
	for name, test := range map[string]struct {
		path string
		want bool
	}{"with a hook program": {"/opt/nvidia-cdi-hook", true}, "without": {"", false}} {
		t.Run(name, func(t *testing.T) {
			s := newSimulated(t, "t4", func(o *Options) { o.HookPath = test.path })
			write(t, s.Writer, "a", devicesOf(s.refreshed(t)[0])...)
			spec := readSpec(t, s.specPath("a"))
			hooks := append(slices.Clone(spec.ContainerEdits.Hooks), spec.Devices[0].ContainerEdits.Hooks...)
			if (len(hooks) > 0) != test.want {
				t.Errorf("%d hooks", len(hooks))
			}
			for _, hook := range hooks {
				if slices.Contains(hook.Args, string(applyMemoryLimitsHook)) {
					t.Errorf("hook %v lets a container change a setting of the GPU", hook.Args)
				}
			}
		})
	}
}

// One lost GPU must not take the others with it.
func TestFieldCase21_LostGPUDoesNotDisturbTheOthers(t *testing.T) {
	s := newSimulated(t, "dgx-a100")
	before := s.inventory(t)
	if err := s.Refresh(s.ctx, before); err != nil {
		t.Fatal(err)
	}
	write(t, s.Writer, "running", devicesOf(before.GPUs[2])...)
	if err := s.LoseGPU(2); err != nil {
		t.Fatal(err)
	}
	after := device.Merge(before, s.inventory(t))
	if after.GPUs[2].Health.Reason != device.ReasonLost {
		t.Fatalf("GPU 2 is %+v, want lost", after.GPUs[2].Health)
	}
	if err := s.Refresh(s.ctx, after); err != nil {
		t.Fatal(err)
	}
	write(t, s.Writer, "others", devicesOf(slices.Delete(slices.Clone(after.GPUs), 2, 3)...)...)
	if err := os.Remove(s.specPath("running")); err != nil {
		t.Fatal(err)
	}
	write(t, s.Writer, "running", devicesOf(after.GPUs[2])...) // It keeps what it had.

	restarted, err := NewWriter(s.ctx, s.options)
	if err != nil {
		t.Fatal(err)
	}
	if err := restarted.Refresh(s.ctx, after); err != nil {
		t.Fatal(err)
	}
	_, err = restarted.WriteClaim("new", devicesOf(after.GPUs[2]))
	var edits *DeviceEditsError
	if !errors.As(err, &edits) || edits.Device != after.GPUs[2].Name() || !strings.Contains(err.Error(), "lost") {
		t.Errorf("error is %v, want that the GPU is lost", err)
	}
}

// The driver numbers GPUs when it is loaded. Where one was lost before, the next has its number and device node: what the lost
// one had would give its containers the GPU of another claim.
func TestLostGPUWhoseNodeIsAnotherGPUs(t *testing.T) {
	s := newSimulated(t, "dgx-a100")
	before := s.inventory(t)
	if err := s.Refresh(s.ctx, before); err != nil {
		t.Fatal(err)
	}
	write(t, s.Writer, "running", devicesOf(before.GPUs[2])...)
	if err := s.RemoveGPU(2); err != nil {
		t.Fatal(err)
	}
	if err := s.Update(func(state *simulator.State) error {
		state.GPUs[3].Minor = state.GPUs[2].Minor
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	after := device.Merge(before, s.inventory(t))
	restarted, err := NewWriter(s.ctx, s.options)
	if err != nil {
		t.Fatal(err)
	}
	for name, writer := range map[string]*Writer{"this process": s.Writer, "the next": restarted} {
		if err := writer.Refresh(s.ctx, after); err != nil {
			t.Fatal(err)
		}
		if _, err := writer.WriteClaim("running", devicesOf(after.GPUs[2])); !errors.Is(err, ErrNodeTaken) {
			t.Errorf("%s: writing the spec of the lost GPU = %v, want that its node is another's", name, err)
		}
		write(t, writer, "other", devicesOf(after.GPUs[3])...)
	}
}

func TestGPUsThatDoNotAnswerKeepWhatTheyHad(t *testing.T) {
	for _, reason := range []string{device.ReasonNotAnswering, device.ReasonNVMLUnavailable} {
		t.Run(reason, func(t *testing.T) {
			s := newSimulated(t, "dgx-a100")
			inv := s.inventory(t)
			if err := s.Refresh(s.ctx, inv); err != nil {
				t.Fatal(err)
			}
			inv.GPUs = slices.Clone(inv.GPUs)
			for i := range inv.GPUs {
				if err := s.LoseGPU(i); err != nil {
					t.Fatal(err)
				}
				inv.GPUs[i].Health = device.Health{Reason: reason, Message: "test"}
			}
			if err := s.Refresh(s.ctx, inv); err != nil {
				t.Errorf("although none of them is to be asked: %v", err)
			}
			write(t, s.Writer, "running", devicesOf(inv.GPUs...)...)
		})
	}
}

// fakeGenerator returns edits of /dev/null, or errors by UUID ("" for the common edits).
type fakeGenerator struct {
	fail  map[string]error
	edits func() specs.ContainerEdits
	calls int
}

func (g *fakeGenerator) common() (specs.ContainerEdits, error) {
	g.calls++
	return g.edits(), g.fail[""]
}

func (g *fakeGenerator) device(uuid string) (specs.ContainerEdits, error) {
	return g.edits(), g.fail[uuid]
}

func fakeWriter(t *testing.T, g *fakeGenerator) *Writer {
	t.Helper()
	s := newSimulated(t, "t4")
	s.newGenerator = func(context.Context, string) (generator, error) { return g, nil }
	return s.Writer
}

func nullNode() specs.ContainerEdits {
	return specs.ContainerEdits{Env: []string{"A=b"}, DeviceNodes: []*specs.DeviceNode{
		{Path: "/dev/nvidiactl", HostPath: "/dev/null", Major: 1, Minor: 3},
		{Path: "/dev/nvidia-uvm", HostPath: "/dev/null", Major: 1, Minor: 3},
	}}
}

func TestRefreshFailures(t *testing.T) {
	inv := device.Inventory{GPUs: []device.GPU{{UUID: "GPU-0"}, {UUID: "GPU-1"}}}
	broken := errors.New("nvml is broken")

	t.Run("one GPU that cannot be asked fails alone, and is asked again when it is needed", func(t *testing.T) {
		g := &fakeGenerator{edits: nullNode, fail: map[string]error{"GPU-1": broken}}
		w := fakeWriter(t, g)
		if err := w.Refresh(t.Context(), inv); err != nil {
			t.Fatal(err)
		}
		write(t, w, "a", ClaimDevice{Name: "gpu-0"})
		_, err := w.WriteClaim("b", []ClaimDevice{{Name: "gpu-1"}})
		var edits *DeviceEditsError
		if !errors.As(err, &edits) || !errors.Is(err, broken) || edits.Device != "gpu-1" {
			t.Errorf("error is %v, want that of gpu-1", err)
		}
		delete(g.fail, "GPU-1")
		write(t, w, "b", ClaimDevice{Name: "gpu-1"})
		if g.calls != 3 {
			t.Errorf("nvcdi was asked %d times, want 3", g.calls)
		}
	})
	t.Run("one GPU that cannot be asked any more keeps the edits that it had", func(t *testing.T) {
		g := &fakeGenerator{edits: func() specs.ContainerEdits {
			e := nullNode()
			e.AdditionalGIDs = []uint32{7} // since CDI 0.7.0
			return e
		}}
		w := fakeWriter(t, g)
		if err := w.Refresh(t.Context(), inv); err != nil {
			t.Fatal(err)
		}
		write(t, w, "a", ClaimDevice{Name: "gpu-1"})
		want := readSpec(t, filepath.Join(w.options.SpecDir, specName("a")))
		g.fail, g.edits = map[string]error{"GPU-1": broken}, nullNode
		if err := errors.Join(w.Refresh(t.Context(), inv), w.RemoveClaim("a")); err != nil {
			t.Fatal(err)
		}
		write(t, w, "a", ClaimDevice{Name: "gpu-1"})
		got := readSpec(t, filepath.Join(w.options.SpecDir, specName("a")))
		if diff := cmp.Diff(want.Devices, got.Devices); diff != "" || got.Version != want.Version {
			t.Errorf("version %s, want %s; devices (-before +now):\n%s", got.Version, want.Version, diff)
		}
	})
	t.Run("no GPU that can be asked is an error, and what was known stays", func(t *testing.T) {
		g := &fakeGenerator{edits: nullNode, fail: map[string]error{}}
		w := fakeWriter(t, g)
		if err := w.Refresh(t.Context(), inv); err != nil {
			t.Fatal(err)
		}
		g.fail = map[string]error{"GPU-0": broken, "GPU-1": broken}
		if err := w.Refresh(t.Context(), inv); !errors.Is(err, broken) || !strings.Contains(err.Error(), "gpu-0") || !strings.Contains(err.Error(), "gpu-1") {
			t.Errorf("error is %v, want that of both", err)
		}
		g.fail = map[string]error{"": broken}
		if err := w.Refresh(t.Context(), inv); !errors.Is(err, broken) {
			t.Errorf("error is %v, want %v", err, broken)
		}
		write(t, w, "a", ClaimDevice{Name: "gpu-0"})
	})
	t.Run("edits that no runtime would take are an error", func(t *testing.T) {
		g := &fakeGenerator{edits: func() specs.ContainerEdits {
			e := nullNode()
			e.Env = []string{"no value"}
			return e
		}}
		if err := fakeWriter(t, g).Refresh(t.Context(), inv); err == nil || !strings.Contains(err.Error(), "not valid") {
			t.Errorf("error is %v", err)
		}
	})
	t.Run("a node without GPUs is no error", func(t *testing.T) {
		g := &fakeGenerator{edits: nullNode, fail: map[string]error{"": broken}}
		w := fakeWriter(t, g)
		if err := w.Refresh(t.Context(), device.Inventory{}); err != nil {
			t.Fatal(err)
		}
		var unknown *UnknownDeviceError
		if _, err := w.WriteClaim("a", []ClaimDevice{{Name: "gpu-0"}}); !errors.As(err, &unknown) {
			t.Errorf("error is %v, want *UnknownDeviceError", err)
		}
	})
	t.Run("a caller that has given up gets nothing", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := fakeWriter(t, &fakeGenerator{edits: nullNode}).Refresh(ctx, inv); !errors.Is(err, context.Canceled) {
			t.Errorf("error is %v", err)
		}
	})
}

// Names of GPUs do not depend on the minor number, which WSL does not have.
func TestFieldCase29_GPUWithoutMinorNumber(t *testing.T) {
	if got := neededNodes(device.GPU{UUID: "GPU-0"}); got != nil {
		t.Errorf("needs %v, want nothing", got)
	}
	if got := neededNodes(device.GPU{UUID: "GPU-0", Index: 1, Minor: new(7)}); !slices.Equal(got, []string{"/dev/nvidia7"}) {
		t.Errorf("needs %v, want /dev/nvidia7", got)
	}
	w := fakeWriter(t, &fakeGenerator{edits: nullNode})
	if err := w.Refresh(t.Context(), device.Inventory{GPUs: []device.GPU{{UUID: "GPU-0"}}}); err != nil {
		t.Fatal(err)
	}
	write(t, w, "a", ClaimDevice{Name: "gpu-0"})
}

// FuzzWriteClaim: whatever the names, a spec is written that a runtime takes, in the directory and
// nowhere else, or an error.
func FuzzWriteClaim(f *testing.F) {
	for _, seed := range [][3]string{
		{"7a1d1b5e-5d0c-4f5e-9c0b-0e6c5a3f9d11", "gpu-0", ""},
		{"a", "gpu-0", "share-1"},
		{"../x", "gpu-0", ""},
		{"a", "../gpu", ""},
		{"a", "gpu=0", "/"},
		{"a\n", "gpu-0", "\x00"},
		{"", "", ""},
		{"-", "gpu-0", "-"},
		{"a", "gpu-0", "é"},
	} {
		f.Add(seed[0], seed[1], seed[2])
	}
	dir, err := os.MkdirTemp("", "cdi")
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = os.RemoveAll(dir) })
	specDir := filepath.Join(dir, "specs")
	f.Fuzz(func(t *testing.T, claim, name, share string) {
		w := &Writer{options: Options{SpecDir: specDir, DriverRoot: "/", DriverRootMount: "/", DevRoot: "/", Timeout: DefaultTimeout}}
		w.newGenerator = func(context.Context, string) (generator, error) { return &fakeGenerator{edits: nullNode}, nil }
		if err := w.Refresh(t.Context(), device.Inventory{GPUs: []device.GPU{{UUID: name}}}); err != nil {
			return // The name makes no valid spec.
		}
		claimDevice := ClaimDevice{Name: device.GPU{UUID: name}.Name(), ShareID: asUID(share)}
		names, err := w.WriteClaim(asUID(claim), []ClaimDevice{claimDevice})
		if err == nil {
			inject(t, specDir, names...)
			claims, err := w.Claims()
			if err != nil || !slices.Contains(claims, asUID(claim)) {
				t.Errorf("claims are %v, %v", claims, err)
			}
		}
		if err := w.RemoveClaim(asUID(claim)); err != nil {
			t.Error(err)
		}
		for _, d := range []string{dir, specDir} {
			entries, err := os.ReadDir(d)
			if err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
			for _, entry := range entries {
				if d != dir || entry.Name() != "specs" {
					t.Fatal(fmt.Errorf("%s is left in %s", entry.Name(), d))
				}
			}
		}
	})
}
