// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build integration

package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/switchyard-dev/switchyard/pkg/resourcemodel"
	"github.com/switchyard-dev/switchyard/test/harness/claim"
	"github.com/switchyard-dev/switchyard/test/harness/plugin"
)

// sharedByMPS shares the first two GPUs.
const sharedByMPS = "shares: [{gpus: '0,1', strategy: MPS, maxClaims: 4}]"

// oneShare builds a claim with a share of the first GPU.
func (n *node) oneShare(name string, id types.UID, memory, multiprocessors string) *claim.Builder {
	return n.claim(name).Shared("share", n.devices[0], id).Consuming(map[resourceapi.QualifiedName]resource.Quantity{
		resourcemodel.CapacityMemory: resource.MustParse(memory), resourcemodel.CapacityMultiprocessors: resource.MustParse(multiprocessors),
	})
}

const (
	firstShare  = "6b1c9a30-3f0e-4a3b-9d1e-111111111111"
	secondShare = "6b1c9a30-3f0e-4a3b-9d1e-222222222222"
)

// sharing starts the plugin on a node whose first GPU is shared by MPS.
func (n *node) sharing(t *testing.T, args ...string) *plugin.Plugin {
	t.Helper()
	p := n.running(t, plugin.Options{Args: append(n.configured(t, sharedByMPS), args...)})
	n.wantForm(t, n.devices[0], resourcemodel.TypeShare, false)
	return p
}

// wantLimits checks the limits that a container with the CDI device IDs has, and that the daemon which it reaches has
// none of its own, which is of the first GPU.
func (n *node) wantLimits(t *testing.T, ids []string, percentage, mebibytes int) {
	t.Helper()
	spec, err := n.container(ids...)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{fmt.Sprintf("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=%d", percentage), fmt.Sprintf("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=%dM", mebibytes)} {
		if !slices.Contains(spec.Process.Env, want) {
			t.Errorf("the container has %q, want %s", spec.Process.Env, want)
		}
	}
	for command, want := range map[string]string{"get_default_active_thread_percentage": "100.0", "get_default_device_pinned_mem_limit 0": ""} {
		if got, err := n.mpsSays(t, ids, command); err != nil || got != want {
			t.Errorf("%s says %q, %v, want %q", command, got, err, want)
		}
	}
	if mode := n.computeMode(t, 0); mode != nvml.COMPUTEMODE_EXCLUSIVE_PROCESS {
		t.Errorf("the GPU has compute mode %d", mode)
	}
}

// onlyDaemon is the process ID of the one MPS daemon that runs.
func (n *node) onlyDaemon(t *testing.T) int {
	t.Helper()
	running := n.mpsDaemons(t)
	if len(running) != 1 || len(running[0].Devices) != 1 || !strings.EqualFold(running[0].Devices[0], n.devices[0]) {
		t.Fatalf("the daemons are %+v, want one of %s", running, n.devices[0])
	}
	return running[0].PID
}

func TestClaimsWithSharesOfOneGPUHaveOneMPSDaemonAndLimitsOfTheirOwn(t *testing.T) {
	t.Parallel()
	n := newNode(t, "hgx-h100")
	p := n.sharing(t)
	supervisor := n.supervise(t)
	one, two := create(t, n.oneShare("one", firstShare, "10Gi", "33")), create(t, n.oneShare("two", secondShare, "20Gi", "44"))
	ids := n.prepare(t, one)
	n.wantSees(t, ids, 0)
	n.wantLimits(t, ids, 25, 10240)
	daemon := n.onlyDaemon(t)
	n.wantLimits(t, n.prepare(t, two), 33, 20480)

	p.Kill()
	n.sharing(t)
	n.wantLimits(t, n.prepare(t, one), 25, 10240)
	n.unprepare(t, one)
	ids = n.prepare(t, two)
	n.wantLimits(t, ids, 33, 20480)
	if now := n.onlyDaemon(t); now != daemon {
		t.Errorf("the daemon was %d and is %d after the plugin was killed and a claim has ended", daemon, now)
	}

	supervisor.Kill()
	n.supervise(t)
	eventually(t, "the next supervisor's daemon", func() error {
		if running := n.mpsDaemons(t); len(running) != 1 || running[0].PID == daemon {
			return fmt.Errorf("%+v run", running)
		}
		_, err := n.mpsSays(t, ids, "get_server_list")
		return err
	})
	n.wantLimits(t, ids, 33, 20480)
	n.unprepare(t, two)
	n.wantUnshared(t)
}

