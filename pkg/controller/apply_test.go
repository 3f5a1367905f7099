// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"encoding/json"
	"errors"
	"sync/atomic"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/gang"
)

func newApplier(api client.WithWatch) *applier {
	return &applier{client: api, live: api, clock: clocktesting.NewFakePassiveClock(start), wrote: func(string) error { return nil }}
}

// stored is an object as the API server has it.
func stored[T client.Object](t *testing.T, api client.Client, object T) T {
	t.Helper()
	if err := api.Get(t.Context(), keyOf(object), object); err != nil {
		t.Fatal(err)
	}
	return object
}

func gangClaims(names ...string) []client.Object {
	var claims []client.Object
	for _, name := range names {
		claim := gpuClaim(name, true)
		claim.Labels = map[string]string{v1alpha1.GangLabel: "gang", v1alpha1.PlanLabel: "hash"}
		claims = append(claims, claim)
	}
	return claims
}

// tryPatch checks the preconditions of a patch, which the fake API server does not in a dry run.
func tryPatch(ctx context.Context, c client.Client, o client.Object, patch client.Patch) error {
	data, err := patch.Data(o)
	if err != nil {
		return err
	}
	var wanted metav1.PartialObjectMetadata
	if err := json.Unmarshal(data, &wanted); err != nil {
		return err
	}
	if err := c.Get(ctx, keyOf(o), o); err != nil {
		return err
	}
	if wanted.UID != o.GetUID() || wanted.ResourceVersion != o.GetResourceVersion() {
		return apierrors.NewConflict(resourceapi.Resource("resourceclaims"), o.GetName(), errors.New("the object has been modified"))
	}
	return nil
}

func TestMarkReadyMarksAllOrNone(t *testing.T) {
	forbidden := apierrors.NewForbidden(resourceapi.Resource("resourceclaims"), "b", errors.New("a policy is against it"))
	for name, test := range map[string]struct {
		change func(t *testing.T, api client.Client, claim *resourceapi.ResourceClaim) // the second, after it was observed
		patch  error                                                                   // of a dry run of the second
		want   func(error) bool
		marked int32
	}{
		"as observed: all are marked": {want: func(err error) bool { return err == nil }, marked: 2},
		"one has changed: none is": {
			change: func(t *testing.T, api client.Client, claim *resourceapi.ResourceClaim) {
				claim.Annotations = map[string]string{"changed": "yes"}
				if err := api.Update(t.Context(), claim); err != nil {
					t.Fatal(err)
				}
			},
			want: onlyConflicts,
		},
		"one is gone: none is": {
			change: func(t *testing.T, api client.Client, claim *resourceapi.ResourceClaim) {
				if err := api.Delete(t.Context(), claim); err != nil {
					t.Fatal(err)
				}
			},
			want: func(err error) bool { return apierrors.IsNotFound(err) || onlyConflicts(err) },
		},
		"a policy forbids one: none is": {patch: forbidden, want: apierrors.IsForbidden},
		"a webhook cannot be asked without effect: they are marked if they have not changed": {
			patch: apierrors.NewBadRequest("admission webhook does not support dry run"), want: func(err error) bool { return err == nil }, marked: 2,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var marked atomic.Int32
			api := fakeAPI(t, interceptor.Funcs{Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, options ...client.PatchOption) error {
				var all client.PatchOptions
				all.ApplyOptions(options)
				switch dry := len(all.DryRun) > 0; {
				case dry && o.GetName() == "b" && test.patch != nil:
					return test.patch
				case dry:
					return tryPatch(ctx, c, o, patch)
				}
				marked.Add(1)
				return c.Patch(ctx, o, patch, options...)
			}}, gangClaims("a", "b")...)
			var action gang.MarkReady
			for _, name := range []string{"a", "b"} {
				claim := stored(t, api, gpuClaim(name, true))
				action.Claims = append(action.Claims, gang.ReadyClaim{Ref: refOf(claim), Plan: "hash"})
				if name == "b" && test.change != nil {
					test.change(t, api, claim)
				}
			}
			a := newApplier(api)
			if err := a.checkReady(t.Context(), gangNamed("gang"), action); (err != nil) != (test.change != nil) {
				t.Errorf("checkReady = %v", err)
			}
			if err := a.apply(t.Context(), action); !test.want(err) {
				t.Errorf("MarkReady = %v", err)
			}
			if marked.Load() != test.marked {
				t.Errorf("%d claims were marked, want %d", marked.Load(), test.marked)
			}
		})
	}
}

