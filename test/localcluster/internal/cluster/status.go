// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"text/tabwriter"

	"github.com/switchyard-dev/switchyard/test/localcluster/internal/kubeapi"
	"github.com/switchyard-dev/switchyard/test/localcluster/internal/layout"
	"github.com/switchyard-dev/switchyard/test/localcluster/internal/network"
	"github.com/switchyard-dev/switchyard/test/localcluster/internal/sandbox"
)

// Status prints what runs. It returns an error when anything does not work
// that should: a stopped or cut node is somebody's wish, a dead service is not.
func (c *Cluster) Status(ctx context.Context) error {
	if err := checkHost(); err != nil {
		return err
	}
	r, err := c.load()
	if err != nil {
		return err
	}
	api, err := kubeapi.New(c.layout.Kubeconfig())
	if err != nil {
		return fmt.Errorf("the cluster in %s is half up or damaged: %w: heal it with `localcluster up`", c.layout.State, err)
	}
	broken := 0
	c.say("State directory  %s", c.layout.State)
	c.say("Binaries         %s", r.Cluster.Bin)
	c.say("Native gangs     %t\n", r.Cluster.NativeGangs)
	table := tabwriter.NewWriter(c.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "MACHINE\tADDRESS\tSTATE\tSERVICE\tEXITS\tLAST EXIT")
	for i, machine := range append([]string{layout.ControlPlane}, r.Cluster.Nodes...) {
		address, state := r.Plan.ControlPlane().String(), "Ready"
		if machine == layout.ControlPlane {
			if err := api.Ready(ctx); err != nil {
				state = "NotReady"
				broken++
			}
		} else {
			address = r.Plan.Node(i - 1).String()
			if state = c.nodeState(ctx, api, machine, i-1); state == "NotReady" {
				broken++
			}
		}
		services, err := sandbox.Services(c.socket(r.Cluster, machine))
		if err != nil {
			fmt.Fprintf(table, "%s\t%s\t%s\t-\t\t\n", machine, address, state)
			if machine == layout.ControlPlane {
				broken++
			}
			continue
		}
		for n, s := range services {
			if n > 0 {
				machine, address, state = "", "", ""
			}
			fmt.Fprintf(table, "%s\t%s\t%s\t%s %s\t%d\t%s\n", machine, address, state, s.Name, s.State, s.Exits, s.LastExit)
			if s.State != sandbox.Running {
				broken++
			}
		}
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("print status: %w", err)
	}
	if broken > 0 {
		return fmt.Errorf("the cluster does not work as it should: see above, and the logs in %s; heal it with `localcluster up`", c.layout.Logs(""))
	}
	return nil
}

func (c *Cluster) nodeState(ctx context.Context, api *kubeapi.Client, name string, index int) string {
	if !c.init(name).Alive() {
		return "Stopped"
	}
	if cut, err := network.IsCut(c.init(layout.ControlPlane).PID, index); err == nil && cut {
		return "Cut off"
	}
	if node, err := api.Node(ctx, name); err != nil || !node.Ready {
		return "NotReady"
	}
	return "Ready"
}

// Paths prints what a person needs to play with the cluster.
func (c *Cluster) Paths() {
	c.say("\nTo play with it:\n")
	c.say("  export KUBECONFIG=%s", c.layout.Kubeconfig())
	c.say("  export PATH=%s:$PATH", c.Bin())
	c.say("  kubectl get nodes -o wide")
}
