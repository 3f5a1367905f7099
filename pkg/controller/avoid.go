// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// avoidTime is how long a gang is rather planned on other nodes than those on which kube-scheduler did not put its members.
const avoidTime = 10 * time.Minute

// Avoid has a gang planned on other nodes for a while, if there are any. It is not written down: after a restart the first
// plan may fail once more.
func (p *planner) Avoid(uid types.UID, nodes []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.avoid[uid] == nil && len(nodes) > 0 {
		p.avoid[uid] = map[string]time.Time{}
	}
	for _, node := range nodes {
		p.avoid[uid][node] = p.clock.Now().Add(avoidTime)
	}
}

// avoided are the nodes that a gang avoids now, sorted.
func (p *planner) avoided(uid types.UID) []string {
	maps.DeleteFunc(p.avoid[uid], func(_ string, until time.Time) bool { return !p.clock.Now().Before(until) })
	return slices.Sorted(maps.Keys(p.avoid[uid]))
}
