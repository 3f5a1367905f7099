// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// claim is a ResourceClaim and the devices that it keeps others from.
type claim struct {
	object  *resourceapi.ResourceClaim
	devices []DeviceID
}

// use is what keeps a device from being planned. It outlives the device: a device that leaves its slice
// and returns under its name is still in use.
type use struct {
	claims    []*claim
	reserved  []types.UID // gangs whose committed plan has the device
	published int         // how many slices list it
	device    *device     // as it is listed now: the one of Cluster.devices
	// freed is when the device was last seen to become free: published, given back, or not tainted any
	// more.
	freed time.Time

	// earmarked is the gang that waits for the device, planned says that it is in a plan. Both belong to
	// one call of Plan, which clears them.
	earmarked *v1alpha1.GangClaim
	planned   bool
	// left are claims that a what-if (Room) supposes to have given the device back. It is empty whenever the
	// lock is free.
	left []*claim
}

// held reports whether a claim has the device.
func (u *use) held() bool {
	if len(u.left) == 0 {
		return len(u.claims) > 0
	}
	return slices.ContainsFunc(u.claims, func(c *claim) bool { return !slices.Contains(u.left, c) })
}

// taken reports whether the device is allocated, or planned for a gang other than this one.
func (u *use) taken(gang types.UID) bool {
	if u.held() {
		return true
	}
	return u.reservedByOthers(gang)
}

// reservedByOthers reports whether the committed plan of a gang other than this one has the device.
func (u *use) reservedByOthers(gang types.UID) bool {
	for _, uid := range u.reserved {
		if uid != gang {
			return true
		}
	}
	return false
}

// SetClaim adds or replaces a ResourceClaim.
func (c *Cluster) SetClaim(object *resourceapi.ResourceClaim) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	key := types.NamespacedName{Namespace: object.Namespace, Name: object.Name}
	old := c.claims[key]
	added := &claim{object: object}
	if object.Status.Allocation != nil {
		for _, result := range object.Status.Allocation.Devices.Results {
			if ptr.Deref(result.AdminAccess, false) {
				continue
			}
			id := DeviceID{Driver: result.Driver, Pool: result.Pool, Device: result.Device}
			added.devices = append(added.devices, id)
			c.use(id).allocate(added)
		}
	}
	c.claims[key] = added
	if old != nil { // After the new one: what both have was not free in between.
		c.release(old)
	}
}

// DeleteClaim removes a ResourceClaim.
func (c *Cluster) DeleteClaim(key types.NamespacedName) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.deleteClaim(key)
}

func (c *Cluster) deleteClaim(key types.NamespacedName) {
	old := c.claims[key]
	if old == nil {
		return
	}
	delete(c.claims, key)
	c.release(old)
}

// release takes a claim from the devices that it had.
func (c *Cluster) release(old *claim) {
	for _, id := range old.devices {
		u := c.use(id)
		if u.deallocate(old); len(u.claims) == 0 {
			u.freed = c.clock.Now()
		}
		c.forget(id)
	}
}

// use returns what is known of the use of a device.
func (c *Cluster) use(id DeviceID) *use {
	u := c.uses[id]
	if u == nil {
		u = &use{}
		c.uses[id] = u
	}
	return u
}

// forget drops what is known of a device that nobody has and no slice lists.
func (c *Cluster) forget(id DeviceID) {
	if u := c.uses[id]; u != nil && len(u.claims) == 0 && len(u.reserved) == 0 && u.published == 0 && u.earmarked == nil && !u.planned {
		delete(c.uses, id)
	}
}

// ClaimRef is a claim that has a device.
type ClaimRef struct {
	Namespace, Name string
	UID             types.UID
	// Gang is the UID of the GangClaim for which the claim was made, if it was.
	Gang types.UID
	// Pods are those that the claim is reserved for.
	Pods []types.NamespacedName
}

// Holders tells which claim has each of the devices allocated now. Devices that nobody has are not in
// the result, and neither is admin access. Of several claims that share a device it is the first by
// namespace and name.
func (c *Cluster) Holders(devices []DeviceID) map[DeviceID]ClaimRef {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	holders := map[DeviceID]ClaimRef{}
	for _, id := range devices {
		u := c.uses[id]
		if u == nil {
			continue
		}
		for _, held := range u.claims {
			ref := held.ref()
			if first, ok := holders[id]; !ok || ref.before(first) {
				holders[id] = ref
			}
		}
	}
	return holders
}

func (r ClaimRef) before(other ClaimRef) bool {
	if r.Namespace != other.Namespace {
		return r.Namespace < other.Namespace
	}
	return r.Name < other.Name
}

func (c *claim) ref() ClaimRef {
	return ClaimRef{
		Namespace: c.object.Namespace,
		Name:      c.object.Name,
		UID:       c.object.UID,
		Gang:      types.UID(c.object.Labels[v1alpha1.GangLabel]),
		Pods:      c.pods(),
	}
}

// pods are those that the claim is reserved for.
func (c *claim) pods() []types.NamespacedName {
	var pods []types.NamespacedName
	for _, consumer := range c.object.Status.ReservedFor {
		if consumer.APIGroup == "" && consumer.Resource == "pods" {
			pods = append(pods, types.NamespacedName{Namespace: c.object.Namespace, Name: consumer.Name})
		}
	}
	return pods
}
