// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/device"
	"github.com/switchyard-dev/switchyard/pkg/kubeletplugin"
)

// defaultNodeConfig is the file for nodes without one of their own, where --config is a directory.
const defaultNodeConfig = "default.yaml"

// NodeSetting is a field of the node configuration.
type NodeSetting struct {
	// Field is its path, such as "mig.gpus".
	Field string
	// Flag is the flag that goes before it; empty for what only the file can say.
	Flag string
	// set takes the value over, unless the file leaves it out.
	set func(o *Options, c *v1alpha1.NodeConfig)
}

// NodeSettings are all fields of the node configuration, in the order in which people should read them.
func NodeSettings() []NodeSetting {
	return []NodeSetting{
		{"mig.gpus", "mig-gpus", func(o *Options, c *v1alpha1.NodeConfig) {
			if c.MIG != nil {
				override(&o.MIGGPUs, &c.MIG.GPUs)
			}
		}},
		{"shares", "", func(o *Options, c *v1alpha1.NodeConfig) { o.Shares = c.Shares }},
		{"sharing.defaultTimeSlice", "", func(o *Options, c *v1alpha1.NodeConfig) {
			if c.Sharing != nil {
				override(&o.DefaultTimeSlice, &c.Sharing.DefaultTimeSlice)
			}
		}},
		{"health.effect", "health-effect", func(o *Options, c *v1alpha1.NodeConfig) {
			if c.Health != nil {
				override(&o.HealthEffect, &c.Health.Effect)
			}
		}},
		{"health.xids", "health-xid", func(o *Options, c *v1alpha1.NodeConfig) {
			if c.Health != nil && c.Health.XIDs != nil {
				o.HealthXIDs = c.Health.XIDs
			}
		}},
		durationSetting("discoveryInterval", "discovery-interval", func(o *Options, c *v1alpha1.NodeConfig) (*time.Duration, *metav1.Duration) {
			return &o.DiscoveryInterval, c.DiscoveryInterval
		}),
		durationSetting("reconcileInterval", "reconcile-interval", func(o *Options, c *v1alpha1.NodeConfig) (*time.Duration, *metav1.Duration) {
			return &o.ReconcileInterval, c.ReconcileInterval
		}),
		durationSetting("orphanGrace", "orphan-grace", func(o *Options, c *v1alpha1.NodeConfig) (*time.Duration, *metav1.Duration) {
			return &o.OrphanGrace, c.OrphanGrace
		}),
		durationSetting("deviceWait", "device-wait", func(o *Options, c *v1alpha1.NodeConfig) (*time.Duration, *metav1.Duration) {
			return &o.DeviceWait, c.DeviceWait
		}),
		durationSetting("steeringInterval", "steering-interval", func(o *Options, c *v1alpha1.NodeConfig) (*time.Duration, *metav1.Duration) {
			return &o.SteeringInterval, c.SteeringInterval
		}),
	}
}

// durationSetting is a setting that is a time; value and file are where it goes and what the file says.
func durationSetting(field, flag string, places func(*Options, *v1alpha1.NodeConfig) (value *time.Duration, file *metav1.Duration)) NodeSetting {
	return NodeSetting{field, flag, func(o *Options, c *v1alpha1.NodeConfig) {
		if value, file := places(o, c); file != nil {
			*value = file.Duration
		}
	}}
}

// override sets what the file says and leaves what it does not.
func override[T ~string](value, file *T) {
	if *file != "" {
		*value = *file
	}
}

// applyNodeConfig takes over what the file of --config says and no flag does.
func (o *Options) applyNodeConfig(flags *pflag.FlagSet) error {
	if o.Config == "" {
		return nil
	}
	path, err := nodeConfigFile(o.Config, o.NodeName)
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	config, err := v1alpha1.DecodeNodeConfig(content)
	if err != nil {
		return fmt.Errorf("--config: %s: %w", path, err)
	}
	for _, setting := range NodeSettings() {
		if setting.Flag == "" || !flags.Changed(setting.Flag) {
			setting.set(o, config)
		}
	}
	o.configFile = path
	return nil
}

// nodeConfigFile returns the file that is for a node: path itself, or of a directory <node>.yaml, or default.yaml.
//
// The name of the node decides, not a label of it: the plugin must start, and unprepare claims, while the API
// server is away.
func nodeConfigFile(path, node string) (string, error) {
	info, err := os.Stat(path)
	if err != nil || !info.IsDir() {
		return path, err
	}
	for _, name := range []string{node + ".yaml", defaultNodeConfig} {
		file := filepath.Join(path, name)
		if _, err := os.Stat(file); err == nil || !errors.Is(err, fs.ErrNotExist) {
			return file, err
		}
	}
	return "", fmt.Errorf("the directory %s has neither %s.yaml nor %s: add one", path, node, defaultNodeConfig)
}

// MIGSelection returns the GPUs that may be partitioned. The options are valid.
func (o *Options) MIGSelection() (device.Selection, error) {
	if o.MIGGPUs != "" {
		return device.ParseSelection(o.MIGGPUs)
	}
	partitioned := device.Selection{}
	for _, shares := range o.Shares {
		shared, err := device.ParseSelection(shares.GPUs)
		if err != nil {
			return device.Selection{}, err
		}
		partitioned = partitioned.Except(shared)
	}
	return partitioned, nil
}

// nodeShares returns the GPUs that are shared. The options are valid.
func (o *Options) nodeShares() ([]kubeletplugin.NodeShares, error) {
	var entries []kubeletplugin.NodeShares
	for i, shares := range o.Shares {
		path := fmt.Sprintf("shares[%d]", i)
		gpus, err := device.ParseSelection(shares.GPUs)
		if err != nil {
			return nil, fmt.Errorf("%s.gpus: %w", path, err)
		}
		entries = append(entries, kubeletplugin.NodeShares{Field: path, GPUs: gpus, Shares: device.Shares{
			Strategy:   string(shares.Strategy),
			MaxClaims:  int(shares.MaxClaims),
			MemoryStep: uint64(shares.MemoryStep.Value()),
		}})
	}
	return entries, nil
}

// validateShares refuses GPUs that flags and the file name for two things, as the file alone is checked when it
// is read.
func (o *Options) validateShares(fail func(flag, format string, args ...any)) {
	if len(o.Shares) == 0 || o.MIGGPUs == "" {
		return
	}
	config := v1alpha1.NodeConfig{MIG: &v1alpha1.NodeMIG{GPUs: o.MIGGPUs}, Shares: o.Shares}
	config.APIVersion, config.Kind = v1alpha1.APIVersion, v1alpha1.NodeConfigKind
	if err := config.Validate().ToAggregate(); err != nil {
		fail("mig-gpus", "does not go with shares of --config: %w", err)
	}
}
