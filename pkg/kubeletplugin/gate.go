// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"fmt"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	resourceclient "k8s.io/client-go/kubernetes/typed/resource/v1"
	"k8s.io/klog/v2"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

const (
	// gateTimeout bounds how long a Prepare waits for the other members of a gang. The kubelet gives up
	// on a call after 45 s, and repeats one that fails.
	gateTimeout = 40 * time.Second
	// gateMargin is what is left of the call's own time to answer it.
	gateMargin = 2 * time.Second
)

var (
	errGateTimeout  = errors.New("waited long enough for this call")
	errGateShutdown = errors.New("the plugin is shutting down")
)

// startGate keeps the pods of a gang from starting before all of its members have their devices: a
// claim that carries v1alpha1.GangLabel is prepared only when v1alpha1.ReadyAnnotation says so. The call
// waits for it, since a call that fails is repeated only after a while.
//
// While a claim waits nothing is reserved and nothing is locked. A claim that has a record was prepared
// here before, so its gang was complete: it does not wait again.
type startGate struct {
	// closing ends when the plugin shuts down: waiting calls end, and the kubelet repeats them.
	closing context.Context
	close   context.CancelFunc
}

func newStartGate() startGate {
	closing, cancel := context.WithCancel(context.Background())
	return startGate{closing: closing, close: cancel}
}

// passGate returns when a gang's claim may be prepared: the claim as it is by then, and the hardware.
func (d *Driver) passGate(ctx context.Context, claim *resourceapi.ResourceClaim, seen *snapshot) (*resourceapi.ResourceClaim, *snapshot, error) {
	if _, prepared := d.store.Get(claim.UID); prepared {
		return claim, seen, nil
	}
	if claim.Labels[v1alpha1.PlanLabel] == "" {
		return nil, nil, newError(kindGangIncomplete, "claim %s has label %s but no label %s, so it was not made by the controller of Switchyard: "+
			"delete its pod, and let the pod name the ResourceClaimTemplate of a GangClaim", klog.KObj(claim), v1alpha1.GangLabel, v1alpha1.PlanLabel)
	}
	if open, err := gateOpen(claim, claim.UID); err != nil || open {
		return claim, seen, err
	}
	d.metrics.gangClaimsWaiting.Inc()
	defer d.metrics.gangClaimsWaiting.Dec()
	started := d.clock.Now()
	logger := klog.LoggerWithValues(klog.FromContext(ctx), "claim", klog.KObj(claim), "claimUID", claim.UID, "gang", claim.Labels[v1alpha1.GangLabel])
	logger.V(2).Info("Waiting until the gang is complete")

	bounded, cancel := boundGate(ctx)
	defer cancel(nil)
	defer context.AfterFunc(d.gate.closing, func() { cancel(errGateShutdown) })()
	opened, err := d.awaitGate(bounded, claim)
	waited := d.clock.Since(started).Round(time.Millisecond)
	switch {
	case err == nil:
	case bounded.Err() == nil:
		return nil, nil, err
	case errors.Is(context.Cause(bounded), errGateShutdown):
		return nil, nil, newError(kindNotReady, "wait until the gang of claim %s is complete: %w, try again", klog.KObj(claim), errGateShutdown)
	default:
		return nil, nil, newError(kindGangIncomplete, "the gang is not complete yet, and none of its pods starts before all of them have their devices: "+
			"waited %v, the kubelet tries again; %s", waited, whereToLook(claim))
	}
	logger.V(2).Info("The gang is complete", "waited", waited)
	// The hardware may have changed meanwhile.
	seen, err = d.waitUntilReady(ctx)
	return opened, seen, err
}

// boundGate bounds a wait by gateTimeout and by what is left of the call's own time.
func boundGate(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	timeout := gateTimeout
	if deadline, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(deadline)-gateMargin)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(timeout, func() { cancel(errGateTimeout) })
	return ctx, func(cause error) {
		timer.Stop()
		cancel(cause)
	}
}

