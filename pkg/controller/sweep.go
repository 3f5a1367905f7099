// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/gang"
)

// sweepAgain is when to sweep again after something was swept: objects go one kind after the other.
const sweepAgain = 200 * time.Millisecond

// sweepLate is when to sweep once more after a GangClaim was deleted: writes for it may have been under
// way, and come after the first sweep.
const sweepLate = 5 * time.Second

// sweeper deletes objects of gangs that do not exist. A gang's finalizer keeps it until its objects are
// gone, so there are some only where someone took the finalizer off, or restored objects from a backup.
type sweeper struct {
	client   client.Client
	live     client.Reader
	applier  *applier
	events   *eventSender
	metrics  *metrics
	clock    clock.Clock
	interval time.Duration
	wake     chan struct{} // of capacity 1: a GangClaim was deleted
}

// Run sweeps at once, then periodically and after each deletion of a GangClaim, until ctx ends.
func (s *sweeper) Run(ctx context.Context) {
	s.report(ctx)
	var late time.Time // when to sweep once more, at the latest
	for {
		pause, err := s.sweep(ctx)
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Cannot sweep objects of gangs that are gone")
		}
		if pause == 0 {
			pause = s.interval
		}
		if now := s.clock.Now(); now.Before(late) {
			pause = min(pause, late.Sub(now))
		}
		timer := s.clock.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C():
		case <-s.wake:
			timer.Stop()
			late = s.clock.Now().Add(sweepLate)
		}
	}
}

// deleted says that a GangClaim was deleted.
func (s *sweeper) deleted() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// sweep runs what gang.Orphans decides, and says when to sweep again; 0 for not before the interval.
func (s *sweeper) sweep(ctx context.Context) (time.Duration, error) {
	labelled, orphans, err := s.find(ctx)
	if err != nil || !orphans {
		return 0, err
	}
	// Caches of different kinds are of different age: an object may be in one before its gang is in the
	// other.
	alive := map[types.UID]bool{}
	now := &metav1.PartialObjectMetadataList{}
	now.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(v1alpha1.GangClaimKind + "List"))
	if err := s.live.List(ctx, now); err != nil {
		return 0, fmt.Errorf("list GangClaims at the API server: %w", err)
	}
	for i := range now.Items {
		alive[now.Items[i].UID] = true
	}
	labelled.Now = s.clock.Now()
	actions, after := gang.Orphans(labelled, func(uid types.UID) bool { return alive[uid] })
	for _, action := range actions {
		klog.FromContext(ctx).Info("Sweeping objects of gangs that are gone", "action", action.Verb())
		if err := s.applier.apply(ctx, action); err != nil {
			return conflictDelay, err
		}
		s.metrics.swept.WithLabelValues(action.Verb()).Inc()
	}
	s.warn(labelled, alive)
	if len(actions) > 0 && after == 0 {
		after = sweepAgain // what follows once the cache shows that this was done
	}
	return after, nil
}

// find returns everything that carries a gang's label, with the pods of the claims among it, and
// whether the cache knows a gang for all of it.
func (s *sweeper) find(ctx context.Context) (found gang.Labelled, orphans bool, err error) {
	var gangs v1alpha1.GangClaimList
	if err := s.client.List(ctx, &gangs); err != nil {
		return found, false, fmt.Errorf("list GangClaims: %w", err)
	}
	known := map[string]bool{}
	for i := range gangs.Items {
		known[string(gangs.Items[i].UID)] = true
	}
	labelled := client.HasLabels{v1alpha1.GangLabel}
	var templates resourceapi.ResourceClaimTemplateList
	var claims resourceapi.ResourceClaimList
	var rules resourceapi.DeviceTaintRuleList
	for _, list := range []client.ObjectList{&templates, &claims, &rules} {
		if err := s.client.List(ctx, list, labelled); err != nil {
			return found, false, fmt.Errorf("list %T of gangs: %w", list, err)
		}
	}
	seen := func(o client.Object) { orphans = orphans || !known[o.GetLabels()[v1alpha1.GangLabel]] }
	for i := range templates.Items {
		found.Templates = append(found.Templates, &templates.Items[i])
		seen(&templates.Items[i])
	}
	for i := range rules.Items {
		found.Rules = append(found.Rules, &rules.Items[i])
		seen(&rules.Items[i])
	}
	for i := range claims.Items {
		claim := &claims.Items[i]
		found.Claims = append(found.Claims, claim)
		seen(claim)
		if known[claim.Labels[v1alpha1.GangLabel]] {
			continue
		}
		pod, err := s.podOf(ctx, claim)
		if err != nil {
			return found, false, err
		}
		if pod != nil {
			found.Pods = append(found.Pods, pod)
		}
	}
	return found, orphans, nil
}

// podOf is the pod that a claim was generated for, nil when it is gone.
func (s *sweeper) podOf(ctx context.Context, claim *resourceapi.ResourceClaim) (*corev1.Pod, error) {
	owner := metav1.GetControllerOf(claim)
	if owner == nil || owner.Kind != "Pod" {
		return nil, nil
	}
	pod := &corev1.Pod{}
	if err := s.client.Get(ctx, types.NamespacedName{Namespace: claim.Namespace, Name: owner.Name}, pod); err != nil {
		return nil, ignore(apierrors.IsNotFound, err)
	}
	if pod.UID != owner.UID {
		return nil, nil
	}
	return pod, nil
}

// warn tells of pods that hold devices, will never start, and have no controller that would replace
// them.
func (s *sweeper) warn(labelled gang.Labelled, alive map[types.UID]bool) {
	bare := map[types.UID]*corev1.Pod{}
	for _, pod := range labelled.Pods {
		if metav1.GetControllerOf(pod) == nil && pod.DeletionTimestamp == nil {
			bare[pod.UID] = pod
		}
	}
	for _, claim := range labelled.Claims {
		owner := metav1.GetControllerOf(claim)
		if owner == nil || alive[types.UID(claim.Labels[v1alpha1.GangLabel])] || claim.Status.Allocation == nil ||
			claim.Annotations[v1alpha1.ReadyAnnotation] == claim.Labels[v1alpha1.PlanLabel] {
			continue
		}
		if pod := bare[owner.UID]; pod != nil {
			s.events.bareOrphan(pod, claim)
		}
	}
}
