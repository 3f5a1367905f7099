// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// hostPort is a port of its node that a pod takes.
type hostPort struct {
	ip       string
	protocol corev1.Protocol
	port     int32
}

// everyIP is the address that clashes with all others.
const everyIP = "0.0.0.0"

func (p hostPort) clashes(other hostPort) bool {
	return p.port == other.port && p.protocol == other.protocol && (p.ip == other.ip || p.ip == everyIP || other.ip == everyIP)
}

// hostPorts are those of a pod's containers and sidecars; other init containers have ended when it runs. With hostNetwork the
// API server has made each port one of the host.
func hostPorts(pod *corev1.Pod) []hostPort {
	var ports []hostPort
	add := func(c *corev1.Container) {
		for _, p := range c.Ports {
			if p.HostPort != 0 {
				ports = append(ports, hostPort{cmp.Or(p.HostIP, everyIP), cmp.Or(p.Protocol, corev1.ProtocolTCP), p.HostPort})
			}
		}
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; ptr.Deref(c.RestartPolicy, "") == corev1.ContainerRestartPolicyAlways {
			add(c)
		}
	}
	for i := range pod.Spec.Containers {
		add(&pod.Spec.Containers[i])
	}
	return ports
}

// hostPortsOf are those of all the pods, each once.
func hostPortsOf(pods []*corev1.Pod) []hostPort {
	var ports []hostPort
	for _, pod := range pods {
		for _, p := range hostPorts(pod) {
			if !slices.Contains(ports, p) {
				ports = append(ports, p)
			}
		}
	}
	return ports
}

// clash reports whether any two of the pods take the same port.
func clash(pods []*corev1.Pod) bool {
	all := make([][]hostPort, len(pods))
	for i, pod := range pods {
		if all[i] = hostPorts(pod); len(all[i]) == 0 {
			return false
		}
		for _, before := range all[:i] {
			if !slices.ContainsFunc(all[i], func(p hostPort) bool { return slices.ContainsFunc(before, p.clashes) }) {
				return false
			}
		}
	}
	return len(pods) > 1
}

// besidePorts shuns the nodes on which a pod runs that has one of the ports.
func (c *Cluster) besidePorts(ports []hostPort, shun func(*node, string)) {
	if len(ports) == 0 {
		return
	}
	taken := map[*node]string{}
	for key, p := range c.pods {
		if p.node == "" {
			continue
		}
		for _, port := range hostPorts(p.object) {
			if !slices.ContainsFunc(ports, port.clashes) {
				continue
			}
			why, n := fmt.Sprintf("pod %s has host port %d", key, port.port), c.nodes[p.node]
			if known, ok := taken[n]; !ok || why < known {
				taken[n] = why
			}
		}
	}
	for n, why := range taken {
		shun(n, why)
	}
}
