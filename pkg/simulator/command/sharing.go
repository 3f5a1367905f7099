// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/spf13/cobra"

	"github.com/switchyard-dev/switchyard/pkg/simulator"
	"github.com/switchyard-dev/switchyard/pkg/simulator/driver"
)

// sharing makes the commands for what processes share GPUs by.
func (c *control) sharing() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sharing",
		Short: "Show the MPS daemons, compute modes and time slices, and let daemons fail",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	show := c.onNode("show", "Show the MPS daemons that run, and the compute modes and time slices that are set", showSharing)
	show.Args = cobra.NoArgs
	cmd.AddCommand(
		show,
		c.onNode("fail TEXT", "Let MPS daemons that are started end with a text; ok lets them start", func(_ *cobra.Command, node *simulator.Node, args []string) error {
			if args[0] == "ok" {
				return node.SetMPSFailure(driver.Failure{})
			}
			return node.SetMPSFailure(driver.Failure{Start: args[0]})
		}),
		c.onNode("delay DURATION", "Let MPS daemons that are started take a time to answer, such as 2s; 0 for none", func(_ *cobra.Command, node *simulator.Node, args []string) error {
			delay, err := time.ParseDuration(args[0])
			if err != nil {
				return fmt.Errorf("delay %q is not a duration such as 2s", args[0])
			}
			return node.SetMPSFailure(driver.Failure{Delay: delay.Milliseconds()})
		}),
	)
	return cmd
}

// computeModes are nvidia-smi's names of nvmlComputeMode_t.
var computeModes = map[nvml.ComputeMode]string{
	nvml.COMPUTEMODE_DEFAULT: "Default", nvml.COMPUTEMODE_EXCLUSIVE_PROCESS: "Exclusive_Process", nvml.COMPUTEMODE_PROHIBITED: "Prohibited",
}

func showSharing(cmd *cobra.Command, node *simulator.Node, _ []string) error {
	state, err := node.State()
	if err != nil {
		return err
	}
	daemons, err := node.MPSDaemons()
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
	// The writer keeps an error until Flush.
	_, _ = fmt.Fprintln(w, "GPU\tUUID\tCOMPUTE MODE\tTIME SLICE")
	for i, gpu := range state.GPUs {
		slice, err := node.TimeSlice(i)
		if err != nil {
			return err
		}
		_, _ = fmt.Fprintf(w, "%d\t%s\t%s\t%s\n", i, gpu.UUID, computeModes[gpu.ComputeMode], []string{"Default", "Short", "Medium", "Long"}[slice])
	}
	_, _ = fmt.Fprintln(w, "\nMPS DAEMON\tDEVICES\tPIPE DIRECTORY\tCAPABILITIES")
	for _, daemon := range daemons {
		_, _ = fmt.Fprintf(w, "%d\t%s\t%s\t%s\n", daemon.PID, strings.Join(daemon.Devices, ","), daemon.PipeDirectory, daemon.Capabilities)
	}
	return w.Flush()
}