func TestTheStatusSaysStartingOnlyWhenTheClaimsAreAsObserved(t *testing.T) {
	claim := plannedGang(v1alpha1.StepReleasing)
	claim.Finalizers = []string{gang.Finalizer}
	r := newReconciler(t, interceptor.Funcs{}, claim)
	decision := gang.Decision{Actions: []gang.Action{gang.MarkReady{Claims: []gang.ReadyClaim{{Ref: gang.Ref{Namespace: "ml", Name: "a", UID: "a", ResourceVersion: "1"}}}}}}
	decision.Status.Plan = claim.Status.Plan.DeepCopy()
	decision.Status.Plan.Step = v1alpha1.StepStarting
	if err := r.checkStart(t.Context(), claim, decision); !onlyConflicts(err) {
		t.Errorf("with a claim that is not there: %v, want a conflict", err)
	}
	claim.Status.Plan.Step = v1alpha1.StepStarting // said already: the patches have conditions of their own
	if err := r.checkStart(t.Context(), claim, decision); err != nil {
		t.Error(err)
	}
}

func TestRules(t *testing.T) {
	rule := func() *resourceapi.DeviceTaintRule {
		return &resourceapi.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: "rule", UID: "first"}, Spec: resourceapi.DeviceTaintRuleSpec{
			Taint: resourceapi.DeviceTaint{Key: v1alpha1.ReservedTaintKey, Effect: resourceapi.DeviceTaintEffectNone},
		}}
	}
	conflict := apierrors.NewConflict(resourceapi.Resource("devicetaintrules"), "rule", errors.New("too many writers"))
	touch := func(ref gang.Ref) gang.Action { return gang.TouchRules{Rules: []gang.Ref{ref}} }
	remove := func(ref gang.Ref) gang.Action { return gang.DeleteRules{Rules: []gang.Ref{ref}} }
	as := func(uid types.UID) func(gang.Ref) gang.Ref {
		return func(ref gang.Ref) gang.Ref {
			ref.UID = uid
			return ref
		}
	}
	same := func(ref gang.Ref) gang.Ref { return ref }
	for name, test := range map[string]struct {
		action func(gang.Ref) gang.Action
		ref    func(gang.Ref) gang.Ref
		fails  error
		change bool
		wants  bool // a conflict
		gone   bool
	}{
		"a rule is touched": {action: touch, ref: same},
		"a conflict over the rule is not taken for done":  {action: touch, ref: same, fails: conflict, wants: true},
		"a conflict because another rule has the name is": {action: touch, ref: as("second"), fails: conflict},
		"a rule is deleted": {action: remove, ref: same, gone: true},
		"a rule that has changed, such as its effect, is not":          {action: remove, ref: same, change: true, wants: true},
		"another rule of the name is left alone, and that is no error": {action: remove, ref: as("second"), fails: conflict},
	} {
		t.Run(name, func(t *testing.T) {
			api := fakeAPI(t, interceptor.Funcs{
				Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, options ...client.PatchOption) error {
					if test.fails != nil {
						return test.fails
					}
					return c.Patch(ctx, o, patch, options...)
				},
				Delete: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.DeleteOption) error {
					var all client.DeleteOptions
					all.ApplyOptions(options)
					now := stored(t, c, rule())
					if p := all.Preconditions; p == nil || p.UID == nil || p.ResourceVersion == nil {
						t.Errorf("deleted with preconditions %v", p)
					} else if *p.UID != now.UID || *p.ResourceVersion != now.ResourceVersion {
						return conflict
					}
					return c.Delete(ctx, o)
				},
			}, rule())
			now := stored(t, api, rule())
			ref := test.ref(refOf(now))
			if test.change {
				now.Spec.Taint.Effect = resourceapi.DeviceTaintEffectNoSchedule
				if err := api.Update(t.Context(), now); err != nil {
					t.Fatal(err)
				}
			}
			if err := newApplier(api).apply(t.Context(), test.action(ref)); onlyConflicts(err) != test.wants || err != nil && !test.wants {
				t.Errorf("= %v, want a conflict: %t", err, test.wants)
			}
			if err := api.Get(t.Context(), keyOf(now), rule()); apierrors.IsNotFound(err) != test.gone {
				t.Errorf("the rule is gone: %v, want %t", err, test.gone)
			}
		})
	}
}
