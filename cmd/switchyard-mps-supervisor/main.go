// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Command switchyard-mps-supervisor keeps the MPS daemons of a node.
package main

import (
	"os"

	"github.com/switchyard-dev/switchyard/internal/program"
	"github.com/switchyard-dev/switchyard/pkg/sharing/app"
)

func main() {
	os.Exit(program.Main(app.New()))
}
