// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package gang

// terminate removes what was made for a gang whose GangClaim is being deleted. Members that run keep their
// claims and go on; those that were not started give their devices back, and wait for a GangClaim of the
// same name.
func (t *turn) terminate() {
	t.be(StateTerminating, "the GangClaim is being deleted")
	t.unplanned = because(ReasonDeleted, "the GangClaim is being deleted: pods that were not started wait for a GangClaim %s", t.Claim.Name)
	if t.sweep() && hasFinalizer(t.Claim) {
		t.act(RemoveFinalizer{ref(t.Claim)})
	}
}
