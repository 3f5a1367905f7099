// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"fmt"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/resourcemodel"
)

// kinds tells nodes apart as the allocator does when it allocates the claims of one plan. On each device
// it looks at what the selectors say, whether it is allocated, its taints, and the attribute that the
// devices of a member share; names and values do not matter, only which are equal. Most planned nodes of
// a large gang are of one kind, and most of the time would go into asking the same again.
type kinds struct {
	view      *view
	attribute resourceapi.FullyQualifiedName // that a member's devices share; empty for none
	// domains and ids are what the claim's first selector names.
	domains, ids map[string]bool
}

func newKinds(v *view, plan *v1alpha1.GangPlan) *kinds {
	k := &kinds{view: v, attribute: scopeAttribute(plan.MemberScope), domains: map[string]bool{}, ids: map[string]bool{}}
	for _, p := range plan.Placements {
		if p.WholeDomain {
			k.domains[p.Domain] = true
			continue
		}
		for _, d := range p.Devices {
			k.ids[d.ID] = true
		}
	}
	return k
}

// of is the kind of a node with its planned devices, empty if something about it is out of the ordinary.
func (k *kinds) of(n *node, q *question) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d", q.members)
	for _, p := range n.pools {
		if p.counters || !p.complete || len(p.all) != len(p.current) {
			return ""
		}
		fmt.Fprintf(&b, "\npool %d", len(p.current))
		values := map[string]int{}
		for _, s := range p.current {
			matches := k.view.matches[s]
			if matches == nil {
				return ""
			}
			b.WriteString(" slice")
			for i, d := range s.devices {
				if d.unplannable || len(d.api.ConsumesCounters) > 0 || d.api.NodeName != nil || d.api.NodeSelector != nil || d.api.AllNodes != nil || !d.use.plain() {
					return ""
				}
				named := k.ids[d.attrID] || d.domain != nil && k.domains[d.domain.name]
				fmt.Fprintf(&b, " %t %t %t %t %d", matches.all[i], named, q.planned[d.id], d.use.held(), k.value(d, values))
				for t := range d.taints {
					fmt.Fprintf(&b, " %q %q %q", t.Key, t.Value, t.Effect)
				}
			}
		}
	}
	return b.String()
}

// value numbers the values of the shared attribute; 0 stands for none.
func (k *kinds) value(d *device, values map[string]int) int {
	var value string
	switch k.attribute {
	case "":
		return 0
	case resourceapi.FullyQualifiedName(resourcemodel.AttributeNUMANode):
		if d.numa < 0 {
			return 0
		}
		value = fmt.Sprint(d.numa)
	case resourceapi.FullyQualifiedName(resourcemodel.AttributePCIeRoot):
		value = d.pcie
	default:
		if d.domain != nil {
			value = d.domain.name
		}
	}
	if value == "" {
		return 0
	}
	if values[value] == 0 {
		values[value] = len(values) + 1
	}
	return values[value]
}

// plain reports whether the claims that have the device have all of it.
func (u *use) plain() bool {
	for _, held := range u.claims {
		for _, result := range held.object.Status.Allocation.Devices.Results {
			if result.ShareID != nil {
				return false
			}
		}
	}
	return true
}
