// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package model is a randomised test of the protocol that starts gangs: a cluster in memory, driven by one
// seeded queue of events on a fake clock, in which pkg/gang and pkg/placement run against everything that
// may go wrong, and in which what must always hold is checked after every event.
//
// The cluster has an API server (UIDs, resourceVersions, preconditions, finalizers, watches that lag), the
// resource claim controller and kube-scheduler with their habits of docs/design/gangs.md (the latter with the
// real allocator, structured.NewAllocator), kubelets with the start gate, controllers that replace pods,
// users, and the gang controller: gather, gang.Plannable, placement.Cluster.Plan, gang.Decide, apply, one
// write at a time, killed between any two, at times with a second one that believes that it still leads.
//
// In every other run gangs ask for room to be made: pods of others are evicted for them, against disruption budgets,
// refusals midway, pods that take long to end and finalizers that nobody removes. Every eviction must be of a pod
// that may be moved, behind a complete fence, and be told of in the status of its gang.
//
// TestModelWithPartitions has nodes whose GPUs may be had in halves (KEP-4815), and users who want some: nobody is given
// a GPU and a part of it, and a fence covers both.
//
// The same seed gives the same run. A run that fails prints the command that repeats it:
//
//	go test ./test/model -run TestModel -model.seed=N -model.steps=M -model.v
//
// Longer than in the unit tests: -model.seeds=1000 or -model.soak=10m.
//
// That the checks can fail is tested, too: each fault in the list of faults, put into the controller or
// the cluster, must be caught within a few seeds.
//
// It imports the pure packages, k8s.io/api, apimachinery and dynamic-resource-allocation; nothing imports it.
package model
