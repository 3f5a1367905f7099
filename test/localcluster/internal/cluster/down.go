// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/switchyard-dev/switchyard/test/localcluster/internal/cgroup"
	"github.com/switchyard-dev/switchyard/test/localcluster/internal/network"
)

// Down removes the cluster with everything it left: processes, mounts,
// interfaces, routes, control groups and the state directory. It also removes
// what is left of a cluster whose state directory is damaged or gone. The
// binaries stay in their cache.
func (c *Cluster) Down(_ context.Context) error {
	if err := checkHost(); err != nil {
		return err
	}
	unlock, err := lock(lockFile, "down --state "+c.layout.State)
	if err != nil {
		return err
	}
	defer unlock()
	if err := c.checkOwned(); err != nil {
		return err
	}
	tree, err := cgroup.Host()
	if err != nil {
		return err
	}
	// Whatever runs for the cluster is in its control groups; each init's
	// end takes its machine's mounts and interfaces with it.
	if err := sweep(tree, ""); err != nil {
		return fmt.Errorf("end the cluster's processes: %w", err)
	}
	if err := network.Disconnect(); err != nil {
		return err
	}
	if err := os.RemoveAll(c.layout.State); err != nil {
		return fmt.Errorf("remove state directory: %w", err)
	}
	if err := os.Remove(activeFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget the cluster: %w", err)
	}
	c.say("Cluster is down; nothing of it is left in %s.", c.layout.State)
	return nil
}

// checkOwned refuses to delete a folder that is not a cluster's, and a cluster
// that is not this one.
func (c *Cluster) checkOwned() error {
	other, err := activeState()
	if err != nil {
		return err
	}
	if other != "" && other != c.layout.State {
		if _, err := os.Stat(filepath.Join(other, "cluster.json")); err == nil {
			return fmt.Errorf("the cluster that runs has the state directory %s: use `localcluster down --state %s`", other, other)
		}
	}
	entries, err := os.ReadDir(c.layout.State)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at state directory: %w", err)
	}
	if _, err := os.Stat(c.layout.Config()); err != nil && len(entries) > 0 {
		return fmt.Errorf("%s is not a cluster's state directory: it has no %s; if you are sure, delete the folder yourself", c.layout.State, filepath.Base(c.layout.Config()))
	}
	return nil
}
