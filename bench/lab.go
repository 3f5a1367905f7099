// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/switchyard-dev/switchyard/test/harness/controlplane"
)

// Paths from the repository's root, where the benchmarks run.
const (
	localcluster = "bin/localcluster"
	simulator    = "bin/switchyard-sim"
	manifests    = "deployments/manifests"
)

// Lab is what benchmarks run on. Its parts are started when they are first asked for, and are shared.
type Lab struct {
	log     io.Writer
	dir     string
	cluster *controlplane.ControlPlane
	nodes   int
}

func newLab(log io.Writer) *Lab { return &Lab{log: log} }

// Cluster returns the control plane, with the manifests applied.
func (l *Lab) Cluster(ctx context.Context) (*controlplane.ControlPlane, error) {
	if l.cluster != nil {
		return l.cluster, l.cluster.Err()
	}
	binaries, err := controlplane.Binaries(ctx, localcluster, l.log)
	if err != nil {
		return nil, err
	}
	if l.dir, err = os.MkdirTemp("/tmp", "sy"); err != nil {
		return nil, err
	}
	cluster, err := controlplane.Start(ctx, controlplane.Options{BinDir: binaries, Dir: l.dir})
	if err != nil {
		return nil, err
	}
	l.cluster = cluster
	return cluster, cluster.Apply(ctx, manifests)
}

// Close ends what was started.
func (l *Lab) Close() error {
	if l.cluster == nil {
		return nil
	}
	if err := l.cluster.Stop(); err != nil {
		return err // the logs are worth keeping
	}
	return os.RemoveAll(l.dir)
}

// milliseconds is how durations are sampled.
func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// timed samples how long do takes.
func timed(samples Samples, series string, do func() error) error {
	start := time.Now()
	if err := do(); err != nil {
		return fmt.Errorf("%s: %w", series, err)
	}
	samples.Add(series, milliseconds(time.Since(start)))
	return nil
}

// closing adds the error of a deferred close to a function's own.
func closing(err *error, close func() error) { *err = errors.Join(*err, close()) }
