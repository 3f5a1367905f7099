// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package network plans and wires the cluster's network: one namespace per
// node and one for the control plane, which also holds the bridge that joins
// them. The host is one more leg on that bridge; none of its own interfaces,
// firewall rules or sysctls change. plan.go is pure.
package network

import (
	"fmt"
	"net/netip"
)

// MaxNodes is the largest number of nodes of a cluster.
const MaxNodes = 64

// Candidates are the networks that a cluster may take unless told otherwise;
// it takes the first that is free.
func Candidates() []string {
	var all []string
	for b := 77; b < 97; b++ {
		all = append(all, fmt.Sprintf("10.%d.0.0/16", b))
	}
	return all
}

// Names of interfaces; the kernel limits them to 15 characters.
const (
	bridge   = "sy0"
	hostPort = "sy-host" // the host's port of the bridge
	nodeLink = "eth0"    // a node's leg
)

// hostLink is the host's leg; other clusters have theirs beside it.
func hostLink(cluster string) string { return "sy-" + cluster }

func nodePort(index int) string { return fmt.Sprintf("sy-n%d", index) }

// Plan divides a /16 among the parts of a cluster:
//
//	x.y.0.0/24        the bridge: .1 control plane, .10+i node i, .254 host
//	x.y.1.0/24        services; .1 is the API server
//	x.y.(128+i).0/24  pods of node i
type Plan struct{ a, b byte }

// NewPlan returns the plan for an IPv4 /16.
func NewPlan(cidr string) (Plan, error) {
	prefix, err := netip.ParsePrefix(cidr)
	if err != nil || !prefix.Addr().Is4() || prefix.Bits() != 16 || prefix.Masked() != prefix {
		return Plan{}, fmt.Errorf("cluster CIDR %q must be an IPv4 network with 16 bits, for example %s", cidr, Candidates()[0])
	}
	octets := prefix.Addr().As4()
	return Plan{a: octets[0], b: octets[1]}, nil
}

func (p Plan) addr(c, d byte) netip.Addr { return netip.AddrFrom4([4]byte{p.a, p.b, c, d}) }

// CIDR is everything a cluster uses.
func (p Plan) CIDR() netip.Prefix { return netip.PrefixFrom(p.addr(0, 0), 16) }

// Machines is the network of the bridge.
func (p Plan) Machines() netip.Prefix { return netip.PrefixFrom(p.addr(0, 0), 24) }

// ControlPlane is the API server's address.
func (p Plan) ControlPlane() netip.Addr { return p.addr(0, 1) }

// Host is the host's address on the bridge.
func (p Plan) Host() netip.Addr { return p.addr(0, 254) }

// Node is the address of the node with that index.
func (p Plan) Node(index int) netip.Addr { return p.addr(0, byte(10+index)) }

// Services is the network of service addresses.
func (p Plan) Services() netip.Prefix { return netip.PrefixFrom(p.addr(1, 0), 24) }

// APIService is the address of the service default/kubernetes.
func (p Plan) APIService() netip.Addr { return p.addr(1, 1) }

// Pods is the network of all pods.
func (p Plan) Pods() netip.Prefix { return netip.PrefixFrom(p.addr(128, 0), 17) }

// NodePods is the network of one node's pods.
func (p Plan) NodePods(index int) netip.Prefix {
	return netip.PrefixFrom(p.addr(byte(128+index), 0), 24)
}
