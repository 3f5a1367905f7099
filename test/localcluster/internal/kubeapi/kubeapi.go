// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kubeapi asks the cluster's API server the few questions that
// starting a cluster needs. It is a handful of plain requests rather than
// client-go, so that this program compiles in seconds before the cluster's own
// programs do. It imports only the standard library and sigs.k8s.io/yaml.
package kubeapi

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

// ErrNotFound is returned for an object that does not exist.
var ErrNotFound = errors.New("not found")

// Client talks to one API server.
type Client struct {
	server string
	http   *http.Client
}

type kubeconfig struct {
	Clusters []struct {
		Cluster struct {
			Server string `json:"server"`
			CA     []byte `json:"certificate-authority-data"`
		} `json:"cluster"`
	} `json:"clusters"`
	Users []struct {
		User struct {
			Cert []byte `json:"client-certificate-data"`
			Key  []byte `json:"client-key-data"`
		} `json:"user"`
	} `json:"users"`
}

// New returns a client for a kubeconfig that this program wrote.
func New(path string) (*Client, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	var k kubeconfig
	if err := yaml.Unmarshal(data, &k); err != nil {
		return nil, fmt.Errorf("parse kubeconfig %s: %w", path, err)
	}
	if len(k.Clusters) != 1 || len(k.Users) != 1 {
		return nil, fmt.Errorf("kubeconfig %s must have one cluster and one user", path)
	}
	pair, err := tls.X509KeyPair(k.Users[0].User.Cert, k.Users[0].User.Key)
	if err != nil {
		return nil, fmt.Errorf("client certificate in %s: %w", path, err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(k.Clusters[0].Cluster.CA) {
		return nil, fmt.Errorf("no CA certificate in %s", path)
	}
	return &Client{
		server: k.Clusters[0].Cluster.Server,
		http: &http.Client{
			Timeout: 5 * time.Second,
			// No Proxy: the cluster is on this machine.
			Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}},
		},
	}, nil
}

// get reads a path, into out unless that is nil.
func (c *Client) get(ctx context.Context, path string, out any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.server+path, nil)
	if err != nil {
		return fmt.Errorf("get %s: %w", path, err)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return err // names method and URL
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		return fmt.Errorf("get %s: %w", path, err)
	}
	if response.StatusCode == http.StatusNotFound {
		return fmt.Errorf("get %s: %w", path, ErrNotFound)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("get %s: %s: %s", path, response.Status, strings.TrimSpace(string(data)))
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(data, out); err != nil {
		return fmt.Errorf("get %s: %w", path, err)
	}
	return nil
}

// Ready returns nil when the API server says that it is ready.
func (c *Client) Ready(ctx context.Context) error {
	return c.get(ctx, "/readyz", nil)
}

// Node is what matters of a node.
type Node struct {
	// Ready is true when the Ready condition is True.
	Ready bool
	// Message is the Ready condition's message.
	Message string
	// BootID is the boot that the kubelet reported last.
	BootID string
}

// Node reads a node.
func (c *Client) Node(ctx context.Context, name string) (Node, error) {
	var object struct {
		Status struct {
			Conditions []struct{ Type, Status, Message string } `json:"conditions"`
			NodeInfo   struct {
				BootID string `json:"bootID"`
			} `json:"nodeInfo"`
		} `json:"status"`
	}
	if err := c.get(ctx, "/api/v1/nodes/"+name, &object); err != nil {
		return Node{}, err
	}
	node := Node{BootID: object.Status.NodeInfo.BootID, Message: "the kubelet has not reported yet"}
	for _, condition := range object.Status.Conditions {
		if condition.Type == "Ready" {
			node.Ready, node.Message = condition.Status == "True", condition.Message
		}
	}
	return node, nil
}

// DefaultServiceAccount returns nil when pods can be created in the default
// namespace: the controller-manager makes its service account a moment after
// the API server is ready.
func (c *Client) DefaultServiceAccount(ctx context.Context) error {
	return c.get(ctx, "/api/v1/namespaces/default/serviceaccounts/default", nil)
}
