// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Command golangci-lint is golangci-lint with logcheck, the linter of Kubernetes' structured and
// contextual logging, compiled in: plugins of golangci-lint have to be.
package main

import (
	"fmt"
	"os"
	"runtime"

	"github.com/golangci/golangci-lint/v2/pkg/commands"
	"github.com/golangci/golangci-lint/v2/pkg/exitcodes"
	_ "sigs.k8s.io/logtools/logcheck/gclplugin"
)

func main() {
	err := commands.Execute(commands.BuildInfo{Version: "2.15.0+logcheck", GoVersion: runtime.Version()})
	if err != nil {
		fmt.Fprintf(os.Stderr, "golangci-lint: %v\n", err)
		os.Exit(exitcodes.Failure)
	}
}
