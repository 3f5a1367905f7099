// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package defrag

import "time"

// MaxMoves is the largest number of pods that are ever moved for one gang.
const MaxMoves = 64

// Limits bound what is moved.
type Limits struct {
	// Moves is how many pods are moved for one gang, at most.
	Moves int
	// PerHour is how many evictions there are in an hour, in the cluster and, PerNamespaceHour, of the pods of one
	// namespace. Those that the API server refused do not count.
	PerHour, PerNamespaceHour int
	// Cooldown is how long a pod is left alone that came in place of one that was evicted, and one that the
	// API server refused to evict.
	Cooldown time.Duration
	// After is how long a gang waits for a place before pods are evicted for it.
	After time.Duration
	// GracePeriod is how long a pod may take to end, at most, to be moved.
	GracePeriod time.Duration
	// Preempt lets pods of a lower priority than the gang's be evicted even if there is no place for them elsewhere,
	// when the gang cannot have a place otherwise.
	Preempt bool
}

// DefaultLimits are the limits where nobody has set others.
func DefaultLimits() Limits {
	return Limits{
		Moves:            16,
		PerHour:          60,
		PerNamespaceHour: 20,
		Cooldown:         30 * time.Minute,
		After:            30 * time.Second,
		GracePeriod:      5 * time.Minute,
	}
}
