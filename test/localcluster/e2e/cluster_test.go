// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

// Package e2e runs the whole life of a real local cluster: as root, in minutes.
//
//	go test -tags e2e -timeout 15m ./e2e
package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

const timeout = 3 * time.Minute

// cluster is the cluster under test.
type cluster struct {
	t       *testing.T
	program string
	state   string
	bin     string
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	dir := t.TempDir()
	c := &cluster{t: t, program: filepath.Join(dir, "localcluster"), state: filepath.Join(dir, "s")}
	c.must("go", "build", "-buildvcs=false", "-o", c.program, "..")
	c.bin = c.local("build", "--print-dir")
	t.Cleanup(func() {
		if t.Failed() && os.Getenv("KEEP") != "" {
			t.Logf("kept: %s down --state %s", c.program, c.state)
			return
		}
		c.local("down")
	})
	return c
}

// try runs a command and returns what it printed.
func (c *cluster) try(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "SWITCHYARD_STATE="+c.state, "KUBECONFIG="+filepath.Join(c.state, "kubeconfig"), "PATH="+c.bin+":"+os.Getenv("PATH"))
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s: %w\n%s%s", strings.Join(args, " "), err, stdout.String(), stderr.String())
	}
	return strings.TrimSpace(stdout.String()), nil
}

func (c *cluster) must(args ...string) string {
	c.t.Helper()
	out, err := c.try(args...)
	if err != nil {
		c.t.Fatal(err)
	}
	return out
}

func (c *cluster) local(args ...string) string {
	c.t.Helper()
	return c.must(append([]string{c.program}, args...)...)
}

func (c *cluster) kubectl(args ...string) string {
	c.t.Helper()
	return c.must(append([]string{"kubectl"}, args...)...)
}

func (c *cluster) node(name string, command ...string) string {
	c.t.Helper()
	return c.local(append([]string{"node", "exec", name, "--"}, command...)...)
}

// apply creates what a manifest says.
func (c *cluster) apply(manifest string) {
	c.t.Helper()
	file := filepath.Join(c.t.TempDir(), "manifest.yaml")
	if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
		c.t.Fatal(err)
	}
	c.kubectl("apply", "-f", file)
}

// eventually asks until the answer is the wanted one.
func (c *cluster) eventually(what string, ask func() error) {
	c.t.Helper()
	deadline := time.Now().Add(timeout)
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ask()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("%s: %v", what, err)
		}
		<-tick.C
	}
}

// initPID is the process whose end is the end of a machine.
func (c *cluster) initPID(machine string) int {
	c.t.Helper()
	path := filepath.Join(c.state, "nodes", machine, "init.json")
	if machine == "control-plane" {
		path = filepath.Join(c.state, machine, "init.json")
	}
	data, err := os.ReadFile(path)
	if err != nil {
		c.t.Fatal(err)
	}
	var id struct{ PID int }
	if err := json.Unmarshal(data, &id); err != nil {
		c.t.Fatal(err)
	}
	return id.PID
}

func (c *cluster) kill(pid int) {
	c.t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) bootID(node string) string {
	c.t.Helper()
	return c.kubectl("get", "node", node, "-o", "jsonpath={.status.nodeInfo.bootID}")
}

// pod returns the name of the probe on a node.
func (c *cluster) pod(node string) string {
	c.t.Helper()
	return c.kubectl("get", "pods", "-l", "app=probe", "--field-selector", "spec.nodeName="+node, "-o", "jsonpath={.items[0].metadata.name}")
}
