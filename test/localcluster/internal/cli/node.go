// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/switchyard-dev/switchyard/test/localcluster/internal/cluster"
)

func (a *app) node() *cobra.Command {
	node := &cobra.Command{Use: "node", Short: "Do to a node what happens to nodes", Args: cobra.NoArgs, RunE: help}
	var timeout time.Duration
	command := func(use, short string, run func(ctx context.Context, c *cluster.Cluster, name string) error) *cobra.Command {
		return &cobra.Command{
			Use:   use + " NODE",
			Short: short,
			Args:  cobra.ExactArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				c, err := a.cluster(cmd)
				if err != nil {
					return err
				}
				return run(cmd.Context(), c, args[0])
			},
		}
	}
	start := command("start", "Boot a stopped node and wait until it is Ready", func(ctx context.Context, c *cluster.Cluster, name string) error {
		return c.StartNode(ctx, name, timeout)
	})
	reboot := command("reboot", "Stop and start a node: new boot ID, empty /run, no process survives", func(ctx context.Context, c *cluster.Cluster, name string) error {
		return c.RebootNode(ctx, name, timeout)
	})
	for _, cmd := range []*cobra.Command{start, reboot} {
		cmd.Flags().DurationVar(&timeout, "timeout", defaultTimeout, "how long the node may take to be Ready")
	}
	node.AddCommand(
		start, reboot,
		command("stop", "Pull a node's plug: kubelet, containerd and pods die at once", func(_ context.Context, c *cluster.Cluster, name string) error {
			return c.StopNode(name)
		}),
		command("cut", "Take a node's network link down", func(_ context.Context, c *cluster.Cluster, name string) error {
			return c.CutNode(name, true)
		}),
		command("heal", "Bring a node's network link up again", func(_ context.Context, c *cluster.Cluster, name string) error {
			return c.CutNode(name, false)
		}),
		a.restart(), a.exec(),
	)
	return node
}

func (a *app) restart() *cobra.Command {
	return &cobra.Command{
		Use:   "restart MACHINE SERVICE",
		Short: "Crash one service (kubelet, containerd, kube-proxy; kube-apiserver, ... of control-plane); it is started again",
		Args:  cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.cluster(cmd)
			if err != nil {
				return err
			}
			return c.RestartService(args[0], args[1])
		},
	}
}

func (a *app) exec() *cobra.Command {
	return &cobra.Command{
		Use:   "exec MACHINE -- COMMAND [ARGUMENT...]",
		Short: "Run a command inside the namespaces of a node, or of control-plane",
		Args:  cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.cluster(cmd)
			if err != nil {
				return err
			}
			return c.Exec(args[0], args[1:])
		},
	}
}
