// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/utils/clock"
)

// celFeatures are those of CEL selectors that are on by default in Kubernetes 1.37.
var celFeatures = cel.Features{EnableConsumableCapacity: true}

// compiledExpressions is how many CEL expressions stay compiled: those of classes and of the gangs that
// wait. kube-scheduler keeps 10.
const compiledExpressions = 256

// Cluster is what the planner knows: an index that follows the objects of the API server. Setting an
// object costs as much as the object is large; nothing is evaluated twice that did not change. It is
// safe for concurrent use.
//
// Objects belong to whoever sets them and must not change afterwards, as those of informers.
type Cluster struct {
	// planning is held for a call of Plan, mutex for as long as the index is read or written: not while
	// selectors are evaluated or the allocator is asked.
	planning, mutex sync.Mutex
	clock           clock.PassiveClock

	cel   *cel.Cache
	views map[viewKey]*view
	// viewLimit is how many views are kept, viewUses numbers their uses, planStart is the last one
	// before the call of Plan.
	viewLimit           int
	viewUses, planStart int64
	attempts            int64
	classes             map[string]*resourceapi.DeviceClass

	slices  map[string]*slice
	pools   map[poolKey]*pool
	devices map[DeviceID]*device
	domains map[string]*domain
	// evaluable is how many slices selectors are evaluated on: those of the complete pools.
	evaluable int

	claims map[types.NamespacedName]*claim
	uses   map[DeviceID]*use

	rules     map[string]*resourceapi.DeviceTaintRule
	poolRules map[poolKey]map[string]*resourceapi.DeviceTaintRule
	wideRules map[string]*resourceapi.DeviceTaintRule

	nodes map[string]*node
	// sortedNodes are the nodes by name.
	sortedNodes []*node
	pods        map[types.NamespacedName]*pod
	unbound     map[types.NamespacedName]*pod
	// byTemplate lists the pods that name a ResourceClaimTemplate.
	byTemplate map[types.NamespacedName]map[types.NamespacedName]*pod
	// repulsions are the anti-affinity of the pods that run, by its text.
	repulsions map[string]*repulsion

	storage storage

	quotas map[string]map[string]*corev1.ResourceQuota // by namespace and name
	gangs  map[types.NamespacedName]*reservation
	// promised is what pods that are planned will take of their nodes. It belongs to one call of Plan.
	promised map[string]amounts
	// workspaces are those that no attempt uses.
	workspaces []*workspace
}

// NewCluster returns an empty cluster.
func NewCluster() *Cluster { return NewClusterAt(clock.RealClock{}) }

// NewClusterAt returns an empty cluster whose time is that of the clock.
func NewClusterAt(time clock.PassiveClock) *Cluster {
	return &Cluster{
		clock:      time,
		cel:        cel.NewCache(compiledExpressions, celFeatures),
		views:      map[viewKey]*view{},
		viewLimit:  minViews,
		classes:    map[string]*resourceapi.DeviceClass{},
		slices:     map[string]*slice{},
		pools:      map[poolKey]*pool{},
		devices:    map[DeviceID]*device{},
		domains:    map[string]*domain{},
		claims:     map[types.NamespacedName]*claim{},
		uses:       map[DeviceID]*use{},
		rules:      map[string]*resourceapi.DeviceTaintRule{},
		poolRules:  map[poolKey]map[string]*resourceapi.DeviceTaintRule{},
		wideRules:  map[string]*resourceapi.DeviceTaintRule{},
		nodes:      map[string]*node{},
		pods:       map[types.NamespacedName]*pod{},
		unbound:    map[types.NamespacedName]*pod{},
		byTemplate: map[types.NamespacedName]map[types.NamespacedName]*pod{},
		repulsions: map[string]*repulsion{},
		storage: storage{
			claims:  map[types.NamespacedName]*corev1.PersistentVolumeClaim{},
			volumes: map[string]*volume{},
			classes: map[string]*storagev1.StorageClass{},
		},
		quotas:   map[string]map[string]*corev1.ResourceQuota{},
		gangs:    map[types.NamespacedName]*reservation{},
		promised: map[string]amounts{},
	}
}

// SetClass adds or replaces a DeviceClass.
func (c *Cluster) SetClass(class *resourceapi.DeviceClass) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.classes[class.Name] = class
}

// DeleteClass removes a DeviceClass by name.
func (c *Cluster) DeleteClass(name string) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	delete(c.classes, name)
}

// SetQuota adds or replaces a ResourceQuota.
func (c *Cluster) SetQuota(quota *corev1.ResourceQuota) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.quotas[quota.Namespace] == nil {
		c.quotas[quota.Namespace] = map[string]*corev1.ResourceQuota{}
	}
	c.quotas[quota.Namespace][quota.Name] = quota
}

// DeleteQuota removes a ResourceQuota.
func (c *Cluster) DeleteQuota(key types.NamespacedName) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	delete(c.quotas[key.Namespace], key.Name)
	if len(c.quotas[key.Namespace]) == 0 {
		delete(c.quotas, key.Namespace)
	}
}
