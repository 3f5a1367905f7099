// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/switchyard-dev/switchyard/pkg/kubeletplugin/app"
)

func flags(page *bytes.Buffer) error {
	page.WriteString("# Flags of switchyard-kubelet-plugin\n\n| flag | default | meaning |\n|---|---|---|\n")
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	app.NewOptions(func(string) string { return "" }).AddFlags(set)
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
