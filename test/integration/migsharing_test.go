// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build integration

package integration

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/switchyard-dev/switchyard/pkg/device"
	"github.com/switchyard-dev/switchyard/pkg/simulator"
	"github.com/switchyard-dev/switchyard/pkg/simulator/driver"
	"github.com/switchyard-dev/switchyard/test/harness/claim"
	"github.com/switchyard-dev/switchyard/test/harness/plugin"
)

const partitionMPS = `{"apiVersion":"switchyard.dev/v1alpha1","kind":"MIGConfig","sharing":{"strategy":"MPS","mps":{"activeThreadPercentage":25,"pinnedDeviceMemoryLimit":"2Gi"}}}`

// twoSlices is NVML's ID of profile 2g.20gb on an H100, which begins at memory slice 0, 2 or 4.
const twoSlices = 14

// partitionAt is the device name of the 2g.20gb of the first GPU that begins at a memory slice.
func (n *node) partitionAt(start int) string {
	return device.PartitionRef{GPU: n.devices[0], ProfileID: twoSlices, Start: start}.Name()
}

// partitionable runs the plugin on a node whose first GPU is in MIG mode, until its partitions are published.
func (n *node) partitionable(t *testing.T, args ...string) *plugin.Plugin {
	t.Helper()
	p := n.start(t, plugin.Options{Args: args})
	eventually(t, "the plugin is ready", func() error { return p.Ready(t.Context()) })
	eventually(t, "partitions are published", func() error {
		if !slices.ContainsFunc(n.published(t), func(d resourceapi.Device) bool { return d.Name == n.partitionAt(0) }) {
			return fmt.Errorf("%s is not", n.partitionAt(0))
		}
		return nil
	})
	return p
}

func newMIGNode(t *testing.T) *node {
	t.Helper()
	n := newNode(t, "hgx-h100")
	if err := n.GPUs.SetMIGMode(0, true); err != nil {
		t.Fatal(err)
	}
	return n
}

// instances are the GPU instances of the first GPU.
func (n *node) instances(t *testing.T) []simulator.GPUInstance {
	t.Helper()
	state, err := n.GPUs.State()
	if err != nil {
		t.Fatal(err)
	}
	return state.GPUs[0].MIG.Instances
}

// partitionUUID is the UUID of the partition that begins at a memory slice.
func (n *node) partitionUUID(t *testing.T, start int) string {
	t.Helper()
	for _, instance := range n.instances(t) {
		if int(instance.Start) == start && instance.ProfileID == twoSlices && len(instance.Compute) == 1 {
			return instance.Compute[0].UUID
		}
	}
	t.Fatalf("there is no partition at %d, only %+v", start, n.instances(t))
	return ""
}

// wantPartitionMPS checks what a container with the CDI device IDs has of the partition that begins at a memory slice, and
// of the MPS daemon of that partition alone. It returns the daemon's process ID.
func (n *node) wantPartitionMPS(t *testing.T, ids []string, start int) int {
	t.Helper()
	uuid := n.partitionUUID(t, start)
	running := n.mpsDaemons(t)
	i := slices.IndexFunc(running, func(daemon driver.Running) bool { return slices.Equal(daemon.Devices, []string{uuid}) })
	if i < 0 {
		t.Fatalf("the daemons are %+v, want one of %s", running, uuid)
	}
	spec, err := n.container(ids...)
	if err != nil {
		t.Fatal(err)
	}
	mounts := map[string]string{}
	for _, mount := range spec.Mounts {
		mounts[mount.Destination] = mount.Source
	}
	if !slices.Contains(spec.Process.Env, "CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps") || !strings.HasPrefix(mounts["/dev/shm"], n.SharedMemoryDir()+"/") {
		t.Errorf("the container has %q and the mounts %q", spec.Process.Env, mounts)
	}
	var nodes []string
	for _, node := range spec.Linux.Devices {
		if gpuNode.MatchString(node.Path) || strings.Contains(node.Path, "nvidia-cap") {
			nodes = append(nodes, node.Path)
		}
	}
	if len(nodes) != 3 || !slices.Contains(nodes, "/dev/nvidia0") {
		t.Errorf("the container has %q, want the first GPU and two capabilities", nodes)
	}
	if err := n.limitedTo25(t, ids); err != nil {
		t.Error(err)
	}
	// It is the GPU's, which others use, too.
	if mode := n.computeMode(t, 0); mode != nvml.COMPUTEMODE_DEFAULT {
		t.Errorf("the GPU has compute mode %d", mode)
	}
	return running[i].PID
}

// limitedTo25 says how the limits of the daemon that a container with the CDI device IDs reaches differ from partitionMPS.
func (n *node) limitedTo25(t *testing.T, ids []string) error {
	t.Helper()
	for command, want := range map[string]string{"get_default_active_thread_percentage": "25.0", "get_default_device_pinned_mem_limit 0": "2G"} {
		if got, err := n.mpsSays(t, ids, command); err != nil || got != want {
			return fmt.Errorf("%s says %q, %v, want %q", command, got, err, want)
		}
	}
	return nil
}

