// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"cmp"
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/resourcemodel"
)

// poolKey names a resource pool.
type poolKey struct{ driver, name string }

// pool is a resource pool: the slices of its newest generation, as kube-scheduler sees it.
type pool struct {
	key poolKey
	all map[string]*slice // of every generation
	// The rest follows from all.
	current  []*slice // of the newest generation, sorted by name
	complete bool     // all slices of that generation are there, and no name is there twice
	node     string   // where all its devices are; empty when they are reached from elsewhere too
	devices  []*device
	counters bool // the devices share counters
	// sharers are the devices that consume of a counter set, by its name; nil in a pool without any. wholes
	// remembers what isWhole has found out.
	sharers map[string][]*device
	wholes  map[*device]bool
	// known are the devices of the last generation that was complete. While a newer one is written slice
	// by slice they are not gone.
	known map[string]bool
}

// slice is a ResourceSlice.
type slice struct {
	object  *resourceapi.ResourceSlice
	devices []*device
	glances []glance // of the devices, in their order
}

// device is a device as it is published, and what became of it.
type device struct {
	*glance // in the slice

	id      DeviceID
	slice   *slice
	api     *resourceapi.Device
	order   int // in its pool, as the allocator goes
	attrID  string
	product string
	kind    string
	pcie    string
	// unplannable devices may be given to several claims or wait for conditions: no plan foresees
	// what becomes of them.
	unplannable bool
	use         *use
	ruleTaints  []resourceapi.DeviceTaint
}

// domain is an NVSwitch domain; what is counted belongs to one attempt to place a gang.
type domain struct {
	name    string
	members int // devices that have it, to know when it is gone
	tally   tally
}

// SetSlice adds or replaces a ResourceSlice.
func (c *Cluster) SetSlice(object *resourceapi.ResourceSlice) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	count := len(object.Spec.Devices)
	s := &slice{object: object, devices: make([]*device, 0, count), glances: make([]glance, count)}
	for i := range object.Spec.Devices {
		d := c.newDevice(object, &object.Spec.Devices[i], &s.glances[i])
		d.slice = s
		s.devices = append(s.devices, d)
	}
	key := poolKey{object.Spec.Driver, object.Spec.Pool.Name}
	p := c.pools[key]
	if p == nil {
		p = &pool{key: key, all: map[string]*slice{}}
		c.pools[key] = p
	}
	old := c.slices[object.Name]
	c.slices[object.Name] = s
	p.all[object.Name] = s
	c.rebuild(p)
	if old != nil {
		c.retire(old)
	}
}

// DeleteSlice removes a ResourceSlice by name.
func (c *Cluster) DeleteSlice(name string) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.deleteSlice(name)
}

func (c *Cluster) deleteSlice(name string) {
	s := c.slices[name]
	if s == nil {
		return
	}
	delete(c.slices, name)
	c.retire(s)
}

// retire forgets a slice that was deleted or replaced.
func (c *Cluster) retire(s *slice) {
	for _, d := range s.devices {
		if d.domain != nil {
			if d.domain.members--; d.domain.members == 0 {
				delete(c.domains, d.domain.name)
			}
		}
	}
	key := poolKey{s.object.Spec.Driver, s.object.Spec.Pool.Name}
	p := c.pools[key]
	if p.all[s.object.Name] == s { // Not replaced, or replaced in another pool.
		delete(p.all, s.object.Name)
		c.rebuild(p)
	}
	for _, d := range s.devices {
		d.use.published--
		c.forget(d.id)
	}
	if len(p.all) == 0 {
		delete(c.pools, key)
	}
}

func (c *Cluster) newDevice(slice *resourceapi.ResourceSlice, api *resourceapi.Device, g *glance) *device {
	driver := slice.Spec.Driver
	d := &device{
		glance:  g,
		id:      DeviceID{Driver: driver, Pool: slice.Spec.Pool.Name, Device: api.Name},
		api:     api,
		attrID:  text(api, driver, resourcemodel.AttributeID),
		product: text(api, driver, resourcemodel.AttributeProductName),
		kind:    text(api, driver, resourcemodel.AttributeType),
		pcie:    text(api, driver, resourcemodel.AttributePCIeRoot),
	}
	d.numa = -1
	if a := attribute(api, driver, resourcemodel.AttributeNUMANode); a != nil && a.IntValue != nil {
		d.numa = *a.IntValue
	}
	if name := text(api, driver, resourcemodel.AttributeNVSwitchDomain); name != "" {
		if c.domains[name] == nil {
			c.domains[name] = &domain{name: name}
		}
		d.domain = c.domains[name]
		d.domain.members++
	}
	d.unplannable = ptr.Deref(api.AllowMultipleAllocations, false) || len(api.BindingConditions) > 0
	d.use = c.use(d.id)
	if before := c.devices[d.id]; d.use.published == 0 || before != nil && anyExcludes(before.api.Taints) && !anyExcludes(api.Taints) {
		d.use.freed = c.clock.Now()
	}
	d.use.published++
	return d
}

