// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

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
