// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/switchyard-dev/switchyard/pkg/simulator"
)

func (c *control) show() *cobra.Command {
	var output string
	cmd := c.onNode("show", "Show the node", func(cmd *cobra.Command, node *simulator.Node, _ []string) error {
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
	})
	cmd.Args = cobra.NoArgs // which says it better than "accepts 0 args"
	cmd.Flags().StringVarP(&output, "output", "o", "", "Output format: json, or a table if left out.")
	return cmd
}

// printState writes a node as tables for people.
func printState(out io.Writer, s simulator.State) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	row := func(cells ...any) {
		text := make([]string, len(cells))
		for i, cell := range cells {
			text[i] = fmt.Sprint(cell)
		}
		// The writer keeps an error until Flush.
		_, _ = fmt.Fprintln(w, strings.Join(text, "\t"))
	}
	row("Node:", s.NodeName)
	row("Profile:", s.Profile.Name+" ("+s.Profile.Description+")")
	row("Product:", s.Profile.Product.Name)
	row("Driver:", driverText(s))
	if s.Fabric != nil {
		row("Fabric:", fabricText(*s.Fabric))
	}
	row("Changes:", s.Generation)
	if s.RecordCalls {
		row("NVML calls:", "are recorded")
	}
	row()

	row("GPU", "UUID", "PCI ADDRESS", "MINOR", "NUMA", "LINKS", "MIG", "HEALTH")
	links := s.Profile.Links()
	for i, gpu := range s.GPUs {
		at := s.Profile.GPUs[i]
		numa, nvlinks, mig, health := "-", "-", "-", "ok"
		if at.NUMANode != nil {
			numa = fmt.Sprint(*at.NUMANode)
		}
		if links != nil {
			nvlinks = fmt.Sprint(len(links[i]))
			if down := len(gpu.LinksDown); down > 0 {
				nvlinks = fmt.Sprintf("%d, %d down", len(links[i]), down)
			}
		}
		if gpu.MIG != nil {
			mig = "off"
			if gpu.MIG.Enabled {
				mig = "on"
			}
		}
		if gpu.Health != simulator.HealthOK {
			health = string(gpu.Health)
		}
		if faults := faultsText(gpu.Faults); faults != "" {
			health += ", " + faults
		}
		if gpu.Fabric != nil {
			health += ", fabric " + fabricText(*gpu.Fabric)
		}
		row(i, gpu.UUID, at.BusID, gpu.Minor, numa, nvlinks, mig, health)
	}

	if len(s.XIDs) > 0 {
		row()
		row("XID", "GPU", "TIME")
		for _, xid := range s.XIDs {
			row(xid.Code, xid.GPU, xid.Time.Format(time.RFC3339))
		}
	}
	return w.Flush()
}

func driverText(s simulator.State) string {
	text := s.Profile.Driver.Version + ", CUDA " + s.Profile.Driver.CUDAVersion
	if s.Driver.Failure != "" {
		text += ", broken: " + string(s.Driver.Failure)
	}
	if s.Driver.CallDelay > 0 {
		text += ", every call takes " + time.Duration(s.Driver.CallDelay).String()
	}
	return text
}

func fabricText(f simulator.FabricState) string {
	text := fmt.Sprintf("%s, cluster %s, clique %d", f.State, f.ClusterUUID, f.CliqueID)
	if f.Status != 0 {
		text += fmt.Sprintf(", status %d", f.Status)
	}
	return text
}
