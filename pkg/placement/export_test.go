// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// RivalsIn is Rivals with the context in which selectors are evaluated.
func (c *Cluster) RivalsIn(ctx context.Context, devices []DeviceID, except types.UID) []PodWithDevices {
	return c.rivals(ctx, devices, except)
}

// Locked says that someone holds the lock, so that an event would have to wait.
func (c *Cluster) Locked() bool {
	if c.mutex.TryLock() {
		c.mutex.Unlock()
		return false
	}
	return true
}

// Marks tells everything that a call of Plan and a what-if change for a time, to see that it is changed back.
func (c *Cluster) Marks() string {
	var b strings.Builder
	for _, id := range slices.SortedFunc(maps.Keys(c.uses), func(x, y DeviceID) int {
		if x.before(y) {
			return -1
		}
		return 1
	}) {
		u := c.uses[id]
		fmt.Fprintf(&b, "%v: %d claims, reserved %v, %d published, freed %v", id, len(u.claims), u.reserved, u.published, u.freed.UnixNano())
		if u.planned || u.earmarked != nil || len(u.left) > 0 {
			b.WriteString(", supposed")
		}
		b.WriteByte('\n')
	}
	fmt.Fprintf(&b, "promised: %v\n", c.promised)
	for _, n := range c.sortedNodes {
		fmt.Fprintf(&b, "%s: %v, %d pods\n", n.name, n.requested, n.pods)
	}
	return b.String()
}

// Sizes counts what the index holds, for finding what is never dropped.
func (c *Cluster) Sizes() map[string]int {
	kept := 0
	for _, v := range c.views {
		kept += len(v.matches) + len(v.ids) + len(v.repeated)
	}
	return map[string]int{
		"classes": len(c.classes), "slices": len(c.slices), "pools": len(c.pools), "devices": len(c.devices),
		"domains": len(c.domains), "claims": len(c.claims), "uses": len(c.uses), "rules": len(c.rules),
		"poolRules": len(c.poolRules), "wideRules": len(c.wideRules), "nodes": len(c.nodes),
		"sortedNodes": len(c.sortedNodes), "pods": len(c.pods), "unbound": len(c.unbound),
		"byTemplate": len(c.byTemplate), "quotas": len(c.quotas), "gangs": len(c.gangs), "matches": kept,
	}
}
