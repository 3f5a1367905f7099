// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package gangtest is a small cluster in memory, to drive gang.Decide against: an API server with UIDs,
// resourceVersions and preconditions, a resource claim controller with its memory of claims that are gone,
// a kube-scheduler that is greedy and sees fences, a kubelet with the start gate, and a clock that moves
// only when told to.
//
// A [World] is single-threaded and the same each time. Its parts are fields that a test may replace: the
// planner, the scheduler, and what is checked at every write. A crash of the controller is an error that
// the n-th write returns after it was made ([World.CrashAfter]).
//
// It may import what pkg/gang may, and k8s.io/dynamic-resource-allocation for CEL.
package gangtest
