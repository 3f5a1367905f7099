// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"charm.land/lipgloss/v2"

	"github.com/switchyard-dev/switchyard/test/cluster"
)

// demo tells the story step by step and counts what it checked.
type demo struct {
	cluster *cluster.Cluster
	out     io.Writer
	checks  int
	// target is that of the Makefile.
	target string
}

func newDemo(c *cluster.Cluster, out io.Writer) *demo {
	return &demo{cluster: c, out: out, target: "demo"}
}

// A step returns the line that sums it up; what it prints itself comes before that line's details.
type step struct {
	title string
	run   func(context.Context) (summary string, details []string, err error)
}

func (d *demo) gangSteps() []step {
	return []step{
		{"tools", d.tools},
		{"cluster", d.up},
		{"Switchyard", d.install},
		{"the trap", d.trap},
		{"one domain", d.sameDomain},
		{"by name", d.namedDomain},
		{"half a gang", d.stockGang},
		{"the gang", d.gang},
		{"any owner", d.owners},
		{"room", d.makeRoom},
	}
}

func (d *demo) play(ctx context.Context, steps []step) error {
	for i, s := range steps {
		start := time.Now()
		summary, details, err := s.run(ctx)
		if err != nil {
			return fmt.Errorf("step %d of %d, %s: %w", i+1, len(steps), s.title, err)
		}
		seconds := int(time.Since(start).Round(time.Second).Seconds())
		d.print(fmt.Sprintf("[%d/%d] %s %-72s %2d:%02d", i+1, len(steps), bold.Render(fmt.Sprintf("%-11s", s.title)), summary, seconds/60, seconds%60))
		for _, line := range details {
			d.print("      " + line)
		}
		d.print("")
	}
	return nil
}

func (d *demo) close(keep bool) error {
	d.print(fmt.Sprintf("All %d checks passed.", d.checks))
	if keep {
		end := "make cluster-down"
		if state := os.Getenv("SWITCHYARD_STATE"); state != "" {
			end = "SWITCHYARD_STATE=" + state + " " + end
		}
		d.print("The cluster is up. To play with it:\n" + d.cluster.ShellHint() + "\nTo end it: " + end)
		return nil
	}
	d.print("KEEP=1 make " + d.target + " leaves the cluster up.")
	return nil
}

// check counts a statement that the demo shows and fails the demo where it does not hold.
func (d *demo) check(holds bool, format string, args ...any) error {
	if !holds {
		return fmt.Errorf("check failed: "+format, args...)
	}
	d.checks++
	return nil
}

func (d *demo) print(line string) {
	// Lipgloss drops the colours where the output is no terminal.
	_, _ = lipgloss.Fprintln(d.out, line)
}
