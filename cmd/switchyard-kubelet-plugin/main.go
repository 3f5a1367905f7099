// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Command switchyard-kubelet-plugin is the node agent of Switchyard: a DRA driver for NVIDIA GPUs.
package main

import (
	"fmt"
	"os"

	"github.com/switchyard-dev/switchyard/internal/program"
	"github.com/switchyard-dev/switchyard/pkg/kubeletplugin/app"
	"github.com/switchyard-dev/switchyard/pkg/nvml"
)

func main() {
	os.Exit(program.Main(app.NewCommand("switchyard-kubelet-plugin", open)))
}

// open returns the NVML of this node. A driver that is missing or broken is for discovery to report.
func open(o app.Options) (app.Platform, error) {
	root := o.DriverRootMount
	if root == "" {
		root = o.DriverRoot
	}
	partitioned, err := o.MIGSelection()
	if err != nil {
		return nil, fmt.Errorf("--mig-gpus: %w", err)
	}
	return nvml.Open(nvml.Options{NodeName: o.NodeName, DriverRoot: root, SysfsRoot: o.SysfsRoot, MIG: partitioned})
}
