// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/gang"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// conflictDelay is when to look again after a write was refused because the object had changed: the
// change is on its way to the cache.
const conflictDelay = 20 * time.Millisecond

// retryFloor is the shortest time between two tries after errors, once they go on: a deadline of the
// protocol may come before the backoff is over, and must not be missed by more than this.
const retryFloor = time.Second

// reconciler moves one gang on: gather, decide, apply.
type reconciler struct {
	client   client.Client
	live     client.Reader
	observer *observer
	planner  *planner
	applier  *applier
	events   *eventSender
	metrics  *metrics
	watched  *watched
	// backoff says how long to wait after errors.
	backoff workqueue.TypedRateLimiter[types.NamespacedName]
}

// newBackoff doubles from minBackoff to maxBackoff, for each gang. The default of controller-runtime lets
// a gang whose eviction a budget forbids for a while wait a quarter of an hour.
func newBackoff() workqueue.TypedRateLimiter[types.NamespacedName] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](minBackoff, maxBackoff)
}

// Reconcile implements reconcile.Reconciler. It returns no errors: what controller-runtime does about
// them knows nothing of when the protocol has to go on.
func (r *reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	after, err := r.reconcile(ctx, request)
	logger := klog.FromContext(ctx)
	switch {
	case err == nil:
		r.backoff.Forget(request.NamespacedName)
		return reconcile.Result{RequeueAfter: after}, nil
	case onlyConflicts(err):
		r.metrics.conflicts.Inc()
		logger.V(3).Info("Refused because of a change, looking again", "err", err)
		return reconcile.Result{RequeueAfter: conflictDelay}, nil
	case errors.Is(ctx.Err(), context.Canceled):
		logger.V(3).Info("Ended while deciding", "err", err)
		return reconcile.Result{}, nil
	}
	pause := r.backoff.When(request.NamespacedName)
	if after > 0 {
		pause = min(pause, max(after, retryFloor))
	}
	r.metrics.errors.Inc()
	logger.Error(err, "Cannot move the gang on, trying again", "after", pause)
	return reconcile.Result{RequeueAfter: pause}, nil
}

// onlyConflicts says that nothing went wrong but that objects had changed: of the errors of writes that
// ran side by side, each says so.
func onlyConflicts(err error) bool {
	var joined interface{ Unwrap() []error }
	if errors.As(err, &joined) {
		return !slices.ContainsFunc(joined.Unwrap(), func(err error) bool { return !onlyConflicts(err) })
	}
	return apierrors.IsConflict(err)
}

// reconcile returns when the gang is to be looked at again: of an error, at the latest.
func (r *reconciler) reconcile(ctx context.Context, request reconcile.Request) (time.Duration, error) {
	claim := &v1alpha1.GangClaim{}
	if err := r.client.Get(ctx, request.NamespacedName, claim); err != nil {
		r.watched.remove(request.NamespacedName)
		r.events.forget(request.NamespacedName)
		if apierrors.IsNotFound(err) {
			r.planner.Forget(request.NamespacedName) // deleted after it was read and before it was asked for
		}
		return 0, ignore(apierrors.IsNotFound, err)
	}
	if r.planner.Unsettled(claim.UID) {
		if current, err := r.settle(ctx, claim); err != nil || !current {
			return conflictDelay, err
		}
	}
	r.watched.set(request.NamespacedName, claim.Status.Plan)
	observation, err := r.observer.observe(ctx, claim)
	if err != nil {
		return 0, err
	}
	if question, ok := gang.Plannable(observation); ok {
		answer, answered := r.planner.Ask(question)
		if !answered {
			return 0, nil // the planner calls back
		}
		observation.Placement = r.observer.explain(ctx, observation, answer)
	} else {
		r.planner.Forget(request.NamespacedName)
	}

	decision := gang.Decide(observation)
	if err := r.checkStart(ctx, claim, decision); err != nil {
		if taken(observation.Placement) {
			r.planner.GiveBack(claim)
		}
		return decision.RequeueAfter, err
	}
	written, err := r.writeStatus(ctx, claim, decision.Status)
	if err != nil {
		if taken(observation.Placement) && notStored(err) {
			r.planner.GiveBack(claim)
		}
		return 0, err
	}
	if taken(observation.Placement) {
		// Also where the plan was not wanted after all.
		r.planner.Committed(written)
	}
	r.planner.Avoid(claim.UID, gang.Unplaced(observation, decision))
	r.watched.set(request.NamespacedName, written.Status.Plan)
	r.events.send(written, decision.Events)
	for _, action := range decision.Actions {
		if victims, ok := action.(gang.EvictVictims); ok { // the last one
			observation.Claim = written
			return r.evict(ctx, observation, victims, decision.RequeueAfter)
		}
		if err := r.act(ctx, action); err != nil {
			if !onlyConflicts(err) && ctx.Err() == nil {
				r.events.failed(written, action.Verb(), err)
			}
			return decision.RequeueAfter, err
		}
	}
	return decision.RequeueAfter, nil
}

