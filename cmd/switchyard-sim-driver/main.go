// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Command switchyard-sim-driver stands for programs of the driver on a simulated node: called nvidia-cuda-mps-control
// it is the control daemon of MPS and its client, called nvidia-smi it sets time slices.
package main

import (
	"fmt"
	"os"

	"github.com/switchyard-dev/switchyard/pkg/simulator/driver"
)

func main() {
	if err := driver.Main(os.Args, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
