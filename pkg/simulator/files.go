// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"

	"github.com/switchyard-dev/switchyard/pkg/simulator/driver"
	"github.com/switchyard-dev/switchyard/pkg/simulator/profile"
)

// rootDir is the driver root within a node's directory.
const rootDir = "root"

// controlNodes are the device nodes that all GPUs share.
var controlNodes = []string{"nvidiactl", "nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools"}

// driverLibraries are the libraries of the driver, without version. Their SONAMEs end in 1.
var driverLibraries = []string{
	"libcuda.so", "libcudadebugger.so", "libnvidia-allocator.so", "libnvidia-cfg.so", "libnvidia-ml.so",
	"libnvidia-nvvm.so", "libnvidia-opencl.so", "libnvidia-ptxjitcompiler.so",
}

// driverBinaries are the programs of the driver that containers get, beside nvidia-smi.
var driverBinaries = []string{"nvidia-cuda-mps-server", "nvidia-debugdump", "nvidia-persistenced"}

// libraryDir is where Debian keeps the libraries of this machine's architecture.
func libraryDir() string {
	if runtime.GOARCH == "arm64" {
		return "usr/lib/aarch64-linux-gnu"
	}
	return "usr/lib/x86_64-linux-gnu"
}

// materialize makes the files of a driver root as they follow from the state. It leaves alone what is
// right already, so that bind mounts of it in containers stay what they are, and may be repeated.
func materialize(dir string, s State) error {
	root := filepath.Join(dir, rootDir)
	for _, step := range []struct {
		what string
		make func(root string, s State) error
	}{
		{"device nodes", makeDeviceNodes},
		{"sysfs", makeSysfs},
		{"driver", makeDriver},
		{"MIG capabilities", makeCapabilities},
	} {
		if err := step.make(root, s); err != nil {
			return fmt.Errorf("make simulated %s: %w", step.what, err)
		}
	}
	return nil
}

// filesSeen is what of the files can change with the state, those of MIG instances aside: equal values,
// equal files.
func filesSeen(s State) string {
	s.GPUs = slices.Clone(s.GPUs)
	for i := range s.GPUs {
		s.GPUs[i].MIG = withoutInstances(s.GPUs[i].MIG)
	}
	smi := smiScript(s)
	for _, gpu := range s.GPUs {
		smi = strconv.AppendBool(smi, gpu.Health == HealthRemoved) // gone from sysfs
	}
	return string(smi)
}

func makeDeviceNodes(root string, s State) error {
	dev := filepath.Join(root, "dev")
	if err := os.MkdirAll(dev, 0o755); err != nil {
		return err
	}
	names := append([]string(nil), controlNodes...)
	for _, gpu := range s.GPUs {
		names = append(names, "nvidia"+strconv.Itoa(gpu.Minor))
	}
	for _, name := range names {
		if err := makeDeviceNode(filepath.Join(dev, name), s.DeviceNodes); err != nil {
			return err
		}
	}
	return nil
}

