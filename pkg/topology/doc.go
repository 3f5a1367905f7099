// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package topology answers which GPUs of one node can talk to each other at
// full speed.
//
// It takes the connections between the GPUs as a [Graph] and derives from them
// the NVSwitch domains ([Domains]) and the matrix that a topology view prints
// ([Graph.Cells]). A domain is a largest set of GPUs in which every pair is
// connected by NVLink, directly or through NVSwitches; it is not a connected
// component. Package smi reads a Graph from the output of nvidia-smi topo -m.
//
// The package is pure: values in, values out, the same answer for the same
// input. It imports the standard library only, and never os, client-go or
// go-nvml.
package topology
