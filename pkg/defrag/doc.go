// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package defrag finds the cheapest pods to move so that a gang that has no place gets one, and, while no gang waits,
// those whose move makes room for the most gangs ([Maker.Consolidate]).
//
// [Maker] is asked by pkg/placement, as its RoomMaker, for each gang that waits and whose GangClaim says
// defragmentation: Plan or Evict. It says which pods may be moved and what that costs (rules.go), lets placement
// find the cheapest place at that price, and has it tried: the gang must fit by kube-scheduler's own allocator once
// those pods are gone, and every one of them must find a device elsewhere. What is in the way of a trial is ruled
// out, and the next is looked for, a bounded number of times.
//
// It promises that no pod is proposed that a rule protects, never more than the limits allow, and that each
// proposal was tried on the cluster as it is. It evicts nothing: pkg/gang decides when, pkg/controller does it.
//
// It is pure: it may import pkg/placement, pkg/demand, the api packages, k8s.io/api, k8s.io/apimachinery, k8s.io/component-helpers
// and k8s.io/utils. Its clock is injected, and its inputs are read only. It is safe for concurrent use.
package defrag
