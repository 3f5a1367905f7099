// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/device"
	"github.com/switchyard-dev/switchyard/pkg/health"
)

// everySetting is a node configuration in which nothing is as it is by default.
const everySetting = `
apiVersion: switchyard.dev/v1alpha1
kind: NodeConfig
mig: {gpus: "0"}
shares: [{gpus: "1", strategy: MPS, maxClaims: 4}]
sharing: {defaultTimeSlice: Long}
health: {effect: NoExecute, xids: {48: NoExecute}}
discoveryInterval: 5s
reconcileInterval: 2m
orphanGrace: 1h
deviceWait: 20s
steeringInterval: 3s
`

// parsed returns the options that a command has after its arguments and the file are read.
func parsed(t *testing.T, config string, args ...string) (*Options, error) {
	t.Helper()
	o := validOptions(t)
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	o.AddFlags(flags)
	if config != "" {
		args = append(args, "--config="+config)
	}
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	return o, o.applyNodeConfig(flags)
}

func writeConfig(t *testing.T, path, content string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestFlagsGoBeforeFile(t *testing.T) {
	file := writeConfig(t, filepath.Join(t.TempDir(), "node.yaml"), everySetting)
	shares := []v1alpha1.NodeShares{{GPUs: "1", Strategy: v1alpha1.MPSStrategy, MaxClaims: 4, MemoryStep: new(resource.MustParse("1Gi"))}}
	all := func(change func(*Options)) *Options {
		o := NewOptions(func(string) string { return "" })
		o.MIGGPUs, o.Shares, o.DefaultTimeSlice = "0", shares, v1alpha1.LongTimeSlice
		o.HealthEffect, o.HealthXIDs = "NoExecute", map[string]string{"48": "NoExecute"}
		o.DiscoveryInterval, o.ReconcileInterval, o.OrphanGrace, o.DeviceWait = 5*time.Second, 2*time.Minute, time.Hour, 20*time.Second
		o.SteeringInterval = 3 * time.Second
		change(o)
		return o
	}
	for name, test := range map[string]struct {
		args []string
		want *Options
	}{
		"the file alone":          {nil, all(func(*Options) {})},
		"a list that is given":    {[]string{"--mig-gpus=none"}, all(func(o *Options) { o.MIGGPUs = "none" })},
		"an effect that is given": {[]string{"--health-effect=NoSchedule"}, all(func(o *Options) { o.HealthEffect = "NoSchedule" })},
		"XIDs, all of them":       {[]string{"--health-xid=94=None"}, all(func(o *Options) { o.HealthXIDs = map[string]string{"94": "None"} })},
		"an interval":             {[]string{"--discovery-interval=10s"}, all(func(o *Options) { o.DiscoveryInterval = 10 * time.Second })},
		"the other interval":      {[]string{"--reconcile-interval=3m"}, all(func(o *Options) { o.ReconcileInterval = 3 * time.Minute })},
		"a grace of nothing":      {[]string{"--orphan-grace=0"}, all(func(o *Options) { o.OrphanGrace = 0 })},
		"no steering":             {[]string{"--steering-interval=0"}, all(func(o *Options) { o.SteeringInterval = 0 })},
		"a wait":                  {[]string{"--device-wait=1s"}, all(func(o *Options) { o.DeviceWait = time.Second })},
		"a flag of no field":      {[]string{"--driver-root=/run/nvidia/driver"}, all(func(o *Options) { o.DriverRoot = "/run/nvidia/driver" })},
		"in any order":            {[]string{"--config=" + file, "--device-wait=1s"}, all(func(o *Options) { o.DeviceWait = time.Second })},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parsed(t, file, test.args...)
			if err != nil {
				t.Fatal(err)
			}
			ignored := cmp.Options{cmpopts.IgnoreFields(Options{}, "NodeName", "RegistryDir", "Config", "Logging"), cmpopts.IgnoreUnexported(Options{})}
			if diff := cmp.Diff(test.want, got, ignored); diff != "" {
				t.Errorf("options (-want +got):\n%s", diff)
			}
			if err := got.Validate(); err != nil {
				t.Errorf("they are not valid: %v", err)
			}
		})
	}
}

