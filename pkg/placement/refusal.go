// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import "fmt"

// refusal says why a gang has no place, and keeps the next best one for it.
func (p *planner) refusal(r *request) *Refusal {
	return &Refusal{Reason: ReasonNoFeasibleDomain, Message: fmt.Sprintf("needs %d × %d devices", r.members, r.perMember)}
}
