// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
)

// breakNodeB puts singles on GPUs 0, 2, 4 and 6 of node-b: four idle GPUs, two in each domain.
func (s *space) breakNodeB() {
	s.Helper()
	for _, i := range []string{"0", "2", "4", "6"} {
		name := "single-" + i
		s.claim(name, claimSpec([]resourceapi.DeviceRequest{request("gpu", 1, onIndex(i))}))
		s.create(withClaims(pod(name, "node-b", container("work", uses("gpu"))), map[string]string{"gpu": name}))
	}
	for _, i := range []string{"0", "2", "4", "6"} {
		s.must(the.WaitPodRunning(s.ctx, s.name, "single-"+i, patience))
	}
}

// A plain count is content with GPUs of two domains: the trap that the attribute exists for.
func TestPlainCountLandsAcrossDomains(t *testing.T) {
	s := newSpace(t)
	s.breakNodeB()
	s.claim("plain", claimSpec([]resourceapi.DeviceRequest{request("gpus", 4)}))
	s.run(withClaims(pod("plain", "node-b", container("train", uses("gpus"))), map[string]string{"gpus": "plain"}))

	devices := s.allocated("plain")
	if got, want := s.gpusIn("plain", "train"), nodesOf(devices); !slices.Equal(got, want) {
		t.Errorf("the container has %v, the claim's devices are %v", got, want)
	}
	domains := map[string]int{}
	for _, d := range devices {
		domains[d.domain()]++
	}
	if domains["node-b.0"] != 2 || domains["node-b.1"] != 2 {
		t.Errorf("GPUs per domain: %v, want two in each", domains)
	}
}

// Field cases 25 and 28: four idle GPUs as 2 + 2 are no place for a job of four, and the job says so by waiting.
func TestFieldCase25_SameDomainIsRefusedOnABrokenNodeAndPlacedOnAWholeOne(t *testing.T) {
	s := newSpace(t)
	s.breakNodeB()
	s.fromGuide("claims", "four-together")

	pinned := fromTemplate(pod("pinned", "node-b", container("train", uses("gpus"))), "gpus", "four-together")
	s.create(pinned)
	message, err := the.WaitUnschedulable(s.ctx, s.name, "pinned", patience)
	s.must(err)
	t.Logf("the scheduler says: %s", message)
	s.deletePod("pinned")

	s.run(fromTemplate(pod("free", "", container("train", uses("gpus"))), "gpus", "four-together"))
	devices := s.allocated(s.claimOf("free", "gpus"))
	if len(devices) != 4 {
		t.Fatalf("%d devices allocated, want 4", len(devices))
	}
	for _, d := range devices {
		if d.domain() != "node-a.0" {
			t.Errorf("%s is of domain %q, want node-a.0", d.device.Name, d.domain())
		}
	}
	if got, want := s.gpusIn("free", "train"), nodesOf(devices); !slices.Equal(got, want) {
		t.Errorf("the container has %v, the claim's devices are %v", got, want)
	}
}

func TestNamedDomainBySelector(t *testing.T) {
	s := newSpace(t)
	for _, domain := range []string{"node-b.0", "node-b.1"} {
		name := strings.ReplaceAll(domain, ".", "-")
		expression := fmt.Sprintf("device.attributes[%q].?nvswitchDomain.orValue(\"\") == %q", classGPU, domain)
		s.claim(name, claimSpec([]resourceapi.DeviceRequest{request("gpus", 4, expression)}))
		s.run(withClaims(pod(name, "", container("train", uses("gpus"))), map[string]string{"gpus": name}))
		for _, d := range s.allocated(name) {
			if d.domain() != domain {
				t.Errorf("%s is of domain %q, want %s", d.device.Name, d.domain(), domain)
			}
		}
	}
}

// Devices are listed domain by domain, so that the scheduler's first fit fills one domain before it breaks the next.
func TestFirstFitFillsOneDomainFirst(t *testing.T) {
	s := newSpace(t)
	for i := range 4 {
		name := fmt.Sprintf("fit-%d", i)
		s.claim(name, claimSpec([]resourceapi.DeviceRequest{request("gpu", 1)}))
		s.run(withClaims(pod(name, "node-b", container("work", uses("gpu"))), map[string]string{"gpu": name}))
		if got := s.allocated(name)[0].domain(); got != "node-b.0" {
			t.Errorf("single %d landed in %s, want node-b.0", i, got)
		}
	}
}
