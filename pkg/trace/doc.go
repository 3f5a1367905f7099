// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package trace is a cluster and a list of jobs as production left them: nodes with CPU, memory and GPUs,
// and tasks that ask for some of each. It reads both from CSV and makes the arrivals that a replay needs.
//
//   - cluster is what is left of each node while tasks run;
//   - packing rates what a node's idle GPUs are worth to the tasks still to come;
//   - policy decides where a task runs;
//   - replay lets the tasks arrive and reports what was allocated.
//
// The format of the files, and the workload, are those of the openb traces (Weng et al., "Beware of
// Fragmentation", USENIX ATC '23; https://github.com/hkust-adsl/kubernetes-scheduler-simulator), so that
// results can be compared with the published ones.
//
// The packages are pure: they import the standard library and each other, do no I/O beyond the io.Reader
// they are given, and take randomness as an argument. The same input gives the same result, bit by bit.
package trace
