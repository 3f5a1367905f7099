// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"

	"github.com/switchyard-dev/switchyard/pkg/device"
	"github.com/switchyard-dev/switchyard/pkg/nvml"
	"github.com/switchyard-dev/switchyard/test/nvmlstub"
)

// inProcess marks a test process that may load NVML: the dynamic linker keeps a library for the life of
// a process, so every test of dlopen gets its own.
const inProcess = "SWITCHYARD_NVML_TEST_PROCESS"

// ownProcess runs the calling test again in a process of its own, and reports whether this is that
// process. An undefined symbol ends it, which fails the test.
func ownProcess(t *testing.T) bool {
	t.Helper()
	if os.Getenv(inProcess) != "" {
		return true
	}
	command := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	command.Env = append(os.Environ(), inProcess+"=1")
	if output, err := command.CombinedOutput(); err != nil || !strings.Contains(string(output), "--- PASS: "+t.Name()) {
		t.Errorf("in its own process: %v\n%s", err, output)
	}
	return false
}

// install builds the stub under the driver root.
func install(t *testing.T, root string, options nvmlstub.Options) string {
	t.Helper()
	path, err := nvmlstub.Install(t.Context(), root, options)
	if errors.Is(err, nvmlstub.ErrNoCompiler) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func open(t *testing.T, root string) *nvml.Library {
	t.Helper()
	library, err := nvml.Open(nvml.Options{NodeName: "node-a", DriverRoot: root, SysfsRoot: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := library.Close(); err != nil {
			t.Error(err)
		}
	})
	return library
}

func stubGPU(index int) device.GPU {
	return device.GPU{
		UUID: "GPU-57ab0000-0000-4000-8000-00000000000" + string(rune('0'+index)), Index: index, Minor: new(index),
		ProductName: "NVIDIA Stub 80GB", Brand: "Nvidia", Architecture: "Hopper", ComputeCapability: "9.0",
		PCIBusID: "000" + string(rune('8'+index)) + ":06:00.0", MemoryBytes: 80 << 30, Multiprocessors: 132,
		NVLinks: 4, NVSwitchDomain: "node-a.0", NVSwitchDomainSize: 2, NVLinksPerPeer: 4,
	}
}

func requireReason(t *testing.T, library *nvml.Library, reason, text string) {
	t.Helper()
	_, err := library.Discover(t.Context())
	var unavailable *nvml.UnavailableError
	if !errors.As(err, &unavailable) || unavailable.Reason != reason || !strings.Contains(err.Error(), text) {
		t.Errorf("error %v, want reason %s and %q", err, reason, text)
	}
}

func TestTheSharedLibraryGivesTheInventory(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	root := t.TempDir()
	install(t, root, nvmlstub.Options{})
	library := open(t, root)
	want := device.Inventory{NodeName: "node-a", DriverVersion: "580.105.08", CUDADriverVersion: "13.0", GPUs: []device.GPU{stubGPU(0), stubGPU(1)}}
	for range 2 {
		got, err := library.Discover(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("inventory (-want +got):\n%s", diff)
		}
	}
	// Others initialise and leave beside us.
	other := library.Interface()
	if ret := other.Init(); ret != gonvml.SUCCESS {
		t.Fatalf("Init: %v", ret)
	}
	if count, ret := other.DeviceGetCount(); ret != gonvml.SUCCESS || count != 2 {
		t.Errorf("%d devices, %v", count, ret)
	}
	if ret := other.Shutdown(); ret != gonvml.SUCCESS {
		t.Errorf("Shutdown: %v", ret)
	}
	if _, err := library.Discover(t.Context()); err != nil {
		t.Errorf("after another's Shutdown: %v", err)
	}
}

func TestTheSharedLibraryGivesVersionedFabricInfo(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	root := t.TempDir()
	install(t, root, nvmlstub.Options{FabricState: gonvml.GPU_FABRIC_STATE_COMPLETED})
	got, err := open(t, root).Discover(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, gpu := range got.GPUs {
		if want := "00000001-0000-0000-0000-000000000001.32766"; gpu.NVSwitchDomain != want {
			t.Errorf("domain %q, want %q", gpu.NVSwitchDomain, want)
		}
	}
}

func TestAnOlderLibraryGivesPlainFabricInfo(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	root := t.TempDir()
	install(t, root, nvmlstub.Options{FabricState: gonvml.GPU_FABRIC_STATE_COMPLETED, Without: []string{"nvmlDeviceGetGpuFabricInfoV"}})
	got, err := open(t, root).Discover(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if want := "00000001-0000-0000-0000-000000000001.7"; got.GPUs[0].NVSwitchDomain != want {
		t.Errorf("domain %q, want %q", got.GPUs[0].NVSwitchDomain, want)
	}
}

func TestFunctionsThatAnOldLibraryLacksAreNotCalled(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	root := t.TempDir()
	install(t, root, nvmlstub.Options{Without: []string{
		"nvmlSystemGetCudaDriverVersion_v2", "nvmlDeviceGetMinorNumber", "nvmlDeviceGetBrand", "nvmlDeviceGetArchitecture",
		"nvmlDeviceGetCudaComputeCapability", "nvmlDeviceGetNumGpuCores", "nvmlDeviceGetMigMode", "nvmlDeviceGetNvLinkRemoteDeviceType",
		"nvmlDeviceGetP2PStatus", "nvmlDeviceGetGpuFabricInfo", "nvmlDeviceGetGpuFabricInfoV",
	}})
	got, err := open(t, root).Discover(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := stubGPU(0)
	want.Minor, want.Brand, want.Architecture, want.ComputeCapability, want.Multiprocessors = nil, "", "", "", 0
	if diff := cmp.Diff(want, got.GPUs[0]); diff != "" || got.CUDADriverVersion != "13.0" {
		t.Errorf("CUDA %q, GPU (-want +got):\n%s", got.CUDADriverVersion, diff)
	}
}

func TestALibraryThatIsInstalledLaterIsFoundWithoutRestart(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	root := t.TempDir()
	library := open(t, root)
	requireReason(t, library, nvml.ReasonLibraryNotFound, "under driver root "+root)
	if ret := library.Interface().Init(); ret != gonvml.ERROR_LIBRARY_NOT_FOUND {
		t.Errorf("Init of the interface: %v", ret)
	}

	dir := filepath.Join(root, "usr", "lib64")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, nvmlstub.Soname)
	if err := os.WriteFile(file, []byte("half a file"), 0o644); err != nil {
		t.Fatal(err)
	}
	requireReason(t, library, nvml.ReasonLibraryNotFound, "read ELF header of "+file)

	// The linker would end the process with SIGBUS at the end of this one.
	install(t, root, nvmlstub.Options{})
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, truncated(whole), 0o644); err != nil {
		t.Fatal(err)
	}
	requireReason(t, library, nvml.ReasonLibraryNotFound, "is incomplete: 4096 bytes")

	install(t, root, nvmlstub.Options{Unloadable: true})
	requireReason(t, library, nvml.ReasonLibraryNotFound, "undefined symbol: defined_nowhere")

	install(t, root, nvmlstub.Options{})
	got, err := library.Discover(t.Context())
	if err != nil || len(got.GPUs) != 2 {
		t.Errorf("once installed: %d GPUs, %v", len(got.GPUs), err)
	}
}

// truncated returns the first page of a 64-bit ELF file, without the section headers, which would tell.
func truncated(file []byte) []byte {
	cut := append([]byte(nil), file[:4096]...)
	clear(cut[0x28:0x30]) // e_shoff
	clear(cut[0x3c:0x40]) // e_shnum, e_shstrndx
	return cut
}

func TestALibraryOfAnotherMachineIsPassedOver(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	root := t.TempDir()
	file := install(t, root, nvmlstub.Options{})
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	content[0x12], content[0x13] = 3, 0 // e_machine: EM_386
	if err := os.WriteFile(file, content, 0o644); err != nil {
		t.Fatal(err)
	}
	library := open(t, root)
	requireReason(t, library, nvml.ReasonLibraryNotFound, "EM_386")

	// The right one lies elsewhere.
	multiarch := filepath.Join(root, "lib64", nvmlstub.Soname)
	if err := os.MkdirAll(filepath.Dir(multiarch), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := nvmlstub.Build(t.Context(), multiarch, nvmlstub.Options{GPUs: -1}); err != nil {
		t.Fatal(err)
	}
	if got, err := library.Discover(t.Context()); err != nil || len(got.GPUs) != 0 {
		t.Errorf("%d GPUs, %v; want a node without GPUs", len(got.GPUs), err)
	}
}

func TestLinksInsideADriverRootAreReadInsideIt(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	root := t.TempDir()
	file := install(t, root, nvmlstub.Options{GPUs: 3})
	versioned := filepath.Join(filepath.Dir(file), "libnvidia-ml.so.580.105.08")
	for _, err := range []error{
		os.Rename(file, versioned),
		os.Symlink("/usr/lib64/libnvidia-ml.so.580.105.08", file), // as after chroot
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	got, err := open(t, root).Discover(t.Context())
	if err != nil || len(got.GPUs) != 3 {
		t.Fatalf("%d GPUs, %v", len(got.GPUs), err)
	}
	// The third has no partner: its links exist and are down.
	if gpu := got.GPUs[2]; gpu.NVSwitchDomain != "" || gpu.NVLinks != 0 {
		t.Errorf("GPU without a partner: domain %q, %d links", gpu.NVSwitchDomain, gpu.NVLinks)
	}

	endless := t.TempDir()
	if err := os.MkdirAll(filepath.Join(endless, "lib64"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/lib64/"+nvmlstub.Soname, filepath.Join(endless, "lib64", nvmlstub.Soname)); err != nil {
		t.Fatal(err)
	}
	requireReason(t, open(t, endless), nvml.ReasonLibraryNotFound, "symbolic links")
}

func TestALibraryThatIsReplacedWhileLoadedNeedsARestart(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	root := t.TempDir()
	// The kernel driver is newer already, the library is not yet.
	install(t, root, nvmlstub.Options{InitReturn: int(gonvml.ERROR_LIB_RM_VERSION_MISMATCH)})
	library := open(t, root)
	for range 2 {
		requireReason(t, library, nvml.ReasonVersionMismatch, "Driver/library version mismatch")
	}
	// The new library would do, but the linker keeps the old one.
	install(t, root, nvmlstub.Options{DriverVersion: "590.1"})
	requireReason(t, library, nvml.ReasonRestartRequired, "restart")
	if _, err := library.Discover(t.Context()); !errors.Is(err, nvml.ErrRestartRequired) || !errors.Is(err, nvml.ErrUnavailable) {
		t.Errorf("error %v is not ErrRestartRequired", err)
	}
}

func TestTheRootDirectoryLeavesTheSearchToTheLinker(t *testing.T) {
	if os.Getenv(inProcess) == "" {
		// The linker reads LD_LIBRARY_PATH when the process starts.
		dir := t.TempDir()
		file := filepath.Join(dir, nvmlstub.Soname)
		if err := nvmlstub.Build(context.Background(), file, nvmlstub.Options{GPUs: 5}); errors.Is(err, nvmlstub.ErrNoCompiler) {
			t.Skip(err)
		} else if err != nil {
			t.Fatal(err)
		}
		t.Setenv("LD_LIBRARY_PATH", dir)
		ownProcess(t)
		return
	}
	got, err := open(t, "/").Discover(t.Context())
	if err != nil || len(got.GPUs) != 5 {
		t.Errorf("%d GPUs, %v; want the five of the library in LD_LIBRARY_PATH", len(got.GPUs), err)
	}
}

func TestTheRootDirectoryWithoutADriverIsUnavailable(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	t.Setenv("LD_LIBRARY_PATH", "")
	if _, err := exec.LookPath("nvidia-smi"); err == nil {
		t.Skip("this machine has an NVIDIA driver")
	}
	requireReason(t, open(t, ""), nvml.ReasonLibraryNotFound, "libnvidia-ml.so.1: cannot open shared object file")
}
