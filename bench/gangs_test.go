// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"
	"time"
)

func TestHeldBy(t *testing.T) {
	// at is what is held from a second on.
	at := func(second int, members map[string]int) heldAt {
		return heldAt{since: time.Duration(second) * time.Second, members: members}
	}
	for name, tc := range map[string]struct {
		observed []heldAt
		from     time.Duration
		want     held
	}{
		"nothing observed is nothing held": {want: held{}},
		"what is observed lasts until the next look": {
			observed: []heldAt{at(0, nil), at(2, map[string]int{"never": 3}), at(5, nil), at(9, nil)},
			want:     held{gpuSeconds: 3 * 3 * gpusPerDomain},
		},
		"what a gang held before it started does not count": {
			observed: []heldAt{at(0, map[string]int{"fits": 5, "fits-too": 1}), at(1, map[string]int{"fits": 6, "fits-too": 1}), at(2, nil)},
			want:     held{gpuSeconds: 2 * 1 * gpusPerDomain, started: 1},
		},
		"nothing counts after the window": {
			observed: []heldAt{at(10, map[string]int{"never": 1}), at(14, map[string]int{"never": 8}), at(16, nil)},
			want:     held{gpuSeconds: 2 * gpusPerDomain},
		},
		"past a deadline only the time after it counts": {
			observed: []heldAt{at(0, map[string]int{"never": 1}), at(4, map[string]int{"never": 2}), at(8, nil)},
			from:     3 * time.Second,
			want:     held{gpuSeconds: (1*1 + 4*2) * gpusPerDomain},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := heldBy(tc.observed, tc.from); got != tc.want {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
		})
	}
}
