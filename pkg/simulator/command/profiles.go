// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/switchyard-dev/switchyard/pkg/simulator/profile"
)

func newProfiles() *cobra.Command {
	return &cobra.Command{
		Use:               "profiles [NAME]",
		Short:             "List the kinds of nodes that can be simulated, or print one as YAML",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: cobra.FixedCompletions(profile.Names(), cobra.ShellCompDirectiveNoFileComp),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				text, err := profile.Source(args[0])
				if err != nil {
					return err
				}
				_, err = cmd.OutOrStdout().Write(text)
				return err
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			for _, name := range profile.Names() {
				p, err := profile.Load(name)
				if err != nil {
					return err
				}
				// The writer keeps an error until Flush.
				_, _ = fmt.Fprintf(w, "%s\t%s\n", name, p.Description)
			}
			return w.Flush()
		},
	}
}
