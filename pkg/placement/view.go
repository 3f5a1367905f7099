// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"

	"github.com/switchyard-dev/switchyard/pkg/resourcemodel"
)

const (
	// viewCost is what it may cost to evaluate the selectors of a class or of a gang on all devices, in
	// CEL's units: a million takes about 0.1 s. A selector that compares some attributes costs 20 to 50
	// for a device.
	viewCost = 10_000_000
	// evaluationCost is what an evaluation costs beside the expression: the device is put into maps.
	evaluationCost = 50
	// compilationCost is what a byte of an expression costs that is new, before it is evaluated.
	compilationCost = 100
	// planCost is what one call of Plan may spend on selectors that are new.
	planCost = 20_000_000
	// minViews and maxViews are how many combinations of class and selectors keep their results: at
	// least, and at most when that many gangs wait.
	minViews, maxViews = 64, 1024
	// recentMatches is how many matches of a view are looked at for equal ones: slices of a cluster are of a few kinds.
	recentMatches = 8
)

// viewKey names a class and selectors by their text.
type viewKey struct{ class, selectors string }

// view is which devices a class and further selectors select. What was evaluated on a slice stays until
// the slice or the class changes.
type view struct {
	key       viewKey
	class     *resourceapi.DeviceClass
	selectors []resourceapi.DeviceSelector
	// base is the view of the class alone, which is evaluated once for all that add selectors; nil in
	// itself.
	base    *view
	matches map[*slice]*matches
	// recent are the last matches that differ: most slices have the same, which are kept once.
	recent   []*matches
	cost     uint64 // of all matches
	failures int    // how many matches have an error
	// ids counts the attribute id among the devices of the class, repeated those that are there twice.
	// Only the view of a class has them.
	ids      map[string]int
	repeated map[string]bool
	// partitions counts the devices of the class that are not whole GPUs.
	partitions int
	lastUsed   int64
	// compiled says that the selectors were compiled, and checked against the limits of the API server
	// if they are not those of a class; invalid is what came of it.
	compiled bool
	invalid  *selectorError
}

// matches are the results on a slice, device by device.
type matches struct {
	class []bool
	all   []bool // class and selectors
	err   *selectorError
	cost  uint64
}

// view returns the view of a class and selectors.
func (c *Cluster) view(class *resourceapi.DeviceClass, selectors []resourceapi.DeviceSelector) *view {
	var base *view
	if len(selectors) > 0 {
		base = c.view(class, nil)
	}
	k := viewKey{class.Name, textOf(selectors)}
	v := c.views[k]
	if v == nil || v.class != class || v.base != base {
		v = &view{key: k, class: class, selectors: selectors, base: base, matches: map[*slice]*matches{}}
		if base == nil {
			v.selectors = class.Spec.Selectors
			v.ids, v.repeated = map[string]int{}, map[string]bool{}
		}
		c.keep(v)
	}
	c.viewUses++
	v.lastUsed = c.viewUses
	return v
}

// ofClass is the view of the class alone.
func (v *view) ofClass() *view {
	if v.base != nil {
		return v.base
	}
	return v
}

// textOf is the text of selectors, to tell them apart by.
func textOf(selectors []resourceapi.DeviceSelector) string {
	var key strings.Builder
	for _, s := range selectors {
		if s.CEL != nil {
			key.WriteString(s.CEL.Expression)
		}
		key.WriteByte(0)
	}
	return key.String()
}

// keep stores a view in place of the one that was not used for longest. When all were used by this call
// of Plan the view is not kept: otherwise each would push out the one that is needed next.
func (c *Cluster) keep(v *view) {
	if old := c.views[v.key]; old == nil && len(c.views) >= c.viewLimit {
		var oldest *view
		for _, other := range c.views {
			if other != v.base && (oldest == nil || other.lastUsed < oldest.lastUsed) {
				oldest = other
			}
		}
		if oldest == nil || oldest.lastUsed > c.planStart && v.base != nil {
			return
		}
		delete(c.views, oldest.key)
	}
	c.views[v.key] = v
}

// shrinkViews drops the views that were not used for longest, down to the limit.
func (c *Cluster) shrinkViews() {
	if len(c.views) <= c.viewLimit {
		return
	}
	list := slices.SortedFunc(maps.Values(c.views), func(a, b *view) int { return cmp.Compare(b.lastUsed, a.lastUsed) })
	for _, v := range list[c.viewLimit:] {
		delete(c.views, v.key)
	}
}

