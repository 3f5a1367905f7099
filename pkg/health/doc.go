// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package health decides which GPUs are sick: what NVML reports of a GPU goes in, a [device.Health] comes
// out, from which the taint, the Events and the kubelet's device health follow.
//
// It is pure: it may import the standard library (never os) and pkg/device; the time is an argument. It
// promises that
//
//   - what is known against one GPU never counts against another;
//   - the worst that is known decides: an error of an application after one of the device makes nothing
//     better, and the order of reports does not matter;
//   - what is found out by looking (recovery action, ECC, row remapping, links, whether the GPU answers)
//     ends when it is not found any more; what was reported once, an XID, ends with a sign that the GPU was
//     reset, or with the GPU's own word that nothing needs to be done;
//   - facts are kept, not conclusions: another policy judges the same record differently.
//
// # What counts
//
// XIDs are classed as NVIDIA's catalog does (xid.go). The GPU's own recovery action, field 230 of NVML from
// driver R565 on, wins over that table for the XIDs that it summarises, and for those that the table does
// not know: with the action None such an XID is forgotten after [VerdictGrace]. A code that the policy names
// is the administrator's decision: neither the table nor the action changes it.
//
// # When an XID ends
//
//   - The recovery action goes from a reset or reboot back to None: what had to be done was done.
//   - It goes from another action back to None, and summarises the XID.
//   - The action is None for [VerdictGrace] after an XID that it summarises.
//   - The GPU was lost, or asked for a reset, in two looks, and then works: it was reset. That it did not
//     answer for any other reason proves nothing.
//   - The driver was unloaded meanwhile.
//   - XID 79, the GPU has fallen off the bus, ends when the GPU answers.
//   - The node was booted, or somebody says so: then the caller starts with an empty record.
//
// Only an action that was read in the very look counts: the one of before may be older than the XID.
//
// # Eviction
//
// It cannot be taken back, so it takes more than one failed call: a GPU must be lost, or ask for a reset, in
// two looks in a row, or say so itself by an XID or its recovery action. A GPU that does not answer for
// another reason, and all of them while NVML as a whole is away, are only kept from new pods.
package health
