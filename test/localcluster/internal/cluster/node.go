// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/switchyard-dev/switchyard/test/localcluster/internal/config"
	"github.com/switchyard-dev/switchyard/test/localcluster/internal/kubeapi"
	"github.com/switchyard-dev/switchyard/test/localcluster/internal/layout"
	"github.com/switchyard-dev/switchyard/test/localcluster/internal/network"
	"github.com/switchyard-dev/switchyard/test/localcluster/internal/sandbox"
)

// onNode runs an action on a node of a running cluster, under the lock.
func (c *Cluster) onNode(what, node string, action func(r config.Renderer, index int) error) error {
	if err := checkHost(); err != nil {
		return err
	}
	unlock, err := c.lock("node " + what + " " + node)
	if err != nil {
		return err
	}
	defer unlock()
	r, err := c.load()
	if err != nil {
		return err
	}
	i, err := index(r.Cluster, node)
	if err != nil {
		return err
	}
	return action(r, i)
}

// StopNode pulls a node's plug: its services and all its pods' processes die
// at once, its mounts, /run, /dev and network vanish. Its disk stays.
func (c *Cluster) StopNode(node string) error {
	return c.onNode("stop", node, func(config.Renderer, int) error {
		if err := c.kill(node); err != nil {
			return err
		}
		c.say("%s is stopped", node)
		return nil
	})
}

// StartNode boots a node that is stopped and waits until it is ready. A node
// that runs is left alone.
func (c *Cluster) StartNode(ctx context.Context, node string, timeout time.Duration) error {
	return c.onNode("start", node, func(r config.Renderer, i int) error {
		if c.healthy(r.Cluster, node) {
			c.say("%s runs already", node)
			return nil
		}
		return c.bootNode(ctx, r, i, timeout)
	})
}

// RebootNode stops a node and boots it again: it comes back with a new boot
// ID, an empty /run (and so an empty /var/run/cdi) and none of its processes.
func (c *Cluster) RebootNode(ctx context.Context, node string, timeout time.Duration) error {
	return c.onNode("reboot", node, func(r config.Renderer, i int) error {
		if err := c.kill(node); err != nil {
			return err
		}
		return c.bootNode(ctx, r, i, timeout)
	})
}

func (c *Cluster) bootNode(ctx context.Context, r config.Renderer, i int, timeout time.Duration) error {
	node := r.Cluster.Nodes[i]
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := c.startNode(r, i); err != nil {
		return err
	}
	if err := c.connectNodes(r); err != nil {
		return err
	}
	api, err := kubeapi.New(c.layout.Kubeconfig())
	if err != nil {
		return err
	}
	watch, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go func() {
		if err := c.watchServices(watch, r.Cluster, node); err != nil && watch.Err() == nil {
			stop(err)
		}
	}()
	err = c.awaitNode(watch, r, api, node, true)
	if cause := context.Cause(watch); err != nil && cause != nil && !errors.Is(cause, ctx.Err()) {
		return cause
	}
	return err
}

// CutNode takes a node's link down: it runs on, but nobody reaches it and it
// reaches nobody.
func (c *Cluster) CutNode(node string, cut bool) error {
	what, done := "heal", "connected again"
	if cut {
		what, done = "cut", "cut off"
	}
	return c.onNode(what, node, func(_ config.Renderer, i int) error {
		if !c.init(node).Alive() {
			return fmt.Errorf("%s is stopped: start it first with `localcluster node start %s`", node, node)
		}
		controlPlane, err := c.controlPlane()
		if err != nil {
			return fmt.Errorf("%s %s: %w", what, node, err)
		}
		if err := network.SetCut(controlPlane.PID, i, cut); err != nil {
			return fmt.Errorf("%s %s: %w", what, node, err)
		}
		c.say("%s is %s", node, done)
		return nil
	})
}

// RestartService kills a service of a machine with SIGKILL, as a crash would,
// and leaves it to init to start it again. Pods live on.
func (c *Cluster) RestartService(machine, service string) error {
	if err := checkHost(); err != nil {
		return err
	}
	r, err := c.load()
	if err != nil {
		return err
	}
	if machine != layout.ControlPlane {
		if _, err := index(r.Cluster, machine); err != nil {
			return err
		}
	}
	if err := sandbox.Restart(c.socket(r.Cluster, machine), service); err != nil {
		return fmt.Errorf("restart %s of %s: %w", service, machine, err)
	}
	return nil
}

// Exec replaces this process by a command inside a machine's namespaces.
func (c *Cluster) Exec(machine string, command []string) error {
	if err := checkHost(); err != nil {
		return err
	}
	r, err := c.load()
	if err != nil {
		return err
	}
	if machine != layout.ControlPlane {
		if _, err := index(r.Cluster, machine); err != nil {
			return err
		}
	}
	id := c.init(machine)
	if !id.Alive() {
		return fmt.Errorf("%s is stopped: start it with `localcluster node start %s`", machine, machine)
	}
	args := sandbox.ExecArgs(id.PID, command...)
	program, err := exec.LookPath(args[0])
	if err != nil {
		return fmt.Errorf("enter %s: %w: install util-linux", machine, err)
	}
	env := append(slices.DeleteFunc(os.Environ(), func(e string) bool { return len(e) > 5 && e[:5] == "PATH=" }),
		"PATH="+r.Cluster.Bin+":"+os.Getenv("PATH"),
		"KUBECONFIG="+c.layout.Kubeconfig(),
		"CONTAINERD_ADDRESS="+config.ContainerdSocket, "CONTAINERD_NAMESPACE=k8s.io",
		"CONTAINER_RUNTIME_ENDPOINT=unix://"+config.ContainerdSocket, "IMAGE_SERVICE_ENDPOINT=unix://"+config.ContainerdSocket,
	)
	if err := syscall.Exec(program, args, env); err != nil {
		return fmt.Errorf("enter %s: %w", machine, err)
	}
	return nil
}

// LoadImage imports an archive into nodes; without any, into all that run.
func (c *Cluster) LoadImage(archive string, nodes ...string) error {
	if err := checkHost(); err != nil {
		return err
	}
	r, err := c.load()
	if err != nil {
		return err
	}
	if len(nodes) == 0 {
		for _, name := range r.Cluster.Nodes {
			if c.init(name).Alive() {
				nodes = append(nodes, name)
			}
		}
		if len(nodes) == 0 {
			return errors.New("no node runs: start the cluster with `localcluster up`")
		}
	}
	var group errgroup.Group
	for _, name := range nodes {
		if _, err := index(r.Cluster, name); err != nil {
			return err
		}
		group.Go(func() error { return c.importImage(r.Cluster, name, archive) })
	}
	return group.Wait()
}
