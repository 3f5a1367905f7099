// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package fleet makes nodes with GPUs but without kubelets, for tests of what the control plane does
// with pods: Node objects that are Ready, the ResourceSlices that the node plugin would publish for
// simulated GPUs, and one stand-in for all kubelets, which runs and ends pods by their objects alone.
//
// It imports client-go, pkg/resourcemodel, and pkg/nvml on pkg/simulator for what is published. It
// promises slices that are byte for byte what a node plugin publishes, a start gate like the node
// plugin's, and that a pod ends the way a kubelet ends it: its phase is terminal before it is gone.
package fleet
