// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"github.com/switchyard-dev/switchyard/test/localcluster/internal/pki"
)

const frontProxyUser = "front-proxy-client"

// Administrator is the person who plays with the cluster, and the tests.
func Administrator() pki.Subject {
	return pki.Subject{User: "admin", Groups: []string{"system:masters"}}
}

// Component is one of the control plane's own users; Kubernetes binds its
// roles to these names.
func Component(name string) pki.Subject { return pki.Subject{User: "system:" + name} }

// FrontProxy is the API server towards aggregated API servers.
func FrontProxy() pki.Subject { return pki.Subject{User: frontProxyUser} }

// KubeletClient is the API server towards kubelets.
func KubeletClient() pki.Subject {
	return pki.Subject{User: "kube-apiserver-kubelet-client", Groups: []string{"system:masters"}}
}

// APIServerServing is the API server towards everyone.
func (r Renderer) APIServerServing() pki.Subject {
	return pki.Subject{User: "kube-apiserver", Server: []string{
		"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "localhost",
		r.Plan.ControlPlane().String(), r.Plan.APIService().String(), "127.0.0.1",
	}}
}

// Kubelet is a node, as a client and as a server. The node authorizer and
// NodeRestriction know it by its user and group.
func (r Renderer) Kubelet(index int) pki.Subject {
	name := r.Cluster.Nodes[index]
	return pki.Subject{
		User:   "system:node:" + name,
		Groups: []string{"system:nodes"},
		Server: []string{name, r.Plan.Node(index).String()},
	}
}
