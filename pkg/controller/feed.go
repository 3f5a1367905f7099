// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/defrag"
	"github.com/switchyard-dev/switchyard/pkg/demand"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// feed lets the planner's cluster follow the cache.
type feed struct {
	cluster *placement.Cluster
	maker   *defrag.Maker
	planner *planner
	// demand learns what is asked for; nil where nobody asks it.
	demand *demand.Tracker
	// supply is called when devices or nodes have changed under gangs that have a plan, usage when
	// pods or claims have.
	supply, usage func()
	// deleted is called after each deletion of a GangClaim.
	deleted func()
	synced  []toolscache.InformerSynced
}

// start registers the handlers. Until Synced the cluster is incomplete.
func (f *feed) start(ctx context.Context, informers cache.Informers) error {
	add := func(object client.Object, set func(old, object any), remove func(object any)) error {
		informer, err := informers.GetInformer(ctx, object, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watch %T: %w", object, err)
		}
		registration, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc:    func(object any) { set(nil, object) },
			UpdateFunc: func(old, object any) { set(old, object) },
			DeleteFunc: func(object any) {
				if last, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
					object = last.Obj
				}
				remove(object)
			},
		})
		if err != nil {
			return fmt.Errorf("follow %T: %w", object, err)
		}
		f.synced = append(f.synced, registration.HasSynced)
		return nil
	}
	for _, err := range []error{
		follow(add, f.setPod, f.deletePod),
		follow(add, f.setClaim, f.deleteClaim),
		follow(add, f.setNode, f.deleteNode),
		follow(add, f.setSlice, f.deleteSlice),
		follow(add, f.setClass, f.deleteClass),
		follow(add, f.setRule, f.deleteRule),
		follow(add, f.setQuota, f.deleteQuota),
		follow(add, f.setVolumeClaim, f.deleteVolumeClaim),
		follow(add, f.setVolume, f.deleteVolume),
		follow(add, f.setStorageClass, f.deleteStorageClass),
		follow(add, f.setBudget, f.deleteBudget),
		follow(add, f.setGang, f.deleteGang),
		follow(add, func(_, _ *schedulingv1.PriorityClass) { f.planner.AskAgain() }, func(*schedulingv1.PriorityClass) { f.planner.AskAgain() }),
	} {
		if err != nil {
			return err
		}
	}
	if f.demand == nil {
		return nil
	}
	// Handlers of their own: nothing waits for them.
	return errors.Join(
		follow(add, func(_, pod *corev1.Pod) { f.demand.SetPod(pod) }, f.demand.DeletePod),
		follow(add, func(_, claim *resourceapi.ResourceClaim) { f.demand.SetClaim(claim) }, f.demand.DeleteClaim),
		follow(add, func(_, gang *v1alpha1.GangClaim) { f.demand.SetGang(gang) }, f.demand.DeleteGang),
	)
}

// Synced says that everything that was there at the start is known.
func (f *feed) Synced() bool {
	for _, synced := range f.synced {
		if !synced() {
			return false
		}
	}
	return true
}

// follow calls set (old is nil for an object that is new here) and remove with objects of type *T. An informer whose watch
// was down tells of an object that was deleted and made anew meanwhile as if it had changed: here it is gone first.
func follow[T any, P interface {
	*T
	client.Object
}](add func(client.Object, func(old, object any), func(any)) error, set func(old, object P), remove func(P),
) error {
	return add(P(new(T)), func(old, object any) {
		before, _ := old.(P)
		now, ok := object.(P)
		if !ok {
			return
		}
		if before != nil && before.GetUID() != now.GetUID() {
			remove(before)
			before = nil
		}
		set(before, now)
	}, func(object any) {
		if last, ok := object.(P); ok {
			remove(last)
		}
	})
}

