// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package program runs the command of a long-lived program, and has the flags of its log. It imports cobra, pflag and klog.
package program

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"
)

// Main runs a command until it ends or the process is told to stop, and returns the exit code.
func Main(cmd *cobra.Command) int {
	defer klog.Flush() //nolint:logcheck // There is no other way.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := cmd.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, cmd.Name()+": "+err.Error())
		return 1
	}
	return 0
}
