// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Command kubectl-switchyard shows how the GPUs of a cluster are placed, and replays lists of jobs on lists
// of nodes: a plugin of kubectl.
package main

import (
	"os"

	"github.com/switchyard-dev/switchyard/pkg/kubectl"
)

func main() {
	os.Exit(kubectl.Main(kubectl.New()))
}
