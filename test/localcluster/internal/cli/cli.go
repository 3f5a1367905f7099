// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cli is the command line of localcluster: flags in, calls to cluster
// and image out.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/switchyard-dev/switchyard/test/localcluster/internal/cluster"
	"github.com/switchyard-dev/switchyard/test/localcluster/internal/sandbox"
)

const (
	defaultState   = "/var/tmp/switchyard"
	stateVariable  = "SWITCHYARD_STATE"
	defaultTimeout = 3 * time.Minute
)

// app is what the subcommands share.
type app struct {
	goMod []byte
	state string
}

// Main runs the program and returns its exit code.
func Main(goMod []byte) int {
	// Some users' PATH has no administrator's programs.
	os.Setenv("PATH", strings.TrimPrefix(os.Getenv("PATH")+":/usr/local/sbin:/usr/sbin:/sbin", ":"))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	err := newRoot(goMod).ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, "Error:", err)
	return 1
}

func newRoot(goMod []byte) *cobra.Command {
	a := &app{goMod: goMod}
	root := &cobra.Command{
		Use:           "localcluster",
		Short:         "A real Kubernetes cluster on this machine, from Go modules and without Docker",
		RunE:          help,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
	}
	state := os.Getenv(stateVariable)
	if state == "" {
		state = defaultState
	}
	root.PersistentFlags().StringVar(&a.state, "state", state, "state directory of the cluster; $"+stateVariable+" sets the default")
	root.AddCommand(a.up(), a.down(), a.status(), a.kubeconfig(), a.build(), a.node(), a.image(), sandboxInit())
	return root
}

// help is what a command does that only has subcommands. Without it, cobra takes an unknown subcommand for a wish for
// help, and succeeds.
func help(cmd *cobra.Command, _ []string) error { return cmd.Help() }

func (a *app) cluster(cmd *cobra.Command) (*cluster.Cluster, error) {
	return cluster.New(a.state, a.goMod, cmd.OutOrStdout())
}

func (a *app) up() *cobra.Command {
	var o cluster.Options
	var count int
	var gangs bool
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start the cluster, or heal what an interrupted or damaged one left",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.cluster(cmd)
			if err != nil {
				return err
			}
			if cmd.Flags().Changed("nodes") && len(o.Nodes) == 0 {
				if count < 1 {
					return fmt.Errorf("--nodes %d: a cluster has at least 1 node", count)
				}
				o.Nodes = cluster.DefaultNodes(count)
			}
			if cmd.Flags().Changed("native-gangs") {
				o.NativeGangs = &gangs
			}
			if err := c.Up(cmd.Context(), o); err != nil {
				return err
			}
			c.Paths()
			return nil
		},
	}
	cmd.Flags().IntVar(&count, "nodes", 2, "number of nodes, named node-a, node-b, ...")
	cmd.Flags().StringSliceVar(&o.Nodes, "node-names", nil, "names of the nodes, instead of --nodes")
	cmd.Flags().BoolVar(&gangs, "native-gangs", false, "turn on Kubernetes' own gang scheduling (GenericWorkload, DRAWorkloadResourceClaims)")
	cmd.Flags().StringVar(&o.CIDR, "cidr", "", "IPv4 /16 for the cluster's own addresses (default: the first free one from 10.77.0.0/16 on)")
	cmd.Flags().DurationVar(&o.Timeout, "timeout", defaultTimeout, "how long the cluster may take to be ready, building excluded")
	cmd.MarkFlagsMutuallyExclusive("nodes", "node-names")
	return cmd
}

func (a *app) down() *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "Remove the cluster and everything it left on this machine",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.cluster(cmd)
			if err != nil {
				return err
			}
			return c.Down(cmd.Context())
		},
	}
}

func (a *app) status() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show what runs; fails when something does not work",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.cluster(cmd)
			if err != nil {
				return err
			}
			return c.Status(cmd.Context())
		},
	}
}

func (a *app) kubeconfig() *cobra.Command {
	var raw bool
	cmd := &cobra.Command{
		Use:   "kubeconfig",
		Short: "Print the path of the administrator's kubeconfig",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.cluster(cmd)
			if err != nil {
				return err
			}
			path := c.Layout().Kubeconfig()
			content, err := os.ReadFile(path)
			switch {
			case errors.Is(err, fs.ErrNotExist):
				return fmt.Errorf("read kubeconfig: %w: start the cluster with `localcluster up`", err)
			case errors.Is(err, fs.ErrPermission):
				return fmt.Errorf("read kubeconfig: %w: it is root's, as the cluster is: run this command, and kubectl, as root", err)
			case err != nil:
				return fmt.Errorf("read kubeconfig: %w", err)
			}
			if raw {
				_, err = cmd.OutOrStdout().Write(content)
			} else {
				_, err = fmt.Fprintln(cmd.OutOrStdout(), path)
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&raw, "raw", false, "print the content instead")
	return cmd
}

func (a *app) build() *cobra.Command {
	var printDir bool
	cmd := &cobra.Command{
		Use:   "build",
		Short: "Only compile the cluster's programs",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.cluster(cmd)
			if err != nil {
				return err
			}
			if printDir {
				fmt.Fprintln(cmd.OutOrStdout(), c.Bin())
				return nil
			}
			if err := c.Build(cmd.Context()); err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), "All programs are built in", c.Bin())
			return nil
		},
	}
	cmd.Flags().BoolVar(&printDir, "print-dir", false, "only print the folder of the binaries (kubectl, helm, crictl, ...)")
	return cmd
}

// sandboxInit is what this program starts itself as inside a machine.
func sandboxInit() *cobra.Command {
	return &cobra.Command{
		Use:    sandbox.InitCommand + " SPEC",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE:   func(_ *cobra.Command, args []string) error { return sandbox.RunInit(filepath.Clean(args[0])) },
	}
}
