// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/switchyard-dev/switchyard/test/cluster"
)

const classMIG = "mig.gpu.switchyard.dev"

// partition asks for count partitions of a profile.
func partition(profile string, count int64) resourceapi.DeviceRequest {
	r := request("part", count, `device.attributes["gpu.switchyard.dev"].profile == "`+profile+`"`)
	r.Exactly.DeviceClassName = classMIG
	return r
}

// migOn turns MIG mode of a node's first GPU on for the test, and has the node forget its partitions after it: they
// would stay listed, tainted, until the node reboots.
func (s *space) migOn(node string) {
	s.Helper()
	s.sim(node, "mig", "0", "on")
	s.Cleanup(func() {
		s.ctx = context.Background()
		s.clear()
		s.wantPartitions(node)
		s.sim(node, "mig", "0", "off")
		s.forgetfulPlugin(node)
		s.untilPublished(node, 0)
	})
	s.untilPublished(node, 25)
}

// untilPublished waits until so many partitions of the node are published.
func (s *space) untilPublished(node string, want int) {
	s.Helper()
	s.must(the.Until(s.ctx, patience, fmt.Sprintf("%d partitions of %s to be published", want, node), func(ctx context.Context) (bool, error) {
		all, err := the.ResourceSlices(ctx)
		if err != nil {
			return false, err
		}
		got := 0
		for _, slice := range all {
			if slice.Spec.Pool.Name != node {
				continue
			}
			for _, d := range slice.Spec.Devices {
				if d.Attributes["profile"].StringValue != nil {
					got++
				}
			}
		}
		return got == want, nil
	}))
}

// partitionsOf lists the partitions that NVML has on a node, as "<profile>@<start>", sorted.
func partitionsOf(ctx context.Context, node string) ([]string, error) {
	p, err := pluginPod(ctx, node)
	if err != nil {
		return nil, err
	}
	out, err := the.Kubectl(ctx, "exec", "-n", cluster.Namespace, p.Name, "-c", "plugin", "--", "switchyard-sim", "ctl", "mig", "list")
	if err != nil {
		return nil, err
	}
	var found []string
	for _, line := range strings.Split(strings.TrimSpace(out), "\n")[1:] {
		// GPU INSTANCE PROFILE START SIZE COMPUTE UUID
		if columns := strings.Fields(line); len(columns) == 7 {
			found = append(found, columns[2]+"@"+columns[3])
		}
	}
	slices.Sort(found)
	return found, nil
}

// wantPartitions waits until NVML has exactly these partitions.
func (s *space) wantPartitions(node string, want ...string) {
	s.Helper()
	s.must(the.Until(s.ctx, patience, fmt.Sprintf("the partitions of %s to be %q", node, want), func(ctx context.Context) (bool, error) {
		got, err := partitionsOf(ctx, node)
		if err != nil || slices.Equal(got, want) {
			return err == nil, err
		}
		return false, fmt.Errorf("there are %q", got)
	}))
}

// migDevices are the lines of nvidia-smi -L about MIG devices that a pod sees.
func (s *space) migDevices(pod string) []string {
	s.Helper()
	var devices []string
	for line := range strings.Lines(s.exec(pod, "nvidia-smi", "-L")) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "MIG ") {
			devices = append(devices, line)
		}
	}
	return devices
}

// Seven pods have a seventh of one GPU each and see nothing of the others; an eighth waits, and so does one that wants
// the whole GPU; when they end nothing is left.
func TestSevenPodsShareOneGPUByMIG(t *testing.T) {
	s := newSpace(t)
	s.migOn("node-a")
	s.fromGuide("mig", "one-seventh")
	seen := map[string]string{}
	for i := range 7 {
		name := fmt.Sprintf("pod-%d", i)
		s.run(fromTemplate(pod(name, "node-a", container("work", uses("gpu"))), "gpu", "one-seventh"))
		devices := s.migDevices(name)
		if len(devices) != 1 || !strings.HasPrefix(devices[0], "MIG 1g.10gb ") {
			t.Fatalf("pod %s sees %q", name, devices)
		}
		if other, twice := seen[devices[0]]; twice {
			t.Errorf("pods %s and %s see the same device %s", name, other, devices[0])
		}
		seen[devices[0]] = name
		if caps := strings.Fields(s.exec(name, "ls", "/dev/nvidia-caps")); len(caps) != 2 {
			t.Errorf("pod %s has the capabilities %v", name, caps)
		}
	}
	s.wantPartitions("node-a", "1g.10gb@0", "1g.10gb@1", "1g.10gb@2", "1g.10gb@3", "1g.10gb@4", "1g.10gb@5", "1g.10gb@6")
	s.create(fromTemplate(pod("eighth", "node-a", container("work", uses("gpu"))), "gpu", "one-seventh"))
	s.eventually("Pod", "eighth", "cannot allocate all claims")

	s.must(the.Client.CoreV1().Pods(s.name).Delete(s.ctx, "pod-3", soon))
	s.must(the.WaitPodRunning(s.ctx, s.name, "eighth", patience))
}

