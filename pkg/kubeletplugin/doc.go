// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kubeletplugin is the node agent: it publishes the node's GPUs as ResourceSlices and
// prepares and unprepares the claims that the scheduler allocated on them.
//
// It is an edge: it talks to the kubelet over gRPC, to the API server and to the file system, and
// leaves every decision that can be pure to pkg/device and pkg/resourcemodel. It may import those,
// the edges pkg/nvml, pkg/cdi, pkg/checkpoint and pkg/sharing, client-go and the kubelet plugin helper; nothing
// but the app package and tests may import it.
//
// # Promises
//
//   - Prepare is idempotent, concurrent over claims, and trusts nothing it finds: a checkpoint hit
//     passes the same checks as a first prepare, and the CDI spec is written again unless it is on
//     disk as it should be.
//   - A device is prepared for at most one claim, adminAccess excepted, also over a restart, over a
//     damaged checkpoint and while two plugin processes run during a rolling update (pkg/checkpoint holds that).
//   - The hot path makes no NVML call and starts no program: one checkpoint write with fsync, one CDI
//     spec write. A MIG partition is made with NVML, and costs a second write; so do MPS, for which it waits until
//     the daemon is ready, and a time slice, for which it starts nvidia-smi.
//   - A setting of a GPU is touched only for a claim that asks for it, and is what it was after the last such claim.
//     MPS daemons are another process's (pkg/sharing), so that they outlive this one.
//   - A MIG partition is destroyed only if this driver made it on this boot, and MIG mode is never changed.
//   - The claim of a gang's member is prepared only when the controller has marked it: when all members
//     have their devices. The call waits for that, bounded, and reserves nothing meanwhile (gate.go).
//   - Unprepare needs the checkpoint and nothing else: neither NVML nor the API server. A partition that
//     cannot be destroyed since NVML is away is destroyed when it is back.
//   - A node without a working NVML is a state, not an error: the plugin registers, unprepares, says
//     what is wrong (readiness, Event, metric) and recovers by itself.
//   - ResourceSlices are written only for real changes.
//
// # Order of writes
//
// Prepare:
//
//  0. The claim of a gang's member waits until the gang is complete.
//  1. Everything that can refuse is checked: allocation, configuration, device health, exclusivity,
//     device nodes.
//  2. The checkpoint record is written and synced. From here on the devices belong to the claim.
//  3. The claim's MIG partitions are made, if it has any: each is noted in the ledger (partitionledger.go),
//     then its GPU instance is made, then its compute instance.
//  4. With MPS or a time slice: what is changed of a GPU's settings is noted, then changed; the MPS daemon is asked for,
//     and waited for.
//  5. The CDI spec is written; if that fails, all of that and the record are taken back.
//  6. The record of a claim with partitions, MPS or a time slice is written again, as prepared and with their UUIDs.
//  7. The kubelet gets its answer.
//
// Dying between 2 and 6 leaves a record without a spec, or with half a partition: the next Prepare, or the
// reconciler, finishes it. A spec without a record cannot come from Prepare, and neither can a partition
// without a note.
//
// Unprepare:
//
//  1. The CDI spec is removed.
//  2. The claim's MPS daemon is ended, and the settings of its GPUs are taken back.
//  3. The partitions that were made for the claim are destroyed: compute instance, GPU instance, note.
//  4. The record is deleted.
//
// Dying in between leaves a record: the kubelet repeats Unprepare, or the reconciler finds the claim
// gone. Either way the devices stay reserved until their spec is gone. The names of these steps are
// the crash points that a build with the tag crashpoints can be told to die at (see crash.go).
package kubeletplugin
