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
		fmt.Fprintf(&b, "%s: %v, %d pods\n", n.name, n.stocks, n.pods)
	}
	return b.String()
}

// Overlooked compares what a search reads of each device with what comes out anew, and tells the first difference.
func (c *Cluster) Overlooked() string {
	for id, d := range c.devices {
		kept := *d.glance
		if d.look(); kept != *d.glance || d.use.device != d || d.use != c.uses[id] {
			return fmt.Sprintf("%v: what a search reads is %+v, not %+v", id, kept, *d.glance)
		}
	}
	return ""
}

// Supposed says that a claim is supposed to have given a device back.
func (c *Cluster) Supposed() bool {
	for _, u := range c.uses {
		if len(u.left) > 0 {
			return true
		}
	}
	return false
}

// Stale compares everything that is kept about selectors with what comes out anew, and tells the first difference.
func (c *Cluster) Stale() string {
	var current []*slice
	for _, p := range c.pools {
		if p.complete {
			current = append(current, p.current...)
		}
	}
	if c.evaluable != len(current) {
		return fmt.Sprintf("%d slices are said to be of complete pools, not %d", c.evaluable, len(current))
	}
	for key, v := range c.views {
		var cost uint64
		failures, missing := 0, len(current)
		for s, kept := range v.matches {
			var class *matches
			if v.base != nil {
				class = v.base.matches[s]
			}
			anew := v.evaluate(context.Background(), c.cel, s, class)
			if !slices.Contains(current, s) || !slices.Equal(kept.class, anew.class) || !slices.Equal(kept.all, anew.all) || kept.cost != anew.cost || (kept.err == nil) != (anew.err == nil) || kept.err != nil && *kept.err.device != *anew.err.device {
				return fmt.Sprintf("%v: what is kept of slice %s is %+v, not %+v", key, s.object.Name, kept, anew)
			}
			cost += kept.cost
			missing--
			if kept.err != nil {
				failures++
			}
		}
		if v.cost != cost || v.failures != failures || len(c.missing(v)) != missing || (c.failure(v) != nil) != (failures > 0) {
			return fmt.Sprintf("%v: cost %d, %d failures, %d slices missing; not %d, %d, %d", key, v.cost, v.failures, len(c.missing(v)), cost, failures, missing)
		}
	}
	return ""
}

// Sizes counts what the index holds, for finding what is never dropped.
func (c *Cluster) Sizes() map[string]int {
	kept := 0
	for _, v := range c.views {
		kept += len(v.matches) + len(v.ids) + len(v.repeated)
	}
	return map[string]int{
		"classes": len(c.classes), "evaluable": c.evaluable, "slices": len(c.slices), "pools": len(c.pools), "devices": len(c.devices),
		"domains": len(c.domains), "claims": len(c.claims), "uses": len(c.uses), "rules": len(c.rules),
		"poolRules": len(c.poolRules), "wideRules": len(c.wideRules), "nodes": len(c.nodes),
		"sortedNodes": len(c.sortedNodes), "pods": len(c.pods), "unbound": len(c.unbound),
		"byTemplate": len(c.byTemplate), "quotas": len(c.quotas), "gangs": len(c.gangs), "matches": kept,
	}
}
