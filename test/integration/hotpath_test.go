// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build integration

package integration

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/switchyard-dev/switchyard/test/harness/plugin"
)

func TestPrepareMakesNoNVMLCall(t *testing.T) {
	n := newNode(t, "hgx-h100")
	n.running(t, plugin.Options{Args: []string{"--discovery-interval=1h"}})
	c := n.gpus(t, "claim", n.devices...)
	if err := n.GPUs.SetRecordCalls(true); err != nil {
		t.Fatal(err)
	}
	n.prepare(t, c)
	n.prepare(t, c)
	n.unprepare(t, c)
	calls, err := n.GPUs.RecordedCalls()
	if err != nil {
		t.Fatal(err)
	}
	// Whoever watches for XIDs waits for them all the time, in a goroutine of its own.
	calls = slices.DeleteFunc(calls, func(call string) bool { return call == "nvmlEventSetWait" })
	if len(calls) > 0 {
		t.Errorf("prepare and unprepare called NVML: %q", calls)
	}
}

// adminClaims creates claims that may all be prepared at the same time.
func (n *node) adminClaims(t *testing.T, count int) []*resourceapi.ResourceClaim {
	t.Helper()
	claims := make([]*resourceapi.ResourceClaim, count)
	for i := range claims {
		claims[i] = create(t, n.claim(fmt.Sprintf("claim-%d", i)).Admin("gpu", n.devices[i%len(n.devices)]))
	}
	return claims
}

func TestFieldCase10_FiftyPreparesAtOnce(t *testing.T) {
	n := newNode(t, "hgx-h100")
	p := n.running(t, plugin.Options{})
	claims := n.adminClaims(t, 50)
	var calls errgroup.Group
	for i, c := range claims {
		calls.Go(func() error {
			devices, err := n.kubelet.PrepareOne(t.Context(), c)
			if err != nil {
				return fmt.Errorf("claim %s: %w", c.Name, err)
			}
			if got := devices[0].DeviceName; got != n.devices[i%len(n.devices)] {
				return fmt.Errorf("claim %s has device %s", c.Name, got)
			}
			return nil
		})
	}
	if err := calls.Wait(); err != nil {
		t.Fatal(err)
	}
	metric(t, p, equal(50), "switchyard_kubelet_plugin_prepared_claims")
	for i, c := range claims {
		calls.Go(func() error {
			if i%2 == 0 { // some are asked for again while others go
				if _, err := n.kubelet.PrepareOne(t.Context(), c); err != nil {
					return err
				}
			}
			return n.kubelet.Unprepare(t.Context(), c)
		})
	}
	if err := calls.Wait(); err != nil {
		t.Fatal(err)
	}
	n.wantNothingLeft(t)
	metric(t, p, equal(0), "switchyard_kubelet_plugin_prepared_claims")
	metric(t, p, equal(0), "switchyard_kubelet_plugin_requests_in_flight")
}

// A client with limits says when it waits because of them: with its defaults (5/s, burst 10) from the eleventh claim on.
func TestFieldCase13a_BurstOfPreparesIsNotThrottled(t *testing.T) {
	n := newNode(t, "hgx-h100")
	throttled := func() int {
		t.Helper()
		content, err := os.ReadFile(n.LogFile())
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(content), "client-side throttling")
	}
	limited := n.running(t, plugin.Options{Args: []string{"--kube-api-qps=5", "--kube-api-burst=10"}})
	claims := n.adminClaims(t, 60)
	for _, c := range claims[:15] {
		n.prepare(t, c)
	}
	before := throttled()
	if before == 0 {
		t.Fatal("a client with limits does not say that it waits: the test shows nothing")
	}
	limited.Kill()
	n.running(t, plugin.Options{})
	for _, c := range claims[15:] {
		n.prepare(t, c)
	}
	if after := throttled(); after != before {
		t.Errorf("the client throttled itself %d times", after-before)
	}
}
