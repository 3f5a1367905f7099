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

	"golang.org/x/sys/unix"

	"github.com/switchyard-dev/switchyard/test/localcluster/internal/cgroup"
	"github.com/switchyard-dev/switchyard/test/localcluster/internal/layout"
	"github.com/switchyard-dev/switchyard/test/localcluster/internal/network"
	"github.com/switchyard-dev/switchyard/test/localcluster/internal/procid"
	"github.com/switchyard-dev/switchyard/test/localcluster/internal/sandbox"
)

// Down removes the cluster with everything it left: processes, mounts,
// interfaces, routes, control groups and the state directory. It also removes
// what is left of a cluster whose state directory is damaged or gone. The
// binaries stay in their cache.
func (c *Cluster) Down(_ context.Context) error {
	if err := checkHost(); err != nil {
		if c.absent() { // anybody may say make clean
			c.say("There is no cluster in %s.", c.layout.State)
			return nil
		}
		return err
	}
	unlock, err := c.lock("down")
	if err != nil {
		return err
	}
	defer unlock()
	// What runs is known by its control groups, so it ends also where somebody deleted the state beneath it: kubelets
	// go on writing there, and make a folder of it that does not look like a cluster's.
	owned := c.checkOwned()
	// Every init is in the cluster's control groups; but if those were
	// removed or renamed, the state still knows it.
	for _, file := range c.pidFiles() {
		if err := sandbox.Kill(procid.Load(file)); err != nil {
			return fmt.Errorf("end the machine of %s: %w", file, err)
		}
	}
	tree, err := cgroup.Host(c.layout.ID())
	if err != nil {
		return err
	}
	// Whatever runs for the cluster is in its control groups; each init's
	// end takes its machine's mounts and interfaces with it.
	if err := sweep(tree, ""); err != nil {
		return fmt.Errorf("end the cluster's processes: %w", err)
	}
	if err := network.Disconnect(c.layout.ID()); err != nil {
		return err
	}
	if owned != nil {
		return fmt.Errorf("no cluster of this folder runs any more, but its files were left alone: %w", owned)
	}
	if err := c.removeState(); err != nil {
		return err
	}
	c.say("Cluster is down; nothing of it is left in %s.", c.layout.State)
	return nil
}

// absent reports that there is neither a state directory nor a control group of the cluster.
func (c *Cluster) absent() bool {
	if _, err := os.Lstat(c.layout.State); !errors.Is(err, fs.ErrNotExist) {
		return false
	}
	tree, err := cgroup.Host(c.layout.ID())
	if err != nil {
		return false
	}
	machines, err := tree.Sandboxes()
	return err == nil && len(machines) == 0
}

// pidFiles names the files with the identities of all inits, also of machines
// that the cluster's shape does not name.
func (c *Cluster) pidFiles() []string {
	files := []string{c.layout.PIDFile(layout.ControlPlane)}
	nodes, err := os.ReadDir(filepath.Dir(c.layout.Sandbox("node")))
	if err != nil {
		return files // no node was ever started
	}
	for _, n := range nodes {
		files = append(files, c.layout.PIDFile(n.Name()))
	}
	return files
}

// removeState deletes the state directory, and last in it the file that shows
// it to be one: a removal that was killed can be repeated.
func (c *Cluster) removeState() error {
	entries, err := os.ReadDir(c.layout.State)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove state directory: %w", err)
	}
	for _, e := range entries {
		if path := filepath.Join(c.layout.State, e.Name()); path != c.layout.Config() {
			if err := os.RemoveAll(path); err != nil {
				return fmt.Errorf("remove state directory: %w", err)
			}
		}
	}
	// EBUSY: a disk or a volume is mounted here. It stays, empty.
	if err := os.RemoveAll(c.layout.State); err != nil && !errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("remove state directory: %w", err)
	}
	return nil
}

// checkOwned refuses a folder that holds something else than a cluster.
func (c *Cluster) checkOwned() error {
	entries, err := os.ReadDir(c.layout.State)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at state directory: %w", err)
	}
	if _, err := os.Stat(c.layout.Config()); err != nil && len(entries) > 0 {
		return fmt.Errorf("%s is not a cluster's state directory: it has no %s, but other files: choose another folder with --state, or empty this one yourself", c.layout.State, filepath.Base(c.layout.Config()))
	}
	return nil
}
