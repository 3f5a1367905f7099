// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// SetRule adds or replaces a DeviceTaintRule. Its taint applies as in kube-scheduler: a rule without a
// selector taints nothing, and what a selector leaves out matches everything.
func (c *Cluster) SetRule(rule *resourceapi.DeviceTaintRule) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	old := c.dropRule(rule.Name)
	c.rules[rule.Name] = rule
	key, narrow := poolOfRule(rule)
	if narrow {
		if c.poolRules[key] == nil {
			c.poolRules[key] = map[string]*resourceapi.DeviceTaintRule{}
		}
		c.poolRules[key][rule.Name] = rule
	} else {
		c.wideRules[rule.Name] = rule
	}
	// A rule that is touched must not free its devices for a moment.
	c.ruleChanged(rule)
	if old == nil {
		return
	}
	if oldKey, oldNarrow := poolOfRule(old); oldKey != key || oldNarrow != narrow {
		c.ruleChanged(old)
	}
}

// DeleteRule removes a DeviceTaintRule by name.
func (c *Cluster) DeleteRule(name string) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if rule := c.dropRule(name); rule != nil {
		c.ruleChanged(rule)
	}
}

// dropRule takes a rule from the index; its taint stays until ruleChanged.
func (c *Cluster) dropRule(name string) *resourceapi.DeviceTaintRule {
	rule := c.rules[name]
	if rule == nil {
		return nil
	}
	delete(c.rules, name)
	delete(c.wideRules, name)
	if key, ok := poolOfRule(rule); ok {
		delete(c.poolRules[key], name)
		if len(c.poolRules[key]) == 0 {
			delete(c.poolRules, key)
		}
	}
	return rule
}

// poolOfRule tells whether a rule is about one pool.
func poolOfRule(rule *resourceapi.DeviceTaintRule) (poolKey, bool) {
	s := rule.Spec.DeviceSelector
	if s == nil || s.Driver == nil || s.Pool == nil {
		return poolKey{}, false
	}
	return poolKey{*s.Driver, *s.Pool}, true
}

func (c *Cluster) ruleChanged(rule *resourceapi.DeviceTaintRule) {
	if key, ok := poolOfRule(rule); ok {
		if p := c.pools[key]; p != nil {
			c.applyRules(p)
		}
		return
	}
	for _, p := range c.pools {
		c.applyRules(p)
	}
}

// applyRules sets the taints that rules give the devices of a pool, and looks at these: it ends every change of a pool.
func (c *Cluster) applyRules(p *pool) {
	tainted := make([]bool, len(p.devices))
	for i, d := range p.devices {
		tainted[i] = anyExcludes(d.ruleTaints)
		d.ruleTaints = nil
	}
	for _, rules := range []map[string]*resourceapi.DeviceTaintRule{c.poolRules[p.key], c.wideRules} {
		for _, name := range slices.Sorted(maps.Keys(rules)) {
			c.applyRule(p, rules[name])
		}
	}
	for i, d := range p.devices {
		if tainted[i] && !anyExcludes(d.ruleTaints) {
			d.use.freed = c.clock.Now()
		}
		d.look()
	}
}

// applyRule finds the device of a rule that names it: a pool with partitions has hundreds of both.
func (c *Cluster) applyRule(p *pool, rule *resourceapi.DeviceTaintRule) {
	s := rule.Spec.DeviceSelector
	if s != nil && s.Device != nil && p.complete {
		id := DeviceID{Driver: p.key.driver, Pool: p.key.name, Device: *s.Device}
		if d := c.devices[id]; d != nil && selects(s, id) {
			d.ruleTaints = append(d.ruleTaints, rule.Spec.Taint)
		}
		return
	}
	for _, d := range p.devices {
		if selects(s, d.id) {
			d.ruleTaints = append(d.ruleTaints, rule.Spec.Taint)
		}
	}
}

func selects(s *resourceapi.DeviceTaintSelector, id DeviceID) bool {
	return s != nil &&
		(s.Driver == nil || *s.Driver == id.Driver) &&
		(s.Pool == nil || *s.Pool == id.Pool) &&
		(s.Device == nil || *s.Device == id.Device)
}

// taints calls yield for the device's taints that keep claims off it: NoSchedule and NoExecute. Other
// effects, None among them, do not.
func (d *device) taints(yield func(*resourceapi.DeviceTaint) bool) {
	for _, taints := range [][]resourceapi.DeviceTaint{d.api.Taints, d.ruleTaints} {
		for i := range taints {
			if excludes(&taints[i]) && !yield(&taints[i]) {
				return
			}
		}
	}
}

func excludes(taint *resourceapi.DeviceTaint) bool {
	return taint.Effect == resourceapi.DeviceTaintEffectNoSchedule || taint.Effect == resourceapi.DeviceTaintEffectNoExecute
}

// anyExcludes reports whether one of the taints keeps claims off.
func anyExcludes(taints []resourceapi.DeviceTaint) bool {
	for i := range taints {
		if excludes(&taints[i]) {
			return true
		}
	}
	return false
}

// tainted reports whether a taint keeps a claim with these tolerations off the device, and whether it
// is only other gangs' fences that do: those go away by themselves.
func (d *device) tainted(tolerations []resourceapi.DeviceToleration) (tainted, fenced bool) {
	if len(d.api.Taints) == 0 && len(d.ruleTaints) == 0 {
		return false, false
	}
	others := false
	for taint := range d.taints {
		if slices.ContainsFunc(tolerations, func(t resourceapi.DeviceToleration) bool { return resourceclaim.ToleratesTaint(t, *taint) }) {
			continue
		}
		tainted = true
		others = others || taint.Key != v1alpha1.ReservedTaintKey
	}
	return tainted, tainted && !others
}

// ownFence is the toleration of a gang's own fence.
func ownFence(gang types.UID) resourceapi.DeviceToleration {
	return resourceapi.DeviceToleration{
		Key:      v1alpha1.ReservedTaintKey,
		Operator: resourceapi.DeviceTolerationOpEqual,
		Value:    string(gang),
		Effect:   resourceapi.DeviceTaintEffectNoSchedule,
	}
}

// withRules returns the slice as kube-scheduler sees it: with the taints of rules.
func (s *slice) withRules() *resourceapi.ResourceSlice {
	patched := s.object
	for i, d := range s.devices {
		if len(d.ruleTaints) == 0 {
			continue
		}
		if patched == s.object {
			shallow := *s.object
			shallow.Spec.Devices = slices.Clone(s.object.Spec.Devices)
			patched = &shallow
		}
		patched.Spec.Devices[i].Taints = slices.Concat(s.object.Spec.Devices[i].Taints, d.ruleTaints)
	}
	return patched
}
