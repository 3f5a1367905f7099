// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
)

// Policy is what an administrator decides about sick GPUs. The zero value is the default: pods stay away
// from a GPU that is sick, and those that run are left alone.
type Policy struct {
	// EvictFatal has pods deleted that hold a GPU on which nothing can go on: one that is lost or asks to be
	// reset, after an XID that is fatal or with a recovery action other than draining.
	EvictFatal bool
	// XIDs says for some XIDs what they do, whatever the table and the GPU's recovery action say.
	XIDs map[uint64]Effect
}

// ParsePolicy returns the policy of the effect on GPUs on which nothing can go on, NoSchedule (or empty) or
// NoExecute, and of effects by XID in decimal. The error names every entry that is wrong.
func ParsePolicy(effect string, xids map[string]string) (Policy, error) {
	var policy Policy
	var errs []error
	switch effect {
	case "", NoSchedule.String():
	case NoExecute.String():
		policy.EvictFatal = true
	default:
		errs = append(errs, fmt.Errorf("effect %q is neither %s nor %s", effect, NoSchedule, NoExecute))
	}
	for _, text := range slices.Sorted(maps.Keys(xids)) {
		code, err := strconv.ParseUint(text, 10, 32)
		if err != nil || code == 0 || strconv.FormatUint(code, 10) != text {
			errs = append(errs, fmt.Errorf("XID %q is no number from 1", text))
			continue
		}
		effect, err := ParseEffect(xids[text])
		if err != nil {
			errs = append(errs, fmt.Errorf("XID %d: %w", code, err))
			continue
		}
		if policy.XIDs == nil {
			policy.XIDs = map[uint64]Effect{}
		}
		policy.XIDs[code] = effect
	}
	if err := errors.Join(errs...); err != nil {
		return Policy{}, err
	}
	return policy, nil
}

// XIDEffect returns what an XID does under the policy, as long as the GPU itself says nothing else.
func (p Policy) XIDEffect(code uint64) Effect {
	if effect, ok := p.XIDs[code]; ok {
		return effect
	}
	xid := Classify(code)
	switch xid.Class {
	case ClassApplication, ClassInformational:
		return Ignore
	case ClassDeferred:
		return Inform
	default:
		return p.sick(xid.Fatal)
	}
}

// sick returns the effect of a problem that takes a GPU out.
func (p Policy) sick(fatal bool) Effect {
	if fatal && p.EvictFatal {
		return NoExecute
	}
	return NoSchedule
}

// named reports whether the policy decides about an XID.
func (p Policy) named(code uint64) bool {
	_, ok := p.XIDs[code]
	return ok
}