// A setting that the list lacks would be read, found valid and dropped.
func TestEverySettingOfAFileIsTakenOver(t *testing.T) {
	config, err := v1alpha1.DecodeNodeConfig([]byte(everySetting))
	if err != nil {
		t.Fatal(err)
	}
	for _, setting := range NodeSettings() {
		o, before := NewOptions(func(string) string { return "" }), NewOptions(func(string) string { return "" })
		setting.set(o, config)
		if cmp.Equal(o, before, cmpopts.IgnoreUnexported(Options{}), cmpopts.IgnoreFields(Options{}, "Logging")) {
			t.Errorf("%s changes nothing", setting.Field)
		}
		setting.set(o, &v1alpha1.NodeConfig{}) // must not panic over what is left out
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		o.AddFlags(flags)
		if setting.Flag != "" && flags.Lookup(setting.Flag) == nil {
			t.Errorf("%s: there is no flag --%s", setting.Field, setting.Flag)
		}
	}
}

func TestNodeConfigOfADirectoryIsThatOfTheNode(t *testing.T) {
	const head = "apiVersion: switchyard.dev/v1alpha1\nkind: NodeConfig\n"
	dir := t.TempDir()
	if _, err := parsed(t, dir); err == nil || !strings.Contains(err.Error(), "node-a.yaml") || !strings.Contains(err.Error(), "default.yaml") {
		t.Errorf("an empty directory: %v, want an error with the two names", err)
	}
	writeConfig(t, filepath.Join(dir, "default.yaml"), head+"deviceWait: 1s")
	writeConfig(t, filepath.Join(dir, "node-b.yaml"), head+"deviceWait: 2s")
	if o, err := parsed(t, dir); err != nil || o.DeviceWait != time.Second {
		t.Errorf("without a file of the node: %v, %v, want that of default.yaml", o.DeviceWait, err)
	}
	writeConfig(t, filepath.Join(dir, "node-a.yaml"), head+"deviceWait: 3s")
	if o, err := parsed(t, dir); err != nil || o.DeviceWait != 3*time.Second {
		t.Errorf("with a file of the node: %v, %v, want that", o.DeviceWait, err)
	}
}

func TestNodeConfigErrorsNameTheFileAndTheField(t *testing.T) {
	dir := t.TempDir()
	for name, test := range map[string]struct {
		content string
		args    []string
		words   []string
	}{
		"a field that is wrong":                       {"apiVersion: switchyard.dev/v1alpha1\nkind: NodeConfig\norphanGrace: -1s", nil, []string{"--config", "node.yaml", "orphanGrace"}},
		"a field that is unknown":                     {"apiVersion: switchyard.dev/v1alpha1\nkind: NodeConfig\nmigs: {}", nil, []string{"--config", "node.yaml", "migs: unknown field"}},
		"a flag that takes away what the file shares": {everySetting, []string{"--mig-gpus=1"}, []string{"--mig-gpus", "shares[0].gpus", "mig.gpus (1)"}},
	} {
		t.Run(name, func(t *testing.T) {
			o, err := parsed(t, writeConfig(t, filepath.Join(dir, "node.yaml"), test.content), test.args...)
			if err == nil {
				err = o.Validate()
			}
			if err == nil {
				t.Fatal("no error")
			}
			for _, word := range test.words {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("the error %q does not say %q", err, word)
				}
			}
		})
	}
	if _, err := parsed(t, filepath.Join(dir, "missing.yaml")); err == nil || !strings.Contains(err.Error(), "missing.yaml") {
		t.Errorf("a file that is not there: %v, want an error that names it", err)
	}
}

func TestCommandReadsTheNodeConfigBeforeItTouchesAnything(t *testing.T) {
	file := writeConfig(t, filepath.Join(t.TempDir(), "node.yaml"), "kind: NodeConfig")
	cmd := NewCommand("plugin", func(Options) (Platform, error) {
		t.Error("the hardware was opened")
		return nil, errors.New("opened")
	})
	cmd.SetArgs([]string{"--node-name=node-a", "--config=" + file})
	cmd.SetOut(new(bytes.Buffer))
	if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "apiVersion") {
		t.Errorf("Execute = %v, want an error about apiVersion", err)
	}
}

