// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package simulator is a GPU node without GPUs: a simulated NVML behind go-nvml's Interface, and the
// files that a driver finds on a real node (sysfs, device nodes, the driver's libraries).
//
// A node lives in a directory. What it is made of ([Profile]) and the state it is in ([State]) are one
// JSON file there, so they survive the restart of the process that uses the node, as hardware does; and
// any process may change them: a node that is open elsewhere sees the change at its next NVML call.
//
//	<dir>/state.json      profile and state
//	<dir>/lock            serialises changes
//	<dir>/nvml-calls.log  the NVML calls that were made, while State.RecordCalls is set
//	<dir>/root            the driver root: dev, sys, proc, usr/bin, usr/lib/..., lib/firmware
//
// Only cmd/switchyard-sim, tests and the demo may import this package: what a user installs carries no
// simulation. It may import go-nvml and pkg/topology/smi, never client-go. It promises that
//
//   - no NVML call panics: a function that is not simulated returns ERROR_FUNCTION_NOT_FOUND, is logged
//     once and listed by [Node.Unsimulated]. That goes for all functions of the library that take a
//     device, such as DeviceGetName: the methods of the device are simulated. The one exception is a call on the handlers that
//     GetGpuFabricInfoV and its like return, which only go-nvml itself can implement: LookupSymbol says
//     that their symbols are missing, and a caller has to ask it first, as with an old driver;
//   - nothing outside the node's directory is touched: device nodes are made in it and stand for
//     /dev/null, so they open like real ones but never reach hardware that the machine may have;
//   - equal profile, node name and seed give equal UUIDs and serial numbers.
//
// # How a GPU fails
//
// A lost GPU (HealthLost) is still counted, as by real NVML until the driver is reloaded: getting its
// handle and every call on an old handle return ERROR_GPU_IS_LOST, its NVLinks are down at both ends,
// and XID 79 is raised. A removed GPU (HealthRemoved) is no longer counted, the indexes of those behind
// it shift, and it is gone from sysfs; its minor number stays its own. A GPU that needs a reset
// (HealthResetRequired) answers what the driver has cached, and ERROR_RESET_REQUIRED to the rest.
//
// A GPU that answers may have faults ([Faults]): a recovery action, which drivers from R565 on set with the
// XIDs that need one, uncorrected memory errors, rows to be remapped. They last until it is reset.
//
// # MIG
//
// A GPU in MIG mode offers the profiles and placements of its board, as measured, and refuses what
// overlaps. Profiles have the driver's IDs, GPU instances the IDs that the driver gives them by their
// place. Each instance has its files in proc/driver/nvidia/capabilities and its device node in
// dev/nvidia-caps. MIG mode itself is switched by [Node.SetMIGMode] only: the NVML call for it is not
// simulated, since nobody here is to make it.
package simulator