// attribute finds an attribute by its name with or without the driver's domain, as constraints do.
func attribute(d *resourceapi.Device, driver string, name resourceapi.QualifiedName) *resourceapi.DeviceAttribute {
	if a, ok := d.Attributes[name]; ok {
		return &a
	}
	if a, ok := d.Attributes[resourceapi.QualifiedName(driver)+"/"+name]; ok {
		return &a
	}
	return nil
}

func text(d *resourceapi.Device, driver string, name resourceapi.QualifiedName) string {
	if a := attribute(d, driver, name); a != nil {
		return ptr.Deref(a.StringValue, "")
	}
	return ""
}

// rebuild brings a pool up to date with its slices.
func (c *Cluster) rebuild(p *pool) {
	for _, d := range p.devices {
		if c.devices[d.id] == d {
			delete(c.devices, d.id)
			d.use.device = nil
		}
	}
	c.detach(p)
	c.countEvaluable(p, -1)
	before := p.current
	p.current, p.devices, p.node, p.counters = nil, nil, "", false
	for _, s := range p.all {
		switch generation := s.object.Spec.Pool.Generation; {
		case len(p.current) == 0 || generation > p.current[0].object.Spec.Pool.Generation:
			p.current = []*slice{s}
		case generation == p.current[0].object.Spec.Pool.Generation:
			p.current = append(p.current, s)
		}
	}
	slices.SortFunc(p.current, func(a, b *slice) int { return cmp.Compare(a.object.Name, b.object.Name) })
	p.complete = len(p.current) > 0 && int64(len(p.current)) == p.current[0].object.Spec.Pool.ResourceSliceCount
	for i, s := range p.current {
		node := ptr.Deref(s.object.Spec.NodeName, "")
		if i > 0 && node != p.node {
			node = ""
		}
		p.node = node
		p.counters = p.counters || len(s.object.Spec.SharedCounters) > 0
		for _, d := range s.devices {
			if c.devices[d.id] != nil {
				p.complete = false
			}
			c.devices[d.id], d.use.device = d, d
			d.order = len(p.devices)
			p.devices = append(p.devices, d)
		}
	}
	c.countEvaluable(p, 1)
	p.gatherSharers()
	for _, s := range before {
		if !p.complete || !slices.Contains(p.current, s) {
			c.dropMatches(s)
		}
	}
	if p.complete {
		p.known = make(map[string]bool, len(p.devices))
		for _, d := range p.devices {
			p.known[d.id.Device] = true
		}
	}
	c.attach(p)
	c.applyRules(p)
}

// countEvaluable counts the slices of a pool in or out.
func (c *Cluster) countEvaluable(p *pool, sign int) {
	if p.complete {
		c.evaluable += sign * len(p.current)
	}
}

// plannable reports whether devices of the pool can be in a plan: the selector of a gang's claims names
// the driver, and a member runs where its devices are.
func (p *pool) plannable() bool { return p.key.driver == v1alpha1.DriverName && p.node != "" }

// attach lists the pool at its node.
func (c *Cluster) attach(p *pool) {
	if !p.plannable() {
		return
	}
	n := c.node(p.node)
	at, _ := slices.BinarySearchFunc(n.pools, p, func(a, b *pool) int { return cmp.Compare(a.key.name, b.key.name) })
	n.pools = slices.Insert(n.pools, at, p)
}

// detach takes the pool from the node it is listed at.
func (c *Cluster) detach(p *pool) {
	n := c.nodes[p.node]
	if n == nil {
		return
	}
	n.pools = without(n.pools, p)
	c.forgetNode(n)
}

// sortedPools are all pools in the allocator's order.
func (c *Cluster) sortedPools() []*pool {
	return slices.SortedFunc(maps.Values(c.pools), func(a, b *pool) int {
		return cmp.Or(cmp.Compare(a.key.driver, b.key.driver), cmp.Compare(a.key.name, b.key.name))
	})
}

// without returns the list without the first such element.
func without[T comparable](list []T, element T) []T {
	if at := slices.Index(list, element); at >= 0 {
		return slices.Delete(list, at, at+1)
	}
	return list
}
