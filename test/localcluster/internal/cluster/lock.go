// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const lockDir = "/run/lock"

// lock takes the lock that every command that changes this cluster holds. It
// lies outside the state directory, which `down` removes.
func (c *Cluster) lock(what string) (unlock func(), err error) {
	return lock(filepath.Join(lockDir, "switchyard-"+c.layout.ID()+".lock"), what+" --state "+c.layout.State)
}

// lockNetworks is held for the moment in which a cluster takes a network, so
// that two do not take the same.
func lockNetworks(ctx context.Context) (unlock func(), err error) {
	err = poll(ctx, "another cluster to take its network", func(context.Context) error {
		unlock, err = lock(filepath.Join(lockDir, "switchyard-networks.lock"), "up")
		return err
	})
	return unlock, err
}

// lock takes a lock or says who has it. The kernel releases it when the
// process ends, however it ends.
func lock(file, what string) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(file), 0o1777); err != nil {
		return nil, fmt.Errorf("create lock: %w", err)
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("create lock: %w", err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		holder, _ := os.ReadFile(file) // only to tell who it is
		f.Close()
		return nil, fmt.Errorf("another localcluster command is at work (%s): wait until it has finished; lock: %s", strings.TrimSpace(string(holder)), file)
	}
	if err == nil {
		err = f.Truncate(0)
	}
	if err == nil {
		_, err = fmt.Fprintf(f, "process %d: %s\n", os.Getpid(), what)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", file, err)
	}
	return func() { f.Close() }, nil
}
