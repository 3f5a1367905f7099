// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/switchyard-dev/switchyard/test/cluster"
)

// sharingOf is what the driver of a node says of sharing: compute modes, time slices and MPS daemons.
func sharingOf(ctx context.Context, node string) (settings, daemons []string, err error) {
	p, err := pluginPod(ctx, node)
	if err != nil {
		return nil, nil, err
	}
	out, err := the.Kubectl(ctx, "exec", "-n", cluster.Namespace, p.Name, "-c", "plugin", "--", "switchyard-sim", "ctl", "sharing", "show")
	if err != nil {
		return nil, nil, err
	}
	before, after, ok := strings.Cut(out, "MPS DAEMON")
	if !ok {
		return nil, nil, fmt.Errorf("cannot read %q", out)
	}
	for line := range strings.Lines(before) {
		// GPU UUID MODE SLICE
		if columns := strings.Fields(line); len(columns) == 4 && (columns[2] != "Default" || columns[3] != "Default") {
			settings = append(settings, columns[1]+" "+columns[2]+" "+columns[3])
		}
	}
	for line := range strings.Lines(after) {
		// PID DEVICES PIPE CAPABILITIES
		if columns := strings.Fields(line); len(columns) == 4 && columns[0] != "DEVICES" {
			daemons = append(daemons, columns[0]+" "+columns[1]+" "+columns[3])
		}
	}
	return settings, daemons, nil
}

// wantSharing waits until so many GPUs of a node have settings and so many MPS daemons run, and returns both.
func (s *space) wantSharing(node string, settings, daemons int) (set, running []string) {
	s.Helper()
	s.must(the.Until(s.ctx, patience, fmt.Sprintf("%d GPUs of %s to have settings, and %d daemons", settings, node, daemons), func(ctx context.Context) (bool, error) {
		var err error
		if set, running, err = sharingOf(ctx, node); err != nil || len(set) == settings && len(running) == daemons {
			return err == nil, err
		}
		return false, fmt.Errorf("there are the settings %q and the daemons %q", set, running)
	}))
	return set, running
}

// mpsSays asks the MPS daemon from inside a container.
func (s *space) mpsSays(pod, container, command string) string {
	s.Helper()
	return s.execIn(pod, container, "sh", "-c", "echo "+command+" | nvidia-cuda-mps-control")
}

// Two pods, and the two containers of a third, use one GPU through one MPS daemon, which outlives the plugin.
func TestPodsAndContainersShareOneGPUByMPS(t *testing.T) {
	s := newSpace(t)
	s.fromGuide("sharing", "together") // and pods
	s.run(withClaims(pod("two", "", container("left", uses("gpu")), container("right", uses("gpu"))), map[string]string{"gpu": "together"}))
	for _, name := range []string{"one", "other"} {
		s.must(the.WaitPodRunning(s.ctx, s.name, name, patience))
	}

	shared := s.allocated("together")[0]
	uuid, node := *shared.device.Attributes["uuid"].StringValue, shared.pool
	users := []struct{ pod, container string }{{"two", "left"}, {"two", "right"}, {"one", "work"}, {"other", "work"}}
	for _, user := range users {
		if dir := s.execIn(user.pod, user.container, "sh", "-c", "echo $CUDA_MPS_PIPE_DIRECTORY"); dir != "/tmp/nvidia-mps" {
			t.Errorf("container %s of pod %s has the pipe directory %q", user.container, user.pod, dir)
		}
		for command, want := range map[string]string{
			"get_default_active_thread_percentage":                 "50.0",
			"get_default_device_pinned_mem_limit " + uuid:          "20G",
			"get_default_device_pinned_mem_limit " + uuid + "-not": "Invalid device: " + uuid + "-not",
		} {
			if got := s.mpsSays(user.pod, user.container, command); got != want {
				t.Errorf("in container %s of pod %s the daemon says to %s: %q, want %q", user.container, user.pod, command, got, want)
			}
		}
	}
	// They have one /dev/shm.
	s.execIn("two", "left", "sh", "-c", "echo hello > /dev/shm/segment")
	if got := s.execIn("one", "work", "cat", "/dev/shm/segment"); got != "hello" {
		t.Errorf("the pods' shared memory differs: %q", got)
	}
	settings, daemons := s.wantSharing(node, 1, 1)
	if want := uuid + " Exclusive_Process Default"; settings[0] != want {
		t.Errorf("the settings are %q, want %q", settings[0], want)
	}
	if !strings.HasSuffix(daemons[0], " "+uuid+" 00000000000000e1") {
		t.Errorf("the daemon is %q, want it to serve %s with four capabilities", daemons[0], uuid)
	}

	s.freshPlugin(node)
	if _, after := s.wantSharing(node, 1, 1); after[0] != daemons[0] {
		t.Errorf("the daemon was %q and is %q after the plugin's pod was replaced", daemons[0], after[0])
	}
	if got := s.mpsSays("one", "work", "get_default_active_thread_percentage"); got != "50.0" {
		t.Errorf("after the plugin's pod was replaced the daemon says %q", got)
	}

	s.must(the.Client.CoreV1().Pods(s.name).Delete(s.ctx, "two", soon))
	s.deletePod("other")
	s.deletePod("two")
	s.wantSharing(node, 1, 1) // a pod still uses it
	s.deletePod("one")
	s.wantSharing(node, 0, 0)
	s.wantNothingLeft(node)
}

