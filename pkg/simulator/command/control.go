// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/switchyard-dev/switchyard/pkg/simulator"
	"github.com/switchyard-dev/switchyard/pkg/simulator/profile"
)

func newControl() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ctl",
		Short: "Look at a simulated node and change it while it runs",
		Long: "Look at a simulated node and change it while it runs.\n\n" +
			"A GPU is named by its place in the profile (from 0), by its UUID, or \"all\". A process that uses the node\n" +
			"sees a change at its next NVML call.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	c := &control{dir: dirFlag(cmd)}
	cmd.AddCommand(
		c.perGPU("lose", "Let GPUs fall off the bus: they answer no call, and XID 79 is raised", (*simulator.Node).LoseGPU),
		c.perGPU("remove", "Take GPUs off the bus: they are not counted any more", (*simulator.Node).RemoveGPU),
		c.perGPU("require-reset", "Let GPUs answer from the driver's cache only", (*simulator.Node).RequireReset),
		c.perGPU("recover", "Make GPUs healthy and bring their NVLinks up", (*simulator.Node).RecoverGPU),
		c.xid(), c.nvlink(), c.fabric(), c.mig(), c.driver(), c.delay(), c.calls(), c.show(),
	)
	return cmd
}

type control struct{ dir *string }

// positions returns the places in the profile of what an argument names.
func positions(node *simulator.Node, argument string) ([]int, error) {
	state, err := node.State()
	if err != nil {
		return nil, err
	}
	if argument == "all" {
		all := make([]int, len(state.GPUs))
		for i := range all {
			all[i] = i
		}
		return all, nil
	}
	if i := slices.IndexFunc(state.GPUs, func(g simulator.GPUState) bool { return strings.EqualFold(g.UUID, argument) }); i >= 0 {
		return []int{i}, nil
	}
	i, err := strconv.Atoi(argument)
	if err != nil || i < 0 || i >= len(state.GPUs) {
		return nil, fmt.Errorf("no GPU is called %q: GPUs are 0 to %d, their UUIDs, or \"all\"", argument, len(state.GPUs)-1)
	}
	return []int{i}, nil
}

// each changes the GPUs that an argument names.
func (c *control) each(argument string, change func(node *simulator.Node, gpu int) error) error {
	node, err := openNode(*c.dir)
	if err != nil {
		return err
	}
	gpus, err := positions(node, argument)
	if err != nil {
		return err
	}
	for _, gpu := range gpus {
		if err := change(node, gpu); err != nil {
			return err
		}
	}
	return nil
}

func (c *control) perGPU(name, short string, change func(*simulator.Node, int) error) *cobra.Command {
	return &cobra.Command{
		Use:   name + " GPU...",
		Short: short,
		Args:  cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			for _, arg := range args {
				if err := c.each(arg, change); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

func (c *control) xid() *cobra.Command {
	return &cobra.Command{
		Use:   "xid GPU CODE",
		Short: "Raise an XID error of a GPU",
		Args:  cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			code, err := strconv.ParseUint(args[1], 10, 32)
			if err != nil {
				return fmt.Errorf("XID %q is not a number", args[1])
			}
			return c.each(args[0], func(node *simulator.Node, gpu int) error { return node.InjectXID(gpu, code) })
		},
	}
}

func (c *control) nvlink() *cobra.Command {
	return &cobra.Command{
		Use:   "nvlink GPU LINK|all up|down",
		Short: "Take NVLinks of a GPU down or up",
		Args:  cobra.ExactArgs(3),
		RunE: func(_ *cobra.Command, args []string) error {
			up, err := oneOfTwo(args[2], "up", "down")
			if err != nil {
				return err
			}
			link, err := strconv.Atoi(args[1])
			if err != nil && args[1] != "all" {
				return fmt.Errorf("link %q is neither a number nor \"all\"", args[1])
			}
			return c.each(args[0], func(node *simulator.Node, gpu int) error {
				if args[1] == "all" {
					return node.SetNVLinks(gpu, up)
				}
				return node.SetNVLink(gpu, link, up)
			})
		},
	}
}

func (c *control) fabric() *cobra.Command {
	var cluster, gpu string
	var clique, status uint32
	cmd := &cobra.Command{
		Use:   "fabric STATE",
		Short: "Set what GPUs say of their fabric",
		Long: fmt.Sprintf("Set what GPUs say of their fabric. STATE is one of %q.\n\n", profile.FabricStates()) +
			"Cluster and clique stay what they were unless they are given.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			node, err := openNode(*c.dir)
			if err != nil {
				return err
			}
			state, err := node.State()
			if err != nil {
				return err
			}
			if state.Fabric == nil {
				return fmt.Errorf("set fabric: profile %q has no fabric", state.Profile.Name)
			}
			fabric := *state.Fabric
			fabric.State = profile.FabricState(args[0])
			fabric.Status = status
			if cluster != "" {
				fabric.ClusterUUID = cluster
			}
			if cmd.Flags().Changed("clique") {
				fabric.CliqueID = clique
			}
			if gpu == "all" {
				return node.SetFabric(simulator.AllGPUs, fabric)
			}
			return c.each(gpu, func(node *simulator.Node, gpu int) error { return node.SetFabric(gpu, fabric) })
		},
	}
	cmd.Flags().StringVar(&cluster, "cluster-uuid", "", "UUID of the fabric over several nodes; all zeros for a single board.")
	cmd.Flags().Uint32Var(&clique, "clique", 0, "Clique ID.")
	cmd.Flags().Uint32Var(&status, "status", 0, "The nvmlReturn_t of a completed registration: 0 is success.")
	cmd.Flags().StringVar(&gpu, "gpu", "all", "The GPU to set it for.")
	return cmd
}

func (c *control) mig() *cobra.Command {
	return &cobra.Command{
		Use:   "mig GPU on|off",
		Short: "Turn MIG mode of a GPU on or off",
		Args:  cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			on, err := oneOfTwo(args[1], "on", "off")
			if err != nil {
				return err
			}
			return c.each(args[0], func(node *simulator.Node, gpu int) error { return node.SetMIGMode(gpu, on) })
		},
	}
}

