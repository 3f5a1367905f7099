// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// reservation is what a GangClaim's committed plan takes before others can see it: rules, claims and
// bound pods come later.
type reservation struct {
	gang    types.UID
	devices []DeviceID
	members map[string]int // by node
	// class and perMember say what a member's claim will count for in ResourceQuotas.
	class     string
	perMember int
	// moving says that pods are still being moved for the plan.
	moving bool
}

// SetGang adds or replaces a GangClaim. From then on no other gang is planned on the devices of its
// status.plan, or on the CPU, memory and so on that its unbound pods will take of the planned nodes,
// whether or not there is a fence yet. Set it right after its plan was written, and without a plan when
// the plan means nothing any more.
func (c *Cluster) SetGang(gang *v1alpha1.GangClaim) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	key := types.NamespacedName{Namespace: gang.Namespace, Name: gang.Name}
	c.dropReservation(key)
	if gang.Status.Plan == nil {
		return
	}
	r := &reservation{
		gang: gang.UID, devices: PlannedDevices(gang.Status.Plan), members: map[string]int{},
		class: gang.Spec.DeviceClassName, perMember: int(gang.Spec.DevicesPerMember),
	}
	if len(gang.Status.Plan.Moves) > 0 && beforeRelease(gang.Status.Plan.Step) {
		r.moving = true
		for _, m := range gang.Status.Plan.Moves { // for the pods that come in place of those that are moved
			if m.To.Device == "" {
				continue
			}
			r.devices = append(r.devices, DeviceID{Driver: v1alpha1.DriverName, Pool: m.To.Pool, Device: m.To.Device})
		}
	}
	for _, p := range gang.Status.Plan.Placements {
		r.members[p.Node] += int(p.Members)
	}
	for _, id := range r.devices {
		c.use(id).reserve(gang.UID)
	}
	c.gangs[key] = r
}

// beforeRelease reports whether a plan may still be moving pods, or waiting for those that it has moved.
func beforeRelease(step v1alpha1.GangStep) bool {
	switch step {
	case "", v1alpha1.StepFencing, v1alpha1.StepQuiescing, v1alpha1.StepEvicting, v1alpha1.StepReleasing:
		return true
	}
	return false
}

// moving names a gang, other than this one, for which pods are being moved.
func (c *Cluster) moving(except types.UID) string {
	for key, r := range c.gangs {
		if r.moving && r.gang != except {
			return key.String()
		}
	}
	return ""
}

// DeleteGang removes a GangClaim.
func (c *Cluster) DeleteGang(key types.NamespacedName) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.dropReservation(key)
}

func (c *Cluster) dropReservation(key types.NamespacedName) {
	r := c.gangs[key]
	if r == nil {
		return
	}
	delete(c.gangs, key)
	for _, id := range r.devices {
		c.use(id).unreserve(r.gang)
		c.forget(id)
	}
}

// keepRoom counts the members that are planned and not bound yet as if they were, and the claims that they do not have
// yet; with sign -1 it stops.
func (p *planner) keepRoom(key types.NamespacedName, r *reservation, sign int) {
	var unbound []*corev1.Pod
	bound := map[string]int{}
	claimless := 0
	for _, member := range p.byTemplate[key] {
		switch {
		case Ended(member.object):
		case member.node == "":
			unbound = append(unbound, member.object)
			if lacksClaim(member.object, key.Name) {
				claimless++
			}
		default:
			bound[member.node]++
		}
	}
	if len(unbound) == 0 {
		return
	}
	planned := 0
	for _, members := range r.members {
		planned += members
	}
	if class := p.classes[r.class]; class != nil {
		claims := min(planned, claimless) * sign
		p.spend(key.Namespace, quotaNeeds(class, int64(claims), int64(claims*r.perMember)))
	}
	needs := p.needsOf(unbound)
	for name, members := range r.members {
		if n := p.nodes[name]; n != nil {
			p.take(n, needs, sign*min(max(members-bound[name], 0), len(unbound)))
		}
	}
}

// lacksClaim reports whether the pod's claim from the template was not made yet.
func lacksClaim(pod *corev1.Pod, template string) bool {
	return slices.ContainsFunc(pod.Spec.ResourceClaims, func(ref corev1.PodResourceClaim) bool {
		name, _ := claimName(pod, ref)
		return ref.ResourceClaimTemplateName != nil && *ref.ResourceClaimTemplateName == template && name == ""
	})
}

// PlannedDevices are the devices of a plan.
func PlannedDevices(plan *v1alpha1.GangPlan) []DeviceID {
	var devices []DeviceID
	for _, placement := range plan.Placements {
		for _, d := range placement.Devices {
			devices = append(devices, DeviceID{Driver: v1alpha1.DriverName, Pool: placement.Pool, Device: d.Name})
		}
	}
	return devices
}

// ReservedDevices are the devices that the fence of a plan keeps from others: those of the plan, and their siblings
// (KEP-4815), of which nobody can have one while the plan's are free.
func ReservedDevices(plan *v1alpha1.GangPlan) []DeviceID {
	devices := PlannedDevices(plan)
	for _, placement := range plan.Placements {
		for _, d := range placement.Devices {
			for _, name := range d.Siblings {
				devices = append(devices, DeviceID{Driver: v1alpha1.DriverName, Pool: placement.Pool, Device: name})
			}
		}
	}
	return devices
}
