// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	controllerapp "github.com/switchyard-dev/switchyard/pkg/controller/app"
	pluginapp "github.com/switchyard-dev/switchyard/pkg/kubeletplugin/app"
)

func pluginFlags(page *bytes.Buffer) error {
	return flags(page, "switchyard-kubelet-plugin", pluginapp.NewOptions(noEnvironment).AddFlags)
}

func controllerFlags(page *bytes.Buffer) error {
	return flags(page, "switchyard-controller", controllerapp.NewOptions(noEnvironment).AddFlags)
}

// noEnvironment leaves defaults that come from the environment empty.
func noEnvironment(string) string { return "" }

func flags(page *bytes.Buffer, program string, add func(*pflag.FlagSet)) error {
	fmt.Fprintf(page, "# Flags of %s\n\n| flag | default | meaning |\n|---|---|---|\n", program)
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	add(set)
	set.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Deprecated != "" {
			return
		}
		fmt.Fprintf(page, "| `--%s` | %s | %s |\n", f.Name, code(f.DefValue), prose(f.Usage))
	})
	return nil
}

func code(value string) string {
	if value == "" {
		return ""
	}
	return "`" + value + "`"
}

// prose makes one line of Markdown's table of a usage text.
func prose(usage string) string {
	line := strings.Join(strings.Fields(usage), " ")
	return strings.NewReplacer("|", `\|`, "<", "&lt;").Replace(line)
}