// The GPUs of a claim have limits of their own, by their place and by their UUID.
func TestGPUsOfAClaimWithMPSHaveLimitsOfTheirOwn(t *testing.T) {
	s := newSpace(t)
	s.fromGuide("sharing", "two-limits")
	s.run(withClaims(pod("two", "node-a", container("work", uses("gpus"))), map[string]string{"gpus": "two-limits"}))
	want := []string{"10G", "20G"}
	devices := s.allocated("two-limits")
	for i, d := range devices {
		uuid := *d.device.Attributes["uuid"].StringValue
		if i > 0 && uuid == "GPU-eb312c49-fc59-57a4-98bb-3ad69474fb90" { // which the manifest names
			want[i] = "30G"
		}
		if got := s.mpsSays("two", "work", "get_default_device_pinned_mem_limit "+uuid); got != want[i] {
			t.Errorf("the daemon says of GPU %d, %s: %q, want %q", i, uuid, got, want[i])
		}
	}
	if len(devices) != 2 || want[1] != "30G" {
		t.Errorf("the claim has %+v: neither is the one that the manifest names", devices)
	}
}

// A second claim with MPS does not get into a container that has one.
func TestAContainerHasOneMPSDaemon(t *testing.T) {
	s := newSpace(t)
	for _, name := range []string{"first", "second"} {
		s.claim(name, s.specFromGuide("sharing", "together"))
	}
	s.create(withClaims(pod("both", "node-a", container("work", uses("a"), uses("b"))), map[string]string{"a": "first", "b": "second"}))
	s.eventually("Pod", "both", "which both have MPS")
	s.deletePod("both")
	s.wantSharing("node-a", 0, 0)
	s.wantNothingLeft("node-a")
}

// An interval of time-slicing is set while a claim has the GPU, and no longer.
func TestATimeSliceIsSetWhileAClaimIsInUse(t *testing.T) {
	s := newSpace(t)
	s.fromGuide("sharing", "turns")
	s.run(withClaims(pod("turns", "node-b", container("left", uses("gpu")), container("right", uses("gpu"))), map[string]string{"gpu": "turns"}))
	uuid := *s.allocated("turns")[0].device.Attributes["uuid"].StringValue
	if settings, _ := s.wantSharing("node-b", 1, 0); settings[0] != uuid+" Default Long" {
		t.Errorf("the settings are %q", settings[0])
	}
	s.deletePod("turns")
	s.wantSharing("node-b", 0, 0)
}

// Wherever the plugin dies while a claim with MPS is prepared, the pod runs in the end, with one daemon.
func TestKilledAtEachStepOfSharing(t *testing.T) {
	s := newSpace(t)
	for i, step := range []string{"sharing:before-settings", "sharing:before-daemon", "sharing:after-daemon"} {
		t.Run(step, func(t *testing.T) {
			s.freshPlugin("node-a")
			s.armCrash("node-a", step)
			name := fmt.Sprintf("made-%d", i)
			s.claim(name, s.specFromGuide("sharing", "together"))
			s.create(withClaims(pod(name, "node-a", container("work", uses("gpu"))), map[string]string{"gpu": name}))
			s.waitCrashed("node-a")
			s.waitPlugin("node-a", 1)
			s.touch(name)
			s.must(the.WaitPodRunning(s.ctx, s.name, name, patience))
			s.wantSharing("node-a", 1, 1)
			s.deletePod(name)
			s.wantSharing("node-a", 0, 0)
			s.wantNothingLeft("node-a")
		})
	}
}