// wantUnpartitioned waits until nothing is left of partitions and of sharing.
func (n *node) wantUnpartitioned(t *testing.T) {
	t.Helper()
	eventually(t, "no partition to be left", func() error {
		if left := n.instances(t); len(left) > 0 {
			return fmt.Errorf("there are %+v", left)
		}
		if left := files(t, filepath.Join(n.PluginDir(), "partitions")); len(left) > 0 {
			return fmt.Errorf("noted are %q", left)
		}
		return nil
	})
	n.wantUnshared(t)
}

func TestAPartitionWithMPSHasADaemonOfItsOwn(t *testing.T) {
	t.Parallel()
	n := newMIGNode(t)
	p := n.partitionable(t)
	supervisor := n.supervise(t)
	one, two := n.shared(t, "one", partitionMPS, n.partitionAt(0)), n.shared(t, "two", partitionMPS, n.partitionAt(2))
	ids, neighbours := n.prepare(t, one), n.prepare(t, two)
	uuid := n.partitionUUID(t, 0)
	daemon, neighbour := n.wantPartitionMPS(t, ids, 0), n.wantPartitionMPS(t, neighbours, 2)
	if daemon == neighbour {
		t.Errorf("both partitions have daemon %d", daemon)
	}
	n.refused(t, n.shared(t, "pair", partitionMPS, n.partitionAt(4), n.partitionAt(0)), "one MIG partition", "a claim for each")

	p.Kill()
	n.partitionable(t)
	ids = n.prepare(t, one)
	if now := n.wantPartitionMPS(t, ids, 0); now != daemon || n.partitionUUID(t, 0) != uuid {
		t.Errorf("after the plugin was killed the daemon is %d of %s, was %d of %s", now, n.partitionUUID(t, 0), daemon, uuid)
	}

	if err := syscall.Kill(daemon, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	replaced := func(what string, before ...int) {
		t.Helper()
		eventually(t, "daemons after "+what, func() error {
			running := n.mpsDaemons(t)
			if len(running) != 2 || slices.ContainsFunc(running, func(daemon driver.Running) bool { return slices.Contains(before, daemon.PID) }) {
				return fmt.Errorf("%+v run", running)
			}
			return errors.Join(n.limitedTo25(t, ids), n.limitedTo25(t, neighbours)) // it answers before it has them
		})
	}
	replaced("one was killed", daemon)
	daemon = n.wantPartitionMPS(t, ids, 0)
	if now := n.wantPartitionMPS(t, neighbours, 2); now != neighbour {
		t.Errorf("the other partition's daemon was %d and is %d", neighbour, now)
	}

	supervisor.Kill()
	n.supervise(t)
	replaced("their supervisor was killed", daemon, neighbour)
	n.wantPartitionMPS(t, ids, 0)
	neighbour = n.wantPartitionMPS(t, neighbours, 2)

	n.unprepare(t, one)
	if now := n.wantPartitionMPS(t, neighbours, 2); now != neighbour || len(n.mpsDaemons(t)) != 1 || len(n.instances(t)) != 1 {
		t.Errorf("after one claim has ended the daemons are %+v and the instances %+v", n.mpsDaemons(t), n.instances(t))
	}
	n.unprepare(t, two)
	n.wantUnpartitioned(t)
}

// Wherever the plugin dies, the next one finishes, or takes back, partition and daemon.
func TestKilledAtEachStepOfAPartitionWithMPS(t *testing.T) {
	t.Parallel()
	n := newMIGNode(t)
	n.supervise(t)
	for i, step := range []string{
		"prepare:after-checkpoint", "partition:after-gpu-instance", "partition:after-compute-instance", "sharing:before-daemon", "sharing:after-daemon", "prepare:after-cdi",
	} {
		for _, goes := range []string{"stays", "goes"} {
			t.Run(step+" and the claim "+goes, func(t *testing.T) {
				p := n.partitionable(t)
				c := n.shared(t, fmt.Sprintf("made-%d-%s", i, goes), partitionMPS, n.partitionAt(2))
				n.diesPreparing(t, p, step, c)
				if goes == "goes" {
					if err := claim.Delete(t.Context(), cluster.Client(), c); err != nil {
						t.Fatal(err)
					}
				}
				n.partitionable(t, "--orphan-grace=0s")
				if goes == "stays" {
					n.wantPartitionMPS(t, n.prepare(t, c), 2)
					n.unprepare(t, c)
				}
				n.wantUnpartitioned(t)
			})
		}
	}
	for i, step := range []string{
		"unprepare:after-cdi-removal", "sharing:after-daemon-removal", "partition:before-removal", "partition:after-compute-instance-removal", "partition:after-gpu-instance-removal",
	} {
		t.Run(step, func(t *testing.T) {
			p := n.partitionable(t)
			c := n.shared(t, fmt.Sprintf("gone-%d", i), partitionMPS, n.partitionAt(2))
			n.prepare(t, c)
			n.diesUnpreparing(t, p, step, c)
			n.partitionable(t, "--orphan-grace=0s")
			n.unprepare(t, c)
			n.wantUnpartitioned(t)
		})
	}
}
