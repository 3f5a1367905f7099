// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Command demo shows, on a real Kubernetes with simulated GPUs, what a plain GPU count hides and what an
// NVSwitch domain in the claim changes. It checks everything it shows and exits with 1 when anything differs.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/switchyard-dev/switchyard/test/cluster"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	keep := os.Getenv("KEEP") != "" && os.Getenv("KEEP") != "0"
	if err := run(ctx, keep); err != nil {
		fmt.Fprintf(os.Stderr, "\ndemo: %v\n", err)
		os.Exit(1)
	}
}

// run takes the cluster down again whatever happened, unless keep is set.
func run(ctx context.Context, keep bool) (err error) {
	c := cluster.New(cluster.Options{Progress: os.Stderr})
	d := newDemo(c, os.Stdout)
	if !keep {
		defer func() {
			if down := c.Down(context.WithoutCancel(ctx)); err == nil {
				err = down
			}
		}()
	}
	if err := d.play(ctx); err != nil {
		return fmt.Errorf("%w\nlogs: %s; KEEP=1 make demo leaves the cluster up to look at", err, c.LogDir())
	}
	return d.close(keep)
}
