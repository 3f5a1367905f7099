// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"context"
	"errors"
	"fmt"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"
)

// maxViews is how many combinations of class and selectors keep their results.
const maxViews = 64

// viewKey names a class and selectors by their text.
type viewKey struct{ class, selectors string }

// view is which devices a class and further selectors select. What was evaluated on a slice stays until
// the slice or the class changes.
type view struct {
	key       viewKey
	class     *resourceapi.DeviceClass
	selectors []resourceapi.DeviceSelector
	matches   map[*slice]*matches
	// ids counts the attribute id among the devices of the class, repeated those that are there twice.
	ids      map[string]int
	repeated map[string]bool
	lastUsed int64
	// checked says that the API server accepts the selectors in a claim.
	checked bool
}

// matches are the results on a slice, device by device.
type matches struct {
	class []bool
	all   []bool // class and selectors
	err   *selectorError
}

// selectorError says which selector fails, on which device if it compiles.
type selectorError struct {
	field  string
	device *DeviceID
	err    error
}

func (e *selectorError) Error() string {
	if e.device == nil {
		return fmt.Sprintf("%s %v", e.field, e.err)
	}
	return fmt.Sprintf("%s fails on device %s of pool %s (%s): %v", e.field, e.device.Device, e.device.Pool, e.device.Driver, e.err)
}

// view returns the view of a class and selectors.
func (c *Cluster) view(class *resourceapi.DeviceClass, selectors []resourceapi.DeviceSelector) *view {
	var key strings.Builder
	for _, s := range selectors {
		if s.CEL != nil {
			key.WriteString(s.CEL.Expression)
		}
		key.WriteByte(0)
	}
	k := viewKey{class.Name, key.String()}
	v := c.views[k]
	if v == nil || v.class != class {
		v = &view{key: k, class: class, selectors: selectors, matches: map[*slice]*matches{}, ids: map[string]int{}, repeated: map[string]bool{}}
		c.views[k] = v
	}
	c.viewUses++
	v.lastUsed = c.viewUses
	c.dropOldestView()
	return v
}

func (c *Cluster) dropOldestView() {
	if len(c.views) <= maxViews {
		return
	}
	var oldest *view
	for _, v := range c.views {
		if oldest == nil || v.lastUsed < oldest.lastUsed {
			oldest = v
		}
	}
	delete(c.views, oldest.key)
}

// check compiles the selectors, then evaluates them where that has not happened, and returns the first
// failure: kube-scheduler would abort a pod that runs into it.
func (c *Cluster) check(ctx context.Context, v *view) *selectorError {
	for i, s := range v.class.Spec.Selectors {
		if err := c.compile(s, fmt.Sprintf("DeviceClass %s: spec.selectors[%d].cel.expression", v.class.Name, i)); err != nil {
			return err
		}
	}
	for i, s := range v.selectors {
		field := fmt.Sprintf("spec.selectors[%d].cel.expression", i)
		if err := c.compile(s, field); err != nil {
			return err
		}
		if v.checked {
			continue
		}
		if err := checkExpression(s.CEL.Expression); err != nil {
			return &selectorError{field: field, err: err}
		}
	}
	v.checked = true
	var first *selectorError
	for _, p := range c.pools {
		if !p.complete {
			continue
		}
		for _, s := range p.current {
			if m := c.match(ctx, v, s); m.err != nil && (first == nil || m.err.device.before(*first.device)) {
				first = m.err
			}
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

func (c *Cluster) compile(s resourceapi.DeviceSelector, field string) *selectorError {
	if s.CEL == nil {
		return &selectorError{field: field, err: errors.New("is empty: only cel is known")}
	}
	if result := c.cel.GetOrCompile(s.CEL.Expression); result.Error != nil {
		return &selectorError{field: field, err: fmt.Errorf("does not compile: %w", result.Error)}
	}
	return nil
}

// match returns which devices of the slice are selected.
func (c *Cluster) match(ctx context.Context, v *view, s *slice) *matches {
	if m := v.matches[s]; m != nil {
		return m
	}
	m := &matches{class: make([]bool, len(s.devices)), all: make([]bool, len(s.devices))}
	for i, d := range s.devices {
		inClass, err := c.evaluate(ctx, v.class.Spec.Selectors, d, fmt.Sprintf("DeviceClass %s: ", v.class.Name))
		if err == nil && inClass {
			m.class[i] = true
			m.all[i], err = c.evaluate(ctx, v.selectors, d, "")
		}
		if err != nil && m.err == nil {
			m.err = err
		}
	}
	if ctx.Err() != nil {
		return m // Not to be kept: an evaluation that was interrupted says nothing.
	}
	v.matches[s] = m
	for i, d := range s.devices {
		if m.class[i] && d.attrID != "" {
			v.ids[d.attrID]++
			if v.ids[d.attrID] == 2 {
				v.repeated[d.attrID] = true
			}
		}
	}
	return m
}

func (c *Cluster) evaluate(ctx context.Context, selectors []resourceapi.DeviceSelector, d *device, prefix string) (bool, *selectorError) {
	for i, s := range selectors {
		field := fmt.Sprintf("%sspec.selectors[%d].cel.expression", prefix, i)
		if err := c.compile(s, field); err != nil {
			return false, &selectorError{field: field, device: &d.id, err: err.err}
		}
		compiled := c.cel.GetOrCompile(s.CEL.Expression)
		matches, _, err := compiled.DeviceMatches(ctx, cel.Device{
			Driver:                   d.id.Driver,
			AllowMultipleAllocations: d.api.AllowMultipleAllocations,
			Attributes:               d.api.Attributes,
			Capacity:                 d.api.Capacity,
		})
		if err != nil {
			return false, &selectorError{field: field, device: &d.id, err: cel.EnhanceRuntimeError(err)}
		}
		if !matches {
			return false, nil
		}
	}
	return true, nil
}

// dropMatches forgets what was evaluated on a slice.
func (c *Cluster) dropMatches(s *slice) {
	for _, v := range c.views {
		m := v.matches[s]
		if m == nil {
			continue
		}
		delete(v.matches, s)
		for i, d := range s.devices {
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

// classLister lets the allocator read the classes.
type classLister struct{ c *Cluster }

func (l classLister) List() ([]*resourceapi.DeviceClass, error) {
	var classes []*resourceapi.DeviceClass
	for _, class := range l.c.classes {
		classes = append(classes, class)
	}
	return classes, nil
}

func (l classLister) Get(name string) (*resourceapi.DeviceClass, error) {
	if class := l.c.classes[name]; class != nil {
		return class, nil
	}
	return nil, fmt.Errorf("DeviceClass %s does not exist", name)
}
