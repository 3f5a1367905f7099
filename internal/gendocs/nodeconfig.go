// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"

	"github.com/spf13/pflag"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	pluginapp "github.com/switchyard-dev/switchyard/pkg/kubeletplugin/app"
)

// nodeConfigExample has every field; a test of the verify suite reads it as the plugin does.
const nodeConfigExample = `apiVersion: switchyard.dev/v1alpha1
kind: NodeConfig
mig:
  gpus: "0,1"
shares:
  - gpus: "2,GPU-4404041a-04cf-1ccf-9e70-f139a9b1e23c"
    strategy: MPS
    maxClaims: 4
    memoryStep: 1Gi
sharing:
  defaultTimeSlice: Default
health:
  effect: NoSchedule
  xids:
    48: NoExecute
discoveryInterval: 10s
reconcileInterval: 1m
orphanGrace: 2m
deviceWait: 10s
steeringInterval: 0s
`

// meaningsInFile are those of the fields for which there is no flag, and of the fields of lists.
var meaningsInFile = map[string]string{
	"shares":                   "GPUs that several claims may have at the same time; a GPU gets the first entry that names it ([guide](../guide/shares.md)).",
	"shares[].gpus":            "Required: `all`, or a list as that of `mig.gpus`. A GPU that `mig.gpus` names too is an error; one in MIG mode is not shared.",
	"shares[].strategy":        "Required: `MPS` holds each claim to what it asked for, `TimeSlicing` only counts it.",
	"shares[].maxClaims":       fmt.Sprintf("Required: how many claims may have a share of one GPU, 2 to %d with MPS, 2 to %d with TimeSlicing. A claim that does not say how much it needs gets this part of the GPU, rounded down to whole steps.", v1alpha1.MaxMPSShares, v1alpha1.MaxTimeSlicedShares),
	"shares[].memoryStep":      "The least memory of a share, and what its memory is a multiple of: whole mebibytes.",
	"sharing.defaultTimeSlice": "Interval of claims of whole GPUs whose configuration has strategy TimeSlicing and no interval: Default, Short, Medium or Long. Without it their time slice is not touched.",
}

func nodeConfig(page *bytes.Buffer) error {
	fmt.Fprintf(page, `# Node configuration

What the node plugin does with the GPUs of a node: a file of kind %[1]sNodeConfig%[1]s, in YAML or JSON, that %[1]s--config%[1]s names. If that is a
directory, it is the file %[1]s<node name>.yaml%[1]s in it, else %[1]sdefault.yaml%[1]s. How to change it is in [Configure nodes](../guide/node-config.md).

It is read when the plugin starts: a change needs a restart. It is strict: an unknown field, a field that is there twice, a value of the wrong
type or a second document keeps the plugin from starting, with an error that names the field. A flag that is given goes before the field.

| field | flag | default | meaning |
|---|---|---|---|
`, "`")
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	pluginapp.NewOptions(noEnvironment).AddFlags(flags)
	for _, setting := range pluginapp.NodeSettings() {
		if name := setting.Field[strings.LastIndex(setting.Field, ".")+1:]; !strings.Contains(nodeConfigExample, name+":") {
			return fmt.Errorf("the example leaves out %s", setting.Field)
		}
		if setting.Flag != "" {
			f := flags.Lookup(setting.Flag)
			fmt.Fprintf(page, "| `%s` | `--%s` | %s | %s |\n", setting.Field, f.Name, code(strings.Trim(f.DefValue, "[]")), prose(f.Usage))
			continue
		}
		if meaningsInFile[setting.Field] == "" {
			return fmt.Errorf("%s has neither a flag nor a meaning", setting.Field)
		}
		fmt.Fprintf(page, "| `%s` | | %s | %s |\n", setting.Field, defaultInFile(setting.Field), meaningsInFile[setting.Field])
		if setting.Field != "shares" {
			continue
		}
		for f := range reflect.TypeFor[v1alpha1.NodeShares]().Fields() {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			path := setting.Field + "[]." + name
			if meaningsInFile[path] == "" {
				return fmt.Errorf("%s has no meaning", path)
			}
			fmt.Fprintf(page, "| `%s` | | %s | %s |\n", path, defaultInFile(path), meaningsInFile[path])
		}
	}
	fmt.Fprintf(page, "\nAll of it:\n\n```yaml\n%s```\n", nodeConfigExample)
	if _, err := v1alpha1.DecodeNodeConfig([]byte(nodeConfigExample)); err != nil {
		return fmt.Errorf("the example: %w", err)
	}
	return nil
}

func defaultInFile(field string) string {
	switch field {
	case "shares[].memoryStep":
		return code(v1alpha1.DefaultMemoryStep)
	default:
		return ""
	}
}
