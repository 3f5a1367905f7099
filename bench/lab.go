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
	localcluster      = "bin/localcluster"
	simulator         = "bin/switchyard-sim"
	controllerProgram = "bin/switchyard-controller"
	manifests         = "deployments/manifests"
)

// Lab is what benchmarks run on. Its parts are started when they are first asked for, and are shared.
type Lab struct {
	log     io.Writer
	dir     string
	cluster *controlplane.ControlPlane
	nodes   int
	gangs   *gangCluster
	// namespaces counts them, so that names are used once.
	namespaces int
}

func newLab(log io.Writer) *Lab { return &Lab{log: log} }

// Cluster returns the control plane, with the manifests applied.
func (l *Lab) Cluster(ctx context.Context) (*controlplane.ControlPlane, error) {
	if l.cluster != nil {
		return l.cluster, l.cluster.Err()
	}
	var err error
	l.cluster, l.dir, err = l.startCluster(ctx, controlplane.Options{})
	return l.cluster, err
}

// startCluster starts a control plane in a new directory and applies the manifests.
func (l *Lab) startCluster(ctx context.Context, o controlplane.Options) (_ *controlplane.ControlPlane, dir string, err error) {
	if o.BinDir, err = controlplane.Binaries(ctx, localcluster, l.log); err != nil {
		return nil, "", err
	}
	if o.Dir, err = os.MkdirTemp("/tmp", "sy"); err != nil {
		return nil, "", err
	}
	cluster, err := controlplane.Start(ctx, o)
	if err != nil {
		return nil, "", err
	}
	if err := cluster.Apply(ctx, manifests); err != nil {
		return nil, "", errors.Join(err, cluster.Stop())
	}
	return cluster, o.Dir, nil
}

// stopCluster removes the directory, unless a program had ended by itself: then the logs are worth keeping.
func stopCluster(cluster *controlplane.ControlPlane, dir string) error {
	if err := cluster.Stop(); err != nil {
		return fmt.Errorf("%w (logs in %s)", err, dir)
	}
	return os.RemoveAll(dir)
}

// Close ends what was started.
func (l *Lab) Close() error {
	var errs []error
	if l.gangs != nil {
		errs = append(errs, l.gangs.Close())
	}
	if l.cluster != nil {
		errs = append(errs, stopCluster(l.cluster, l.dir))
	}
	return errors.Join(errs...)
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
