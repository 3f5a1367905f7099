// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cluster drives the local cluster from outside, for the demo and the end-to-end tests: it runs the
// localcluster program and kubectl as a person would, installs the manifests and reads what the API server and the
// containers say. It knows nothing of the driver's inside.
package cluster

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Options say where the cluster lives.
type Options struct {
	// Root is the repository's root; found upwards from the working directory when empty.
	Root string
	// Progress receives the programs' progress; nothing when nil.
	Progress io.Writer
}

// Cluster is the local cluster of one state directory.
type Cluster struct {
	// Client speaks to the API server as the administrator; nil until Up or Attach.
	Client kubernetes.Interface
	// Gangs speaks to it about GangClaims.
	Gangs client.Client

	root     string
	progress io.Writer
	bin      string
	config   string
}

// New touches nothing yet.
func New(o Options) *Cluster {
	if o.Root == "" {
		o.Root = findRoot()
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	return &Cluster{root: o.Root, progress: o.Progress}
}

func findRoot() string {
	dir, err := os.Getwd()
	if err != nil {
		return "."
	}
	for d := dir; d != "/"; d = filepath.Dir(d) {
		if raw, err := os.ReadFile(filepath.Join(d, "go.mod")); err == nil &&
			bytes.HasPrefix(raw, []byte("module github.com/switchyard-dev/switchyard\n")) {
			return d
		}
	}
	return dir
}

// localcluster runs the cluster's program and returns what it prints; its last words are in the error.
func (c *Cluster) localcluster(ctx context.Context, args ...string) (string, error) {
	var out bytes.Buffer
	err := c.runLocalcluster(ctx, &out, args...)
	return strings.TrimSpace(out.String()), err
}

// follow runs it and passes on what it prints as progress.
func (c *Cluster) follow(ctx context.Context, args ...string) error {
	return c.runLocalcluster(ctx, c.progress, args...)
}

func (c *Cluster) runLocalcluster(ctx context.Context, stdout io.Writer, args ...string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(c.root, "bin", "localcluster"), args...)
	cmd.Dir = c.root
	var complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = stdout, io.MultiWriter(c.progress, &complaint)
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("localcluster %s: %w: %s", strings.Join(args, " "), err, tail(complaint.String()))
	}
	return nil
}

// tail keeps the last lines of a program's complaint.
func tail(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-12):], "\n")
}

// Kubectl runs kubectl against the cluster and returns its standard output.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	return c.kubectlInput(ctx, "", args...)
}

func (c *Cluster) kubectlInput(ctx context.Context, stdin string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(c.bin, "kubectl"), append([]string{"--kubeconfig", c.config}, args...)...)
	cmd.Dir = c.root
	cmd.Stdin = strings.NewReader(stdin)
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, tail(complaint.String()))
	}
	return out.String(), nil
}