func (f *feed) setPod(old, pod *corev1.Pod) {
	f.cluster.SetPod(pod)
	if old == nil || podChanged(old, pod) {
		// A pod that loses a label may let others in that keep away from it.
		f.usageChanged(old != nil && takesRoom(old) && (!takesRoom(pod) || resized(old, pod) || !maps.Equal(old.Labels, pod.Labels)))
	}
}

func (f *feed) deletePod(pod *corev1.Pod) {
	f.cluster.DeletePod(keyOf(pod))
	f.usageChanged(takesRoom(pod))
}

func (f *feed) setClaim(old, claim *resourceapi.ResourceClaim) {
	f.cluster.SetClaim(claim)
	// Between two lists, while the watch was down, an allocation may have become another.
	if old == nil || !equality.Semantic.DeepEqual(old.Status.Allocation, claim.Status.Allocation) {
		f.usageChanged(old != nil && old.Status.Allocation != nil)
	}
}

func (f *feed) deleteClaim(claim *resourceapi.ResourceClaim) {
	f.cluster.DeleteClaim(keyOf(claim))
	f.usageChanged(claim.Status.Allocation != nil)
}

func (f *feed) setNode(old, node *corev1.Node) {
	if old != nil && !nodeChanged(old, node) {
		return // a heartbeat
	}
	f.cluster.SetNode(node)
	f.supplyChanged()
}

func (f *feed) deleteNode(node *corev1.Node) {
	f.cluster.DeleteNode(node.Name)
	f.supplyChanged()
}

func (f *feed) setSlice(_, slice *resourceapi.ResourceSlice) {
	f.cluster.SetSlice(slice)
	f.supplyChanged()
}

func (f *feed) deleteSlice(slice *resourceapi.ResourceSlice) {
	f.cluster.DeleteSlice(slice.Name)
	f.supplyChanged()
}

func (f *feed) setClass(_, class *resourceapi.DeviceClass) {
	f.cluster.SetClass(class)
	f.supplyChanged()
}

func (f *feed) deleteClass(class *resourceapi.DeviceClass) {
	f.cluster.DeleteClass(class.Name)
	f.supplyChanged()
}

func (f *feed) setRule(old, rule *resourceapi.DeviceTaintRule) {
	if old != nil && equality.Semantic.DeepEqual(old.Spec, rule.Spec) {
		return // touched, or its status was written
	}
	f.cluster.SetRule(rule)
	f.supplyChanged()
}

func (f *feed) deleteRule(rule *resourceapi.DeviceTaintRule) {
	f.cluster.DeleteRule(rule.Name)
	f.supplyChanged()
}

func (f *feed) setQuota(_, quota *corev1.ResourceQuota) {
	f.cluster.SetQuota(quota)
	f.planner.Changed()
}

func (f *feed) deleteQuota(quota *corev1.ResourceQuota) {
	f.cluster.DeleteQuota(keyOf(quota))
	f.planner.Changed()
}

func (f *feed) setVolumeClaim(old, claim *corev1.PersistentVolumeClaim) {
	f.cluster.SetVolumeClaim(claim)
	// Kubernetes gives a claim without a StorageClass the default one as soon as there is one.
	if old == nil || old.Status.Phase != claim.Status.Phase || !maps.Equal(old.Annotations, claim.Annotations) ||
		(old.DeletionTimestamp == nil) != (claim.DeletionTimestamp == nil) || !equality.Semantic.DeepEqual(old.Spec, claim.Spec) {
		f.planner.Freed()
	}
}

func (f *feed) deleteVolumeClaim(claim *corev1.PersistentVolumeClaim) {
	f.cluster.DeleteVolumeClaim(keyOf(claim))
	f.planner.Taken()
}

func (f *feed) setVolume(old, volume *corev1.PersistentVolume) {
	if old != nil && old.Status.Phase == volume.Status.Phase && maps.Equal(old.Labels, volume.Labels) &&
		(old.DeletionTimestamp == nil) == (volume.DeletionTimestamp == nil) && equality.Semantic.DeepEqual(old.Spec, volume.Spec) {
		return
	}
	f.cluster.SetVolume(volume)
	f.planner.Freed()
}

