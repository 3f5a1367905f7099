// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package defrag

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// history are the evictions of the past, as the status of GangClaims tells them. It outlives GangClaims that are
// deleted: making one anew gives nobody a new budget. Only a restart of the controller forgets those.
type history struct {
	// keep is how long an eviction matters.
	keep time.Duration
	list map[evictionKey]v1alpha1.GangEviction
}

// evictionKey tells evictions apart: a pod is evicted at one time only.
type evictionKey struct {
	gang types.UID
	pod  string
	at   int64
}

func newHistory(l Limits) history {
	return history{keep: max(time.Hour, l.Cooldown), list: map[evictionKey]v1alpha1.GangEviction{}}
}

// note adds what a GangClaim's status tells, and forgets what is over.
func (h history) note(claim *v1alpha1.GangClaim, now time.Time) {
	for _, e := range claim.Status.Evictions {
		if now.Sub(e.Time.Time) <= h.keep { // a later outcome replaces an earlier one
			h.list[evictionKey{claim.UID, e.Namespace + "/" + e.Pod, e.Time.UnixMicro()}] = e
		}
	}
	for key, e := range h.list {
		if now.Sub(e.Time.Time) > h.keep {
			delete(h.list, key)
		}
	}
}

// recent are the evictions within a time.
func (h history) recent(within time.Duration, now time.Time) []v1alpha1.GangEviction {
	var list []v1alpha1.GangEviction
	for _, e := range h.list {
		if now.Sub(e.Time.Time) < within {
			list = append(list, e)
		}
	}
	slices.SortFunc(list, func(a, b v1alpha1.GangEviction) int { return a.Time.Compare(b.Time.Time) })
	return list
}
