// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/test/cluster"
)

// makeRoom shows how one pod moves so that a gang has a place: the GPUs of node-b's first domain but for one are
// free, and enough elsewhere for that one.
func (d *demo) makeRoom(ctx context.Context) (string, []string, error) {
	for name, prefix := range map[string]string{"gang-jobset": "pretrain", "gang-deployment": "serve"} {
		if err := d.delete(ctx, name, prefix); err != nil {
			return "", nil, err
		}
	}
	if err := d.cluster.Apply(ctx, "demo/manifests/movable.yaml"); err != nil {
		return "", nil, err
	}
	p, err := d.wait(ctx, "web to have a GPU", func(p picture) bool { return len(p.of("web-")) == 1 })
	if err != nil {
		return "", nil, err
	}
	if err := d.check(slices.Equal(p.of("web-").domains(), []string{"node-b.0"}), "web is in node-b.0, is in %v", p.of("web-").domains()); err != nil {
		return "", nil, err
	}
	if err := d.cluster.Apply(ctx, "demo/manifests/gang-evict.yaml"); err != nil {
		return "", nil, err
	}
	claim, err := d.waitGang(ctx, "finetune", "say what would have to move", func(c *v1alpha1.GangClaim) bool {
		return meta.IsStatusConditionTrue(c.Status.Conditions, v1alpha1.ConditionRoomCanBeMade)
	})
	if err != nil {
		return "", nil, err
	}
	plan := meta.FindStatusCondition(claim.Status.Conditions, v1alpha1.ConditionRoomCanBeMade).Message
	if err := d.check(strings.Contains(plan, "demo/web-"), "the plan names the pod that has to move: %s", plan); err != nil {
		return "", nil, err
	}
	details := append(p.draw("web-"), "▣ = a pod that may be moved, in the way of a gang of 2 × 4", faint.Render(plan), "It moves:")
	if _, err := d.gangRuns(ctx, "finetune", 2, 4); err != nil {
		return "", nil, err
	}
	if err := d.cluster.Until(ctx, patience, "the pod that was moved to run again", func(ctx context.Context) (bool, error) {
		pods, err := d.cluster.Pods(ctx, "demo", "app=web")
		return len(pods) == 1 && cluster.Running(&pods[0]), err
	}); err != nil {
		return "", nil, err
	}
	if p, err = d.picture(ctx); err != nil {
		return "", nil, err
	}
	if err := d.check(slices.Equal(p.of("web-").domains(), []string{"node-b.1"}), "web is in node-b.1 now, is in %v", p.of("web-").domains()); err != nil {
		return "", nil, err
	}
	claim, err = d.waitGang(ctx, "finetune", "account for its evictions", func(c *v1alpha1.GangClaim) bool {
		return len(c.Status.Evictions) == 1 && c.Status.Evictions[0].Outcome == v1alpha1.EvictionSucceeded
	})
	if err != nil {
		return "", nil, err
	}
	if err := d.check(len(claim.Status.Evictions) == 1, "one pod was evicted, and the gang started"); err != nil {
		return "", nil, err
	}
	return "a gang with defragmentation: Evict: one pod moves, both members start", append(details, p.draw("finetune-")...), nil
}