// writeStatus writes the status if it differs, on the condition that the GangClaim is the one that was
// observed, and returns the GangClaim as it is now.
func (r *reconciler) writeStatus(ctx context.Context, observed *v1alpha1.GangClaim, status v1alpha1.GangClaimStatus) (*v1alpha1.GangClaim, error) {
	if equality.Semantic.DeepEqual(observed.Status, status) {
		return observed, nil
	}
	claim := observed.DeepCopy()
	claim.Status = status
	if err := r.client.Status().Update(ctx, claim); err != nil {
		return nil, fmt.Errorf("write status of GangClaim %s: %w", keyOf(claim), err)
	}
	step := v1alpha1.GangStep("")
	if status.Plan != nil {
		step = status.Plan.Step
	}
	klog.FromContext(ctx).V(2).Info("Wrote status", "step", step, "plan", planHash(claim))
	r.metrics.observeStatus(observed, claim)
	return claim, r.applier.wrote("Status" + string(step))
}

// checkStart asks the API server whether the claims of all members are what they were seen to be, before the
// status says that the gang starts: that is not taken back for one member alone.
func (r *reconciler) checkStart(ctx context.Context, claim *v1alpha1.GangClaim, decision gang.Decision) error {
	if was, is := claim.Status.Plan, decision.Status.Plan; is == nil || is.Step != v1alpha1.StepStarting || was != nil && was.Step == is.Step {
		return nil
	}
	for _, action := range decision.Actions {
		if ready, ok := action.(gang.MarkReady); ok {
			return r.applier.checkReady(ctx, claim, ready)
		}
	}
	return nil
}

// notStored says that the error of a write proves that nothing was stored. A reply that was lost does not.
func notStored(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsInvalid(err) || apierrors.IsNotFound(err) || apierrors.IsForbidden(err)
}

// settle finds out whether a plan was written of which the reply was lost, and says whether the GangClaim of
// the cache is as new as what the API server has.
func (r *reconciler) settle(ctx context.Context, cached *v1alpha1.GangClaim) (bool, error) {
	now := &v1alpha1.GangClaim{}
	if err := r.live.Get(ctx, keyOf(cached), now); err != nil {
		// The cache will show a deletion, and the planner follows it.
		return false, ignore(apierrors.IsNotFound, fmt.Errorf("read GangClaim %s at the API server: %w", keyOf(cached), err))
	}
	if now.UID != cached.UID {
		return false, nil
	}
	r.planner.Settle(now)
	return !olderThan(cached, now), nil
}

func (r *reconciler) act(ctx context.Context, action gang.Action) error {
	klog.FromContext(ctx).V(3).Info("Acting", "action", action.Verb())
	err := r.applier.apply(ctx, action)
	r.metrics.actions.WithLabelValues(action.Verb(), result(err)).Inc()
	return err
}

func taken(answer *placement.Decision) bool { return answer != nil && answer.Plan != nil }

func planHash(claim *v1alpha1.GangClaim) string {
	if claim.Status.Plan == nil {
		return ""
	}
	return claim.Status.Plan.Hash
}
