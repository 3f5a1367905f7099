// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package command is the command line of switchyard-sim: a simulated GPU node that runs the kubelet
// plugin, and the tools to look after such nodes.
//
// It may import anything that wires; only cmd/switchyard-sim imports it. It promises that a command that
// fails says what it was doing to which object, on standard error, and that one with a wrong argument has changed
// nothing. A command for several GPUs ends at the first that cannot be changed; those before it are.
package command

import (
	"errors"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/component-base/version"

	"github.com/switchyard-dev/switchyard/pkg/simulator"
)

// The environment variables that stand for flags, so that a pod's commands need none of them.
const (
	envDir     = "SWITCHYARD_SIM_DIR"
	envProfile = "SWITCHYARD_SIM_PROFILE"
)

// New returns the command with all its subcommands.
func New() *cobra.Command {
	cmd := &cobra.Command{
		Use:           "switchyard-sim",
		Short:         "Simulate GPU nodes: NVML, NVLink topology, sysfs and device nodes without a GPU",
		Version:       version.Get().GitVersion,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	cmd.AddCommand(newPlugin(), newControl(), newProfiles(), newTopology())
	return cmd
}

// dirFlag adds --sim-dir to a command and returns where its value will be.
func dirFlag(cmd *cobra.Command) *string {
	return cmd.PersistentFlags().String("sim-dir", os.Getenv(envDir),
		"Directory of the simulated node: what it is made of, its state, and its driver root. The same path on the host and in the pod. Environment: "+envDir+".")
}

func checkDir(dir string) error {
	if dir == "" {
		return errors.New("--sim-dir must be set: the directory of the simulated node (environment: " + envDir + ")")
	}
	return nil
}

func openNode(dir string) (*simulator.Node, error) {
	if err := checkDir(dir); err != nil {
		return nil, err
	}
	return simulator.Open(dir)
}
