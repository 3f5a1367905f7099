// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package model

import (
	"slices"

	"github.com/switchyard-dev/switchyard/pkg/gang"
)

// fault is a mistake that is put into a run on purpose: the checks must catch it.
type fault string

const (
	// noStartGate has kubelets start members whose claim is not marked ready.
	noStartGate fault = "kubelets start without the gate"
	// noQuiesce has the controller release without waiting for the scheduler.
	noQuiesce fault = "released without quiescing"
	// noFence leaves the planned devices open to everyone.
	noFence fault = "no rules are made"
	// noSiblings fences the planned devices, and not those that share counters with them.
	noSiblings fault = "partitions of planned GPUs are not fenced"
	// noNeutral deletes rules that have an effect.
	noNeutral fault = "rules are deleted without losing their effect before"
	// templateStays leaves the template after the members have their claims.
	templateStays fault = "templates are not deleted"
	// noEviction leaves allocated claims that were not verified by the deadline.
	noEviction fault = "pods with unverified claims are not evicted"
	// noTouch never touches a member that has no claim.
	noTouch fault = "members are not touched"
	// actionsFirst acts before the status is written.
	actionsFirst fault = "actions before status"
	// blindStatus writes the status whatever has become of the GangClaim.
	blindStatus fault = "status without precondition"
	// blindDelete deletes claims whatever has become of them.
	blindDelete fault = "claims deleted without precondition"
	// noReservation lets two gangs have the same plan.
	noReservation fault = "plans are not reserved"
	// budgetsBroken evicts pods whatever their disruption budgets say.
	budgetsBroken fault = "disruption budgets are not asked"
	// movesForgotten does not write which pods were evicted.
	movesForgotten fault = "evictions are not written down"
	// noSweep leaves what gangs that are gone left.
	noSweep fault = "orphans are not swept"
	// rulesStay leaves rules.
	rulesStay fault = "rules are not deleted"
	// neverReady never opens the start gate.
	neverReady fault = "the start gate never opens"
	// eagerReady opens the start gate of each member that has devices.
	eagerReady fault = "each member starts when it has devices"
)

// faults are all of them, with what users do more often so that each is caught soon.
var faults = map[fault]map[string]int{
	noStartGate:    nil,
	noQuiesce:      {"create singles": 4, "finish a workload": 6, "restart the scheduler": 0},
	noFence:        nil,
	noSiblings:     nil,
	noNeutral:      nil,
	templateStays:  nil,
	noEviction:     {"lose a GPU": 8, "set a quota": 5},
	noTouch:        {"set a quota": 15},
	actionsFirst:   nil,
	blindStatus:    {"lose the lease": 12},
	blindDelete:    {"lose a GPU": 8, "delete a pod": 2},
	noReservation:  {"create a gang": 12, "finish a workload": 10, "delete a gang": 5, "create singles": 0},
	budgetsBroken:  {"protect pods": 15, "create singles": 4},
	movesForgotten: {"create singles": 4},
	noSweep:        {"replace a gang": 8},
	rulesStay:      nil,
	neverReady:     nil,
	eagerReady:     {"set a quota": 8, "lose a GPU": 4},
}

// caughtWithin is how many seeds may pass before a fault is caught.
const caughtWithin = 150

// drops says which actions a fault leaves out.
func (f fault) drops(a gang.Action) bool {
	return slices.Contains(map[fault][]string{
		noFence:       {"CreateRules", "RepairRules", "TouchRules"},
		templateStays: {"DeleteTemplate"},
		noEviction:    {"EvictPods"},
		noTouch:       {"TouchPods"},
		rulesStay:     {"DeleteRules"},
		neverReady:    {"MarkReady"},
	}[f], a.Verb())
}
