// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package sandbox runs one "machine" of a local cluster, the control plane or a
// node: a set of Linux namespaces (mount, PID, network, UTS, IPC) whose first
// process is an init of our own that starts the machine's services, restarts
// those that die and reaps orphans. Because of the PID namespace, the end of
// init is the end of every process of the machine, pods included, and because
// of the mount namespace, of every mount: a machine cannot leave any behind.
//
// It imports procid, cgroup and small libraries, and knows nothing of
// Kubernetes.
package sandbox

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/google/renameio/v2"
)

// Spec tells init what to do.
type Spec struct {
	// Cluster is the ID of the machine's cluster.
	Cluster string `json:"cluster"`
	// Name is the machine's name, unique within the cluster.
	Name string `json:"name"`
	// Hostname is the host name inside; at most 64 characters count.
	Hostname string `json:"hostname"`
	// Root, unless empty, gives the machine file systems of its own: the
	// trees Root/var/lib, Root/var/log, and Root/etc over the host's, and a
	// fresh /run and /dev.
	Root string `json:"root,omitempty"`
	// Masks maps files, /proc/sys/... for example, to the files that the
	// machine sees in their place. A missing file is skipped.
	Masks map[string]string `json:"masks,omitempty"`
	// Sysctls are set inside, by path below /proc/sys; only those of the
	// network namespace may be named. A missing one is skipped.
	Sysctls map[string]string `json:"sysctls,omitempty"`
	// ControlSocket is where init takes requests.
	ControlSocket string `json:"controlSocket"`
	// Logs is the folder for one log per service.
	Logs string `json:"logs"`
	// Services are started in this order.
	Services []Service `json:"services"`
}

// Service is one program that init keeps running.
type Service struct {
	// Name is unique within the machine.
	Name string `json:"name"`
	// Args is the command line; the first is the program's absolute path.
	Args []string `json:"args"`
	// Env is the whole environment.
	Env []string `json:"env,omitempty"`
	// WaitFor holds the start back until all of these answer:
	// unix:PATH, http://HOST/PATH and https://HOST/PATH (status 200;
	// certificates are not checked).
	WaitFor []string `json:"waitFor,omitempty"`
	// AllowedExits is how often the service may end while the machine
	// starts without that being a failure.
	AllowedExits int `json:"allowedExits,omitempty"`
}

// Save writes the specification to a file.
func (s *Spec) Save(path string) error {
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("encode specification of %s: %w", s.Name, err)
	}
	if err := renameio.WriteFile(path, append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("write specification of %s: %w", s.Name, err)
	}
	return nil
}

// Load reads a specification.
func Load(path string) (*Spec, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read machine specification: %w", err)
	}
	var s Spec
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, fmt.Errorf("parse machine specification %s: %w", path, err)
	}
	return &s, nil
}
