// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/switchyard-dev/switchyard/pkg/kubeletplugin/app"
	"github.com/switchyard-dev/switchyard/pkg/simulator"
)

func TestSelectProfile(t *testing.T) {
	cases := map[string]struct{ value, node, want, err string }{
		"one for all":                {"hgx-h100", "node-a", "hgx-h100", ""},
		"none":                       {"", "node-a", "", ""},
		"an entry for the node":      {"node-a=hgx-h100,node-b=a100-2x4", "node-b", "a100-2x4", ""},
		"blanks between entries":     {"node-a=hgx-h100, node-b=a100-2x4", "node-b", "a100-2x4", ""},
		"the entry for all others":   {"*=t4,node-b=a100-2x4", "node-c", "t4", ""},
		"the node's own entry first": {"*=t4,node-b=a100-2x4", "node-b", "a100-2x4", ""},
		"no entry for the node":      {"node-a=hgx-h100", "node-b", "", `no entry for node "node-b", only for node-a`},
		"an entry without profile":   {"node-a=", "node-a", "", `the entry "node-a=" is not NODE=PROFILE`},
		"an entry without node":      {"node-a=t4,t4", "node-a", "", `the entry "t4" is not NODE=PROFILE`},
		"two entries for a node":     {"node-a=t4,node-a=hgx-h100", "node-a", "", `two entries for node "node-a"`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := selectProfile(c.value, c.node)
			if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Fatalf("got %v, want %q", err, c.err)
			}
			if got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// flags are those of a plugin whose node is made with files for device nodes.
func flags(dir, profileValue string) pluginOptions {
	return pluginOptions{dir: &dir, profile: profileValue, deviceNodes: string(simulator.DeviceNodesFiles)}
}

func TestPluginMakesOrOpensTheNode(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "deep", "node-a")

	t.Run("none, and nothing to make one of", func(t *testing.T) {
		if _, err := flags(dir, "").node("node-a"); err == nil || !strings.Contains(err.Error(), "--profile does not say what to make one of") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("made once by many at a time", func(t *testing.T) {
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				node, err := flags(dir, "node-a=t4,*=hgx-h100").node("node-a")
				if err != nil {
					t.Error(err)
					return
				}
				if s, err := node.State(); err != nil || s.Profile.Name != "t4" || s.NodeName != "node-a" {
					t.Errorf("got %v, %+v", err, s)
				}
			})
		}
		wg.Wait()
	})
	t.Run("opened as it is, its files repaired", func(t *testing.T) {
		node, err := flags(dir, "").node("node-a")
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(node.LoseGPU(0), os.RemoveAll(filepath.Join(node.DevRoot(), "dev"))); err != nil {
			t.Fatal(err)
		}
		if node, err = flags(dir, "t4").node("node-a"); err != nil {
			t.Fatal(err)
		}
		if s, err := node.State(); err != nil || s.GPUs[0].Health != simulator.HealthLost {
			t.Errorf("got %v, %+v", err, s)
		}
		if _, err := os.Stat(filepath.Join(node.DevRoot(), "dev", "nvidia0")); err != nil {
			t.Error(err)
		}
	})
	for what, c := range map[string]struct{ profile, node, want string }{
		"another node":         {"t4", "node-b", `is node "node-a", not "node-b"`},
		"another profile":      {"hgx-h100", "node-a", `is made of "t4", not of "hgx-h100"`},
		"a profile of nobody":  {"h100", "node-a", `no profile is called "h100"`},
		"a list without entry": {"node-b=t4", "node-a", `no entry for node "node-a"`},
	} {
		t.Run(what+" is refused", func(t *testing.T) {
			if _, err := flags(dir, c.profile).node(c.node); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an error with %q", err, c.want)
			}
		})
	}
}

func TestPluginDiscoversTheSimulatedNode(t *testing.T) {
	dir := t.TempDir()
	platform, err := flags(dir, "a100-2x4").open(app.Options{
		MIGGPUs:  "all",
		NodeName: "node-a", DriverRoot: simulator.DriverRoot(dir), SysfsRoot: simulator.SysfsRoot(dir),
	})
	if err != nil {
		t.Fatal(err)
	}
	inventory, err := platform.Discover(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(inventory.GPUs) != 8 || inventory.GPUs[7].NVSwitchDomain != "node-a.1" || inventory.GPUs[7].PCIeRoot != "pci0000:80" || *inventory.GPUs[7].NUMANode != 1 {
		t.Errorf("got %+v", inventory)
	}
}

func TestPluginTouchesNothingBeforeItsFlagsAreGood(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "node")
	_, _, err := run(t, "", "plugin", "--sim-dir", dir, "--profile", "t4", "--node-name", "Not A Name")
	if err == nil || !strings.Contains(err.Error(), "--node-name") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory was made: %v", err)
	}
	if _, _, err := run(t, "", "plugin", "--node-name", "node-a"); err == nil || !strings.Contains(err.Error(), "--sim-dir must be set") {
		t.Errorf("got %v", err)
	}
}
