// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/switchyard-dev/switchyard/test/localcluster/internal/config"
	"github.com/switchyard-dev/switchyard/test/localcluster/internal/sandbox"
)

const pollInterval = 100 * time.Millisecond

// poll asks until it gets no error, or the context ends; then it returns what
// was wrong last.
func poll(ctx context.Context, what string, ask func(context.Context) error) error {
	for {
		err := ask(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("gave up waiting for %s: %w (last answer: %w)", what, ctx.Err(), err)
		case <-time.After(pollInterval):
		}
	}
}

// watchServices returns an error as soon as a service of a machine ends, or
// the machine itself does.
func (c *Cluster) watchServices(ctx context.Context, shape config.Cluster, machine string) error {
	var baseline []int
	return sandbox.Watch(ctx, c.socket(shape, machine), func(services []sandbox.Status) error {
		if baseline == nil {
			for _, s := range services {
				baseline = append(baseline, s.Exits)
			}
		}
		for i, s := range services {
			if s.Exits <= baseline[i]+s.AllowedExits {
				continue
			}
			log := filepath.Join(c.layout.Logs(machine), s.Name+".log")
			return fmt.Errorf("%s of %s %s; the end of its log %s:\n%s", s.Name, machine, s.LastExit, log, tail(log, 8))
		}
		return nil
	})
}

// awaitContainerd waits until a node's containerd takes connections.
func (c *Cluster) awaitContainerd(ctx context.Context, node string) error {
	id := c.init(node)
	socket := filepath.Join("/proc", fmt.Sprint(id.PID), "root", config.ContainerdSocket)
	return poll(ctx, "containerd of "+node, func(context.Context) error {
		conn, err := net.Dial("unix", socket)
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

// tail returns the last lines of a file, indented.
func tail(path string, lines int) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return "  (" + err.Error() + ")"
	}
	all := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
	return "  " + strings.Join(all[max(0, len(all)-lines):], "\n  ")
}
