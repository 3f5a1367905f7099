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

// neutralizeTime is how long a rule of a gang that is gone stays without effect before it is deleted:
// kube-scheduler may keep the taint of a rule that is deleted at once.
const neutralizeTime = 2 * time.Second

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

	neutral map[types.UID]time.Time // rules first seen without effect
}

// Run sweeps at once, then periodically and after each deletion of a GangClaim, until ctx ends.
func (s *sweeper) Run(ctx context.Context) {
	s.report(ctx)
	for {
		again, err := s.sweep(ctx)
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Cannot sweep objects of gangs that are gone")
		}
		pause := s.interval
		if again {
			pause = neutralizeTime
		}
		timer := s.clock.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C():
		case <-s.wake:
			timer.Stop()
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

// orphans are the objects that carry a gang's label and have no GangClaim of that UID.
type orphans struct {
	templates []*resourceapi.ResourceClaimTemplate
	claims    []*resourceapi.ResourceClaim
	rules     []*resourceapi.DeviceTaintRule
}

func (o orphans) empty() bool { return len(o.templates)+len(o.claims)+len(o.rules) == 0 }

// find looks for orphans among everything with a gang's label.
func (s *sweeper) find(ctx context.Context, alive map[string]bool) (orphans, error) {
	var found orphans
	labelled := client.HasLabels{v1alpha1.GangLabel}
	var templates resourceapi.ResourceClaimTemplateList
	var claims resourceapi.ResourceClaimList
	var rules resourceapi.DeviceTaintRuleList
	for _, list := range []client.ObjectList{&templates, &claims, &rules} {
		if err := s.client.List(ctx, list, labelled); err != nil {
			return found, fmt.Errorf("list %T of gangs: %w", list, err)
		}
	}
	dead := func(o client.Object) bool {
		return !alive[o.GetLabels()[v1alpha1.GangLabel]] && o.GetDeletionTimestamp() == nil
	}
	for i := range templates.Items {
		if dead(&templates.Items[i]) {
			found.templates = append(found.templates, &templates.Items[i])
		}
	}
	for i := range claims.Items {
		if dead(&claims.Items[i]) {
			found.claims = append(found.claims, &claims.Items[i])
		}
	}
	for i := range rules.Items {
		if dead(&rules.Items[i]) {
			found.rules = append(found.rules, &rules.Items[i])
		}
	}
	return found, nil
}

// sweep deletes what is found, in the order in which a plan is taken back, and says whether to sweep
// again soon.
func (s *sweeper) sweep(ctx context.Context) (again bool, err error) {
	alive := map[string]bool{}
	var known v1alpha1.GangClaimList
	if err := s.client.List(ctx, &known); err != nil {
		return false, fmt.Errorf("list GangClaims: %w", err)
	}
	for i := range known.Items {
		alive[string(known.Items[i].UID)] = true
	}
	found, err := s.find(ctx, alive)
	if err != nil || found.empty() {
		return false, err
	}
	// The caches of different kinds are of different age: an object may be in one before its gang is
	// in the other.
	now := &metav1.PartialObjectMetadataList{}
	now.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(v1alpha1.GangClaimKind + "List"))
	if err := s.live.List(ctx, now); err != nil {
		return false, fmt.Errorf("list GangClaims at the API server: %w", err)
	}
	for i := range now.Items {
		alive[string(now.Items[i].UID)] = true
	}
	if found, err = s.find(ctx, alive); err != nil {
		return false, err
	}
	for _, template := range found.templates {
		if err := s.remove(ctx, "ResourceClaimTemplate", template, gang.DeleteTemplate{Template: refOf(template)}); err != nil {
			return true, err
		}
	}
	for _, claim := range found.claims {
		if err := s.sweepClaim(ctx, claim); err != nil {
			return true, err
		}
	}
	for _, rule := range found.rules {
		waits, err := s.sweepRule(ctx, rule)
		if err != nil {
			return true, err
		}
		again = again || waits
	}
	return again, nil
}

// sweepClaim deletes a claim that is not allocated. Of one that is, the pod runs on if it has started;
// one that has not never will, since nobody opens its start gate.
func (s *sweeper) sweepClaim(ctx context.Context, claim *resourceapi.ResourceClaim) error {
	if claim.Status.Allocation == nil {
		return s.remove(ctx, "ResourceClaim", claim, gang.DeleteClaims{Claims: []gang.Ref{refOf(claim)}})
	}
	if claim.Annotations[v1alpha1.ReadyAnnotation] == claim.Labels[v1alpha1.PlanLabel] {
		return nil
	}
	owner := metav1.GetControllerOf(claim)
	if owner == nil || owner.Kind != "Pod" {
		return nil
	}
	pod := &corev1.Pod{}
	if err := s.client.Get(ctx, types.NamespacedName{Namespace: claim.Namespace, Name: owner.Name}, pod); err != nil {
		return ignore(apierrors.IsNotFound, err)
	}
	if pod.UID != owner.UID || pod.DeletionTimestamp != nil {
		return nil
	}
	if metav1.GetControllerOf(pod) == nil {
		s.events.bareOrphan(pod, claim)
		return nil
	}
	return s.remove(ctx, "Pod", pod, gang.EvictPods{Pods: []gang.Ref{refOf(pod)}})
}

// sweepRule takes the effect from a rule, and deletes it some time after.
func (s *sweeper) sweepRule(ctx context.Context, rule *resourceapi.DeviceTaintRule) (again bool, err error) {
	if rule.Spec.Taint.Effect != resourceapi.DeviceTaintEffectNone {
		return true, s.applier.apply(ctx, gang.NeutralizeRules{Rules: []gang.Ref{refOf(rule)}})
	}
	if s.neutral == nil {
		s.neutral = map[types.UID]time.Time{}
	}
	since, ok := s.neutral[rule.UID]
	if !ok {
		s.neutral[rule.UID] = s.clock.Now()
		return true, nil
	}
	if s.clock.Since(since) < neutralizeTime {
		return true, nil
	}
	delete(s.neutral, rule.UID)
	return false, s.remove(ctx, "DeviceTaintRule", rule, gang.DeleteRules{Rules: []gang.Ref{refOf(rule)}})
}

func (s *sweeper) remove(ctx context.Context, kind string, object client.Object, action gang.Action) error {
	klog.FromContext(ctx).Info("Sweeping an object of a gang that is gone", "kind", kind, "object", klog.KObj(object), "gang", object.GetLabels()[v1alpha1.GangLabel])
	if err := s.applier.apply(ctx, action); err != nil {
		return err
	}
	s.metrics.swept.WithLabelValues(kind).Inc()
	return nil
}
