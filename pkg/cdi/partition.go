// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	specs "tags.cncf.io/container-device-interface/specs-go"
)

// Partition is the MIG partition that a device is. The zero value is none.
type Partition struct {
	// GPU is the device name of its GPU.
	GPU string
	// Made says that it exists, and which instances it is. Without it, only what its GPU needs can be
	// checked, and no spec be written.
	Made bool
	// GPUInstance and ComputeInstance are NVML's IDs.
	GPUInstance, ComputeInstance int
}

// of is the device whose edits are kept: the GPU of a partition.
func (d ClaimDevice) of() string {
	if d.Partition.GPU != "" {
		return d.Partition.GPU
	}
	return d.Name
}

// capabilityDir is where the kernel driver has a directory for every instance that exists, below /proc.
const capabilityDir = "driver/nvidia/capabilities"

// partition returns what a container needs for a partition: the node of its GPU, and those of the
// capabilities of its GPU instance and compute instance, without which the driver lets it use nothing.
//
// These are the nodes that nvcdi finds for a MIG device. It is not asked, since it looks for the numbers of
// capabilities in /proc of this process only, and for a partition that was just made.
func (k *kept) partition(device ClaimDevice, procRoot, devRoot string) (specs.ContainerEdits, error) {
	p := device.Partition
	gpu, ok := k.inventory.ByName(p.GPU)
	if !ok || gpu.Minor == nil {
		return specs.ContainerEdits{}, &DeviceEditsError{device.Name, fmt.Errorf("GPU %s has no minor number, by which its capabilities are found", p.GPU)}
	}
	own := neededNodes(gpu)[0]
	var edits specs.ContainerEdits
	for _, dn := range k.devices[p.GPU].edits.DeviceNodes {
		if dn.Path == own {
			edits.DeviceNodes = append(edits.DeviceNodes, dn)
		}
	}
	if len(edits.DeviceNodes) != 1 {
		return specs.ContainerEdits{}, &DeviceEditsError{device.Name, fmt.Errorf("nvcdi found no %s of GPU %s", own, p.GPU)}
	}
	instance := fmt.Sprintf("gpu%d/mig/gi%d", *gpu.Minor, p.GPUInstance)
	for _, capability := range []string{instance, fmt.Sprintf("%s/ci%d", instance, p.ComputeInstance)} {
		node, err := capabilityNode(edits.DeviceNodes[0], filepath.Join(capabilityDir, capability, "access"), procRoot, devRoot)
		if err != nil {
			path := filepath.Join(devRoot, "dev/nvidia-caps")
			if node != nil {
				path = filepath.Join(devRoot, node.Path)
			}
			return specs.ContainerEdits{}, &DeviceNodeError{device.Name, path, err}
		}
		edits.DeviceNodes = append(edits.DeviceNodes, node)
	}
	return edits, nil
}

// capabilityNode is the device node of the capability that a file below /proc stands for, which is made if it
// is missing; like is another
// node, of which it has everything but path and number. With an error it may be incomplete.
func capabilityNode(like *specs.DeviceNode, file, procRoot, devRoot string) (*specs.DeviceNode, error) {
	minor, err := capabilityMinor(filepath.Join(procRoot, file))
	if err != nil {
		return nil, fmt.Errorf("find the MIG capability: %w", err)
	}
	node := *like
	node.Path = fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", minor)
	if like.HostPath != "" {
		node.HostPath = strings.TrimSuffix(like.HostPath, like.Path) + node.Path
	}
	path := filepath.Join(devRoot, node.Path)
	number, err := statNode(path)
	if errors.Is(err, fs.ErrNotExist) {
		if err = makeCapabilityNode(path, procRoot, minor); err == nil {
			number, err = statNode(path)
		}
	}
	if err != nil {
		return &node, fmt.Errorf("%w; nvidia-modprobe -f /proc/%s makes it", err, file)
	}
	node.Major, node.Minor = number.major, number.minor
	return &node, nil
}

// makeCapabilityNode makes the device node of a capability. The driver leaves that to nvidia-modprobe, which
// a program in a container does not have; NVML makes partitions without it. Everybody may open the node:
// what a container may do is for the runtime to say.
func makeCapabilityNode(path, procRoot string, minor int) error {
	devices, err := os.ReadFile(filepath.Join(procRoot, "devices"))
	if err != nil {
		return fmt.Errorf("make %s: %w", path, err)
	}
	for line := range strings.Lines(string(devices)) {
		fields := strings.Fields(line)
		if len(fields) != 2 || fields[1] != "nvidia-caps" {
			continue
		}
		major, err := strconv.Atoi(fields[0])
		if err != nil {
			return fmt.Errorf("read the major number of nvidia-caps: %w", err)
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := unix.Mknod(path, unix.S_IFCHR|0o444, int(unix.Mkdev(uint32(major), uint32(minor)))); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("mknod %s: %w", path, err)
		}
		return os.Chmod(path, 0o444) // the umask had its say
	}
	return fmt.Errorf("make %s: %s/devices has no nvidia-caps: the driver does not support MIG, or is not loaded", path, procRoot)
}

// capabilityMinor reads the minor number of a capability's device node.
func capabilityMinor(path string) (int, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), "DeviceFileMinor:"); ok {
			minor, err := strconv.Atoi(strings.TrimSpace(value))
			if err != nil {
				return 0, fmt.Errorf("%s: %w", path, err)
			}
			return minor, nil
		}
	}
	return 0, fmt.Errorf("%s has no line DeviceFileMinor", path)
}
