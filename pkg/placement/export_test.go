// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

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
