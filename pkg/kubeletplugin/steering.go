// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/utils/clock"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/resourcemodel"
)

const (
	// fenceMaking is how long no free count changes after a gang's fence has appeared on this node: it is
	// touched 100 ms later, and within ten seconds the scheduler has decided for those that it saw before it.
	fenceMaking = 15 * time.Second
	// fenceEnding is the same after a fence has lost its effect, or is gone: it is deleted a second after that.
	fenceEnding = 3 * time.Second
)

// steering says in the node's slices how many GPUs are free, when that may be written. Every write of a slice
// wakes the pods that wait for a device, and one that meets a change of a DeviceTaintRule can hide that from the
// scheduler: so free counts are written once in a while only, and not while a fence is being made or taken down.
// What must be published at once, such as a sick GPU, is, with the free counts as they were.
type steering struct {
	interval time.Duration
	clock    clock.WithTicker
	// inUse are the devices that claims have now.
	inUse func() map[string]bool
	// due has discovery publish again, and so has timer, at the time waiting. The latter two belong to discovery.
	due     chan struct{}
	timer   <-chan time.Time
	waiting time.Time

	mu sync.Mutex
	// published is what the free counts were last computed from, changed when; quiet is until when they must
	// not change.
	published map[string]bool
	changed   time.Time
	quiet     time.Time
	// fences are those of this node, by UID, and whether they have an effect. Until they are known free counts do not
	// change.
	fences      map[types.UID]bool
	fencesKnown bool
}

// newSteering returns nil where steering is off.
func newSteering(interval time.Duration, clk clock.WithTicker, inUse func() map[string]bool) *steering {
	if interval <= 0 {
		return nil
	}
	return &steering{interval: interval, clock: clk, inUse: inUse, due: make(chan struct{}, 1), fences: map[types.UID]bool{}}
}

// steer adds the free counts that may be published now.
func (s *steering) steer(resources resourceslice.DriverResources) resourceslice.DriverResources {
	if s == nil {
		return resources
	}
	now := s.clock.Now()
	inUse := s.inUse()
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.changed.Add(s.interval)
	if s.quiet.After(at) {
		at = s.quiet
	}
	switch {
	case s.published == nil: // what this process publishes first is what the one before it did, if nothing has changed
		s.published, s.changed = inUse, now
	case maps.Equal(inUse, s.published) || !s.fencesKnown:
	case now.Before(at):
		s.wakeAt(now, at)
	default:
		s.published, s.changed = inUse, now
	}
	return resourcemodel.WithFree(resources, s.published)
}

// wakeAt has discovery publish at a time, unless it does already.
func (s *steering) wakeAt(now, at time.Time) {
	if s.waiting.After(now) && !s.waiting.After(at) {
		return
	}
	s.waiting = at
	s.timer = s.clock.After(at.Sub(now))
}

// wake has discovery publish.
func (s *steering) wake() {
	if s == nil {
		return
	}
	select {
	case s.due <- struct{}{}:
	default: // it will anyway
	}
}

// again is how discovery hears that something has changed, later that it may be published now; never, where
// steering is off.
func (s *steering) again() <-chan struct{} {
	if s == nil {
		return nil
	}
	return s.due
}

func (s *steering) later() <-chan time.Time {
	if s == nil {
		return nil
	}
	return s.timer
}

// seeFence notes a fence of a gang on this node, and that it may be gone.
func (s *steering) seeFence(rule *resourceapi.DeviceTaintRule, gone bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	had, known := s.fences[rule.UID]
	has := !gone && rule.DeletionTimestamp == nil && rule.Spec.Taint.Effect != resourceapi.DeviceTaintEffectNone
	var quiet time.Duration
	switch {
	case gone:
		delete(s.fences, rule.UID)
		quiet = fenceEnding
	case has && !had:
		quiet = fenceMaking
	case !has && (had || !known):
		quiet = fenceEnding
	}
	if !gone {
		s.fences[rule.UID] = has
	}
	if until := s.clock.Now().Add(quiet); quiet > 0 && until.After(s.quiet) {
		s.quiet = until
	}
}

// knowFences notes that the fences that there are have been seen.
func (s *steering) knowFences() {
	s.mu.Lock()
	s.fencesKnown = true
	s.mu.Unlock()
	s.wake()
}

// watchFences follows the fences of gangs on this node until ctx ends. The free counts do not change before they
// are known.
func (d *Driver) watchFences(ctx context.Context) {
	s := d.steering
	if s == nil {
		return
	}
	factory := informers.NewSharedInformerFactoryWithOptions(d.config.KubeClient, 0,
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = v1alpha1.GangLabel }))
	informer := factory.Resource().V1().DeviceTaintRules().Informer()
	see := func(object any, gone bool) {
		if tombstone, ok := object.(cache.DeletedFinalStateUnknown); ok {
			object = tombstone.Obj
		}
		if rule, ok := object.(*resourceapi.DeviceTaintRule); ok && concerns(rule, d.config.NodeName) {
			s.seeFence(rule, gone)
		}
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { see(o, false) },
		UpdateFunc: func(_, o any) { see(o, false) },
		DeleteFunc: func(o any) { see(o, true) },
	})
	if err != nil {
		d.fail(fmt.Errorf("watch the fences of gangs: %w", err))
		return
	}
	factory.StartWithContext(ctx)
	if cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		s.knowFences()
	}
	<-ctx.Done()
	factory.Shutdown()
}

// concerns says whether a rule is about devices of the node's pool.
func concerns(rule *resourceapi.DeviceTaintRule, node string) bool {
	selector := rule.Spec.DeviceSelector
	return selector == nil || selector.Pool == nil || *selector.Pool == node
}
