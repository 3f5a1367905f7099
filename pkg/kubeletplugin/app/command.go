// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package app is the kubelet plugin as a command: flags, logging, servers, signals. It is shared by
// the plugin that users install and by the simulated node, which differ in nothing but where their
// hardware comes from.
//
// It may import anything that wires; nothing but commands may import it. It promises that a flag
// that cannot work is an error that names the flag and the fix, before anything is touched.
package app

import (
	"os"

	"github.com/spf13/cobra"
	"k8s.io/component-base/version"
)

// NewCommand returns the command called name that runs the kubelet plugin on the hardware that open
// returns. open is called once the flags are known to be valid; it must not fail because a driver is
// missing or broken, which is a state that discovery reports.
func NewCommand(name string, open func(Options) (Platform, error)) *cobra.Command {
	options := NewOptions(os.Getenv)
	cmd := &cobra.Command{
		Use:   name,
		Short: "Publish this node's GPUs and prepare the claims that were allocated on them",
		Long: "The Switchyard kubelet plugin publishes the GPUs of a node, with the NVSwitch domains they belong to,\n" +
			"as ResourceSlices, and gives the GPUs of allocated ResourceClaims to containers through CDI.",
		Version:       version.Get().GitVersion,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := options.applyNodeConfig(cmd.Flags()); err != nil {
				return err
			}
			if err := options.Validate(); err != nil {
				return err
			}
			if err := options.Logging.Apply(os.Stderr); err != nil {
				return err
			}
			return run(cmd.Context(), name, *options, open)
		},
	}
	options.AddFlags(cmd.Flags())
	return cmd
}