func (f *feed) deleteVolume(volume *corev1.PersistentVolume) {
	f.cluster.DeleteVolume(volume.Name)
	f.planner.Taken()
}

func (f *feed) setStorageClass(_, class *storagev1.StorageClass) {
	f.cluster.SetStorageClass(class)
	f.planner.Changed()
}

func (f *feed) deleteStorageClass(class *storagev1.StorageClass) {
	f.cluster.DeleteStorageClass(class.Name)
	f.planner.Changed()
}

func (f *feed) setBudget(old, budget *policyv1.PodDisruptionBudget) {
	f.maker.SetBudget(budget)
	if old == nil || old.Status.DisruptionsAllowed != budget.Status.DisruptionsAllowed {
		f.planner.Taken() // no gang that needs no moves waits for it
	}
}

func (f *feed) deleteBudget(budget *policyv1.PodDisruptionBudget) {
	f.maker.DeleteBudget(keyOf(budget))
	f.planner.Taken()
}

func (f *feed) setGang(_, gang *v1alpha1.GangClaim) {
	f.maker.SetGang(gang)
	f.planner.Observe(gang)
}

func (f *feed) deleteGang(gang *v1alpha1.GangClaim) {
	f.maker.SetGang(gang)
	f.planner.Gone(gang)
	f.deleted()
}

// podChanged says that the pod takes another amount of a node, is another to those that go by labels, or may be decided on now.
func podChanged(old, pod *corev1.Pod) bool {
	return !maps.Equal(old.Labels, pod.Labels) ||
		old.Spec.NodeName != pod.Spec.NodeName || old.Status.Phase != pod.Status.Phase ||
		(old.DeletionTimestamp == nil) != (pod.DeletionTimestamp == nil) ||
		len(old.Status.ResourceClaimStatuses) != len(pod.Status.ResourceClaimStatuses) ||
		unschedulable(old) != unschedulable(pod) || resized(old, pod)
}

// resized says that the pod may take more or less than before: its spec has changed, or what the kubelet says that it has.
// The end of a pod is another generation as well, and gives nothing back yet.
func resized(old, pod *corev1.Pod) bool {
	return old.Generation != pod.Generation && (old.DeletionTimestamp == nil) == (pod.DeletionTimestamp == nil) ||
		old.Status.AllocatedResources != nil && !equality.Semantic.DeepEqual(old.Status.AllocatedResources, pod.Status.AllocatedResources) ||
		old.Status.Resources != nil && !equality.Semantic.DeepEqual(old.Status.Resources, pod.Status.Resources)
}

func unschedulable(pod *corev1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled {
			return condition.Status == corev1.ConditionFalse && condition.Reason == corev1.PodReasonUnschedulable
		}
	}
	return false
}

// nodeChanged says that pods may fit the node where they did not, or the other way round.
func nodeChanged(old, node *corev1.Node) bool {
	return nodeReady(old) != nodeReady(node) ||
		!equality.Semantic.DeepEqual(old.Labels, node.Labels) ||
		!equality.Semantic.DeepEqual(old.Spec, node.Spec) ||
		!equality.Semantic.DeepEqual(old.Status.Allocatable, node.Status.Allocatable)
}

func nodeReady(node *corev1.Node) bool {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// takesRoom says that the pod takes of what a node has.
func takesRoom(pod *corev1.Pod) bool {
	return pod.Spec.NodeName != "" && !placement.Ended(pod)
}

// supplyChanged says that devices or nodes have changed, usageChanged that pods or claims have, and whether they take
// less: both may matter to gangs that wait and to gangs that have a plan.
func (f *feed) supplyChanged() {
	f.planner.Changed()
	f.supply()
}

func (f *feed) usageChanged(freed bool) {
	if freed {
		f.planner.Freed()
	} else {
		f.planner.Taken()
	}
	f.usage()
}
