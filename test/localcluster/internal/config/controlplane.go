// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"path/filepath"
	"slices"

	"github.com/switchyard-dev/switchyard/test/localcluster/internal/layout"
	"github.com/switchyard-dev/switchyard/test/localcluster/internal/sandbox"
)

const etcdURL = "http://127.0.0.1:2379"

// ControlPlaneFiles are the keys and configurations that the control plane's
// command lines refer to.
type ControlPlaneFiles struct {
	CACert, CAKey                     string
	APIServerCert, APIServerKey       string
	KubeletClientCert, KubeletKey     string
	FrontProxyCert, FrontProxyKey     string
	ServiceAccountKey, ServiceAccount string // private, public
	Scheduler, ControllerManager      string // kubeconfigs
	KubeProxyConfig                   string
}

// ControlPlane renders the machine of the control plane.
func (r Renderer) ControlPlane(f ControlPlaneFiles) *sandbox.Spec {
	ready := r.APIServer() + "/readyz"
	service := func(name string, waitFor string, args ...string) sandbox.Service {
		s := sandbox.Service{Name: name, Args: append([]string{r.bin(name)}, args...), Env: r.env()}
		if waitFor != "" {
			s.WaitFor = []string{waitFor}
		}
		return s
	}
	// Lets the API server reach webhooks by their services. It speaks for
	// the first node, and ends by itself when that gets an address.
	proxy := service("kube-proxy", ready, flags("config", f.KubeProxyConfig)...)
	proxy.AllowedExits = 1
	return &sandbox.Spec{
		Cluster:       r.Layout.ID(),
		Name:          layout.ControlPlane,
		Hostname:      layout.ControlPlane,
		ControlSocket: r.Layout.ControlSocket("cp"),
		Logs:          r.Layout.Logs(layout.ControlPlane),
		Sysctls: map[string]string{
			"net/ipv4/ip_forward": "1",
			// Frames between nodes are none of this machine's firewall's business.
			"net/bridge/bridge-nf-call-iptables":  "0",
			"net/bridge/bridge-nf-call-ip6tables": "0",
		},
		Services: []sandbox.Service{
			service("etcd", "", flags(
				"name", "default",
				"data-dir", filepath.Join(r.Layout.Sandbox(layout.ControlPlane), "etcd"),
				"listen-client-urls", etcdURL,
				"advertise-client-urls", etcdURL,
				"listen-peer-urls", "http://127.0.0.1:2380",
				"initial-advertise-peer-urls", "http://127.0.0.1:2380",
				"initial-cluster", "default=http://127.0.0.1:2380",
				"unsafe-no-fsync", "true",
				"log-level", "warn",
			)...),
			service("kube-apiserver", etcdURL+"/readyz", slices.Concat(flags(
				"etcd-servers", etcdURL,
				"bind-address", r.Plan.ControlPlane().String(),
				"advertise-address", r.Plan.ControlPlane().String(),
				"secure-port", "6443",
				"tls-cert-file", f.APIServerCert,
				"tls-private-key-file", f.APIServerKey,
				"client-ca-file", f.CACert,
				"kubelet-certificate-authority", f.CACert,
				"kubelet-client-certificate", f.KubeletClientCert,
				"kubelet-client-key", f.KubeletKey,
				"kubelet-preferred-address-types", "InternalIP",
				"requestheader-client-ca-file", f.CACert,
				"requestheader-allowed-names", frontProxyUser,
				"requestheader-username-headers", "X-Remote-User",
				"requestheader-group-headers", "X-Remote-Group",
				"requestheader-extra-headers-prefix", "X-Remote-Extra-",
				"proxy-client-cert-file", f.FrontProxyCert,
				"proxy-client-key-file", f.FrontProxyKey,
				"service-account-key-file", f.ServiceAccount,
				"service-account-signing-key-file", f.ServiceAccountKey,
				"service-account-issuer", "https://kubernetes.default.svc",
				"service-cluster-ip-range", r.Plan.Services().String(),
				"authorization-mode", "Node,RBAC",
				"enable-admission-plugins", "NodeRestriction",
				"allow-privileged", "true",
				"event-ttl", "3h",
			), r.gateFlags(), r.runtimeConfig())...),
			service("kube-controller-manager", ready, slices.Concat(flags(
				"kubeconfig", f.ControllerManager,
				"authentication-kubeconfig", f.ControllerManager,
				"authorization-kubeconfig", f.ControllerManager,
				"bind-address", "127.0.0.1",
				"leader-elect", "false",
				"use-service-account-credentials", "true",
				"service-account-private-key-file", f.ServiceAccountKey,
				"root-ca-file", f.CACert,
				"cluster-signing-cert-file", f.CACert,
				"cluster-signing-key-file", f.CAKey,
			), r.gateFlags())...),
			service("kube-scheduler", ready, slices.Concat(flags(
				"kubeconfig", f.Scheduler,
				"authentication-kubeconfig", f.Scheduler,
				"authorization-kubeconfig", f.Scheduler,
				"bind-address", "127.0.0.1",
				"leader-elect", "false",
			), r.gateFlags())...),
			proxy,
		},
	}
}

func (r Renderer) runtimeConfig() []string {
	if !r.Cluster.NativeGangs {
		return nil
	}
	return flags("runtime-config", "scheduling.k8s.io/v1beta1=true")
}
