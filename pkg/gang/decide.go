// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// Plannable says whether the planner is to be asked for this gang, and for what: all of its members, or
// those to be replaced.
func Plannable(_ Observation) (placement.Gang, bool) {
	return placement.Gang{}, false
}

// Decide says what to do next.
func Decide(o Observation) Decision {
	return Decision{Status: *o.Claim.Status.DeepCopy()}
}
