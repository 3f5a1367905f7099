// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package fragmentation measures how far the free devices of a cluster are from being useful together:
// idle devices that are spread over NVSwitch domains serve small gangs only.
//
// It is pure: values in, values out, whatever the order of the input. It imports nothing but the
// standard library.
package fragmentation

import (
	"cmp"
	"maps"
	"slices"
)

// Sizes are the numbers of devices in one domain that jobs ask for, where nobody names others.
func Sizes() []int { return []int{2, 4, 8} }

// Domain is the part of an NVSwitch domain that is on one node and of one product. A domain that spans
// nodes, such as the fabric of a rack, is several values of the same name.
type Domain struct {
	// Name is the NVSwitch domain; empty for devices that have none.
	Name string
	// Node is the node of the devices.
	Node string
	// Product is the product name of the devices, as NVML gives it.
	Product string
	// Total is how many devices there are: Free, InUse and those that are neither, because they are
	// tainted or reserved.
	Total int
	// Free is how many devices a new claim could get.
	Free int
	// InUse is how many devices are allocated.
	InUse int
}

// Report is the fragmentation of a cluster, of each node and of each product.
type Report struct {
	Cluster  Measures
	Nodes    map[string]Measures
	Products map[string]Measures
}

// Measures are the numbers of one level: a node, a product or the cluster. A domain counts with as much
// of it as the level has.
type Measures struct {
	// Total, Free and InUse count devices, those without a domain too.
	Total, Free, InUse int
	// FreeWithoutDomain is how many of the free devices have no domain. They are in no other number
	// below: two of them are not connected, so nothing breaks them apart.
	FreeWithoutDomain int
	// Domains is how many domains there are: Whole, Broken and Full ones.
	Domains int
	// Whole domains have no device in use.
	Whole int
	// Broken domains have some of their devices in use.
	Broken int
	// Full domains have all devices in use.
	Full int
	// LargestFreeBlock is the largest number of free devices in one domain, LargestFreeDomain the
	// first such domain by name; 0 and "" when none is free.
	LargestFreeBlock  int
	LargestFreeDomain string
	// Gangs are the measures by gang size, in the order of the sizes asked for.
	Gangs []Gang
}

// Gang says what the free devices are worth to gangs that need a number of devices in one domain.
type Gang struct {
	// Size is how many devices such a gang needs.
	Size int
	// Runnable is how many of them fit: the sum of ⌊free/Size⌋ over the domains.
	Runnable int
	// WithoutFragmentation is how many would fit if the free devices were in one domain.
	WithoutFragmentation int
	// Fragmentation is F(Size) = 1 − Size·Runnable/free: the part of the free devices, 0 to 1, that
	// such gangs cannot use. It is 0 when none is free.
	Fragmentation float64
}

// Lost is the part of the gangs, 0 to 1, that fit only without fragmentation.
func (g Gang) Lost() float64 {
	if g.WithoutFragmentation == 0 {
		return 0
	}
	return 1 - float64(g.Runnable)/float64(g.WithoutFragmentation)
}

// Measure measures the domains for gangs of the given sizes. Sizes below 1 are left out.
func Measure(domains []Domain, sizes []int) Report {
	report := Report{
		Cluster:  measure(domains, sizes),
		Nodes:    map[string]Measures{},
		Products: map[string]Measures{},
	}
	for node, part := range groupBy(domains, func(d Domain) string { return d.Node }) {
		report.Nodes[node] = measure(part, sizes)
	}
	for product, part := range groupBy(domains, func(d Domain) string { return d.Product }) {
		report.Products[product] = measure(part, sizes)
	}
	return report
}

func groupBy(domains []Domain, key func(Domain) string) map[string][]Domain {
	groups := map[string][]Domain{}
	for _, d := range domains {
		groups[key(d)] = append(groups[key(d)], d)
	}
	return groups
}

func measure(parts []Domain, sizes []int) Measures {
	var m Measures
	domains := map[string]Domain{}
	for _, part := range parts {
		m.Total += part.Total
		m.Free += part.Free
		m.InUse += part.InUse
		if part.Name == "" {
			m.FreeWithoutDomain += part.Free
			continue
		}
		d := domains[part.Name]
		d.Total += part.Total
		d.Free += part.Free
		d.InUse += part.InUse
		domains[part.Name] = d
	}
	m.Domains = len(domains)
	for name, d := range domains {
		switch {
		case d.InUse == 0:
			m.Whole++
		case d.InUse < d.Total:
			m.Broken++
		default:
			m.Full++
		}
		better := cmp.Or(cmp.Compare(d.Free, m.LargestFreeBlock), cmp.Compare(m.LargestFreeDomain, name))
		if d.Free > 0 && better > 0 {
			m.LargestFreeBlock, m.LargestFreeDomain = d.Free, name
		}
	}
	free := m.Free - m.FreeWithoutDomain
	for _, size := range sizes {
		if size >= 1 {
			m.Gangs = append(m.Gangs, gang(size, free, slices.Collect(maps.Values(domains))))
		}
	}
	return m
}

func gang(size, free int, domains []Domain) Gang {
	g := Gang{Size: size, WithoutFragmentation: free / size}
	for _, d := range domains {
		g.Runnable += d.Free / size
	}
	if free > 0 {
		g.Fragmentation = 1 - float64(size*g.Runnable)/float64(free)
	}
	return g
}
