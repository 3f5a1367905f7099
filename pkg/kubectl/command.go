// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/component-base/version"
)

// New returns the command with all its subcommands.
func New() *cobra.Command { return newCommand(newKubeconfig()) }

func newCommand(c connection) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "kubectl-switchyard",
		Short: "See and repair how GPUs of a cluster are placed",
		Long: `See and repair how GPUs of a cluster are placed.

As a plugin of kubectl it is called "kubectl switchyard"; kubectl finds it on the PATH.`,
		Version:       version.Get().GitVersion,
		SilenceUsage:  true,
		SilenceErrors: true,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl switchyard"},
	}
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w; see '%s --help'", err, cmd.CommandPath())
	})
	cmd.AddCommand(newTopology(c), newFragmentation(c), newGangs(c), newExplain(c), newDefrag(c), newSimulate())
	return cmd
}

// Main runs the command until it ends or the process is told to stop, and returns the exit code. Told again, the
// process stops at once.
func Main(cmd *cobra.Command) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // who asks twice does not want to wait
	if err := cmd.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "error: "+err.Error())
		return 1
	}
	return 0
}
