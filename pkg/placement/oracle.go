// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
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

// questions is what the allocator is asked about a plan: a copy of all that it looks at.
type questions struct {
	claim *resourceapi.ResourceClaim
	class classes // of the claim, and no other
	cel   *cel.Cache
	nodes []*question
}

// question is what the allocator is asked about one node.
type question struct {
	node    *corev1.Node
	name    string
	members int
	planned map[DeviceID]bool
	slices  []*resourceapi.ResourceSlice
	state   structured.AllocatedState
	// kind is equal for nodes between which the allocator cannot tell a difference; empty for a node
	// that is like no other.
	kind string
}

// questions prepares what the allocator is asked: the claims of the members of each node, one after the
// other, as the scheduler will.
//
// The allocator gets the slices of this driver on the node. Devices of others cannot be allocated, by
// the first selector of the claim, and that the class's selectors have no error on them was checked.
func (c *Cluster) questions(v *view, plan *v1alpha1.GangPlan, spec resourceapi.ResourceClaimSpec) *questions {
	qs := &questions{
		claim: &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "member", Namespace: "plan"}, Spec: spec},
		class: classes{},
		cel:   c.cel,
	}
	if class := c.classes[spec.Devices.Requests[0].Exactly.DeviceClassName]; class != nil {
		qs.class[class.Name] = class
	}
	for _, placement := range plan.Placements {
		if len(qs.nodes) == 0 || qs.nodes[len(qs.nodes)-1].name != placement.Node {
			qs.nodes = append(qs.nodes, &question{name: placement.Node, planned: map[DeviceID]bool{}})
		}
		q := qs.nodes[len(qs.nodes)-1]
		q.members += int(placement.Members)
		for _, d := range placement.Devices {
			q.planned[DeviceID{v1alpha1.DriverName, placement.Pool, d.Name}] = true
		}
	}
	kinds := newKinds(v, plan)
	for _, q := range qs.nodes {
		n := c.nodes[q.name]
		q.node = n.object
		q.look(n)
		q.kind = kinds.of(n, q)
	}
	return qs
}

// look copies what the allocator looks at on a node.
func (q *question) look(n *node) {
	q.state = structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	for _, pool := range n.pools {
		for _, s := range pool.all {
			q.slices = append(q.slices, s.withRules())
		}
		for _, d := range pool.devices {
			d.use.addTo(&q.state, d.id)
		}
	}
}

// ask puts the questions to kube-scheduler's allocator, several at a time, and each kind once. It
// returns the node on which the allocator does not allocate the claims, and why.
func (qs *questions) ask(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, oracleTime)
	defer cancel()
	var different []*question
	known := map[string]bool{}
	for _, q := range qs.nodes {
		if q.kind == "" || !known[q.kind] {
			known[q.kind] = true
			different = append(different, q)
		}
	}
	answers := make([]error, len(different))
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(different)) {
		workers.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(different); i = int(next.Add(1)) - 1 {
				answers[i] = qs.askNode(ctx, different[i])
			}
		})
	}
	workers.Wait()
	for i, err := range answers {
		if err != nil {
			return different[i].name, fmt.Errorf("kube-scheduler's allocator would not allocate the plan on node %s: %w", different[i].name, err)
		}
	}
	return "", nil
}

// askNode is called for several nodes at once and must only read what they share.
func (qs *questions) askNode(ctx context.Context, q *question) error {
	for m := range q.members {
		allocator, err := structured.NewAllocator(ctx, allocatorFeatures, q.state, qs.class, q.slices, qs.cel)
		if err != nil {
			return err
		}
		results, err := allocator.Allocate(ctx, q.node, []*resourceapi.ResourceClaim{qs.claim})
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
			q.state.AllocatedDevices.Insert(structured.MakeDeviceID(result.Driver, result.Pool, result.Device))
		}
	}
	return nil
}

// addTo adds the allocations of a device to the allocator's state, as kube-scheduler does.
func (u *use) addTo(state *structured.AllocatedState, id DeviceID) {
	for _, held := range u.claims {
		if slices.Contains(u.left, held) {
			continue
		}
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

// classes are those that the allocator may read.
type classes map[string]*resourceapi.DeviceClass

var _ structured.DeviceClassLister = classes{}

func (c classes) List() ([]*resourceapi.DeviceClass, error) {
	return slices.SortedFunc(maps.Values(c), func(a, b *resourceapi.DeviceClass) int { return cmp.Compare(a.Name, b.Name) }), nil
}

func (c classes) Get(name string) (*resourceapi.DeviceClass, error) {
	if class := c[name]; class != nil {
		return class, nil
	}
	return nil, fmt.Errorf("DeviceClass %s does not exist", name)
}