// A partition that two containers share by MPS, one by its memory, two of one GPU, and one that is chosen where no whole
// GPU is left.
func TestPartitionsSharedByNeedOfOneGPUAndInPlaceOfAWhole(t *testing.T) {
	s := newSpace(t)
	s.migOn("node-a")
	s.fromGuide("sharing", "part-together")
	s.run(withClaims(pod("shared", "node-a", container("left", uses("gpu")), container("right", uses("gpu"))), map[string]string{"gpu": "part-together"}))
	s.wantPartitions("node-a", "3g.40gb@4")
	_, daemons := s.wantSharing("node-a", 0, 1)
	for _, container := range []string{"left", "right"} {
		devices := s.execIn("shared", container, "nvidia-smi", "-L")
		_, uuid, ok := strings.Cut(devices, "(UUID: MIG-")
		uuid, _, _ = strings.Cut(uuid, ")")
		if !ok || !strings.Contains(daemons[0], " MIG-"+uuid+" ") {
			t.Errorf("container %s sees %q, and the daemon is %q", container, devices, daemons[0])
		}
		for command, want := range map[string]string{"get_default_active_thread_percentage": "33.0", "get_default_device_pinned_mem_limit 0": "8G"} {
			if got := s.mpsSays("shared", container, command); got != want {
				t.Errorf("in container %s the daemon says to %s: %q, want %q", container, command, got, want)
			}
		}
	}

	wantDevices := func(pod, profile string, count int) {
		t.Helper()
		devices := s.migDevices(pod)
		if len(devices) != count || slices.ContainsFunc(devices, func(d string) bool { return !strings.HasPrefix(d, "MIG "+profile+" ") }) {
			t.Errorf("pod %s sees the partitions %q, want %d of %s", pod, devices, count, profile)
		}
	}
	run := func(name, template string) {
		t.Helper()
		s.run(fromTemplate(pod(name, "node-a", container("work", uses("gpu"))), "gpu", template))
	}
	s.fromGuide("mig", "twenty-gib")
	run("memory", "twenty-gib")
	wantDevices("memory", "3g.40gb", 1)
	s.wantPartitions("node-a", "3g.40gb@0", "3g.40gb@4")
	s.deletePod("memory")
	s.deletePod("shared")
	s.wantSharing("node-a", 0, 0)

	s.fromGuide("mig", "two-of-one-gpu")
	run("two", "two-of-one-gpu")
	wantDevices("two", "3g.40gb", 2)
	s.wantPartitions("node-a", "3g.40gb@0", "3g.40gb@4")
	s.deletePod("two")

	s.claim("six", claimSpec([]resourceapi.DeviceRequest{request("gpus", 6)}))
	s.run(withClaims(pod("six", "node-a", container("work", uses("gpus"))), map[string]string{"gpus": "six"}))
	s.fromGuide("mig", "whole-or-largest")
	run("whole", "whole-or-largest")
	wantDevices("whole", "", 0)
	s.wantPartitions("node-a")
	run("largest", "whole-or-largest")
	wantDevices("largest", "7g.80gb", 1)
	s.wantPartitions("node-a", "7g.80gb@0")
}

// Wherever the plugin dies while a partition is made, the pod runs in the end, with one partition.
func TestKilledAtEachStepOfMakingAPartition(t *testing.T) {
	s := newSpace(t)
	s.migOn("node-a")
	for i, step := range []string{"partition:before-gpu-instance", "partition:after-gpu-instance", "partition:after-compute-instance", "prepare:after-cdi"} {
		t.Run(step, func(t *testing.T) {
			s.freshPlugin("node-a")
			s.armCrash("node-a", step)
			name := fmt.Sprintf("made-%d", i)
			s.claim(name, claimSpec([]resourceapi.DeviceRequest{partition("2g.20gb", 1)}))
			s.create(withClaims(pod(name, "node-a", container("work", uses("gpu"))), map[string]string{"gpu": name}))
			s.waitCrashed("node-a")
			s.waitPlugin("node-a", 1)
			s.touch(name)
			s.must(the.WaitPodRunning(s.ctx, s.name, name, patience))
			s.wantPartitions("node-a", "2g.20gb@4")
			s.deletePod(name)
			s.wantPartitions("node-a")
			s.wantNothingLeft("node-a")
		})
	}
}

// Wherever it dies while a partition is destroyed, nothing is left.
func TestKilledAtEachStepOfDestroyingAPartition(t *testing.T) {
	s := newSpace(t)
	s.migOn("node-a")
	for i, step := range []string{"partition:before-removal", "partition:after-compute-instance-removal", "partition:after-gpu-instance-removal"} {
		t.Run(step, func(t *testing.T) {
			s.freshPlugin("node-a")
			name := fmt.Sprintf("gone-%d", i)
			s.claim(name, claimSpec([]resourceapi.DeviceRequest{partition("2g.20gb", 1)}))
			s.run(withClaims(pod(name, "node-a", container("work", uses("gpu"))), map[string]string{"gpu": name}))
			s.armCrash("node-a", step)
			s.must(the.Client.CoreV1().Pods(s.name).Delete(s.ctx, name, soon))
			s.waitCrashed("node-a")
			s.deletePod(name)
			s.wantPartitions("node-a")
			s.wantNothingLeft("node-a")
		})
	}
}
