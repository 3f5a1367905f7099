// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/switchyard-dev/switchyard/pkg/resourcemodel"
)

// steeringPublisher stands in for the node plugins of all nodes: it publishes what their claims leave free.
type steeringPublisher struct {
	api     kubernetes.Interface
	publish steeringPublication
	queue   workqueue.TypedDelayingInterface[string] // of nodes
	done    sync.WaitGroup

	mu      sync.Mutex
	slices  map[string]*resourceapi.ResourceSlice // by node, as the API server has them
	plain   map[string][]resourceapi.Device       // by node, with nothing about what is free
	place   map[string]place                      // by device
	inUse   map[string]map[string]bool            // by node and device
	written map[string]time.Time
	writes  int
	busy    int
	err     error
}

// place is where a device is: its node, and which of the node's domains.
type place struct {
	node   string
	domain int
}

// newSteeringPublisher takes over the slices of a cluster without claims.
func newSteeringPublisher(ctx context.Context, client kubernetes.Interface, publish steeringPublication) (*steeringPublisher, error) {
	p := &steeringPublisher{
		api: client, publish: publish, queue: workqueue.NewTypedDelayingQueue[string](),
		slices: map[string]*resourceapi.ResourceSlice{}, plain: map[string][]resourceapi.Device{}, place: map[string]place{},
		inUse: map[string]map[string]bool{}, written: map[string]time.Time{},
	}
	list, err := client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		slice := &list.Items[i]
		node := slice.Spec.Pool.Name
		p.slices[node], p.inUse[node] = slice, map[string]bool{}
		devices := slice.DeepCopy().Spec.Devices
		slices.SortFunc(devices, func(a, b resourceapi.Device) int {
			return int(*a.Attributes["index"].IntValue - *b.Attributes["index"].IntValue)
		})
		for at, d := range devices {
			delete(d.Attributes, resourcemodel.AttributeNVSwitchDomainFree)
			delete(d.Attributes, resourcemodel.AttributeNodeWhole)
			p.place[d.Name] = place{node, at / gpusPerDomain}
		}
		p.plain[node] = devices
	}
	nodes := make([]string, 0, len(p.slices))
	for node := range p.slices {
		nodes = append(nodes, node)
	}
	if err := inParallel(len(nodes), func(i int) error { return p.write(ctx, nodes[i]) }); err != nil {
		return nil, err
	}
	p.writes = 0
	clear(p.written)
	for range 8 {
		p.done.Go(func() { p.work(ctx) })
	}
	return p, nil
}

func (p *steeringPublisher) stop() {
	p.queue.ShutDown()
	p.done.Wait()
}

// set notes that devices are in use, or not any more.
func (p *steeringPublisher) set(devices []string, inUse bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, d := range devices {
		node := p.place[d].node
		if delete(p.inUse[node], d); inUse {
			p.inUse[node][d] = true
		}
		switch p.publish {
		case orderByFree:
			p.queue.Add(node)
		case freeCounts:
			p.queue.AddAfter(node, time.Until(p.written[node].Add(steeringInterval)))
		}
	}
}

// used says how many devices are in use, and whether all that is due is published.
func (p *steeringPublisher) used() (devices int, published bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, list := range p.inUse {
		devices += len(list)
	}
	return devices, p.busy == 0 && p.queue.Len() == 0, p.err
}

func (p *steeringPublisher) measure() freeGPUs {
	p.mu.Lock()
	defer p.mu.Unlock()
	var nodes [][2]int
	for node := range p.inUse {
		nodes = append(nodes, p.counts(node))
	}
	return measureFree(nodes)
}

// counts says how many devices of each domain of a node are in use.
func (p *steeringPublisher) counts(node string) (inUse [2]int) {
	for d := range p.inUse[node] {
		inUse[p.place[d].domain]++
	}
	return inUse
}

func (p *steeringPublisher) work(ctx context.Context) {
	for {
		node, ended := p.queue.Get()
		if ended {
			return
		}
		p.mu.Lock()
		p.busy++
		p.mu.Unlock()
		err := p.write(ctx, node)
		p.mu.Lock()
		p.busy--
		if ctx.Err() == nil {
			p.err = errors.Join(p.err, err)
		}
		p.mu.Unlock()
		p.queue.Done(node)
	}
}

// write publishes a node, if there is something new.
func (p *steeringPublisher) write(ctx context.Context, node string) error {
	p.mu.Lock()
	slice := p.slices[node].DeepCopy()
	slice.Spec.Devices = p.devices(node)
	same := equality.Semantic.DeepEqual(slice.Spec.Devices, p.slices[node].Spec.Devices)
	p.mu.Unlock()
	if same {
		return nil
	}
	slice, err := p.api.ResourceV1().ResourceSlices().Update(ctx, slice, metav1.UpdateOptions{})
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.slices[node] = slice
	p.written[node] = time.Now()
	p.writes++
	return nil
}

// devices are what a node publishes of what is free now.
func (p *steeringPublisher) devices(node string) []resourceapi.Device {
	devices := p.plain[node]
	switch p.publish {
	case orderByFree:
		if in := p.counts(node); in[0] == gpusPerDomain || in[1] < gpusPerDomain && in[1] > in[0] {
			devices = slices.Concat(devices[gpusPerDomain:], devices[:gpusPerDomain])
		}
	case freeCounts:
		resources := resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{node: {Slices: []resourceslice.Slice{{Devices: devices}}}}}
		devices = resourcemodel.WithFree(resources, p.inUse[node]).Pools[node].Slices[0].Devices
	}
	return devices
}
