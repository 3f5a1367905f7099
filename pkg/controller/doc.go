// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package controller starts gangs: it gathers what pkg/gang and pkg/placement decide on from the API
// server, and applies what they decide.
//
// It may import the pure packages, controller-runtime and client-go; only commands and tests import
// it. It decides nothing itself: what is planned is pkg/placement's answer, what is written pkg/gang's.
//
// # What it promises
//
//   - One writer: everything below runs while the process holds the lease only, and the process ends
//     when it loses it. A write that was under way carries the UID or the resourceVersion that it was
//     decided on, so that a second controller and a late write of the first do no harm to each other.
//   - One planner: all gangs that wait are planned together, in one total order, by one goroutine. What
//     a plan takes is taken from the moment on in which the plan is handed out, before it is written.
//   - The status is written before anything follows from it, and nothing is remembered that is not in
//     the API server: a controller that is killed between any two writes is continued by the next one.
//   - No list of the API server per decision: everything is read from caches with indexes, which are at
//     least as new as this process's own writes. The one exception is the list of claims at the end of
//     quiescing, whose point is to see what caches do not show yet.
//   - An object of a gang that is gone is swept, at start and periodically.
package controller
