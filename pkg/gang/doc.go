// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package gang decides what to do next for a gang: the protocol that starts all of its members or none.
//
// It is a state machine over observed state. A controller gathers an [Observation], asks the planner when
// [Plannable] says so, calls [Decide], and applies the [Decision]: it writes the status, then runs the
// actions. Nothing is remembered between two calls: what was done before is read from the status and
// from the objects themselves, so that a controller may be killed between any two writes.
//
// It may import the api packages, pkg/placement, k8s.io/api and k8s.io/apimachinery. It does no I/O, has
// no clock and no randomness: the same observation gives the same decision, and an observation is never
// changed.
//
// # Status first
//
// The status is written before the first action, in one update with the resourceVersion of the observed
// GangClaim; when that fails, no action is run. Every action follows from the status that was just
// written and from the observation, so that after a crash the same actions are decided again. In
// particular a plan is in the status before anything of it exists, the step Releasing before the
// template, Starting (every claim was seen allocated on the plan) before the first claim is marked
// ready, TakingBack before the first object is deleted, and Unfencing before the first rule loses
// its effect.
//
// Actions are run in order, and the first error ends them; the gang is then observed anew. Actions on
// several objects may run in parallel inside one action. All are idempotent: an object to be created
// that exists, or to be deleted that is gone, is done.
//
// # What the observation must be
//
// Claim must not be older than the last write of this controller to it: an old step would repeat what a
// later one took back. The other objects may come from caches and lag: what they show was true once, and
// each action that could do harm carries the UID and the resourceVersion that it was decided on.
//
// docs/design/gangs.md has the states and why each is as it is.
package gang
