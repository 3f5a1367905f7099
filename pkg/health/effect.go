// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"fmt"
	"slices"
)

// Effect is what a problem of a GPU does, from nothing to the worst.
type Effect int

// The effects. All but Ignore are those of a device taint (KEP-5055).
const (
	// Ignore says nothing about the GPU.
	Ignore Effect = iota
	// Inform shows the problem and keeps nobody away: the taint effect None.
	Inform
	// NoSchedule keeps new pods away and leaves running ones alone.
	NoSchedule
	// NoExecute keeps new pods away and has Kubernetes delete those that run.
	NoExecute
)

var effectNames = []string{"Ignore", "None", "NoSchedule", "NoExecute"}

// String returns the name that ParseEffect takes.
func (e Effect) String() string {
	if e < 0 || int(e) >= len(effectNames) {
		return fmt.Sprintf("Effect(%d)", int(e))
	}
	return effectNames[e]
}

// ParseEffect returns the effect of a name: Ignore, None, NoSchedule or NoExecute.
func ParseEffect(name string) (Effect, error) {
	if i := slices.Index(effectNames, name); i >= 0 {
		return Effect(i), nil
	}
	return Ignore, fmt.Errorf("effect %q is none of %q", name, effectNames)
}
