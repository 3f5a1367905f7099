// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package config renders the configuration files and command lines of the
// cluster's programs. It is pure: values in, text out. It imports only
// layout, network (its plan) and sandbox (its types).
package config

import (
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/switchyard-dev/switchyard/test/localcluster/internal/layout"
	"github.com/switchyard-dev/switchyard/test/localcluster/internal/network"
)

// Paths inside every node. They are the defaults of Kubernetes, containerd and
// CDI, so that manifests written for real nodes fit.
const (
	ContainerdSocket = "/run/containerd/containerd.sock"
	containerdRoot   = "/var/lib/containerd"
	containerdState  = "/run/containerd"
	cniConfigDir     = "/etc/cni/net.d"
	kubeletDir       = "/var/lib/kubelet"
	kubeletHealth    = "http://127.0.0.1:10248/healthz"
)

// Images that the cluster brings along.
const (
	PauseImage   = "localhost/pause:1"
	BusyboxImage = "localhost/busybox:1"
)

// Cluster is the shape of a cluster.
type Cluster struct {
	// Version guards against state of another version of this program.
	Version int `json:"version"`
	// BinKey names the set of binaries that the cluster runs.
	BinKey string `json:"binKey"`
	// Bin is the folder with the binaries.
	Bin string `json:"bin"`
	// CIDR is the cluster's network.
	CIDR string `json:"cidr"`
	// NativeGangs turns Kubernetes' own gang scheduling on.
	NativeGangs bool `json:"nativeGangs"`
	// Nodes are the nodes' names; a node's index is its place.
	Nodes []string `json:"nodes"`
}

// ClusterVersion is the current Cluster.Version.
const ClusterVersion = 2

// Renderer renders for one cluster.
type Renderer struct {
	Layout  layout.Layout
	Plan    network.Plan
	Cluster Cluster
}

// File is a rendered file.
type File struct {
	Path    string
	Content []byte
	// Mode is 0644 unless set.
	Mode fs.FileMode
}

func (r Renderer) bin(name string) string { return filepath.Join(r.Cluster.Bin, name) }

// APIServer is the API server's URL.
func (r Renderer) APIServer() string {
	return "https://" + netip.AddrPortFrom(r.Plan.ControlPlane(), 6443).String()
}

// env is the environment of every service: no proxy variables, whose target
// would be outside the cluster.
func (r Renderer) env() []string {
	return []string{
		"PATH=" + r.Cluster.Bin + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=/root",
	}
}

// featureGates returns the gates of the profile, or "".
func (r Renderer) featureGates() map[string]bool {
	if !r.Cluster.NativeGangs {
		return nil
	}
	return map[string]bool{"GenericWorkload": true, "DRAWorkloadResourceClaims": true}
}

func (r Renderer) gateFlags() []string {
	gates := r.featureGates()
	if gates == nil {
		return nil
	}
	return []string{"--feature-gates=DRAWorkloadResourceClaims=true,GenericWorkload=true"}
}

// Kubeconfig renders a kubeconfig that authenticates by certificate. It holds
// the PEM blocks themselves, so that it works wherever it is copied to.
func (r Renderer) Kubeconfig(ca, cert, key []byte) ([]byte, error) {
	const name = "switchyard"
	return render(map[string]any{
		"apiVersion":      "v1",
		"kind":            "Config",
		"current-context": name,
		"clusters":        []any{map[string]any{"name": name, "cluster": map[string]any{"server": r.APIServer(), "certificate-authority-data": ca}}},
		"users":           []any{map[string]any{"name": name, "user": map[string]any{"client-certificate-data": cert, "client-key-data": key}}},
		"contexts":        []any{map[string]any{"name": name, "context": map[string]any{"cluster": name, "user": name}}},
	})
}

// KubeProxy renders the configuration of the kube-proxy beside the given node,
// or of the control plane's for its first node.
func (r Renderer) KubeProxy(kubeconfig, nodeName string) ([]byte, error) {
	return render(map[string]any{
		"apiVersion":         "kubeproxy.config.k8s.io/v1alpha1",
		"kind":               "KubeProxyConfiguration",
		"mode":               "nftables",
		"hostnameOverride":   nodeName,
		"clientConnection":   map[string]any{"kubeconfig": kubeconfig},
		"clusterCIDR":        r.Plan.Pods().String(),
		"detectLocalMode":    "ClusterCIDR",
		"healthzBindAddress": "127.0.0.1:10256",
		"metricsBindAddress": "127.0.0.1:10249",
		// The limit belongs to the whole machine, not to a namespace.
		"conntrack":   map[string]any{"maxPerCore": 0},
		"oomScoreAdj": 0,
	})
}

func render(v any) ([]byte, error) {
	out, err := yaml.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("render configuration: %w", err)
	}
	return out, nil
}

// flags renders "--name=value" in the order given.
func flags(pairs ...string) []string {
	if len(pairs)%2 != 0 {
		panic("flags: odd number of arguments: " + strings.Join(pairs, " "))
	}
	var out []string
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, "--"+pairs[i]+"="+pairs[i+1])
	}
	return out
}