// awaitGate watches a claim until its gate opens. A watch that breaks, or that cannot be had, is made up
// for by reading the claim.
func (d *Driver) awaitGate(ctx context.Context, claim *resourceapi.ResourceClaim) (*resourceapi.ResourceClaim, error) {
	claims := d.config.KubeClient.ResourceV1().ResourceClaims(claim.Namespace)
	uid := claim.UID
	pause := gateBackoff()
	for {
		opened, progress, err := watchGate(ctx, claims, claim)
		if opened != nil || err != nil {
			return opened, err
		}
		if progress {
			pause = gateBackoff()
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-d.clock.After(pause.Step()):
		}
		fresh, err := claims.Get(ctx, claim.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil, errClaimGone(claim)
		case err != nil:
			klog.FromContext(ctx).V(2).Info("Cannot read the claim of a gang, trying again", "claim", klog.KObj(claim), "err", err)
			continue
		}
		claim = fresh
		if open, err := gateOpen(claim, uid); err != nil || open {
			return claim, err
		}
	}
}

// gateBackoff is how long to wait before reading a claim whose watch broke.
func gateBackoff() wait.Backoff {
	return wait.Backoff{Duration: 50 * time.Millisecond, Factor: 2, Jitter: 0.5, Cap: 2 * time.Second, Steps: 10}
}

// watchGate watches a claim from its resource version on. It returns the claim when its gate opens, and
// neither claim nor error when the watch breaks; progress says whether it had told anything until then.
func watchGate(ctx context.Context, claims resourceclient.ResourceClaimInterface, claim *resourceapi.ResourceClaim) (opened *resourceapi.ResourceClaim, progress bool, err error) {
	logger := klog.FromContext(ctx)
	watcher, err := claims.Watch(ctx, metav1.ListOptions{
		FieldSelector:   fields.OneTermEqualSelector(metav1.ObjectNameField, claim.Name).String(),
		ResourceVersion: claim.ResourceVersion,
	})
	if err != nil {
		logger.V(2).Info("Cannot watch the claim of a gang, reading it instead", "claim", klog.KObj(claim), "err", err)
		return nil, false, nil
	}
	defer watcher.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil, progress, context.Cause(ctx)
		case event, ok := <-watcher.ResultChan():
			if !ok || event.Type == watch.Error {
				logger.V(2).Info("The watch of a gang's claim broke, reading it instead", "claim", klog.KObj(claim), "event", event.Object)
				return nil, progress, nil
			}
			current, ok := event.Object.(*resourceapi.ResourceClaim)
			if !ok || current.Name != claim.Name {
				continue
			}
			progress = true
			if event.Type == watch.Deleted {
				return nil, progress, errClaimGone(claim)
			}
			if open, err := gateOpen(current, claim.UID); err != nil || open {
				return current, progress, err
			}
		}
	}
}

// gateOpen reports whether the claim may be prepared, or why it never will be.
func gateOpen(claim *resourceapi.ResourceClaim, uid types.UID) (bool, error) {
	switch plan := claim.Labels[v1alpha1.PlanLabel]; {
	case claim.UID != uid:
		return false, newError(kindInvalidAllocation, "claim %s (UID %s) was deleted while its gang was not complete, and another has its name", klog.KObj(claim), uid)
	case plan != "" && claim.Annotations[v1alpha1.ReadyAnnotation] == plan:
		return true, nil
	case claim.DeletionTimestamp != nil:
		return false, errClaimGone(claim)
	case claim.Status.Allocation == nil:
		return false, newError(kindInvalidAllocation, "claim %s lost its devices while its gang was not complete; %s", klog.KObj(claim), whereToLook(claim))
	}
	return false, nil
}

func errClaimGone(claim *resourceapi.ResourceClaim) error {
	return newError(kindInvalidAllocation, "claim %s was deleted while its gang was not complete; %s", klog.KObj(claim), whereToLook(claim))
}

// whereToLook says which GangClaim tells what is missing.
func whereToLook(claim *resourceapi.ResourceClaim) string {
	if gang := claim.Annotations[v1alpha1.GangClaimAnnotation]; gang != "" {
		return fmt.Sprintf("GangClaim %s says what is missing", gang)
	}
	return fmt.Sprintf("the GangClaim in namespace %s with UID %s says what is missing", claim.Namespace, claim.Labels[v1alpha1.GangLabel])
}
