// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/switchyard-dev/switchyard/pkg/kubeletplugin/app"
	"github.com/switchyard-dev/switchyard/pkg/nvml"
	"github.com/switchyard-dev/switchyard/pkg/simulator"
	"github.com/switchyard-dev/switchyard/pkg/simulator/profile"
)

// pluginOptions are the flags that the simulated node adds to those of the plugin.
type pluginOptions struct {
	dir         *string
	profile     string
	seed        string
	deviceNodes string
}

func newPlugin() *cobra.Command {
	var o pluginOptions
	cmd := app.NewCommand("plugin", func(plugin app.Options) (app.Platform, error) { return o.open(plugin) })
	cmd.Short = "Run the kubelet plugin on a simulated GPU node, which is made if there is none"
	cmd.Long = cmd.Short + ".\n\n" +
		"It is the plugin that users install, with its flags; only the hardware is simulated. The flags for where the\n" +
		"driver, the device nodes, sysfs and proc are point into --sim-dir unless they are given."
	o.dir = dirFlag(cmd)
	flags := cmd.Flags()
	flags.StringVar(&o.profile, "profile", os.Getenv(envProfile),
		"What the node is made of if there is none yet: the name of a profile (switchyard-sim profiles), a file (with a slash, or ending in .yaml, .yml or .json), "+
			"or one for each node: \"node-a=hgx-h100,node-b=a100-2x4,*=t4\". Environment: "+envProfile+".")
	flags.StringVar(&o.seed, "seed", "", "Gives the GPUs of a new node other UUIDs.")
	flags.StringVar(&o.deviceNodes, "device-nodes", string(simulator.DeviceNodesCharacter),
		fmt.Sprintf("What stands for device nodes on a new node: %s, which needs CAP_MKNOD, or %s, which containers do not get.", simulator.DeviceNodesCharacter, simulator.DeviceNodesFiles))
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if err := checkDir(*o.dir); err != nil {
			return err
		}
		dir, err := filepath.Abs(*o.dir)
		if err != nil {
			return err
		}
		*o.dir = dir
		// Only paths so far: nothing is made before all flags are known to be good.
		for flag, path := range map[string]string{
			"driver-root": simulator.DriverRoot(dir),
			"dev-root":    simulator.DriverRoot(dir),
			"sysfs-root":  simulator.SysfsRoot(dir),
			"proc-root":   simulator.ProcRoot(dir),
		} {
			if cmd.Flags().Changed(flag) {
				continue
			}
			if err := cmd.Flags().Set(flag, path); err != nil {
				return fmt.Errorf("--%s: %w", flag, err)
			}
		}
		return nil
	}
	return cmd
}

// open returns the NVML of the simulated node, which it makes if need be.
func (o pluginOptions) open(plugin app.Options) (app.Platform, error) {
	node, err := o.node(plugin.NodeName)
	if err != nil {
		return nil, err
	}
	partitioned, err := plugin.MIGSelection()
	if err != nil {
		return nil, fmt.Errorf("--mig-gpus: %w", err)
	}
	return nvml.Open(nvml.Options{
		MIG:        partitioned,
		NodeName:   plugin.NodeName,
		SysfsRoot:  plugin.SysfsRoot,
		DriverRoot: plugin.DriverRoot,
		Lib:        node.NVML(),
	})
}

// node opens the node in the directory, or makes it. A node that is there stays what it is.
func (o pluginOptions) node(name string) (*simulator.Node, error) {
	hardware, err := selectProfile(o.profile, name)
	if err != nil {
		return nil, fmt.Errorf("--profile: %w", err)
	}
	node, err := simulator.Open(*o.dir)
	switch {
	case err == nil:
		return node, o.check(node, name, hardware)
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	case hardware == "":
		return nil, fmt.Errorf("%w, and --profile does not say what to make one of", err)
	}
	p, err := profile.Load(hardware)
	if err != nil {
		return nil, fmt.Errorf("--profile: %w", err)
	}
	err = simulator.Create(*o.dir, p, simulator.Options{NodeName: name, Seed: o.seed, DeviceNodes: simulator.DeviceNodes(o.deviceNodes)})
	// Another plugin of the node may have been faster, as in a rolling update.
	if err != nil && !errors.Is(err, simulator.ErrExists) {
		return nil, err
	}
	return simulator.Open(*o.dir)
}

// check says whether an existing node is the one that the flags ask for, and repairs its files.
func (o pluginOptions) check(node *simulator.Node, name, hardware string) error {
	state, err := node.State()
	if err != nil {
		return err
	}
	if state.NodeName != name {
		return fmt.Errorf("--sim-dir: %s is node %q, not %q: give every node a directory of its own", node.Dir(), state.NodeName, name)
	}
	if hardware != "" {
		p, err := profile.Load(hardware)
		if err != nil {
			return fmt.Errorf("--profile: %w", err)
		}
		if p.Name != state.Profile.Name {
			return fmt.Errorf("--profile: %s is made of %q, not of %q: remove the directory to make the node anew", node.Dir(), state.Profile.Name, p.Name)
		}
	}
	return node.EnsureFiles()
}

// selectProfile returns the part of --profile that is for a node: all of it, or the entry of a list
// "node=profile,..." with the node's name or *. Empty where there is none.
func selectProfile(value, node string) (string, error) {
	if !strings.Contains(value, "=") {
		return value, nil
	}
	profiles := map[string]string{}
	for entry := range strings.SplitSeq(value, ",") {
		name, hardware, ok := strings.Cut(strings.TrimSpace(entry), "=")
		if !ok || name == "" || hardware == "" {
			return "", fmt.Errorf("%q: the entry %q is not NODE=PROFILE", value, entry)
		}
		if _, twice := profiles[name]; twice {
			return "", fmt.Errorf("%q: there are two entries for node %q", value, name)
		}
		profiles[name] = hardware
	}
	if hardware, ok := profiles[node]; ok {
		return hardware, nil
	}
	if hardware, ok := profiles["*"]; ok {
		return hardware, nil
	}
	return "", fmt.Errorf("%q has no entry for node %q, only for %s: add one, or one for *", value, node, strings.Join(slices.Sorted(maps.Keys(profiles)), ", "))
}
