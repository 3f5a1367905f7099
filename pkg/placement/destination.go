// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

// destination is a node to which victims would go, as the allocator is to see it.
type destination struct {
	question
	claims  []*claim
	cel     *cel.Cache
	classes classes
	domains map[DeviceID]string
}

var errNoDevice = errors.New("none is free")

// destinations are the nodes to which victims go.
func (c *Cluster) destinations(moves []Destination) []*destination {
	var list []*destination
	for _, m := range moves {
		if m.Node == "" {
			continue
		}
		at := slices.IndexFunc(list, func(d *destination) bool { return d.name == m.Node })
		if at < 0 {
			list = append(list, c.destination(m.Node, moves))
			at = len(list) - 1
		}
		list[at].claims = append(list[at].claims, m.held)
	}
	return list
}

// destination copies what the allocator looks at on a node: with the devices of the gang and of everyone who has
// or is planned to have one, but not the destinations of the victims.
func (c *Cluster) destination(name string, moves []Destination) *destination {
	n := c.nodes[name]
	at := &destination{question: question{name: name, node: n.object}, cel: c.cel, classes: maps.Clone(c.classes), domains: map[DeviceID]string{}}
	at.look(n)
	for _, p := range n.pools {
		for _, d := range p.devices {
			if d.domain != nil {
				at.domains[d.id] = d.domain.name
			}
			goal := slices.ContainsFunc(moves, func(m Destination) bool { return m.To == d.id })
			if !goal && (d.use.planned || len(d.use.reserved) > 0) {
				at.state.AllocatedDevices.Insert(structured.MakeDeviceID(d.id.Driver, d.id.Pool, d.id.Device))
			}
		}
	}
	return at
}

// ask has the victims' claims allocated on the node, one after the other, and notes which devices they get.
func (at *destination) ask(ctx context.Context, t *Trial) *Obstacle {
	ctx, cancel := context.WithTimeout(ctx, oracleTime)
	defer cancel()
	for _, held := range at.claims {
		i := slices.IndexFunc(t.Moves, func(m Destination) bool { return m.held == held })
		got, err := at.allocate(ctx, held.object)
		if err != nil {
			return &Obstacle{Victim: &t.Moves[i].Resident, Interrupted: ctx.Err() != nil, Why: fmt.Sprintf(
				"kube-scheduler's allocator finds no device for it on node %s: %v", at.name, err)}
		}
		t.Moves[i].To, t.Moves[i].Domain = got, at.domains[got]
	}
	return nil
}

func (at *destination) allocate(ctx context.Context, object *resourceapi.ResourceClaim) (DeviceID, error) {
	claim := object.DeepCopy()
	claim.Status = resourceapi.ResourceClaimStatus{}
	allocator, err := structured.NewAllocator(ctx, allocatorFeatures, at.state, at.classes, at.slices, at.cel)
	if err != nil {
		return DeviceID{}, err
	}
	results, err := allocator.Allocate(ctx, at.node, []*resourceapi.ResourceClaim{claim})
	if err != nil {
		return DeviceID{}, err
	}
	if len(results) != 1 || len(results[0].Devices.Results) != 1 {
		return DeviceID{}, errNoDevice
	}
	got := results[0].Devices.Results[0]
	at.state.AllocatedDevices.Insert(structured.MakeDeviceID(got.Driver, got.Pool, got.Device))
	return DeviceID{got.Driver, got.Pool, got.Device}, nil
}
