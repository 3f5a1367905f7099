// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// namespace is an open network namespace with a netlink handle inside it.
type namespace struct {
	*netlink.Handle
	fd netns.NsHandle
}

// open opens the network namespace of a process.
func open(pid int) (*namespace, error) {
	fd, err := netns.GetFromPid(pid)
	if err != nil {
		return nil, fmt.Errorf("open network namespace of process %d: %w", pid, err)
	}
	handle, err := netlink.NewHandleAt(fd)
	if err != nil {
		fd.Close()
		return nil, fmt.Errorf("open netlink in network namespace of process %d: %w", pid, err)
	}
	return &namespace{Handle: handle, fd: fd}, nil
}

func (n *namespace) close() {
	n.Handle.Close()
	n.fd.Close()
}

func host() (*namespace, error) { return open(os.Getpid()) }

// CheckFree refuses a plan whose addresses the host, or another cluster on it,
// already uses.
func CheckFree(p Plan, cluster string) error {
	routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("list the host's routes: %w", err)
	}
	for _, r := range routes {
		if r.Dst == nil {
			continue
		}
		addr, ok := netip.AddrFromSlice(r.Dst.IP.To4())
		ones, _ := r.Dst.Mask.Size()
		if !ok || ones == 0 || !netip.PrefixFrom(addr, ones).Overlaps(p.CIDR()) {
			continue
		}
		name := fmt.Sprintf("interface %d", r.LinkIndex)
		if link, err := netlink.LinkByIndex(r.LinkIndex); err == nil {
			name = link.Attrs().Name
		}
		if name != hostLink(cluster) {
			return fmt.Errorf("the cluster's addresses %s overlap the host's route to %s on %s: choose another network with --cidr", p.CIDR(), r.Dst, name)
		}
	}
	return nil
}

// ConnectControlPlane makes the bridge inside the control plane's namespace
// and joins the host to it. What is there already is kept.
func ConnectControlPlane(p Plan, cluster string, pid int) error {
	link := hostLink(cluster)
	cp, err := open(pid)
	if err != nil {
		return err
	}
	defer cp.close()
	if err := cp.up("lo"); err != nil {
		return err
	}
	if _, err := cp.LinkByName(bridge); missing(err) {
		br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridge}}
		if err := cp.LinkAdd(br); err != nil {
			return fmt.Errorf("create bridge %s: %w (is the kernel's bridge module available?)", bridge, err)
		}
	} else if err != nil {
		return fmt.Errorf("look up bridge %s: %w", bridge, err)
	}
	if err := cp.address(bridge, p.ControlPlane(), p.Machines().Bits()); err != nil {
		return err
	}
	if err := cp.up(bridge); err != nil {
		return err
	}
	// Service addresses need some route, so that a packet gets as far as to
	// where kube-proxy replaces its destination.
	if err := cp.route(bridge, p.Services(), netip.Addr{}); err != nil {
		return err
	}
	root, err := host()
	if err != nil {
		return err
	}
	defer root.close()
	if err := plug(cp, hostPort, root, link); err != nil {
		return fmt.Errorf("connect the host to the cluster: %w", err)
	}
	if err := root.address(link, p.Host(), p.Machines().Bits()); err != nil {
		return err
	}
	if err := root.up(link); err != nil {
		return err
	}
	return root.route(link, p.Services(), p.ControlPlane())
}

// ConnectNode joins a node's namespace to the bridge and makes its pods
// reachable from the control plane and the host. What is there already is
// kept; a node that is cut off stays so.
func ConnectNode(p Plan, cluster string, controlPlane, node, index int) error {
	cp, err := open(controlPlane)
	if err != nil {
		return err
	}
	defer cp.close()
	n, err := open(node)
	if err != nil {
		return err
	}
	defer n.close()
	root, err := host()
	if err != nil {
		return err
	}
	defer root.close()
	if err := n.up("lo"); err != nil {
		return err
	}
	if err := plug(cp, nodePort(index), n, nodeLink); err != nil {
		return err
	}
	if err := n.address(nodeLink, p.Node(index), p.Machines().Bits()); err != nil {
		return err
	}
	if err := n.up(nodeLink); err != nil {
		return err
	}
	if err := cp.route(bridge, p.NodePods(index), p.Node(index)); err != nil {
		return err
	}
	return root.route(hostLink(cluster), p.NodePods(index), p.Node(index))
}

// ConnectPods tells every node the way to every other node's pods. The keys
// are the nodes' indexes, the values processes in their namespaces.
func ConnectPods(p Plan, nodes map[int]int) error {
	for index, pid := range nodes {
		n, err := open(pid)
		if err != nil {
			return err
		}
		// For services, as above, and for answers to the host.
		err = n.route(nodeLink, netip.PrefixFrom(netip.IPv4Unspecified(), 0), p.ControlPlane())
		for other := range nodes {
			if err == nil && other != index {
				err = n.route(nodeLink, p.NodePods(other), p.Node(other))
			}
		}
		n.close()
		if err != nil {
			return err
		}
	}
	return nil
}

