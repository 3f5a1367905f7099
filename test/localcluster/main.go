// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Command localcluster runs a real Kubernetes cluster on one Linux machine
// without Docker. See README.md.
package main

import (
	_ "embed"
	"os"

	"github.com/switchyard-dev/switchyard/test/localcluster/internal/cli"
)

// The versions of every program of the cluster, as pinned by this module.
//
//go:embed go.mod
var goMod []byte

func main() { os.Exit(cli.Main(goMod)) }
