// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package checkpoint remembers, over restarts of the node plugin and of the node, which devices are
// prepared for which claim. One file holds one claim, so that the cost of a prepare does not grow
// with the number of claims and damage stays with one claim.
//
// It may import internal/atomicfile, apimachinery, klog and the standard library. It knows nothing of
// GPUs, CDI or the API server.
//
// # What it promises
//
//   - When Put has returned nil, the record outlives the death of the process and a power loss. When
//     it has returned an error, the claim has the record it had before, or none.
//   - A reader sees a whole record, old or new (atomic rename), however many processes write.
//   - A device is in the records of two claims of one boot only with admin access, or as two shares
//     that differ. Put checks that under a lock which also other processes on the same directory take.
//     After another boot nothing that was prepared exists any more, so older records hold nothing.
//   - When Delete has returned nil, the claim has no record, also after the death of the process. A
//     power loss may bring the record back, as one of an earlier boot: it keeps no device from
//     anybody, and the caller deletes it when it finds the claim gone.
//   - What cannot be read is moved to corrupt/ and reported, and never deleted; Open does not fail
//     over it. The claim then counts as not prepared: the caller rebuilds it from the API server.
//   - Nothing that this package did not write is touched: other names, directories, corrupt/.
//
// # Order of a prepare
//
// The record comes first and goes last:
//
//	prepare:    check devices → Put(record) → write CDI spec → answer the kubelet
//	unprepare:  remove CDI spec → Delete(record) → answer the kubelet
//
// A crash at any step leaves a record without a complete CDI spec, never a spec without a record. So
// every spec without a record is garbage; every record that the API server confirms is completed by
// the next prepare of the claim, which re-ensures all that the record implies; every record that it
// does not confirm is unprepared. A plain GPU therefore needs one write, with state Prepared. State
// Preparing is for devices that have to be made first (MIG partitions): a second Put follows.
// A caller whose later step fails, and which made the record in the same call, deletes it again.
// The one exception are records in corrupt/: rebuild before sweeping specs.
//
// # Cost
//
// Put is one fsync of a file of about 1 KiB and one fsync of the directory, outside of all locks, so
// that concurrent calls share the file system's commits. Delete is one unlink(2), Get one lstat(2).
//
// # Two processes on one directory
//
// During a rolling update two plugins share the directory. The disk is the truth: Get compares the
// file with what it has read before and reads it again when it was replaced; List does so for all.
// Put and Delete hold flock(2) on .lock for the check and the rename, and Put counts changes in that file:
// a process that finds the count as it left it has missed no record, any other looks again. A record that one
// moves aside is told of in both, to their handlers: to the other it would look deleted.
//
// # File format
//
// The file is <claim UID>.json: a line of JSON, the header, and after it the record in JSON.
//
//	{"format":"switchyard.dev/checkpoint","version":1,"bytes":512,"sha256":"…"}
//
// The checksum is over the bytes that follow the header's line, as they are on disk, so that it
// holds whatever fields a reader knows (NV#1080: a checksum over the decoded value made every old
// file "corrupt" after an upgrade).
//
// # Compatibility
//
//   - Within a version fields may be added and are never removed, renamed or given another meaning or
//     type. A reader that does not know a field ignores it, and carries it along when it rewrites the
//     record (Record.Unknown): going back a release and forth again loses nothing.
//   - A field that is added is optional: what its absence means is said where it is declared, and is
//     what records written before it meant.
//   - Everything else is a new version: a new value of State too. A release reads every version that
//     an earlier release wrote, and starts to write a version only one release after it could read it.
//   - A version that is not known is moved aside like damage, with reason UnknownVersion.
//   - testdata holds a file of every version that a release wrote; reading them all is a test.
package checkpoint
