// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package demand says what is asked for of late, and what room for it is worth: which numbers of GPUs are wanted together,
// in which proportions, and how scarce the room for each is.
//
// [Tracker] learns the [Mix] from the objects of a cluster as they come and go; the controller feeds it from its informers,
// kubectl-switchyard from its lists. [Mix.Weights] turns it into weights for rooms in NVSwitch domains, which
// pkg/defrag counts while no gang waits. [Prices] rates the rooms; the trace simulation's policy (pkg/trace/packing) uses
// the same function.
//
// It is pure: it may import the api packages, pkg/device, pkg/fragmentation, k8s.io/api, k8s.io/apimachinery and k8s.io/utils. Its
// clock is injected. What it says depends on the objects and the time only, not on the order in which it
// heard of objects that exist. A Tracker is safe for concurrent use; all else are values.
package demand
