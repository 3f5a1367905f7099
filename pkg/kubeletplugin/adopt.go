// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/klog/v2"

	"github.com/switchyard-dev/switchyard/pkg/checkpoint"
)

// recordDamaged is told by the checkpoint of every record that it, or in a rolling update the other plugin, moves aside.
func (d *Driver) recordDamaged(damage checkpoint.Quarantine) {
	if damage.Reason != checkpoint.MovedByOther { // who tells
		d.metrics.errors.WithLabelValues(string(kindCheckpoint)).Inc()
		d.events.warn(reasonCheckpointCorrupt, "The checkpoint record of claim UID %s is damaged (%s: %v) and was moved to %s; it is rebuilt if a pod that uses the claim runs here",
			damage.ClaimUID, damage.Reason, damage.Err, damage.MovedTo)
	}
	d.damaged.found.Add(1)
	d.requestReconcile(false)
}

// damageCount counts damaged records: those that were found, and those of them that a rebuild has made up for.
// Until it has, nobody can tell whose a device without a record is.
type damageCount struct{ found, repaired atomic.Int64 }

// pending reports whether there are damaged records that are not rebuilt yet.
func (c *damageCount) pending() bool { return c.repaired.Load() != c.found.Load() }

// rebuild writes the records that a running pod must have had and that are not there: because they
// were damaged and moved aside, or because somebody removed them. Without them their devices would
// look free here.
//
// At start no claim is prepared before this was tried, nor, when records are damaged, before it is
// done.
func (r *reconciler) rebuild(ctx context.Context) error {
	damaged := r.damaged.found.Load()
	if err := r.adoptRunning(ctx); err != nil {
		if damaged == r.damaged.repaired.Load() {
			r.finishRebuild()
		}
		return fmt.Errorf("rebuild checkpoint records from the API server: %w", err)
	}
	r.damaged.repaired.Store(damaged)
	r.rebuiltOnce = true
	r.finishRebuild()
	return nil
}

// finishRebuild lets claims be prepared. Calling it again does nothing.
func (r *reconciler) finishRebuild() {
	select {
	case <-r.rebuilt:
	default:
		close(r.rebuilt)
	}
}

// adoptRunning writes records for the claims of the pods that run on this node and have none. It reads
// every claim: a pod says the names of its claims only, and a record of that name may be that of a claim
// that was there before.
func (r *reconciler) adoptRunning(ctx context.Context) error {
	pods, err := r.config.KubeClient.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", r.config.NodeName).String(),
	})
	if err != nil {
		return fmt.Errorf("list the pods of node %s: %w", r.config.NodeName, err)
	}
	users := make(map[types.NamespacedName][]*corev1.Pod)
	for i := range pods.Items {
		pod := &pods.Items[i]
		if !hasStarted(pod) {
			continue
		}
		for _, name := range claimNamesOf(pod) {
			key := types.NamespacedName{Namespace: pod.Namespace, Name: name}
			users[key] = append(users[key], pod)
		}
	}
	var mu sync.Mutex
	var errs []error
	var group errgroup.Group
	group.SetLimit(reconcileParallelism)
	for key, pods := range users {
		group.Go(func() error {
			if err := r.adopt(ctx, key, pods); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, fmt.Errorf("claim %s: %w", key, err))
			}
			return nil
		})
	}
	_ = group.Wait() // the functions return nil: their errors are in errs
	return errors.Join(errs...)
}

// adopt writes the record of a claim that running pods use, if it has none and devices of this node.
func (r *reconciler) adopt(ctx context.Context, key types.NamespacedName, users []*corev1.Pod) error {
	claim, err := r.config.KubeClient.ResourceV1().ResourceClaims(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(users, func(pod *corev1.Pod) bool { return resourceclaim.IsReservedForPod(pod, claim, true) }) {
		return nil
	}
	results, err := allocatedHere(claim, r.config.NodeName)
	if err != nil || len(results) == 0 {
		return nil //nolint:nilerr // an allocation that could not be prepared was not prepared
	}
	return r.adoptRecord(ctx, claim, results)
}

func (r *reconciler) adoptRecord(ctx context.Context, claim *resourceapi.ResourceClaim, results []resourceapi.DeviceRequestAllocationResult) error {
	unlock, err := r.lockClaim(ctx, claim.UID)
	if err != nil {
		return err
	}
	defer unlock()
	if _, ok := r.store.Get(claim.UID); ok {
		return nil
	}
	record, err := r.recordOfRunning(claim, results)
	if err != nil {
		return err
	}
	err = r.putRecord(record)
	if kindOf(err) == kindDeviceInUse {
		// Nothing to repair here: two running pods have the device, and each has its claim.
		klog.FromContext(ctx).Info("Running pods of two claims have the same device", "claim", klog.KObj(claim), "err", err)
		r.events.warn(reasonClaimConflict, "Running pods of two claims have the same device, stop those of one: claim %s/%s: %v", claim.Namespace, claim.Name, err)
		return nil
	}
	if err != nil {
		return err
	}
	r.metrics.reconciled.WithLabelValues(actionAdopted).Inc()
	r.events.normal(reasonClaimAdopted, "Claim %s/%s has a running pod but no checkpoint record: wrote one", claim.Namespace, claim.Name)
	klog.FromContext(ctx).Info("Adopted the claim of a running pod", "claim", klog.KObj(claim), "claimUID", claim.UID)
	return nil
}

// recordOfRunning is the record that Prepare made of a claim. How a GPU is shared cannot be told before the GPUs are
// known, and a record without it would end the daemon, and take back the settings, that running programs rely on.
func (r *reconciler) recordOfRunning(claim *resourceapi.ResourceClaim, results []resourceapi.DeviceRequestAllocationResult) (checkpoint.Record, error) {
	// Prepare said what is wrong with a claim, if anything was.
	seen, _ := r.hardware.load()
	configs, err := configsOf(claim, results)
	switch {
	case err != nil && seen != nil:
		return newRecord(claim, results, r.bootID, seen.uuid), nil
	case seen != nil:
		record, _ := r.recordOf(claim, results, configs, seen)
		return record, nil
	}
	record := newRecord(claim, results, r.bootID, func(string) string { return "" })
	if err == nil {
		r.setDefaultTimeSlice(configs)
		_ = applySharing(&record, configs, nil)
	}
	if slices.ContainsFunc(record.Devices, func(dev checkpoint.Device) bool {
		return dev.ShareID != "" || dev.MPSDaemon != "" || dev.TimeSlice != ""
	}) {
		return checkpoint.Record{}, errors.New("its GPUs are shared, and no GPU is known yet")
	}
	return record, nil
}

// hasStarted reports whether a container of the pod has ever run, so that its claims were prepared,
// and may still run.
func hasStarted(pod *corev1.Pod) bool {
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return false
	}
	for _, statuses := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for _, status := range statuses {
			if status.State.Running != nil || status.State.Terminated != nil || status.LastTerminationState.Terminated != nil {
				return true
			}
		}
	}
	return false
}

// claimNamesOf lists the names of the ResourceClaims that a pod uses.
func claimNamesOf(pod *corev1.Pod) []string {
	var names []string
	for i := range pod.Spec.ResourceClaims {
		name, _, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err == nil && name != nil {
			names = append(names, *name)
		}
	}
	if status := pod.Status.ExtendedResourceClaimStatus; status != nil && status.ResourceClaimName != "" {
		names = append(names, status.ResourceClaimName)
	}
	return names
}