func (c *control) driver() *cobra.Command {
	return &cobra.Command{
		Use:   "driver ok|broken|FAILURE",
		Short: "Break the driver or repair it",
		Long:  fmt.Sprintf("Break the driver or repair it. FAILURE is one of %q; \"broken\" is the first.", simulator.DriverFailures()),
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			node, err := openNode(*c.dir)
			if err != nil {
				return err
			}
			failure := simulator.DriverFailure(args[0])
			switch args[0] {
			case "ok":
				failure = ""
			case "broken":
				failure = simulator.DriverNotLoaded
			}
			return node.SetDriverFailure(failure)
		},
	}
}

func (c *control) delay() *cobra.Command {
	return &cobra.Command{
		Use:   "delay DURATION",
		Short: "Make every NVML call take a time, such as 50ms; 0 for none",
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			delay, err := time.ParseDuration(args[0])
			if err != nil {
				return fmt.Errorf("delay %q is not a duration such as 50ms", args[0])
			}
			node, err := openNode(*c.dir)
			if err != nil {
				return err
			}
			return node.SetCallDelay(delay)
		},
	}
}

func (c *control) calls() *cobra.Command {
	return &cobra.Command{
		Use:   "calls on|off|show",
		Short: "Have NVML calls recorded, and show how many of which there were",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			node, err := openNode(*c.dir)
			if err != nil {
				return err
			}
			if args[0] != "show" {
				on, err := oneOfTwo(args[0], "on", "off")
				if err != nil {
					return fmt.Errorf("%w or \"show\"", err)
				}
				return node.SetRecordCalls(on)
			}
			calls, err := node.RecordedCalls()
			if err != nil {
				return err
			}
			counts := map[string]int{}
			for _, call := range calls {
				counts[call]++
			}
			var table strings.Builder
			for _, function := range slices.Sorted(maps.Keys(counts)) {
				fmt.Fprintf(&table, "%6d  %s\n", counts[function], function)
			}
			fmt.Fprintf(&table, "%6d  in all\n", len(calls))
			_, err = io.WriteString(cmd.OutOrStdout(), table.String())
			return err
		},
	}
}

func (c *control) show() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Show the node",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			node, err := openNode(*c.dir)
			if err != nil {
				return err
			}
			state, err := node.State()
			if err != nil {
				return err
			}
			switch output {
			case "":
				return printState(cmd.OutOrStdout(), state)
			case "json":
				encoder := json.NewEncoder(cmd.OutOrStdout())
				encoder.SetIndent("", "  ")
				return encoder.Encode(state)
			default:
				return fmt.Errorf("--output %q: must be \"json\", or left out for a table", output)
			}
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "Output format: json, or a table if left out.")
	return cmd
}

// oneOfTwo says whether a word is the first of two.
func oneOfTwo(word, first, other string) (bool, error) {
	switch word {
	case first:
		return true, nil
	case other:
		return false, nil
	default:
		return false, fmt.Errorf("%q must be %q or %q", word, first, other)
	}
}