// compile compiles the selectors of a view, once, unless the cost that is left is used up. It must not be called with the
// lock held: a selector may take a fifth of a second.
func (c *Cluster) compile(v *view, left *uint64) *selectorError {
	c.mutex.Lock()
	done, invalid := v.compiled, v.invalid
	c.mutex.Unlock()
	if done || *left == 0 {
		return invalid
	}
	*left -= min(costToCompile(v.selectors), *left)
	for i, s := range v.selectors {
		field := v.field(i)
		if invalid = compile(c.cel, s, field); invalid == nil && v.base != nil {
			if err := checkExpression(s.CEL.Expression); err != nil {
				invalid = &selectorError{field: field, err: err}
			}
		}
		if invalid != nil {
			break
		}
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	v.compiled, v.invalid = true, invalid
	return invalid
}

func (v *view) field(i int) string {
	if v.base == nil {
		return fmt.Sprintf("DeviceClass %s: spec.selectors[%d].cel.expression", v.class.Name, i)
	}
	return fmt.Sprintf("spec.selectors[%d].cel.expression", i)
}

// missing lists the slices of complete pools on which the view was not evaluated.
func (c *Cluster) missing(v *view) []*slice {
	switch {
	case v.tooExpensive() != "": // Nobody will ask.
		return nil
	case len(v.matches) == c.evaluable:
		return nil
	}
	var list []*slice
	for _, p := range c.pools {
		if !p.complete {
			continue
		}
		for _, s := range p.current {
			if v.matches[s] == nil {
				list = append(list, s)
			}
		}
	}
	return list
}

// tooExpensive names the selectors that take too long, if any do.
func (v *view) tooExpensive() string {
	switch {
	case v.ofClass().cost > viewCost:
		return fmt.Sprintf("the selectors of DeviceClass %s", v.class.Name)
	case v.cost > viewCost:
		return "spec.selectors"
	default:
		return ""
	}
}

// failure is the first error on a device: kube-scheduler would abort a pod that runs into it.
func (c *Cluster) failure(v *view) *selectorError {
	if v.failures == 0 {
		return nil
	}
	var first *selectorError
	for _, m := range v.matches {
		if m.err != nil && (first == nil || m.err.device.before(*first.device)) {
			first = m.err
		}
	}
	return first
}

func (d DeviceID) before(other DeviceID) bool {
	if d.Driver != other.Driver {
		return d.Driver < other.Driver
	}
	if d.Pool != other.Pool {
		return d.Pool < other.Pool
	}
	return d.Device < other.Device
}

// evaluate evaluates a view on slices, until the cost that is left is used up or the view is too
// expensive. Only what it reads and writes of the cluster is under the lock; a slice that was replaced
// in the meantime is left out.
func (c *Cluster) evaluate(ctx context.Context, v *view, list []*slice, left *uint64) {
	if v.base != nil {
		c.evaluate(ctx, v.base, list, left)
	}
	for _, s := range list {
		c.mutex.Lock()
		var class *matches
		if v.base != nil {
			class = v.base.matches[s]
		}
		skip := v.matches[s] != nil || v.base != nil && class == nil
		stop := *left == 0 || v.cost > viewCost
		c.mutex.Unlock()
		if skip {
			continue
		}
		if stop || ctx.Err() != nil {
			return
		}
		m := v.evaluate(ctx, c.cel, s, class)
		*left -= min(m.cost, *left)
		if ctx.Err() != nil {
			return // Not to be kept: an evaluation that was interrupted says nothing.
		}
		c.mutex.Lock()
		if p := c.pools[poolKey{s.object.Spec.Driver, s.object.Spec.Pool.Name}]; v.matches[s] == nil && p != nil && p.complete && slices.Contains(p.current, s) {
			v.add(s, m)
		}
		c.mutex.Unlock()
	}
}

// evaluate evaluates the view on a slice; class is the result of its base, if it has one. It stops when
// this alone makes the view too expensive.
func (v *view) evaluate(ctx context.Context, cache *cel.Cache, s *slice, class *matches) *matches {
	m := &matches{all: make([]bool, len(s.devices))}
	if m.class = m.all; class != nil {
		m.class, m.err = class.class, class.err
	}
	same := true
	for i, d := range s.devices {
		if class != nil && !class.class[i] {
			continue
		}
		selected, cost, err := evaluate(ctx, cache, v.selectors, d, v.prefix())
		m.cost += cost
		m.all[i] = selected
		same = same && selected
		if err != nil && m.err == nil {
			m.err = err
		}
		if m.cost > viewCost || ctx.Err() != nil {
			break
		}
	}
	if class != nil && same {
		m.all = class.class // Most selectors select all of a slice: keep it once.
	}
	return m
}

func (v *view) prefix() string {
	if v.base == nil {
		return fmt.Sprintf("DeviceClass %s: ", v.class.Name)
	}
	return ""
}

func (v *view) add(s *slice, m *matches) {
	v.matches[s] = v.once(m)
	v.cost += m.cost
	if m.err != nil {
		v.failures++
	}
	if v.base != nil {
		return
	}
	for i, d := range s.devices {
		if m.class[i] && d.kind != resourcemodel.TypeGPU {
			v.partitions++
		}
		if m.class[i] && d.attrID != "" {
			v.ids[d.attrID]++
			if v.ids[d.attrID] == 2 {
				v.repeated[d.attrID] = true
			}
		}
	}
}

// once returns matches that are equal and kept already, if there are any.
func (v *view) once(m *matches) *matches {
	if m.err != nil { // It names a device.
		return m
	}
	if at := slices.IndexFunc(v.recent, m.same); at >= 0 {
		return v.recent[at]
	}
	if len(v.recent) == recentMatches {
		v.recent = slices.Delete(v.recent, 0, 1)
	}
	v.recent = append(v.recent, m)
	return m
}

func (m *matches) same(o *matches) bool {
	return m.cost == o.cost && slices.Equal(m.class, o.class) && slices.Equal(m.all, o.all)
}

// dropMatches forgets what was evaluated on a slice.
func (c *Cluster) dropMatches(s *slice) {
	for _, v := range c.views {
		m := v.matches[s]
		if m == nil {
			continue
		}
		delete(v.matches, s)
		v.cost -= m.cost
		if m.err != nil {
			v.failures--
		}
		if v.base != nil {
			continue
		}
		for i, d := range s.devices {
			if m.class[i] && d.kind != resourcemodel.TypeGPU {
				v.partitions--
			}
			if !m.class[i] || d.attrID == "" {
				continue
			}
			switch v.ids[d.attrID]--; v.ids[d.attrID] {
			case 1:
				delete(v.repeated, d.attrID)
			case 0:
				delete(v.ids, d.attrID)
			}
		}
	}
}
