// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Command switchyard-controller starts gangs of pods when all of them can have their GPUs.
package main

import (
	"os"

	"github.com/switchyard-dev/switchyard/internal/program"
	"github.com/switchyard-dev/switchyard/pkg/controller/app"
)

func main() {
	os.Exit(program.Main(app.NewCommand()))
}