// Wherever the plugin dies, the next one finishes, or takes back, what it had begun; a claim that has a share of the same
// GPU keeps its daemon.
func TestKilledAtEachStepOfAShareByMPS(t *testing.T) {
	t.Parallel()
	n := newNode(t, "hgx-h100")
	n.supervise(t)
	p := n.sharing(t) // before there is a claim, which the GPU would wait for
	neighbour := create(t, n.oneShare("neighbour", secondShare, "20Gi", "44"))
	p.Kill()
	for i, test := range []struct {
		step  string
		alone bool // a GPU that has a daemon already does not come there
	}{
		{"prepare:after-checkpoint", false},
		{"sharing:before-settings", true},
		{"sharing:after-settings", false},
		{"sharing:before-daemon", false},
		{"sharing:after-daemon", false},
		{"prepare:after-cdi", false},
		{"unprepare:after-cdi-removal", false},
		{"sharing:after-daemon-removal", false},
		{"sharing:after-settings-restored", false},
	} {
		for _, beside := range []bool{false, true} {
			if beside && test.alone {
				continue
			}
			t.Run(fmt.Sprintf("%s with a neighbour %t", test.step, beside), func(t *testing.T) {
				p := n.sharing(t)
				daemon := 0
				if beside {
					n.prepare(t, neighbour)
					daemon = n.onlyDaemon(t)
				}
				c := create(t, n.oneShare(fmt.Sprintf("claim-%d-%t", i, beside), firstShare, "10Gi", "33"))
				unpreparing := i >= 6 // of the steps above
				if unpreparing {
					n.prepare(t, c)
					n.diesUnpreparing(t, p, test.step, c)
				} else {
					n.diesPreparing(t, p, test.step, c)
				}
				n.sharing(t)
				if !unpreparing {
					n.wantLimits(t, n.prepare(t, c), 25, 10240)
				}
				n.unprepare(t, c)
				if beside {
					n.wantLimits(t, n.prepare(t, neighbour), 33, 20480)
					if now := n.onlyDaemon(t); now != daemon {
						t.Errorf("the neighbour's daemon was %d and is %d", daemon, now)
					}
					n.unprepare(t, neighbour)
				}
				n.wantUnshared(t)
			})
		}
	}
}

// A claim that is gone when the plugin comes back has left nothing, and its neighbour everything.
func TestAShareByMPSWhoseClaimGoesWhileThePluginIsDead(t *testing.T) {
	t.Parallel()
	n := newNode(t, "hgx-h100")
	n.supervise(t)
	p := n.sharing(t)
	neighbour, c := create(t, n.oneShare("neighbour", secondShare, "20Gi", "44")), create(t, n.oneShare("gone", firstShare, "10Gi", "33"))
	n.prepare(t, neighbour)
	daemon := n.onlyDaemon(t)
	n.diesPreparing(t, p, "sharing:after-daemon", c)
	if err := claim.Delete(t.Context(), cluster.Client(), c); err != nil {
		t.Fatal(err)
	}
	p = n.sharing(t, "--orphan-grace=0s", "--reconcile-interval=1s")
	metric(t, p, equal(1), "switchyard_kubelet_plugin_prepared_claims")
	n.wantLimits(t, n.prepare(t, neighbour), 33, 20480)
	if now := n.onlyDaemon(t); now != daemon {
		t.Errorf("the neighbour's daemon was %d and is %d", daemon, now)
	}
	n.unprepare(t, neighbour)
	n.wantUnshared(t)
}

func TestSharesByMPSThatDoNotGoTogetherAreRefused(t *testing.T) {
	t.Parallel()
	n := newNode(t, "hgx-h100")
	n.supervise(t)
	n.sharing(t)
	quarter := map[resourceapi.QualifiedName]resource.Quantity{
		resourcemodel.CapacityMemory: resource.MustParse("10Gi"), resourcemodel.CapacityMultiprocessors: resource.MustParse("33"),
	}
	twoGPUs := n.claim("two-gpus").Shared("one", n.devices[0], firstShare).Consuming(quarter).Shared("two", n.devices[1], secondShare).Consuming(quarter)
	n.refused(t, create(t, twoGPUs), "request two", "a claim for each")
	withWhole := n.claim("with-whole").Shared("one", n.devices[0], firstShare).Consuming(quarter).Request("two", n.devices[2])
	n.refused(t, create(t, withWhole), "request two", "a claim for each")
	n.wantUnshared(t)

	pod := n.pod(t, "three", "one", "same", "other", "whole")
	one := create(t, n.oneShare("one", firstShare, "10Gi", "33").ReservedFor(pod))
	n.prepare(t, one)
	for _, c := range []*claim.Builder{
		n.oneShare("same", secondShare, "10Gi", "33"), n.claim("other").Shared("share", n.devices[1], secondShare).Consuming(quarter),
		n.claim("whole").Request("gpu", n.devices[2]).Config(mpsLimits),
	} {
		n.refused(t, create(t, c.ReservedFor(pod)), "container main", "both have MPS", "one claim")
	}
	n.onlyDaemon(t)
	n.unprepare(t, one)
	n.wantUnshared(t)
}
