// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package plugin runs the kubelet plugin as a program of its own on a simulated GPU node, the way a
// DaemonSet's pod runs it: it is given directories, a kubeconfig and flags, and is looked at from
// outside.
//
// It imports pkg/simulator for the node's hardware, prometheus's text format for the metrics, and the
// harness's process package; never the plugin's own packages. It promises that nodes share nothing,
// that a node outlives the plugins that run on it, and that socket paths are short enough for Linux.
package plugin

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/google/uuid"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/simulator"
	"github.com/switchyard-dev/switchyard/pkg/simulator/profile"
)

// Node is a machine with simulated GPUs, as far as the plugin sees one.
type Node struct {
	// Name is the name of the Node object.
	Name string
	// Dir holds everything below but the CDI specs.
	Dir string
	// cdiDir is on a file system in memory, as /var/run is on nodes: files are not made at the same speed.
	cdiDir string
	// GPUs is the hardware, to be looked at and to be broken.
	GPUs *simulator.Node
}

// NewNode puts a node together in a new directory, which Remove deletes. profileName is a name of an
// embedded profile or the path of a profile's file.
func NewNode(name, profileName string) (_ *Node, err error) {
	hardware, err := profile.Load(profileName)
	if err != nil {
		return nil, fmt.Errorf("make node %s: %w", name, err)
	}
	// Not below TMPDIR: a unix socket's path has at most 107 bytes.
	dir, err := os.MkdirTemp("/tmp", "sy")
	if err != nil {
		return nil, fmt.Errorf("make node %s: %w", name, err)
	}
	n := &Node{Name: name, Dir: dir}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("make node %s: %w", name, err), n.Remove())
		}
	}()
	if n.cdiDir, err = os.MkdirTemp("/dev/shm", "sy"); err != nil {
		return nil, err
	}
	for _, d := range []string{n.PluginDir(), n.RegistryDir()} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, err
		}
	}
	if err := n.Reboot(); err != nil {
		return nil, err
	}
	if err := simulator.Create(n.SimDir(), hardware, simulator.Options{NodeName: name}); err != nil {
		return nil, err
	}
	n.GPUs, err = simulator.Open(n.SimDir())
	return n, err
}

// Remove deletes the node's directories.
func (n *Node) Remove() error { return errors.Join(os.RemoveAll(n.Dir), os.RemoveAll(n.cdiDir)) }

// PluginDir is the plugin's directory below the kubelet's plugins directory.
func (n *Node) PluginDir() string { return filepath.Join(n.Dir, "p", v1alpha1.DriverName) }

// RegistryDir is the kubelet's plugin registry.
func (n *Node) RegistryDir() string { return filepath.Join(n.Dir, "r") }

// CDIDir is where CDI specs go.
func (n *Node) CDIDir() string { return n.cdiDir }

// SimDir holds the simulated hardware.
func (n *Node) SimDir() string { return filepath.Join(n.Dir, "sim") }

// Kubeconfig is the file that Start hands to the plugin; the test writes it.
func (n *Node) Kubeconfig() string { return filepath.Join(n.Dir, "kubeconfig") }

// SupervisorLogFile has the output of all MPS supervisors that ran on the node.
func (n *Node) SupervisorLogFile() string { return filepath.Join(n.Dir, "supervisor.log") }

// LogFile has the output of all plugins that ran on the node.
func (n *Node) LogFile() string { return filepath.Join(n.Dir, "plugin.log") }

// CrashFile names the step at which a plugin built with the tag crashpoints dies next.
func (n *Node) CrashFile() string { return filepath.Join(n.Dir, "crash") }

func (n *Node) bootIDFile() string { return filepath.Join(n.Dir, "boot_id") }

// Reboot does to the files what a reboot does: there is a new boot ID, and /var/run, with the CDI
// specs, is empty. The caller stops the plugin before and starts it again after.
func (n *Node) Reboot() error {
	if err := os.WriteFile(n.bootIDFile(), []byte(uuid.NewString()+"\n"), 0o644); err != nil {
		return fmt.Errorf("reboot node %s: %w", n.Name, err)
	}
	specs, err := os.ReadDir(n.CDIDir())
	if err != nil {
		return fmt.Errorf("reboot node %s: %w", n.Name, err)
	}
	for _, spec := range specs {
		if err := os.RemoveAll(filepath.Join(n.CDIDir(), spec.Name())); err != nil {
			return fmt.Errorf("reboot node %s: %w", n.Name, err)
		}
	}
	return nil
}

// DeviceNames are the names of the node's GPUs in the order of their positions in the profile.
func (n *Node) DeviceNames() ([]string, error) {
	state, err := n.GPUs.State()
	if err != nil {
		return nil, fmt.Errorf("read the GPUs of node %s: %w", n.Name, err)
	}
	names := make([]string, 0, len(state.GPUs))
	for _, gpu := range state.GPUs {
		names = append(names, deviceName(gpu.UUID))
	}
	return names, nil
}
