// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// What may use a MIG device is ruled by capabilities: one for each GPU instance and compute instance,
// which a process has if it may open the device node of the capability. The kernel driver says in
// /proc/driver/nvidia-caps/mig-minors which node is whose, for all instances that there can be, and has
// a directory in /proc/driver/nvidia/capabilities for those that exist.
//
// The numbers are those of the driver: 1 and 2 are for configuration and monitoring, and each GPU has 15
// times 9 from 3 on, for a GPU instance and its 8 compute instances.
const (
	capabilityConfig      = 1
	capabilityMonitor     = 2
	firstCapability       = 3
	instancesPerGPU       = 15
	computePerInstance    = 8
	capabilityDevices     = "nvidia-caps"
	capabilityTable       = "proc/driver/nvidia-caps/mig-minors"
	capabilityDirectory   = "proc/driver/nvidia/capabilities"
	capabilityFileMode    = 292 // 0444, as the driver writes it
	capabilityFileContent = "DeviceFileMinor: %d\nDeviceFileMode: %d\nDeviceFileModify: 1\n"
)

// instanceCapability is the minor number of a GPU instance's device node.
func instanceCapability(gpuMinor int, instance uint32) int {
	return firstCapability + (gpuMinor*instancesPerGPU+int(instance))*(1+computePerInstance)
}

// computeCapability is the minor number of a compute instance's device node.
func computeCapability(gpuMinor int, instance, compute uint32) int {
	return instanceCapability(gpuMinor, instance) + 1 + int(compute)
}

// capabilities are the capabilities that exist: their minor numbers by the file that stands for them in
// /proc/driver/nvidia/capabilities.
func capabilities(s State) map[string]int {
	if s.Profile.Product.MIG == nil {
		return nil
	}
	files := map[string]int{"mig/config": capabilityConfig, "mig/monitor": capabilityMonitor}
	for _, gpu := range s.GPUs {
		if gpu.MIG == nil || gpu.Health == HealthRemoved {
			continue
		}
		for _, gi := range gpu.MIG.Instances {
			dir := fmt.Sprintf("gpu%d/mig/gi%d", gpu.Minor, gi.ID)
			files[dir+"/access"] = instanceCapability(gpu.Minor, gi.ID)
			for _, ci := range gi.Compute {
				files[fmt.Sprintf("%s/ci%d/access", dir, ci.ID)] = computeCapability(gpu.Minor, gi.ID, ci.ID)
			}
		}
	}
	return files
}

// makeCapabilities makes the files and device nodes of the capabilities that exist, and removes others.
func makeCapabilities(root string, s State) error {
	if s.Profile.Product.MIG == nil {
		return nil
	}
	directory, devices := filepath.Join(root, capabilityDirectory), filepath.Join(root, "dev", capabilityDevices)
	if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(root, capabilityTable)), 0o755), os.MkdirAll(directory, 0o755), os.MkdirAll(devices, 0o755)); err != nil {
		return err
	}
	if err := writeFile(filepath.Join(root, capabilityTable), migMinors(s), 0o444); err != nil {
		return err
	}
	want := capabilities(s)
	nodes := map[string]bool{}
	for _, file := range slices.Sorted(maps.Keys(want)) {
		path := filepath.Join(directory, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := writeFile(path, fmt.Appendf(nil, capabilityFileContent, want[file], capabilityFileMode), 0o444); err != nil {
			return err
		}
		node := fmt.Sprintf("nvidia-cap%d", want[file])
		nodes[node] = true
		if err := makeDeviceNode(filepath.Join(devices, node), s.DeviceNodes); err != nil {
			return err
		}
	}
	return errors.Join(removeOtherNodes(devices, nodes), removeOtherCapabilities(directory, want))
}

func removeOtherNodes(devices string, want map[string]bool) error {
	entries, err := os.ReadDir(devices)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if !want[entry.Name()] && strings.HasPrefix(entry.Name(), "nvidia-cap") {
			if err := remove(filepath.Join(devices, entry.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// removeOtherCapabilities removes the directories of instances that do not exist.
func removeOtherCapabilities(directory string, want map[string]int) error {
	return filepath.WalkDir(directory, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		if name := entry.Name(); !strings.HasPrefix(name, "gi") && !strings.HasPrefix(name, "ci") {
			return nil
		}
		relative, err := filepath.Rel(directory, path)
		if err != nil {
			return err
		}
		if _, exists := want[relative+"/access"]; exists {
			return nil
		}
		if err := os.RemoveAll(path); err != nil {
			return err
		}
		return fs.SkipDir
	})
}

// migMinors is the kernel driver's table of all capabilities.
func migMinors(s State) []byte {
	table := fmt.Appendf(nil, "config %d\nmonitor %d\n", capabilityConfig, capabilityMonitor)
	for _, gpu := range s.GPUs {
		for gi := range uint32(instancesPerGPU) {
			table = fmt.Appendf(table, "gpu%d/gi%d/access %d\n", gpu.Minor, gi, instanceCapability(gpu.Minor, gi))
			for ci := range uint32(computePerInstance) {
				table = fmt.Appendf(table, "gpu%d/gi%d/ci%d/access %d\n", gpu.Minor, gi, ci, computeCapability(gpu.Minor, gi, ci))
			}
		}
	}
	return table
}
