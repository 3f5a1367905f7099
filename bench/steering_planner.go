// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// planSteering is what the planner alone reaches, without a scheduler and at no time: every pod is planned as a gang
// of one.
func planSteering(ctx context.Context, steps []trafficStep, samples Samples) {
	c := newPlannerCluster(steeringNodes, 0, rand.New(rand.NewPCG(1, 1)))
	claims := map[int]*resourceapi.ResourceClaim{}
	rejected, full := 0, false
	for _, step := range steps {
		full = full || len(step.leave) > 0
		for _, number := range step.leave {
			if claim := claims[number]; claim != nil {
				key := types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}
				c.DeleteClaim(key)
				c.DeletePod(key)
				delete(claims, number)
			}
		}
		for _, a := range step.arrive {
			plan := planOne(ctx, c, a)
			if plan == nil {
				rejected += a.gpus
				continue
			}
			var devices []string
			for _, p := range plan.Placements {
				for _, d := range p.Devices {
					devices = append(devices, d.Name)
				}
			}
			claims[a.number] = c.claim(plan.Placements[0].Node, devices...)
		}
		if full {
			c.free(claims).sample(samples, plannerSide)
		}
	}
	c.free(claims).end(samples, plannerSide, float64(rejected)/gpusAskedFor(steps))
}

func planOne(ctx context.Context, c *plannerCluster, a arrival) *v1alpha1.GangPlan {
	scope := v1alpha1.MemberNVSwitchDomain
	if a.gpus > gpusPerDomain {
		scope = v1alpha1.MemberNode
	}
	return c.Plan(ctx, []placement.Gang{gangToPlan(fmt.Sprintf("pod-%d", a.number), 1, int32(a.gpus), scope)})[0].Plan
}

// free measures what the claims leave.
func (c *plannerCluster) free(claims map[int]*resourceapi.ResourceClaim) freeGPUs {
	used := map[string][2]int{}
	for _, claim := range claims {
		for _, r := range claim.Status.Allocation.Devices.Results {
			n := used[r.Pool]
			n[slices.Index(c.devices[r.Pool], r.Device)/gpusPerDomain]++
			used[r.Pool] = n
		}
	}
	var nodes [][2]int
	for node := range c.devices {
		nodes = append(nodes, used[node])
	}
	return measureFree(nodes)
}
