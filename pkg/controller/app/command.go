// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package app is the controller as a command: flags, logging, signals, and the client.
//
// It may import anything that wires; nothing but commands may import it. It promises that a flag
// that cannot work is an error that names the flag and the fix, before anything is touched.
package app

import (
	"context"
	"fmt"
	"net"
	"os"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"k8s.io/component-base/version"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	crlog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/switchyard-dev/switchyard/internal/frugal"
	"github.com/switchyard-dev/switchyard/internal/restconfig"
	"github.com/switchyard-dev/switchyard/pkg/controller"
)

// NewCommand returns the command that runs the controller.
func NewCommand() *cobra.Command {
	options := NewOptions(os.Getenv)
	cmd := &cobra.Command{
		Use:   controller.Name,
		Short: "Start gangs of pods when all of them can have their GPUs, and not before",
		Long: "The Switchyard controller plans GangClaims onto NVSwitch domains, reserves the devices, and releases\n" +
			"all pods of a gang together.",
		Version:       version.Get().GitVersion,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := options.Validate(); err != nil {
				return err
			}
			if err := options.Logging.Apply(os.Stderr); err != nil {
				return err
			}
			return run(cmd.Context(), *options)
		},
	}
	options.AddFlags(cmd.Flags())
	return cmd
}

func run(ctx context.Context, o Options) error {
	frugal.Start()
	logger := klog.FromContext(ctx)
	crlog.SetLogger(logger) // for what has no context
	logger.Info("Starting", "command", controller.Name, "version", version.Get().GitVersion)
	config, err := restconfig.Load(o.Kubeconfig)
	if err != nil {
		return err
	}
	config.QPS, config.Burst = o.KubeAPIQPS, o.KubeAPIBurst
	config.UserAgent = controller.Name + "/" + version.Get().GitVersion

	var listener net.Listener
	if o.MetricsAddress != addressOff {
		if listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", o.MetricsAddress); err != nil {
			return fmt.Errorf("--metrics-address: %w", err)
		}
		defer listener.Close()
	}
	return controller.Run(ctx, controller.Config{
		Client:        config,
		Lease:         o.lease(),
		Workers:       o.Workers,
		SweepInterval: o.SweepInterval,
		Defrag:        o.Defrag,
		Consolidation: o.consolidation(),
		Listener:      listener,
		Registry:      prometheus.NewRegistry(),
		Clock:         clock.RealClock{},
		Version:       version.Get().GitVersion,
	})
}

func (o *Options) lease() *controller.Lease {
	if !o.LeaderElect {
		return nil
	}
	return &controller.Lease{
		Namespace:     o.LeaderElectNamespace,
		Duration:      o.LeaderElectLeaseDuration,
		RenewDeadline: o.LeaderElectRenewDeadline,
		RetryPeriod:   o.LeaderElectRetryPeriod,
	}
}
