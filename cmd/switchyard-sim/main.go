// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Command switchyard-sim simulates GPU nodes for laptops, CI and scale tests: it runs Switchyard's
// kubelet plugin on a simulated NVML, and changes, lists and imports simulated nodes.
package main

import (
	"os"

	"github.com/switchyard-dev/switchyard/internal/program"
	"github.com/switchyard-dev/switchyard/pkg/simulator/command"
)

func main() {
	os.Exit(program.Main(command.New()))
}
