// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"context"
	"errors"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/utils/ptr"
)

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

func compile(cache *cel.Cache, s resourceapi.DeviceSelector, field string) *selectorError {
	if s.CEL == nil {
		return &selectorError{field: field, err: errors.New("is empty: only cel is known")}
	}
	if result := cache.GetOrCompile(s.CEL.Expression); result.Error != nil {
		return &selectorError{field: field, err: fmt.Errorf("does not compile: %w", result.Error)}
	}
	return nil
}

// costToCompile is what it costs to compile selectors that are new.
func costToCompile(selectors []resourceapi.DeviceSelector) uint64 {
	var cost uint64
	for _, s := range selectors {
		if s.CEL != nil {
			cost += compilationCost * uint64(len(s.CEL.Expression))
		}
	}
	return cost
}

// evaluate tells whether all selectors select the device, and what it cost to find out.
func evaluate(ctx context.Context, cache *cel.Cache, selectors []resourceapi.DeviceSelector, d *device, prefix string) (bool, uint64, *selectorError) {
	var cost uint64
	for i, s := range selectors {
		field := fmt.Sprintf("%sspec.selectors[%d].cel.expression", prefix, i)
		if err := compile(cache, s, field); err != nil {
			return false, cost, &selectorError{field: field, device: &d.id, err: err.err}
		}
		compiled := cache.GetOrCompile(s.CEL.Expression)
		matches, details, err := compiled.DeviceMatches(ctx, cel.Device{
			Driver:                   d.id.Driver,
			AllowMultipleAllocations: d.api.AllowMultipleAllocations,
			Attributes:               d.api.Attributes,
			Capacity:                 d.api.Capacity,
		})
		cost += evaluationCost
		if details != nil {
			cost += ptr.Deref(details.ActualCost(), 0)
		}
		if err != nil {
			return false, cost, &selectorError{field: field, device: &d.id, err: cel.EnhanceRuntimeError(err)}
		}
		if !matches {
			return false, cost, nil
		}
	}
	return true, cost, nil
}
