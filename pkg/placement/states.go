// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"context"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// DeviceState is what became of a planned device.
type DeviceState struct {
	// Gone says that the device is not published any more. The rest is empty then.
	Gone bool
	// Unknown says that the pool is being updated: not all slices of its newest generation are there, and
	// those of the last complete one had the device, or no generation was complete yet. It cannot be
	// planned or allocated now, but who has it keeps it. The rest is empty.
	Unknown bool
	// Unfenced says that another device shares its counters, and cannot be allocated besides it, which the gang's plan
	// does not name: it was published since.
	Unfenced bool
	// NotSelected says that the DeviceClass is gone, or that it or the gang's selectors do not select the
	// device any more.
	NotSelected bool
	// Node is where the device is.
	Node string
	// Domain is its NVSwitch domain now, empty when it has none.
	Domain string
	// ID is its attribute id.
	ID string
	// Taints are those of effect NoSchedule and NoExecute, fences of every gang included.
	Taints []resourceapi.DeviceTaint
}

// Tainted returns the taints but for the fence of the gang.
func (s DeviceState) Tainted(gang types.UID) []resourceapi.DeviceTaint {
	var others []resourceapi.DeviceTaint
	for _, t := range s.Taints {
		if t.Key != v1alpha1.ReservedTaintKey || t.Value != string(gang) {
			others = append(others, t)
		}
	}
	return others
}

// DeviceStates tells what became of each of the devices that were planned for a gang.
func (c *Cluster) DeviceStates(gang *v1alpha1.GangClaim, devices []DeviceID) map[DeviceID]DeviceState {
	selected := c.selected(gang, devices)
	c.mutex.Lock()
	defer c.mutex.Unlock()
	states := map[DeviceID]DeviceState{}
	unfenced := c.unfenced(gang.Status.Plan)
	for _, id := range devices {
		d := c.devices[id]
		p := c.pools[poolKey{id.Driver, id.Pool}]
		switch {
		case p == nil:
			states[id] = DeviceState{Gone: true}
			continue
		case !p.complete:
			known := p.known == nil || p.known[id.Device]
			states[id] = DeviceState{Gone: !known, Unknown: known}
			continue
		case d == nil:
			states[id] = DeviceState{Gone: true}
			continue
		}
		state := DeviceState{Node: p.node, ID: d.attrID, Unfenced: unfenced[d]}
		if d.domain != nil {
			state.Domain = d.domain.name
		}
		for taint := range d.taints {
			state.Taints = append(state.Taints, *ptr.To(*taint))
		}
		if is, evaluated := selected[d]; evaluated {
			state.NotSelected = !is
		}
		states[id] = state
	}
	return states
}

// unfenced lists the devices of a plan that have siblings which the plan does not name.
func (c *Cluster) unfenced(plan *v1alpha1.GangPlan) map[*device]bool {
	if plan == nil {
		return nil
	}
	perPool := map[*pool][]*device{}
	for _, id := range PlannedDevices(plan) {
		if d := c.devices[id]; d != nil && len(d.api.ConsumesCounters) > 0 {
			p := c.pools[poolKey{id.Driver, id.Pool}]
			perPool[p] = append(perPool[p], d)
		}
	}
	if len(perPool) == 0 {
		return nil
	}
	named := map[DeviceID]bool{}
	for _, id := range ReservedDevices(plan) {
		named[id] = true
	}
	found := map[*device]bool{}
	for p, planned := range perPool {
		for d, siblings := range p.siblings(planned) {
			found[d] = slices.ContainsFunc(siblings, func(s *device) bool { return !named[s.id] })
		}
	}
	return found
}

// selected tells which devices the class and the selectors of a gang select. Devices of which that
// cannot be said in the time are not in the result.
func (c *Cluster) selected(gang *v1alpha1.GangClaim, devices []DeviceID) map[*device]bool {
	selected := map[*device]bool{}
	c.mutex.Lock()
	class := c.classes[gang.Spec.DeviceClassName]
	var wanted []*slice
	at := map[*slice]bool{}
	for _, id := range devices {
		d := c.devices[id]
		if d == nil {
			continue
		}
		if class == nil {
			selected[d] = false
			continue
		}
		if !at[d.slice] {
			at[d.slice] = true
			wanted = append(wanted, d.slice)
		}
	}
	var v *view
	if class != nil {
		v = c.view(class, gang.Spec.Selectors)
	}
	c.mutex.Unlock()
	if v == nil {
		return selected
	}
	left := uint64(viewCost)
	c.evaluate(context.Background(), v, wanted, &left)
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if v.tooExpensive() != "" {
		return selected
	}
	for _, s := range wanted {
		if m := v.matches[s]; m != nil {
			for i, d := range s.devices {
				selected[d] = m.all[i]
			}
		}
	}
	return selected
}
