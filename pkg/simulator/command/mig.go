// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/spf13/cobra"

	"github.com/switchyard-dev/switchyard/pkg/simulator"
)

// mig makes the commands for what an administrator does with nvidia-smi mig.
func (c *control) mig() *cobra.Command {
	cmd := c.onGPU("mig GPU on|off", "Turn MIG mode of a GPU on or off, or see to its partitions", parseMIG)
	cmd.Long = "Turn MIG mode of a GPU on or off, or see to its partitions as an administrator does, behind the back of the\n" +
		"kubelet plugin."
	cmd.AddCommand(
		c.onGPU("create GPU PROFILE START", "Make a partition of a profile such as 1g.10gb at a memory slice", parseCreatePartition),
		c.onGPU("destroy GPU INSTANCE", "Destroy a GPU instance and what is in it, used or not", parseDestroyPartition),
		c.failMIG(),
		c.onNode("list", "Show the partitions of all GPUs", listPartitions),
	)
	return cmd
}

func parseMIG(args []string) (change, error) {
	on, err := oneOfTwo(args[0], "on", "off")
	if err != nil {
		return nil, err
	}
	return func(node *simulator.Node, gpu int) error { return node.SetMIGMode(gpu, on) }, nil
}

func parseCreatePartition(args []string) (change, error) {
	start, err := strconv.Atoi(args[1])
	if err != nil {
		return nil, fmt.Errorf("memory slice %q is not a number", args[1])
	}
	return func(node *simulator.Node, gpu int) error {
		_, err := node.CreatePartition(gpu, args[0], start)
		return err
	}, nil
}

func parseDestroyPartition(args []string) (change, error) {
	id, err := strconv.ParseUint(args[0], 10, 32)
	if err != nil {
		return nil, fmt.Errorf("GPU instance %q is not a number", args[0])
	}
	return func(node *simulator.Node, gpu int) error { return node.DestroyPartition(gpu, uint32(id)) }, nil
}

// migFailures are what a change to the partitions may be told to fail with.
var migFailures = map[string]nvml.Return{
	"InsufficientResources": nvml.ERROR_INSUFFICIENT_RESOURCES,
	"InUse":                 nvml.ERROR_IN_USE,
	"NoPermission":          nvml.ERROR_NO_PERMISSION,
	"Unknown":               nvml.ERROR_UNKNOWN,
}

func (c *control) failMIG() *cobra.Command {
	with := "Unknown"
	cmd := c.onGPU("fail GPU OPERATION", "Let the next change of a kind to the partitions of a GPU fail", func(args []string) (change, error) {
		ret, ok := migFailures[with]
		if !ok {
			return nil, fmt.Errorf("--with %q: must be one of %q", with, slices.Sorted(maps.Keys(migFailures)))
		}
		return func(node *simulator.Node, gpu int) error {
			return node.FailNextMIG(gpu, simulator.MIGOperation(args[0]), ret)
		}, nil
	})
	cmd.Long = fmt.Sprintf("Let the next change of a kind to the partitions of a GPU fail. OPERATION is one of %q.", simulator.MIGOperations())
	cmd.Flags().StringVar(&with, "with", with, "What it fails with: "+strings.Join(slices.Sorted(maps.Keys(migFailures)), ", ")+".")
	return cmd
}

func listPartitions(cmd *cobra.Command, node *simulator.Node, _ []string) error {
	state, err := node.State()
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
	// The writer keeps an error until Flush.
	_, _ = fmt.Fprintln(w, "GPU\tINSTANCE\tPROFILE\tSTART\tSIZE\tCOMPUTE\tUUID")
	for i, gpu := range state.GPUs {
		if gpu.MIG == nil {
			continue
		}
		for _, gi := range gpu.MIG.Instances {
			p, _ := state.Profile.Product.MIG.ByID(gi.ProfileID)
			if len(gi.Compute) == 0 {
				_, _ = fmt.Fprintf(w, "%d\t%d\t%s\t%d\t%d\t-\t-\n", i, gi.ID, p.Name, gi.Start, gi.Size)
			}
			for _, ci := range gi.Compute {
				_, _ = fmt.Fprintf(w, "%d\t%d\t%s\t%d\t%d\t%d\t%s\n", i, gi.ID, p.Name, gi.Start, gi.Size, ci.ID, ci.UUID)
			}
		}
	}
	return w.Flush()
}
