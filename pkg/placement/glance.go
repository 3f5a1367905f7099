// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// glance is what a search reads of each device of the cluster. Those of a slice lie side by side: a search of thousands
// of nodes mostly waits for memory, and this way for three lines of it instead of fifty.
type glance struct {
	domain *domain
	numa   int64 // -1 when not known
	// allocated says that a claim has the device.
	allocated bool
	// particular says that more has to be read to tell what the device is to a gang. Any other is free, or, where it is
	// allocated, busy for every gang that it is selected for.
	particular bool
}

// look brings allocated and particular up to date. Whatever changes what they are made of ends with it.
func (d *device) look() {
	u := d.use
	d.allocated = len(u.claims) > 0
	d.particular = d.unplannable || d.attrID == "" || len(d.api.ConsumesCounters) > 0 || len(d.api.Taints) > 0 || len(d.ruleTaints) > 0 ||
		len(u.left) > 0 || !d.allocated && (u.planned || u.earmarked != nil || len(u.reserved) > 0)
}

// changed follows a change of the use. A device that is not listed now is looked at when it is.
func (u *use) changed() {
	if u.device != nil {
		u.device.look()
	}
}

func (u *use) allocate(c *claim) {
	u.claims = append(u.claims, c)
	u.changed()
}

func (u *use) deallocate(c *claim) {
	u.claims = without(u.claims, c)
	u.changed()
}

func (u *use) reserve(gang types.UID) {
	u.reserved = append(u.reserved, gang)
	u.changed()
}

func (u *use) unreserve(gang types.UID) {
	u.reserved = without(u.reserved, gang)
	u.changed()
}

func (u *use) earmark(gang *v1alpha1.GangClaim) {
	u.earmarked = gang
	u.changed()
}

func (u *use) plan(planned bool) {
	u.planned = planned
	u.changed()
}

// suppose sets the claims that are supposed to have given the device back.
func (u *use) suppose(left []*claim) {
	u.left = left
	u.changed()
}
