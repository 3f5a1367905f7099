// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

// Package e2e runs the driver on a real Kubernetes: real scheduler, kubelet, containerd and CDI into real
// containers. Only the GPUs are simulated, behind NVML. A test claims nothing that it does not see from outside: in the
// API server, in a container, or in a node's folders.
package e2e

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/switchyard-dev/switchyard/test/cluster"
)

// patience bounds every wait; a wait that needs nearly as long is a failure.
const patience = 90 * time.Second

// the is the one cluster of the run: node-a with eight H100 in one domain, node-b with eight A100 in two of four.
var the *cluster.Cluster

func TestMain(m *testing.M) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, m))
}

// run starts the cluster with the build of the driver that can be told to die at a step.
func run(ctx context.Context, m *testing.M) int {
	the = cluster.New(cluster.Options{Progress: os.Stderr})
	defer down(ctx)
	for _, step := range []func(context.Context) error{the.Up, the.InstallForCrashes} {
		if err := step(ctx); err != nil {
			fmt.Fprintf(os.Stderr, "e2e: %v\nlogs: %s\n", err, the.LogDir())
			return 1
		}
	}
	// Tests know nothing of signals: without this, an interrupted run would go on to its end.
	defer context.AfterFunc(ctx, func() {
		down(ctx)
		os.Exit(1)
	})()
	return m.Run()
}

func down(ctx context.Context) {
	if os.Getenv("KEEP") != "" {
		return
	}
	if err := the.Down(context.WithoutCancel(ctx)); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}
