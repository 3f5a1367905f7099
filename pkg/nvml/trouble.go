// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"maps"
	"slices"
	"time"
)

const (
	// minTroublePause and maxTroublePause bound the pauses after which NVML is left again because the same
	// GPUs are in trouble. They double, so that a GPU is found to be back at the latest when it has been
	// away for about twice as long, or five minutes later.
	minTroublePause = time.Second
	maxTroublePause = 5 * time.Minute
)

// trouble decides when NVML is left, to be initialised anew, because of GPUs in trouble. Leaving it makes the
// node deaf to events for a moment.
type trouble struct {
	// listed are the UUIDs of all GPUs that NVML has listed: it does not list a lost one after it was
	// initialised anew.
	listed map[string]bool
	// gpus is when each GPU was last in trouble.
	gpus map[string]time.Time
	// pause is the one that ends at next.
	pause time.Duration
	next  time.Time
}

// leave reports whether NVML is to be left after a look that listed some GPUs and found some in trouble.
//
// A GPU that is well again is remembered for a while: one that is so by turns is not a new trouble each time.
func (t *trouble) leave(now time.Time, listed, troubled []string) bool {
	if t.listed == nil {
		t.listed, t.gpus = map[string]bool{}, map[string]time.Time{}
	}
	for _, gpu := range listed {
		t.listed[gpu] = true
	}
	for gpu := range t.listed {
		if !slices.Contains(listed, gpu) {
			troubled = append(troubled, gpu)
		}
	}
	maps.DeleteFunc(t.gpus, func(_ string, last time.Time) bool { return now.Sub(last) > maxTroublePause })
	isNew := false
	for _, gpu := range troubled {
		_, known := t.gpus[gpu]
		isNew = isNew || !known
		t.gpus[gpu] = now
	}
	switch {
	case isNew:
		t.pause = minTroublePause
	case len(troubled) == 0 || now.Before(t.next):
		return false
	default:
		t.pause = min(2*t.pause, maxTroublePause)
	}
	t.next = now.Add(t.pause)
	return true
}
