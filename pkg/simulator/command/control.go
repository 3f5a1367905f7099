// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
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
		c.onGPUs("lose GPU...", "Let GPUs fall off the bus: they answer no call, and XID 79 is raised", (*simulator.Node).LoseGPU),
		c.onGPUs("remove GPU...", "Take GPUs off the bus: they are not counted any more", (*simulator.Node).RemoveGPU),
		c.onGPUs("require-reset GPU...", "Let GPUs answer from the driver's cache only", (*simulator.Node).RequireReset),
		c.onGPUs("recover GPU...", "Make GPUs healthy, as a reset does, and bring their NVLinks up", (*simulator.Node).RecoverGPU),
		c.onGPU("xid GPU CODE", "Raise an XID error of a GPU, with the recovery action that goes with it", parseXID),
		c.onGPU("recovery-action GPU ACTION", "Set what a GPU says must be done for it to work again", parseRecoveryAction),
		c.onGPU("ecc GPU COUNT", "Add uncorrected memory errors of a GPU", parseECC),
		c.onGPU("remap GPU none|pending|failure", "Set what a GPU says of the remapping of memory rows", parseRemap),
		c.onGPU("nvlink GPU LINK|all up|down", "Take NVLinks of a GPU down or up", parseNVLink),
		c.mig(),
		c.sharing(),
		c.fabric(),
		c.driver(),
		c.onNode("delay DURATION", "Make every NVML call take a time, such as 50ms; 0 for none", setDelay),
		c.onNode("calls on|off|show", "Have NVML calls recorded, and show how many of which there were", controlCalls),
		c.show(),
	)
	return cmd
}

// control makes the commands, which are of three shapes: they change some GPUs, change something about
// a GPU, or deal with the node.
type control struct{ dir *string }

// change is what a command does to a GPU of a node.
type change = func(node *simulator.Node, gpu int) error

// onGPUs makes a command that does the same to each GPU that it is given.
func (c *control) onGPUs(use, short string, do change) *cobra.Command {
	return &cobra.Command{
		Use:   use,
		Short: short,
		Args:  cobra.MinimumNArgs(1),
		RunE:  func(_ *cobra.Command, args []string) error { return c.each(args, do) },
	}
}

// onGPU makes a command whose first argument is a GPU, and whose others, as many as use names, parse
// turns into what to do.
func (c *control) onGPU(use, short string, parse func(args []string) (change, error)) *cobra.Command {
	return &cobra.Command{
		Use:   use,
		Short: short,
		Args:  cobra.ExactArgs(strings.Count(use, " ")),
		RunE: func(_ *cobra.Command, args []string) error {
			do, err := parse(args[1:])
			if err != nil {
				return err
			}
			return c.each(args[:1], do)
		},
	}
}

// onNode makes a command that has as many arguments as use names.
func (c *control) onNode(use, short string, do func(cmd *cobra.Command, node *simulator.Node, args []string) error) *cobra.Command {
	return &cobra.Command{
		Use:   use,
		Short: short,
		Args:  cobra.ExactArgs(strings.Count(use, " ")),
		RunE: func(cmd *cobra.Command, args []string) error {
			node, err := openNode(*c.dir)
			if err != nil {
				return err
			}
			return do(cmd, node, args)
		},
	}
}

// each changes the GPUs that arguments name.
func (c *control) each(arguments []string, do change) error {
	node, err := openNode(*c.dir)
	if err != nil {
		return err
	}
	return eachOf(node, arguments, do)
}

// eachOf knows every GPU before it changes one: a name that is wrong changes nothing.
func eachOf(node *simulator.Node, arguments []string, do change) error {
	var all []int
	for _, argument := range arguments {
		gpus, err := positions(node, argument)
		if err != nil {
			return err
		}
		all = append(all, gpus...)
	}
	for _, gpu := range all {
		if err := do(node, gpu); err != nil {
			return err
		}
	}
	return nil
}

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

func parseXID(args []string) (change, error) {
	code, err := strconv.ParseUint(args[0], 10, 32)
	if err != nil {
		return nil, fmt.Errorf("XID %q must be a whole number from 1 to %d", args[0], uint32(math.MaxUint32))
	}
	if code == 0 {
		return nil, errors.New("XID 0 is none: they begin at 1")
	}
	return func(node *simulator.Node, gpu int) error { return node.InjectXID(gpu, code) }, nil
}

func parseNVLink(args []string) (change, error) {
	up, err := oneOfTwo(args[1], "up", "down")
	if err != nil {
		return nil, err
	}
	if args[0] == "all" {
		return func(node *simulator.Node, gpu int) error { return node.SetNVLinks(gpu, up) }, nil
	}
	link, err := strconv.Atoi(args[0])
	if err != nil {
		return nil, fmt.Errorf("link %q is neither a number nor \"all\"", args[0])
	}
	return func(node *simulator.Node, gpu int) error { return node.SetNVLink(gpu, link, up) }, nil
}

func (c *control) fabric() *cobra.Command {
	var cluster, gpu string
	var clique, status uint32
	cmd := c.onNode("fabric STATE", "Set what GPUs say of their fabric", func(cmd *cobra.Command, node *simulator.Node, args []string) error {
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
		return eachOf(node, []string{gpu}, func(node *simulator.Node, gpu int) error { return node.SetFabric(gpu, fabric) })
	})
	cmd.Long = fmt.Sprintf("Set what GPUs say of their fabric. STATE is one of %q.\n\n", profile.FabricStates()) +
		"Cluster and clique stay what they were unless they are given."
	cmd.Flags().StringVar(&cluster, "cluster-uuid", "", "UUID of the fabric over several nodes; all zeros for a single board.")
	cmd.Flags().Uint32Var(&clique, "clique", 0, "Clique ID.")
	cmd.Flags().Uint32Var(&status, "status", 0, "The nvmlReturn_t of a completed registration: 0 is success.")
	cmd.Flags().StringVar(&gpu, "gpu", "all", "The GPU to set it for.")
	return cmd
}

func (c *control) driver() *cobra.Command {
	cmd := c.onNode("driver ok|broken|FAILURE", "Break the driver or repair it", func(_ *cobra.Command, node *simulator.Node, args []string) error {
		failure := simulator.DriverFailure(args[0])
		switch args[0] {
		case "ok":
			failure = ""
		case "broken":
			failure = simulator.DriverNotLoaded
		}
		return node.SetDriverFailure(failure)
	})
	cmd.Long = fmt.Sprintf("Break the driver or repair it. FAILURE is one of %q; \"broken\" is the first.", simulator.DriverFailures())
	return cmd
}

func setDelay(_ *cobra.Command, node *simulator.Node, args []string) error {
	delay, err := time.ParseDuration(args[0])
	if err != nil {
		return fmt.Errorf("delay %q is not a duration such as 50ms", args[0])
	}
	return node.SetCallDelay(delay)
}

func controlCalls(cmd *cobra.Command, node *simulator.Node, args []string) error {
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
