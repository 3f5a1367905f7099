// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import "github.com/switchyard-dev/switchyard/api/v1alpha1"

// counters is what is left of the shared counters of a pool (KEP-4815), by counter set and counter.
// Partitions of a GPU and the GPU itself consume the same counters, so that one of them in use keeps
// others from being allocated.
type counters map[string]map[string]int64

// countersLeft returns what the devices that count as taken leave; nil for pools without counters.
func (p *pool) countersLeft(taken func(*use) bool) counters {
	if !p.counters {
		return nil
	}
	left := counters{}
	for _, s := range p.current {
		for _, set := range s.object.Spec.SharedCounters {
			left[set.Name] = map[string]int64{}
			for name, counter := range set.Counters {
				left[set.Name][name] = counter.Value.Value()
			}
		}
	}
	for _, d := range p.devices {
		if taken(d.use) {
			left.consume(d)
		}
	}
	return left
}

// nobody has a device.
func nobody(*use) bool { return false }

// take consumes what the device needs if all of it is left. Devices that are planned together are taken
// in the allocator's order, so that partitions which overlap are not both planned.
func (left counters) take(d *device) bool {
	if !left.suffice(d) {
		return false
	}
	left.consume(d)
	return true
}

// suffice reports whether all that the device needs is left.
func (left counters) suffice(d *device) bool {
	for _, consumption := range d.api.ConsumesCounters {
		for name, counter := range consumption.Counters {
			if left[consumption.CounterSet][name] < counter.Value.Value() {
				return false
			}
		}
	}
	return true
}

func (left counters) consume(d *device) {
	for _, consumption := range d.api.ConsumesCounters {
		for name, counter := range consumption.Counters {
			if set := left[consumption.CounterSet]; set != nil {
				set[name] -= counter.Value.Value()
			}
		}
	}
}

// gatherSharers notes which devices consume of each counter set.
func (p *pool) gatherSharers() {
	p.sharers, p.wholes = nil, nil
	for _, d := range p.devices {
		for _, consumption := range d.api.ConsumesCounters {
			if p.sharers == nil {
				p.sharers = map[string][]*device{}
			}
			p.sharers[consumption.CounterSet] = append(p.sharers[consumption.CounterSet], d)
		}
	}
}

// sharers calls yield for each other device that shares counters with the device, set by set.
func (c *Cluster) sharers(d *device) func(yield func(*device) bool) {
	return func(yield func(*device) bool) {
		if len(d.api.ConsumesCounters) == 0 {
			return
		}
		p := c.pools[poolKey{d.id.Driver, d.id.Pool}]
		for _, consumption := range d.api.ConsumesCounters {
			for _, other := range p.sharers[consumption.CounterSet] {
				if other != d && !yield(other) {
					return
				}
			}
		}
	}
}

// crowded reports whether the device may have more siblings than a plan can name.
func (c *Cluster) crowded(d *device) bool {
	n := 0
	for range c.sharers(d) {
		n++
	}
	return n > v1alpha1.MaxSiblings
}

// siblings lists the devices that cannot be allocated besides the planned ones, which are all of this pool, each
// with the first of these that it shares counters with. It is nil for a pool without counters.
func (p *pool) siblings(planned []*device) map[*device][]*device {
	if p.sharers == nil {
		return nil
	}
	left := p.countersLeft(nobody)
	seen := map[*device]bool{}
	for _, d := range planned {
		left.consume(d)
		seen[d] = true
	}
	siblings := map[*device][]*device{}
	for _, d := range planned {
		for _, consumption := range d.api.ConsumesCounters {
			for _, other := range p.sharers[consumption.CounterSet] {
				if !seen[other] && !left.suffice(other) {
					seen[other] = true
					siblings[d] = append(siblings[d], other)
				}
			}
		}
	}
	return siblings
}

// isWhole reports whether no other device of its counter sets can be allocated besides the device: a whole GPU, or a
// partition that is all of it.
func (c *Cluster) isWhole(d *device) bool {
	if len(d.api.ConsumesCounters) == 0 {
		return true
	}
	p := c.pools[poolKey{d.id.Driver, d.id.Pool}]
	if whole, known := p.wholes[d]; known {
		return whole
	}
	others := map[*device]bool{}
	for other := range c.sharers(d) {
		others[other] = true
	}
	whole := len(p.siblings([]*device{d})[d]) == len(others)
	if p.wholes == nil {
		p.wholes = map[*device]bool{}
	}
	p.wholes[d] = whole
	return whole
}
