// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// allocatorFeatures are what kube-scheduler 1.37 enables by default.
var allocatorFeatures = structured.Features{
	AdminAccess:            true,
	ConsumableCapacity:     true,
	DeviceBindingAndStatus: true,
	DeviceTaints:           true,
	PartitionableDevices:   true,
	PrioritizedList:        true,
}

// ask puts a plan to kube-scheduler's allocator: the claims of the members of each node, one after the
// other, as the scheduler will, several nodes at a time. It returns the node on which the allocator does not allocate them, nil
// if that is not about a node, and why.
//
// The allocator gets the slices of this driver on the node. Devices of others cannot be allocated, by
// the first selector of the claim, and that the class's selectors have no error on them was checked.
func (p *planner) ask(ctx context.Context, plan *v1alpha1.GangPlan, spec resourceapi.ResourceClaimSpec) (*node, error) {
	ctx, cancel := context.WithTimeout(ctx, oracleTime)
	defer cancel()
	questions := questionsOf(plan)
	answers := make([]error, len(questions))
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "member", Namespace: "plan"}, Spec: spec}
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(questions)) {
		workers.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(questions); i = int(next.Add(1)) - 1 {
				answers[i] = p.askNode(ctx, questions[i], claim)
			}
		})
	}
	workers.Wait()
	for i, err := range answers {
		if err != nil {
			return p.nodes[questions[i].node], fmt.Errorf("kube-scheduler's allocator would not allocate the plan on node %s: %w", questions[i].node, err)
		}
	}
	return nil, nil
}

// question is what the allocator is asked about one node.
type question struct {
	node    string
	members int
	planned map[DeviceID]bool
}

// questionsOf splits a plan by node.
func questionsOf(plan *v1alpha1.GangPlan) []question {
	var questions []question
	for _, placement := range plan.Placements {
		if len(questions) == 0 || questions[len(questions)-1].node != placement.Node {
			questions = append(questions, question{node: placement.Node, planned: map[DeviceID]bool{}})
		}
		q := &questions[len(questions)-1]
		q.members += int(placement.Members)
		for _, d := range placement.Devices {
			q.planned[DeviceID{v1alpha1.DriverName, placement.Pool, d.Name}] = true
		}
	}
	return questions
}

// askNode is called for several nodes at once and must only read.
func (p *planner) askNode(ctx context.Context, q question, claim *resourceapi.ResourceClaim) error {
	n := p.nodes[q.node]
	state := structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	var resourceSlices []*resourceapi.ResourceSlice
	for _, pool := range n.pools {
		for _, s := range pool.all {
			resourceSlices = append(resourceSlices, s.withRules())
		}
		for _, d := range pool.devices {
			d.use.addTo(&state, d.id)
		}
	}
	for m := range q.members {
		allocator, err := structured.NewAllocator(ctx, allocatorFeatures, state, classLister{p.Cluster}, resourceSlices, p.cel)
		if err != nil {
			return err
		}
		results, err := allocator.Allocate(ctx, n.object, []*resourceapi.ResourceClaim{claim})
		switch {
		case err != nil:
			return err
		case len(results) != 1:
			return fmt.Errorf("member %d of %d gets no devices", m+1, q.members)
		}
		for _, result := range results[0].Devices.Results {
			id := DeviceID{result.Driver, result.Pool, result.Device}
			if !q.planned[id] {
				return fmt.Errorf("member %d of %d gets device %s, which is not planned", m+1, q.members, result.Device)
			}
			state.AllocatedDevices.Insert(structured.MakeDeviceID(result.Driver, result.Pool, result.Device))
		}
	}
	return nil
}

// addTo adds the allocations of a device to the allocator's state, as kube-scheduler does.
func (u *use) addTo(state *structured.AllocatedState, id DeviceID) {
	for _, held := range u.claims {
		for _, result := range held.object.Status.Allocation.Devices.Results {
			if (DeviceID{result.Driver, result.Pool, result.Device}) != id || ptr.Deref(result.AdminAccess, false) {
				continue
			}
			allocatorID := structured.MakeDeviceID(id.Driver, id.Pool, id.Device)
			if result.ShareID == nil {
				state.AllocatedDevices.Insert(allocatorID)
				continue
			}
			state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(allocatorID, result.ShareID))
			if result.ConsumedCapacity != nil {
				state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(allocatorID, result.ConsumedCapacity))
			}
		}
	}
}

var _ structured.DeviceClassLister = classLister{}
