// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package layout names every path of a local cluster, so that no other package
// builds one by hand. It is pure: it touches no file. It imports only the
// standard library.
package layout

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
)

// ControlPlane is the name of the sandbox that holds the control plane.
const ControlPlane = "control-plane"

// maxSocketPath is the longest path of a unix socket: sun_path holds 108 bytes
// with the terminating NUL.
const maxSocketPath = 107

// hidden are the host folders over which every node mounts folders of its own.
// Nothing that a node's processes read may lie below them.
var hidden = []string{"/dev", "/etc", "/proc", "/run", "/sys", "/var/lib", "/var/log", "/var/run"}

// Layout is the state directory of one cluster.
type Layout struct {
	// State is the absolute path of the state directory.
	State string
}

// New checks a state directory's path and returns its layout.
func New(state string) (Layout, error) {
	if state == "" {
		return Layout{}, errors.New("state directory must not be empty: leave --state out, or name a folder with it")
	}
	abs, err := filepath.Abs(state)
	if err != nil {
		return Layout{}, fmt.Errorf("state directory %q: %w", state, err)
	}
	l := Layout{State: abs}
	if abs == "/" {
		return Layout{}, fmt.Errorf("state directory must not be /: choose an own folder with --state or SWITCHYARD_STATE")
	}
	if h := HiddenBy(abs); h != "" {
		return Layout{}, fmt.Errorf("state directory %s lies below %s, which every node replaces by its own folder: choose another one, for example /var/tmp/switchyard, with --state or SWITCHYARD_STATE", abs, h)
	}
	if strings.ContainsAny(abs, `,\`) {
		return Layout{}, fmt.Errorf(`state directory %s has a comma or a backslash in its path, which options of mounts cannot hold: choose another one with --state or SWITCHYARD_STATE`, abs)
	}
	if n := len(l.ControlSocket("n00")); n > maxSocketPath {
		return Layout{}, fmt.Errorf("state directory %s is %d bytes too long: paths of unix sockets are limited to %d bytes; choose a shorter one with --state or SWITCHYARD_STATE", abs, n-maxSocketPath, maxSocketPath)
	}
	return l, nil
}

// HiddenBy returns the host folder at or above path that nodes replace by
// their own, or "" when path looks the same on the host and on every node.
func HiddenBy(path string) string {
	for _, h := range hidden {
		if path == h || strings.HasPrefix(path, h+"/") {
			return h
		}
	}
	return ""
}

// ID is a short name for the state directory. What clusters put into places
// that they share, control groups, interfaces and locks, carries it, so that
// several clusters can run on one machine.
func (l Layout) ID() string {
	sum := sha256.Sum256([]byte(l.State))
	return hex.EncodeToString(sum[:3])
}

// Config is the file with the cluster's shape and profile.
func (l Layout) Config() string { return filepath.Join(l.State, "cluster.json") }

// PKI is the folder of the certificate authority and the control plane's keys.
func (l Layout) PKI() string { return filepath.Join(l.State, "pki") }

// Kubeconfig is the administrator's kubeconfig.
func (l Layout) Kubeconfig() string { return filepath.Join(l.State, "kubeconfig") }

// Logs is the folder with one log per service of a sandbox.
func (l Layout) Logs(sandbox string) string { return filepath.Join(l.State, "logs", sandbox) }

// Sandbox is the folder of one sandbox: the control plane or a node.
func (l Layout) Sandbox(sandbox string) string {
	if sandbox == ControlPlane {
		return filepath.Join(l.State, ControlPlane)
	}
	return filepath.Join(l.State, "nodes", sandbox)
}

// Root is the folder whose tree a node mounts over the host's: Root/var/lib is
// the node's /var/lib, and so on.
func (l Layout) Root(node string) string { return filepath.Join(l.Sandbox(node), "root") }

// BootID is the file that a node sees as /proc/sys/kernel/random/boot_id.
func (l Layout) BootID(node string) string { return filepath.Join(l.Sandbox(node), "boot_id") }

// Spec is the file that tells a sandbox's init what to do.
func (l Layout) Spec(sandbox string) string { return filepath.Join(l.Sandbox(sandbox), "sandbox.json") }

// PIDFile identifies a sandbox's init process.
func (l Layout) PIDFile(sandbox string) string { return filepath.Join(l.Sandbox(sandbox), "init.json") }

// ControlSocket is the unix socket of a sandbox's init. It is named by a short
// ID, not by the node's name, which may have 63 characters.
func (l Layout) ControlSocket(id string) string { return filepath.Join(l.State, "run", id+".sock") }
