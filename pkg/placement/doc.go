// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package placement answers where a gang fits: cluster state and gangs in, plans or reasons out.
//
// [Cluster] is the state, fed with the objects as they change. [Cluster.Plan] decides for a list of
// gangs in one order, so that two of them never wait for each other's devices; what it decides depends
// on the objects only, never on the order in which they came. [ClaimSpec] translates a plan into the
// ResourceClaim of each member, and is the only such translation: the planner asks kube-scheduler's own
// allocator (KEP-4381) whether exactly these claims can be allocated before it proposes a plan.
//
// It is pure: it may import pkg/fragmentation, the api packages, k8s.io/api, k8s.io/apimachinery,
// k8s.io/component-helpers, k8s.io/dynamic-resource-allocation and k8s.io/utils, never client-go. The objects that it
// is given are shared with caches and are never written.
//
// What is decided how, and why, is in docs/design/placement.md.
package placement
