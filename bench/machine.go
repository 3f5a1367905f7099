// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/switchyard-dev/switchyard/test/harness/plugin"
)

// machineRounds is how many samples tell what the machine can do.
const machineRounds = 200

// machineSpeed measures what the other results cannot go below. They can only be compared between
// machines, or between hours of a busy one, together with it.
func machineSpeed() []Benchmark {
	return []Benchmark{{
		Name:  "machine",
		About: "what everything else rests on: a claim read from the API server, one and 8 at once; a file made durable, one and 8 at once, and removed; a call that does nothing; a program run",
		Series: []Series{
			{Name: "machine-read-claim", Unit: "ms", Better: Lower, Statistics: []Statistic{P50, P95}},
			{Name: "machine-read-8-claims", Unit: "ms", Better: Lower, Statistics: []Statistic{P50, P95}},
			{Name: "machine-synced-write", Unit: "ms", Better: Lower, Statistics: []Statistic{P50, P95}},
			{Name: "machine-8-synced-writes", Unit: "ms", Better: Lower, Statistics: []Statistic{P50, P95}},
			{Name: "machine-remove-file", Unit: "ms", Better: Lower, Statistics: []Statistic{P50, P95}},
			{Name: "machine-empty-call", Unit: "ms", Better: Lower, Statistics: []Statistic{P50, P95}},
			{Name: "machine-run-program", Unit: "ms", Better: Lower, Statistics: []Statistic{P50}},
		},
		Run: onRunningPlugin(measureMachine),
	}}
}

func measureMachine(ctx context.Context, n *gpuNode, _ *plugin.Plugin, samples Samples) error {
	const atOnce = 8
	claims, err := n.claims(ctx, "claim", atOnce)
	if err != nil {
		return err
	}
	read := func(i int) error {
		_, err := n.cluster.Client().ResourceV1().ResourceClaims(n.namespace).Get(ctx, claims[i].Name, metav1.GetOptions{})
		return err
	}
	file := func(i int) string { return filepath.Join(n.Dir, fmt.Sprintf("durable-%d", i)) }
	write := func(i int) error { return writeSynced(file(i)) }
	if err := rounds(samples, machineRounds, func(int) error {
		for _, step := range []struct {
			series string
			do     func() error
		}{
			{"machine-read-claim", func() error { return read(0) }},
			{"machine-read-8-claims", func() error { return together(atOnce, read) }},
			{"machine-synced-write", func() error { return write(0) }},
			{"machine-remove-file", func() error { return os.Remove(file(0)) }},
			{"machine-8-synced-writes", func() error { return together(atOnce, write) }},
			{"machine-empty-call", func() error { return n.kubelet.Ping(ctx) }},
		} {
			if err := timed(samples, step.series, step.do); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return err
	}
	for range startRounds {
		if err := timed(samples, "machine-run-program", exec.CommandContext(ctx, simulator, "--version").Run); err != nil {
			return err
		}
	}
	return nil
}

// together calls do for 0 to count-1 at the same time.
func together(count int, do func(i int) error) error {
	var group errgroup.Group
	for i := range count {
		group.Go(func() error { return do(i) })
	}
	return group.Wait()
}

// writeSynced replaces a file of 1 KiB so that it outlives a power loss, with nothing but the system
// calls that this takes.
func writeSynced(path string) error {
	file, err := os.Create(path + ".tmp")
	if err != nil {
		return err
	}
	_, err = file.Write(make([]byte, 1024))
	if err := errors.Join(err, file.Sync(), file.Close(), os.Rename(path+".tmp", path)); err != nil {
		return err
	}
	parent, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(parent.Sync(), parent.Close())
}

// dropFromCache makes the next execution read a program from disk, as on a node. Of one that was written a moment ago
// the kernel maps larger pieces at a time, some of which are never used: 8 MiB more of a program of 40 MiB.
func dropFromCache(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	// Only pages that are on disk are dropped.
	err = errors.Join(file.Sync(), unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED), file.Close())
	if err != nil {
		return fmt.Errorf("drop %s from the page cache: %w", path, err)
	}
	return nil
}
