// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"cmp"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// Labelled are objects that carry GangLabel, of any gang.
type Labelled struct {
	Now       time.Time
	Templates []*resourceapi.ResourceClaimTemplate
	Claims    []*resourceapi.ResourceClaim
	Rules     []*resourceapi.DeviceTaintRule
	// Pods are the pods for which Claims were generated.
	Pods []*corev1.Pod
}

// Orphans says what to do with objects of gangs whose GangClaim is gone, or was replaced by one with
// another UID: they are removed in the order in which a plan is taken back, gang by gang. Members that run
// keep their claims. exists must be asked of the API server, or of a cache that is known to be complete.
// It is to be called again after requeueAfter, when that is not 0.
func Orphans(in Labelled, exists func(types.UID) bool) (actions []Action, requeueAfter time.Duration) {
	pods := map[types.UID]*corev1.Pod{}
	for _, p := range in.Pods {
		pods[p.UID] = p
	}
	type orphan struct {
		leftovers
		templates []*resourceapi.ResourceClaimTemplate
	}
	gangs := map[types.UID]*orphan{}
	of := func(labels map[string]string) *orphan {
		uid := types.UID(labels[v1alpha1.GangLabel])
		if uid == "" || exists(uid) {
			return nil
		}
		if gangs[uid] == nil {
			gangs[uid] = &orphan{leftovers: leftovers{now: in.Now, pods: pods}}
		}
		return gangs[uid]
	}
	for _, t := range in.Templates {
		if g := of(t.Labels); g != nil {
			g.templates = append(g.templates, t)
		}
	}
	for _, c := range in.Claims {
		if g := of(c.Labels); g != nil && !ready(c) {
			g.claims = append(g.claims, c)
		}
	}
	for _, r := range in.Rules {
		if g := of(r.Labels); g != nil {
			g.rules = append(g.rules, r)
		}
	}
	for _, uid := range slices.SortedFunc(maps.Keys(gangs), cmp.Compare[types.UID]) {
		g := gangs[uid]
		for _, t := range g.templates {
			actions = append(actions, DeleteTemplate{ref(t)})
		}
		if len(g.templates) > 0 {
			continue
		}
		more, wait, _ := g.sweep()
		actions = append(actions, more...)
		if wait > 0 && (requeueAfter == 0 || wait < requeueAfter) {
			requeueAfter = wait
		}
	}
	return actions, requeueAfter
}