func TestGPUsThatAreSharedAreNotPartitioned(t *testing.T) {
	gpus := []device.GPU{{Index: 0, UUID: "GPU-a"}, {Index: 1, UUID: "GPU-4404041a-04cf-1ccf-9e70-f139a9b1e23c"}}
	for name, test := range map[string]struct {
		shares []v1alpha1.NodeShares
		mig    string
		want   [2]bool
	}{
		"without shares all are partitioned": {nil, "", [2]bool{true, true}},
		"all but those that are shared":      {[]v1alpha1.NodeShares{{GPUs: "0"}}, "", [2]bool{false, true}},
		"of all entries":                     {[]v1alpha1.NodeShares{{GPUs: "0"}, {GPUs: "GPU-4404041A-04CF-1CCF-9E70-F139A9B1E23C"}}, "", [2]bool{false, false}},
		"what is said goes before":           {[]v1alpha1.NodeShares{{GPUs: "0"}}, "none", [2]bool{false, false}},
	} {
		t.Run(name, func(t *testing.T) {
			selection, err := (&Options{Shares: test.shares, MIGGPUs: test.mig}).MIGSelection()
			if err != nil {
				t.Fatal(err)
			}
			for i, gpu := range gpus {
				if got := selection.Selects(gpu); got != test.want[i] {
					t.Errorf("GPU %d: partitioned %t, want %t", i, got, test.want[i])
				}
			}
		})
	}
}

// The file is judged by the API types, the flags by the packages that use them: neither may take what the other
// refuses.
func TestFileAndFlagsTakeTheSameValues(t *testing.T) {
	const head = "apiVersion: switchyard.dev/v1alpha1\nkind: NodeConfig\n"
	for _, gpus := range []string{"all", "none", "0", "0, 3", "GPU-4404041a-04cf-1ccf-9e70-f139a9b1e23c", "gpu-a", "GPU-4404041a", "-1", "a", "0,", "0 1", "all,0", "+1", "MIG-a"} {
		_, flagErr := device.ParseSelection(gpus)
		_, fileErr := v1alpha1.DecodeNodeConfig([]byte(head + "mig: {gpus: '" + gpus + "'}"))
		if (flagErr == nil) != (fileErr == nil) {
			t.Errorf("GPUs %q: --mig-gpus says %v, mig.gpus %v", gpus, flagErr, fileErr)
		}
	}
	for _, xid := range []string{"48", "048", "+48", "0"} {
		_, flagErr := health.ParsePolicy("", map[string]string{xid: "Ignore"})
		_, fileErr := v1alpha1.DecodeNodeConfig([]byte(head + "health: {xids: {'" + xid + "': Ignore}}"))
		if (flagErr == nil) != (fileErr == nil) {
			t.Errorf("XID %q: --health-xid says %v, health.xids %v", xid, flagErr, fileErr)
		}
	}
	for _, effect := range []string{"NoSchedule", "NoExecute", "None", "noexecute", "Ignore"} {
		_, flagErr := health.ParsePolicy(effect, nil)
		_, fileErr := v1alpha1.DecodeNodeConfig([]byte(head + "health: {effect: " + effect + "}"))
		if (flagErr == nil) != (fileErr == nil) {
			t.Errorf("effect %q: --health-effect says %v, health.effect %v", effect, flagErr, fileErr)
		}
		_, flagErr = health.ParsePolicy("", map[string]string{"48": effect})
		_, fileErr = v1alpha1.DecodeNodeConfig([]byte(head + "health: {xids: {48: " + effect + "}}"))
		if (flagErr == nil) != (fileErr == nil) {
			t.Errorf("effect %q of an XID: --health-xid says %v, health.xids %v", effect, flagErr, fileErr)
		}
	}
}
