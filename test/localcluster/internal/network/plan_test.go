// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package network

import (
	"net/netip"
	"testing"
)

func TestNewPlan(t *testing.T) {
	for cidr, ok := range map[string]bool{
		"10.77.0.0/16": true, "172.20.0.0/16": true,
		"10.77.1.0/16": false, "10.77.0.0/24": false, "fd00::/16": false, "10.77.0.0": false, "": false,
	} {
		if _, err := NewPlan(cidr); (err == nil) != ok {
			t.Errorf("NewPlan(%q): %v", cidr, err)
		}
	}
}

func TestEveryCandidateIsAPlan(t *testing.T) {
	for _, cidr := range Candidates() {
		if _, err := NewPlan(cidr); err != nil {
			t.Error(err)
		}
	}
}

func TestPlanGivesEveryPartItsOwnAddresses(t *testing.T) {
	p, err := NewPlan(Candidates()[0])
	if err != nil {
		t.Fatal(err)
	}
	networks := []netip.Prefix{p.Machines(), p.Services()}
	seen := map[netip.Addr]bool{p.ControlPlane(): true, p.Host(): true}
	for i := range MaxNodes {
		networks = append(networks, p.NodePods(i))
		if seen[p.Node(i)] {
			t.Errorf("address %s of node %d is taken", p.Node(i), i)
		}
		seen[p.Node(i)] = true
		if !p.Pods().Overlaps(p.NodePods(i)) {
			t.Errorf("pods of node %d are outside %s", i, p.Pods())
		}
		if len(nodePort(i)) > 15 {
			t.Errorf("interface name %s is too long", nodePort(i))
		}
	}
	for addr := range seen {
		if !p.Machines().Contains(addr) {
			t.Errorf("%s is not on the bridge's network", addr)
		}
	}
	for i, a := range networks {
		if !p.CIDR().Overlaps(a) {
			t.Errorf("%s is outside %s", a, p.CIDR())
		}
		for _, b := range networks[i+1:] {
			if a.Overlaps(b) {
				t.Errorf("%s and %s overlap", a, b)
			}
		}
	}
	if !p.Services().Contains(p.APIService()) {
		t.Error("the API server's service address is no service address")
	}
}
