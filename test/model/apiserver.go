// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package model

import (
	"cmp"
	"errors"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// object is what the API server stores. Stored objects are replaced, never changed.
type object interface {
	metav1.Object
	runtime.Object
}

type key = types.NamespacedName

func keyOf(o object) key { return key{Namespace: o.GetNamespace(), Name: o.GetName()} }

// kind is an index into objects.
type kind int

const (
	gangClaims kind = iota
	pods
	nodes
	claims
	templates
	resourceSlices
	classes
	rules
	budgets
	quotas
	kinds
)

func kindOf(o object) kind {
	switch o.(type) {
	case *v1alpha1.GangClaim:
		return gangClaims
	case *corev1.Pod:
		return pods
	case *corev1.Node:
		return nodes
	case *resourceapi.ResourceClaim:
		return claims
	case *resourceapi.ResourceClaimTemplate:
		return templates
	case *resourceapi.ResourceSlice:
		return resourceSlices
	case *resourceapi.DeviceClass:
		return classes
	case *resourceapi.DeviceTaintRule:
		return rules
	case *policyv1.PodDisruptionBudget:
		return budgets
	default:
		return quotas
	}
}

// objects are the objects of the API server, or of a cache of it.
type objects [kinds]map[key]object

func newObjects() objects {
	var o objects
	for k := range o {
		o[k] = map[key]object{}
	}
	return o
}

// get returns an object to be read only, or nil.
func get[T object](o *objects, name key) T {
	var none T
	found, ok := o[kindOf(none)][name]
	if !ok {
		return none
	}
	return found.(T)
}

// list returns the objects of a type by namespace and name, to be read only.
func list[T object](o *objects) []T {
	var none T
	all := make([]T, 0, len(o[kindOf(none)]))
	for _, found := range o[kindOf(none)] {
		all = append(all, found.(T))
	}
	slices.SortFunc(all, func(a, b T) int {
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
	return all
}

// change is one event of a watch: before is nil for an object that is new, after for one that is gone.
type change struct {
	kind          kind
	key           key
	before, after object
	version       int64
}

func (c change) object() object {
	if c.after != nil {
		return c.after
	}
	return c.before
}

var (
	errNotFound = errors.New("not found")
	errConflict = errors.New("conflict")
	errExists   = errors.New("already exists")
	errQuota    = errors.New("exceeded quota")
)

// apiServer stores objects.
type apiServer struct {
	objects

	now      func() time.Time
	version  int64
	serial   int
	watchers []func(change)
}

func (a *apiServer) publish(k kind, before, after object) {
	a.version++
	c := change{kind: k, before: before, after: after, version: a.version}
	if after != nil {
		after.SetResourceVersion(strconv.FormatInt(a.version, 10))
		c.key = keyOf(after)
		a.objects[k][c.key] = after
	} else {
		c.key = keyOf(before)
		delete(a.objects[k], c.key)
	}
	for _, watch := range a.watchers {
		watch(c)
	}
}

// create stores a copy of an object and returns it.
func create[T object](a *apiServer, o T) (T, error) {
	k := kindOf(o)
	if a.objects[k][keyOf(o)] != nil {
		return o, errExists
	}
	if claim, ok := object(o).(*resourceapi.ResourceClaim); ok && !a.admits(claim) {
		return o, errQuota
	}
	stored := o.DeepCopyObject().(T)
	a.serial++
	stored.SetUID(types.UID("uid-" + strconv.Itoa(a.serial)))
	stored.SetCreationTimestamp(metav1.NewTime(a.now().Truncate(time.Second)))
	stored.SetGeneration(1)
	a.publish(k, nil, stored)
	return stored, nil
}

// quotaOfClaims is the quota of claims by number.
const quotaOfClaims corev1.ResourceName = "count/resourceclaims.resource.k8s.io"

// admits checks the quota of claims by number.
func (a *apiServer) admits(claim *resourceapi.ResourceClaim) bool {
	for _, quota := range list[*corev1.ResourceQuota](&a.objects) {
		limit, limited := quota.Spec.Hard[quotaOfClaims]
		if limited && quota.Namespace == claim.Namespace && int64(len(a.objects[claims])) >= limit.Value() {
			return false
		}
	}
	return true
}

// preconditions of a write; empty ones always hold.
type preconditions struct {
	uid     types.UID
	version string
}

// find checks preconditions.
func find[T object](a *apiServer, name key, when preconditions) (T, error) {
	var none T
	o, ok := a.objects[kindOf(none)][name]
	switch {
	case !ok:
		return none, errNotFound
	case when.uid != "" && o.GetUID() != when.uid, when.version != "" && o.GetResourceVersion() != when.version:
		return none, errConflict
	default:
		return o.(T), nil
	}
}

// update changes an object; a change that comes to nothing is no write. It returns the object as stored.
func update[T object](a *apiServer, name key, when preconditions, change func(T)) (T, error) {
	before, err := find[T](a, name, when)
	if err != nil {
		return before, err
	}
	after := before.DeepCopyObject().(T)
	change(after)
	if after.GetDeletionTimestamp() != nil && len(after.GetFinalizers()) == 0 && kindOf(after) != pods {
		a.publish(kindOf(after), before, nil)
		return after, nil
	}
	a.publish(kindOf(after), before, after)
	return after, nil
}

// remove deletes an object, or marks it when it has finalizers or is a pod with a node: a kubelet ends it.
func remove[T object](a *apiServer, name key, when preconditions) error {
	before, err := find[T](a, name, when)
	if err != nil {
		return err
	}
	pod, isPod := object(before).(*corev1.Pod)
	if len(before.GetFinalizers()) == 0 && (!isPod || pod.Spec.NodeName == "") {
		a.publish(kindOf(before), before, nil)
		return nil
	}
	if before.GetDeletionTimestamp() != nil {
		return nil
	}
	after := before.DeepCopyObject().(T)
	after.SetDeletionTimestamp(ptr.To(metav1.NewTime(a.now())))
	a.publish(kindOf(before), before, after)
	return nil
}

// expunge removes a pod that has ended, or whose node is gone.
func (a *apiServer) expunge(name key, uid types.UID) {
	if pod, err := find[*corev1.Pod](a, name, preconditions{uid: uid}); err == nil && len(pod.Finalizers) == 0 {
		a.publish(pods, pod, nil)
	}
}
