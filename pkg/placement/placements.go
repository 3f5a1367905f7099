// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"cmp"
	"slices"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// picked are the devices that a choice takes of one group: the free ones of each atom first, in the
// allocator's order.
type picked struct {
	node    *node
	devices []*device
}

// picks lists what the choices take, group by group.
func (o outcome) picks() []picked {
	var picks []picked
	for _, ch := range o.choices {
		for i, at := range ch.atoms {
			if i == 0 || at.group != ch.atoms[i-1].group {
				picks = append(picks, picked{node: ch.site.node})
			}
			p := &picks[len(picks)-1]
			n := min(ch.counts[i], len(at.free))
			p.devices = append(p.devices, at.free[:n]...)
			p.devices = append(p.devices, at.busy[:ch.counts[i]-n]...)
		}
	}
	return slices.DeleteFunc(picks, func(p picked) bool { return len(p.devices) == 0 })
}

// devices calls yield for each device that is taken.
func (o outcome) devices(yield func(*device) bool) {
	for _, p := range o.picks() {
		for _, d := range p.devices {
			if !yield(d) {
				return
			}
		}
	}
}

// busy calls yield for each device that is taken although others have it.
func (o outcome) busy(yield func(*device) bool) {
	for _, ch := range o.choices {
		for i, at := range ch.atoms {
			for _, d := range at.busy[:max(ch.counts[i]-len(at.free), 0)] {
				if !yield(d) {
					return
				}
			}
		}
	}
}

// placements puts together what is on one node and in one domain.
func (a *attempt) placements(found outcome) []v1alpha1.GangPlacement {
	type place struct{ node, pool, domain string }
	devices := map[place][]*device{}
	planned := map[*domain]int{}
	perPool := map[string][]*device{}
	for _, p := range found.picks() {
		at := place{p.node.name, p.devices[0].id.Pool, commonDomain(p.devices)}
		devices[at] = append(devices[at], p.devices...)
		for _, d := range p.devices {
			perPool[at.pool] = append(perPool[at.pool], d)
			if d.domain != nil {
				planned[d.domain]++
			}
		}
	}
	siblings := map[*device][]*device{}
	whole := map[string]bool{}
	for name, taken := range perPool {
		p := a.pools[poolKey{v1alpha1.DriverName, name}]
		slices.SortFunc(taken, func(x, y *device) int { return x.order - y.order })
		reserved := len(taken)
		for d, excluded := range p.siblings(taken) {
			siblings[d] = excluded
			reserved += len(excluded)
		}
		whole[name] = reserved == len(p.devices)
	}
	var placements []v1alpha1.GangPlacement
	for at, taken := range devices {
		slices.SortFunc(taken, func(x, y *device) int { return x.order - y.order })
		p := v1alpha1.GangPlacement{
			Node:      at.node,
			Pool:      at.pool,
			Domain:    at.domain,
			Members:   int32(len(taken) / a.request.perMember),
			WholePool: whole[at.pool],
		}
		if at.domain != "" {
			t := a.tallyOf(taken[0].domain)
			p.WholeDomain = !t.unknown && planned[taken[0].domain] == int(t.class)
		}
		for _, d := range taken {
			p.Devices = append(p.Devices, v1alpha1.GangDevice{Name: d.id.Device, ID: d.attrID, Siblings: namesOf(siblings[d])})
		}
		placements = append(placements, p)
	}
	slices.SortFunc(placements, func(x, y v1alpha1.GangPlacement) int {
		return cmp.Or(cmp.Compare(x.Node, y.Node), cmp.Compare(x.Pool, y.Pool), cmp.Compare(x.Domain, y.Domain))
	})
	return placements
}

// commonDomain is the domain that all devices are in, if there is one.
func commonDomain(devices []*device) string {
	if devices[0].domain == nil {
		return ""
	}
	for _, d := range devices {
		if d.domain != devices[0].domain {
			return ""
		}
	}
	return devices[0].domain.name
}

func namesOf(devices []*device) []string {
	var names []string
	for _, d := range devices {
		names = append(names, d.id.Device)
	}
	return names
}