// SetCut takes a node's link down at the bridge, or up again. The node sees
// what it would see when its cable is pulled.
func SetCut(controlPlane, index int, cut bool) error {
	cp, err := open(controlPlane)
	if err != nil {
		return err
	}
	defer cp.close()
	if cut {
		link, err := cp.LinkByName(nodePort(index))
		if err != nil {
			return fmt.Errorf("look up link %s: %w", nodePort(index), err)
		}
		if err := cp.LinkSetDown(link); err != nil {
			return fmt.Errorf("take link %s down: %w", nodePort(index), err)
		}
		return nil
	}
	return cp.up(nodePort(index))
}

// IsCut reports whether a node's link is down at the bridge.
func IsCut(controlPlane, index int) (bool, error) {
	cp, err := open(controlPlane)
	if err != nil {
		return false, err
	}
	defer cp.close()
	link, err := cp.LinkByName(nodePort(index))
	if err != nil {
		return false, fmt.Errorf("look up link %s: %w", nodePort(index), err)
	}
	return link.Attrs().Flags&net.FlagUp == 0, nil
}

// Disconnect removes the host's leg, with its addresses and routes. Everything
// else vanishes with the namespaces.
func Disconnect(cluster string) error {
	link, err := netlink.LinkByName(hostLink(cluster))
	if missing(err) {
		return nil
	}
	if err == nil {
		err = netlink.LinkDel(link)
	}
	if err != nil && !missing(err) && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove link %s: %w", hostLink(cluster), err)
	}
	return nil
}

// plug joins a namespace's link to a port of the bridge by a veth pair. If
// either end is missing, the other is left from before and is replaced.
func plug(cp *namespace, port string, other *namespace, name string) error {
	portLink, portErr := cp.LinkByName(port)
	otherLink, otherErr := other.LinkByName(name)
	if portErr == nil && otherErr == nil {
		return nil
	}
	for _, end := range []struct {
		ns   *namespace
		link netlink.Link
		err  error
	}{{cp, portLink, portErr}, {other, otherLink, otherErr}} {
		if end.err == nil {
			if err := end.ns.LinkDel(end.link); err != nil {
				return fmt.Errorf("remove old link %s: %w", end.link.Attrs().Name, err)
			}
		} else if !missing(end.err) {
			return fmt.Errorf("look up links %s and %s: %w", port, name, end.err)
		}
	}
	br, err := cp.LinkByName(bridge)
	if err != nil {
		return fmt.Errorf("look up bridge %s: %w", bridge, err)
	}
	pair := &netlink.Veth{
		LinkAttrs:     netlink.LinkAttrs{Name: port, MasterIndex: br.Attrs().Index},
		PeerName:      name,
		PeerNamespace: netlink.NsFd(int(other.fd)),
	}
	if err := cp.LinkAdd(pair); err != nil {
		return fmt.Errorf("create link %s to %s: %w", port, name, err)
	}
	return cp.up(port)
}

func (n *namespace) up(name string) error {
	link, err := n.LinkByName(name)
	if err != nil {
		return fmt.Errorf("look up link %s: %w", name, err)
	}
	if err := n.LinkSetUp(link); err != nil {
		return fmt.Errorf("bring link %s up: %w", name, err)
	}
	return nil
}

func (n *namespace) address(name string, addr netip.Addr, bits int) error {
	link, err := n.LinkByName(name)
	if err != nil {
		return fmt.Errorf("look up link %s: %w", name, err)
	}
	ip := &netlink.Addr{IPNet: &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(bits, 32)}}
	if err := n.AddrReplace(link, ip); err != nil {
		return fmt.Errorf("give link %s the address %s/%d: %w", name, addr, bits, err)
	}
	return nil
}

// route leads a network through a link, via a neighbour unless that is zero.
func (n *namespace) route(name string, to netip.Prefix, via netip.Addr) error {
	link, err := n.LinkByName(name)
	if err != nil {
		return fmt.Errorf("look up link %s: %w", name, err)
	}
	dst := &net.IPNet{IP: to.Addr().AsSlice(), Mask: net.CIDRMask(to.Bits(), 32)}
	route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: dst, Scope: netlink.SCOPE_LINK}
	if via.IsValid() {
		route.Gw, route.Scope = via.AsSlice(), netlink.SCOPE_UNIVERSE
	}
	if err := n.RouteReplace(route); err != nil {
		return fmt.Errorf("route %s through %s: %w", to, name, err)
	}
	return nil
}

func missing(err error) bool {
	var notFound netlink.LinkNotFoundError
	return errors.As(err, &notFound)
}