// makeDeviceNode makes one node. Its device is that of /dev/null: the numbers of the NVIDIA driver would
// give containers the GPUs of a machine that has some.
func makeDeviceNode(path string, kind DeviceNodes) error {
	if kind == DeviceNodesFiles {
		return writeFile(path, nil, 0o666)
	}
	info, err := os.Lstat(path)
	if err == nil && info.Mode().Type() == fs.ModeDevice|fs.ModeCharDevice {
		return nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil {
		err = fmt.Errorf("mknod %s: %w", path, err)
		if errors.Is(err, unix.EPERM) {
			err = fmt.Errorf("%w: run as root with CAP_MKNOD, or ask for device nodes of kind %q", err, DeviceNodesFiles)
		}
		return err
	}
	// The umask had its say.
	return os.Chmod(path, 0o666)
}

// makeSysfs makes the part of sysfs that tells where the GPUs and NVSwitches are. A removed GPU has no
// entry.
func makeSysfs(root string, s State) error {
	devices := filepath.Join(root, "sys", "bus", "pci", "devices")
	if err := os.MkdirAll(devices, 0o755); err != nil {
		return err
	}
	product := s.Profile.Product
	for i, gpu := range s.Profile.GPUs {
		link := filepath.Join(devices, gpu.BusID)
		path := filepath.Join(append([]string{"devices", gpu.PCIeRoot}, append(append([]string(nil), gpu.Bridges...), gpu.BusID)...)...)
		if s.GPUs[i].Health == HealthRemoved {
			if err := errors.Join(remove(link), os.RemoveAll(filepath.Join(root, "sys", path))); err != nil {
				return err
			}
			continue
		}
		if err := makePCIDevice(root, link, path, pciDevice{
			class: "0x030200", id: product.PCIDeviceID, subsystem: product.PCISubsystemID, numaNode: gpu.NUMANode,
		}); err != nil {
			return err
		}
	}
	if s.Profile.NVLink == nil || s.Profile.NVLink.Remotes == profile.RemotesOpaque || s.Profile.NVLink.Remotes == profile.RemotesHidden {
		return nil
	}
	for _, sw := range s.Profile.NVLink.Switches {
		path := filepath.Join("devices", "pci"+sw.BusID[:7], sw.BusID)
		if err := makePCIDevice(root, filepath.Join(devices, sw.BusID), path, pciDevice{class: "0x068000", id: nvSwitchID}); err != nil {
			return err
		}
	}
	return nil
}

// nvSwitchID is the PCI id of a third-generation NVSwitch.
const nvSwitchID profile.HexID = 0x22A310DE

type pciDevice struct {
	class         string
	id, subsystem profile.HexID
	numaNode      *int
}

func makePCIDevice(root, link, path string, d pciDevice) error {
	dir := filepath.Join(root, "sys", path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	node := -1
	if d.numaNode != nil {
		node = *d.numaNode
	}
	for name, content := range map[string]string{
		"class":            d.class,
		"vendor":           fmt.Sprintf("0x%04x", uint32(d.id)&0xFFFF),
		"device":           fmt.Sprintf("0x%04x", uint32(d.id)>>16),
		"subsystem_vendor": fmt.Sprintf("0x%04x", uint32(d.subsystem)&0xFFFF),
		"subsystem_device": fmt.Sprintf("0x%04x", uint32(d.subsystem)>>16),
		"numa_node":        strconv.Itoa(node),
	} {
		if err := writeFile(filepath.Join(dir, name), []byte(content+"\n"), 0o444); err != nil {
			return err
		}
	}
	return symlink(filepath.Join("..", "..", "..", path), link)
}

// makeDriver makes what nvcdi looks for in a driver root. The libraries hold no code, and of the programs
// only nvidia-smi and nvidia-cuda-mps-control do something.
func makeDriver(root string, s State) error {
	version := s.Profile.Driver.Version
	placeholder := []byte("Part of a simulated NVIDIA driver " + version + ".\n")
	libraries := filepath.Join(root, libraryDir())
	for _, dir := range []string{libraries, filepath.Join(root, "usr", "bin")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	for _, name := range driverLibraries {
		if err := errors.Join(
			writeFile(filepath.Join(libraries, name+"."+version), sharedObject(name+".1"), 0o644),
			symlink(name+"."+version, filepath.Join(libraries, name+".1")),
			symlink(name+".1", filepath.Join(libraries, name)),
		); err != nil {
			return err
		}
	}
	for _, name := range driverBinaries {
		if err := writeFile(filepath.Join(root, "usr", "bin", name), idleProgram(name, version), 0o755); err != nil {
			return err
		}
	}
	if err := makePrograms(root, version); err != nil {
		return err
	}
	firmware := filepath.Join(root, "lib", "firmware", "nvidia", version)
	if err := os.MkdirAll(firmware, 0o755); err != nil {
		return err
	}
	for _, name := range []string{"gsp_ga10x.bin", "gsp_tu10x.bin"} {
		if err := writeFile(filepath.Join(firmware, name), placeholder, 0o644); err != nil {
			return err
		}
	}
	return makeSMI(root, s)
}

func idleProgram(name, version string) []byte {
	return []byte("#!/bin/sh\necho '" + name + " of a simulated NVIDIA driver " + version + " does nothing.' >&2\nexit 1\n")
}

// programs is the program that stands for those of the driver that do something. It is looked for beside this one.
const programs = "switchyard-sim-driver"

// makePrograms makes nvidia-cuda-mps-control, and an nvidia-smi that sets time slices: that of containers, a shell
// script, does not, and the kubelet plugin's image has no shell. A process without the program beside it leaves what
// another has made.
func makePrograms(root, version string) error {
	control := filepath.Join(root, "usr", "bin", driver.ControlProgram)
	self, err := os.Executable()
	if err != nil {
		return err
	}
	source := filepath.Join(filepath.Dir(self), programs)
	wanted, err := os.Stat(source)
	if err != nil {
		if _, err := os.Stat(control); err == nil {
			return nil
		}
		return writeFile(control, idleProgram(driver.ControlProgram, version), 0o755)
	}
	if now, err := os.Stat(control); err != nil || now.Size() != wanted.Size() || now.ModTime().Before(wanted.ModTime()) {
		content, err := os.ReadFile(source)
		if err != nil {
			return err
		}
		if err := replaceFile(control, content, 0o755); err != nil {
			return err
		}
	}
	smi := filepath.Join(root, "opt", "bin", "nvidia-smi")
	if err := os.MkdirAll(filepath.Dir(smi), 0o755); err != nil {
		return err
	}
	return symlink(filepath.Join("..", "..", "usr", "bin", driver.ControlProgram), smi)
}

func makeSMI(root string, s State) error {
	return writeFile(filepath.Join(root, "usr", "bin", "nvidia-smi"), smiScript(s), 0o755)
}

// writeFile writes a file unless it has the content already. Others may be reading it: it is replaced as
// a whole.
func writeFile(path string, content []byte, mode os.FileMode) error {
	old, err := os.ReadFile(path)
	if err == nil && bytes.Equal(old, content) {
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return replaceFile(path, content, mode)
}

// symlink makes a link unless it is there already.
func symlink(target, path string) error {
	if old, err := os.Readlink(path); err == nil && old == target {
		return nil
	}
	return renameio.Symlink(target, path)
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
