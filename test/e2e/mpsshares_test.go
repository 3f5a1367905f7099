// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Two pods have shares of different sizes of one GPU through one MPS daemon, each with the limits of its own, which
// outlives the plugin and the first of them, and ends with the last.
func TestPodsAreHeldToTheirSharesByMPS(t *testing.T) {
	s := newSpace(t)
	s.shareGPUs("node-a", s.guide("shares", "kind: NodeConfig\n"), 2)
	large := share("20Gi")
	large.Exactly.Capacity.Requests["multiprocessors"] = resource.MustParse("44")
	for name, spec := range map[string]resourceapi.ResourceClaimSpec{"small": s.specFromGuide("shares", "ten-gib"), "large": claimSpec([]resourceapi.DeviceRequest{large})} {
		s.claim(name, spec)
		s.run(withClaims(pod(name, "node-a", container("work", uses("gpu"))), map[string]string{"gpu": name}))
	}
	uuid := *s.allocated("small")[0].device.Attributes["uuid"].StringValue
	wantLimits := func(name string, percentage, mebibytes int) {
		t.Helper()
		want := fmt.Sprintf("/tmp/nvidia-mps %d 0=%dM", percentage, mebibytes)
		if got := s.exec(name, "sh", "-c", "echo $CUDA_MPS_PIPE_DIRECTORY $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE $CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"); strings.TrimSpace(got) != want {
			t.Errorf("pod %s has %q, want %q", name, got, want)
		}
		if got := s.exec(name, "nvidia-smi", "-L"); strings.Count(got, "GPU ") != 1 || !strings.Contains(got, uuid) {
			t.Errorf("pod %s sees %q, want %s", name, got, uuid)
		}
		// The daemon limits nobody by itself.
		for command, want := range map[string]string{"get_default_active_thread_percentage": "100.0", "get_default_device_pinned_mem_limit " + uuid: ""} {
			if got := s.mpsSays(name, "work", command); got != want {
				t.Errorf("in pod %s the daemon says to %s: %q, want %q", name, command, got, want)
			}
		}
	}
	wantLimits("small", 15, 10240)
	wantLimits("large", 33, 20480)
	settings, daemons := s.wantSharing("node-a", 1, 1)
	if want := uuid + " Exclusive_Process Default"; settings[0] != want {
		t.Errorf("the settings are %q, want %q", settings[0], want)
	}
	if !strings.Contains(daemons[0], " "+uuid+" ") {
		t.Errorf("the daemon is %q, want one of %s", daemons[0], uuid)
	}
	sameDaemon := func(when string) {
		t.Helper()
		if _, now := s.wantSharing("node-a", 1, 1); now[0] != daemons[0] {
			t.Errorf("the daemon was %q and is %q after %s", daemons[0], now[0], when)
		}
	}

	s.killPlugin("node-a")
	sameDaemon("the plugin was killed")
	s.deletePod("small")
	sameDaemon("the first pod has ended")
	wantLimits("large", 33, 20480)
	s.deletePod("large")
	s.wantSharing("node-a", 0, 0)

	// A container with the two claims does not start, and says why.
	s.create(withClaims(pod("both", "node-a", container("work", uses("a"), uses("b"))), map[string]string{"a": "small", "b": "large"}))
	s.eventually("Pod", "both", "which both have MPS")
	s.deletePod("both")
	s.wantSharing("node-a", 0, 0)
	s.wantNothingLeft("node-a")
}
