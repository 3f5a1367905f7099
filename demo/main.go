// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Command demo shows, on a real Kubernetes with simulated GPUs, what a plain GPU count hides and what an
// NVSwitch domain in the claim changes; with the argument "sharing", how GPUs are partitioned, shared and drained. It
// checks everything it shows and exits with 1 when anything differs.
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
	if err := run(ctx, os.Args[1:], keep); err != nil {
		fmt.Fprintf(os.Stderr, "\ndemo: %v\n", err)
		os.Exit(1)
	}
}

// run takes the cluster down again whatever happened, unless keep is set.
func run(ctx context.Context, args []string, keep bool) (err error) {
	c := cluster.New(cluster.Options{Progress: os.Stderr})
	d := newDemo(c, os.Stdout)
	steps := d.gangSteps()
	switch {
	case len(args) == 1 && args[0] == "sharing":
		d.target, steps = "demo-sharing", d.sharingSteps()
	case len(args) > 0:
		return fmt.Errorf("arguments %q: want none, or sharing", args)
	}
	// Said here, not after ten minutes of building programs into a cache that root does not look at.
	if os.Geteuid() != 0 {
		return fmt.Errorf("the cluster needs root, for namespaces, mounts and control groups: run make %s as root", d.target)
	}
	if !keep {
		defer func() {
			if down := c.Down(context.WithoutCancel(ctx)); err == nil {
				err = down
			}
		}()
	}
	if err := d.play(ctx, steps); err != nil {
		return fmt.Errorf("%w\nlogs: %s; KEEP=1 make %s leaves the cluster up to look at", err, c.LogDir(), d.target)
	}
	return d.close(keep)
}
