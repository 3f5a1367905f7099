// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// machineRounds is how many samples tell what the machine can do.
const machineRounds = 200

// machineSpeed measures what the other results cannot go below. They can only be compared between
// machines, or between hours of a busy one, together with it.
func machineSpeed() []Benchmark {
	return []Benchmark{{
		Name:  "machine",
		About: "what everything else rests on: a claim read from the API server, a file made durable, a program run",
		Series: []Series{
			{Name: "machine-read-claim", Unit: "ms", Better: Lower, Statistics: []Statistic{P50, P95}},
			{Name: "machine-synced-write", Unit: "ms", Better: Lower, Statistics: []Statistic{P50, P95}},
			{Name: "machine-run-program", Unit: "ms", Better: Lower, Statistics: []Statistic{P50}},
		},
		Run: measureMachine,
	}}
}

func measureMachine(ctx context.Context, lab *Lab, samples Samples) (err error) {
	n, err := lab.GPUNode(ctx)
	if err != nil {
		return err
	}
	defer closing(&err, func() error { return n.Close(ctx) })
	claims, err := n.claims(ctx, "claim", 1)
	if err != nil {
		return err
	}
	for range machineRounds {
		if err := timed(samples, "machine-read-claim", func() error {
			_, err := n.cluster.Client().ResourceV1().ResourceClaims(n.namespace).Get(ctx, claims[0].Name, metav1.GetOptions{})
			return err
		}); err != nil {
			return err
		}
		if err := timed(samples, "machine-synced-write", func() error { return writeSynced(n.Dir) }); err != nil {
			return err
		}
	}
	for range startRounds {
		if err := timed(samples, "machine-run-program", exec.CommandContext(ctx, simulator, "--version").Run); err != nil {
			return err
		}
	}
	return nil
}

// writeSynced replaces a file of 1 KiB so that it outlives a power loss, with nothing but the system
// calls that this takes.
func writeSynced(dir string) error {
	path := filepath.Join(dir, "durable")
	file, err := os.Create(path + ".tmp")
	if err != nil {
		return err
	}
	_, err = file.Write(make([]byte, 1024))
	if err := errors.Join(err, file.Sync(), file.Close(), os.Rename(path+".tmp", path)); err != nil {
		return err
	}
	parent, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(parent.Sync(), parent.Close())
}
