// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package app is the MPS supervisor as a command: flags, logging, signals.
//
// It may import pkg/sharing and what commands need; only cmd/switchyard-mps-supervisor imports it. It promises that a
// flag that cannot work is an error that names the flag and the fix, before anything is touched.
package app

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/component-base/version"
	"k8s.io/klog/v2"

	"github.com/switchyard-dev/switchyard/pkg/sharing"
)

// launchCommand is how the supervisor calls itself to become a program of the driver.
const launchCommand = "launch"

// maxRunDir leaves the path of a socket its room: 107 bytes.
const maxRunDir = 60

// options are the flags of the supervisor.
type options struct {
	pluginDir, sharedMemoryDir, runDir string
	driverRootMount, bootIDFile        string
}

// New returns the command.
func New() *cobra.Command {
	o := options{
		pluginDir:       "/var/lib/kubelet/plugins/gpu.switchyard.dev",
		sharedMemoryDir: sharing.DefaultSharedMemoryDir,
		runDir:          "/run/switchyard-mps",
		driverRootMount: "/",
		bootIDFile:      "/proc/sys/kernel/random/boot_id",
	}
	cmd := &cobra.Command{
		Use:   "switchyard-mps-supervisor",
		Short: "Keep the MPS daemons that the kubelet plugin of this node asks for",
		Long: "Keep the control daemons of NVIDIA's Multi-Process Service that the kubelet plugin of this node asks for.\n" +
			"They are children of this program: CUDA programs with MPS end when it does.",
		Version:       version.Get().GitVersion,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	flags := cmd.Flags()
	flags.StringVar(&o.pluginDir, "plugin-dir", o.pluginDir, "The kubelet plugin's --plugin-dir. The same path on the host and in the pod.")
	flags.StringVar(&o.sharedMemoryDir, "shm-dir", o.sharedMemoryDir, "Directory for the shared memory of daemons and their clients, in memory. The same path on the host and in the pod, and the kubelet plugin's --mps-shm-dir.")
	flags.StringVar(&o.runDir, "run-dir", o.runDir, "Directory of this program's own, with a short path.")
	flags.StringVar(&o.driverRootMount, "driver-root-mount", o.driverRootMount, "Where the root of the NVIDIA driver's files on the host is found in this pod.")
	flags.StringVar(&o.bootIDFile, "boot-id-file", o.bootIDFile, "File that holds an ID of the current boot.")
	addVerbosity(cmd)
	cmd.AddCommand(&cobra.Command{
		Use:                launchCommand,
		Hidden:             true,
		DisableFlagParsing: true,
		RunE:               func(_ *cobra.Command, args []string) error { return sharing.Launch(args) },
	})
	return cmd
}

// addVerbosity adds klog's -v alone.
func addVerbosity(cmd *cobra.Command) {
	all := flag.NewFlagSet("", flag.ContinueOnError)
	klog.InitFlags(all)
	cmd.Flags().AddGoFlag(all.Lookup("v"))
}

func (o options) run(ctx context.Context) error {
	if err := o.validate(); err != nil {
		return err
	}
	bootID, err := os.ReadFile(o.bootIDFile)
	if err != nil {
		return fmt.Errorf("--boot-id-file: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	return sharing.NewSupervisor(sharing.Options{
		Dir:             filepath.Join(o.pluginDir, sharing.DirName),
		SharedMemoryDir: o.sharedMemoryDir,
		RunDir:          o.runDir,
		DriverRoot:      o.driverRootMount,
		BootID:          strings.TrimSpace(string(bootID)),
		Launcher:        []string{self, launchCommand},
	}).Run(ctx)
}

func (o options) validate() error {
	var errs []error
	for _, path := range []struct{ flag, value string }{
		{"plugin-dir", o.pluginDir},
		{"shm-dir", o.sharedMemoryDir},
		{"run-dir", o.runDir},
		{"driver-root-mount", o.driverRootMount},
		{"boot-id-file", o.bootIDFile},
	} {
		if !filepath.IsAbs(path.value) {
			errs = append(errs, fmt.Errorf("--%s: %q must be an absolute path", path.flag, path.value))
		}
	}
	if len(o.runDir) > maxRunDir {
		errs = append(errs, fmt.Errorf("--run-dir: %s has %d bytes, and sockets below it allow %d: use a shorter directory", o.runDir, len(o.runDir), maxRunDir))
	}
	return errors.Join(errs...)
}
