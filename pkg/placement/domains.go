// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"cmp"
	"slices"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/fragmentation"
	"github.com/switchyard-dev/switchyard/pkg/resourcemodel"
)

// Domains lists the domains of the GPUs of driver gpu.switchyard.dev by node and name, each node and
// product of a domain separately. A GPU is free when no claim has it or a partition of it, no gang's
// plan reserves it and no taint is on it. One for shares is never free, and in use when somebody has a share.
func (c *Cluster) Domains() []fragmentation.Domain {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	type key struct{ node, name, product string }
	domains := map[key]*fragmentation.Domain{}
	for _, p := range c.pools {
		if !p.complete || p.key.driver != v1alpha1.DriverName {
			continue
		}
		left := p.countersLeft(func(u *use) bool { return u.held() || len(u.reserved) > 0 })
		for _, d := range p.devices {
			if d.kind != resourcemodel.TypeGPU && d.kind != resourcemodel.TypeShare {
				continue
			}
			k := key{node: p.node, product: d.product}
			if d.domain != nil {
				k.name = d.domain.name
			}
			found := domains[k]
			if found == nil {
				found = &fragmentation.Domain{Name: k.name, Node: k.node, Product: k.product}
				domains[k] = found
			}
			found.Total++
			tainted, _ := d.tainted(nil)
			switch {
			case len(d.use.claims) > 0 || left != nil && !left.take(d):
				found.InUse++
			case !tainted && len(d.use.reserved) == 0 && d.kind == resourcemodel.TypeGPU:
				found.Free++
			}
		}
	}
	var list []fragmentation.Domain
	for _, d := range domains {
		list = append(list, *d)
	}
	slices.SortFunc(list, func(a, b fragmentation.Domain) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Product, b.Product))
	})
	return list
}

// Products are those of the GPUs of driver gpu.switchyard.dev by pool; of several in a pool the first.
func (c *Cluster) Products() map[string]string {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	products := map[string]string{}
	for _, p := range c.pools {
		if p.key.driver == v1alpha1.DriverName && len(p.devices) > 0 {
			products[p.key.name] = p.devices[0].product
		}
	}
	return products
}
