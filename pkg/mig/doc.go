// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package mig is the arithmetic of Multi-Instance GPU: which partitions a GPU can have, what each takes
// of it, which of them exclude each other, and in which order they should be used.
//
// Nothing about any GPU is written down here. Profiles, with the slices, engines and placements of each,
// are what NVML reports of the GPU at hand; the package turns them into counters.
//
// It is pure and at the bottom: it may import the standard library only, never os. It promises that equal
// profiles give equal counters and an equal order, and that a set of partitions fits the counters if and
// only if their memory slices do not overlap and the GPU has slices and engines for all of them.
//
// # Words
//
// A GPU instance is a part of a GPU's memory and multiprocessors, a compute instance one of a GPU
// instance's multiprocessors. A partition is a GPU instance with one compute instance that takes all of
// it: what nvidia-smi mig -cgi -C makes, and what a container sees as one MIG device. A profile is a kind
// of GPU instance, such as 1g.10gb; a placement says at which memory slice it begins and how many it
// takes.
//
// # Counters
//
// A placement needs certain memory slices, so each of these is a counter of its own, of which there is
// one. Compute slices and engines are counted. How many engines a GPU has in all NVML does not say; as
// many as the largest profile has, or as all instances of one profile have together where that is more.
// A profile that fits more often by its slices and engines than NVML allows gets a counter for itself.
package mig
