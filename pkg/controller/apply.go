// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/gang"
)

// writesAtOnce bounds the writes of one action that run side by side.
const writesAtOnce = 32

// applier writes what was decided to the API server.
type applier struct {
	client client.Client
	// live reads at the API server.
	live  client.Reader
	clock clock.PassiveClock
	// wrote is called after each write; its error ends the action as a crash would.
	wrote func(verb string) error
}

// apply runs one action. The error says on which object; errors of preconditions stay recognisable.
func (a *applier) apply(ctx context.Context, action gang.Action) error {
	switch action := action.(type) {
	case gang.AddFinalizer:
		return a.setFinalizer(ctx, action, action.Claim, true)
	case gang.RemoveFinalizer:
		return a.setFinalizer(ctx, action, action.Claim, false)
	case gang.CreateRules:
		return each(ctx, a, action, action.Rules, func(ctx context.Context, rule *resourceapi.DeviceTaintRule) error {
			rule = rule.DeepCopy()
			a.stamp(rule, gang.StampCreated)
			return ignore(apierrors.IsAlreadyExists, a.client.Create(ctx, rule))
		})
	case gang.RepairRules:
		return each(ctx, a, action, action.Rules, func(ctx context.Context, rule *resourceapi.DeviceTaintRule) error {
			rule = rule.DeepCopy()
			a.stamp(rule, gang.StampCreated)
			return a.client.Update(ctx, rule)
		})
	case gang.TouchRules:
		return each(ctx, a, action, action.Rules, func(ctx context.Context, ref gang.Ref) error {
			rule := &resourceapi.DeviceTaintRule{}
			return a.gone(ctx, rule, ref, a.patch(ctx, rule, ref, uidOnly, annotate(v1alpha1.TouchedAnnotation, a.stamped(gang.StampTouched)), nil))
		})
	case gang.NeutralizeRules:
		return each(ctx, a, action, action.Rules, func(ctx context.Context, ref gang.Ref) error {
			rule := &resourceapi.DeviceTaintRule{}
			return a.gone(ctx, rule, ref, a.patch(ctx, rule, ref, uidOnly, annotate(v1alpha1.TouchedAnnotation, a.stamped(gang.StampNeutralized)),
				map[string]any{"taint": map[string]any{"effect": resourceapi.DeviceTaintEffectNone}}))
		})
	case gang.DeleteRules:
		return each(ctx, a, action, action.Rules, func(ctx context.Context, ref gang.Ref) error {
			// A rule that has its effect again, whoever gave it back, must not be deleted with it.
			rule := &resourceapi.DeviceTaintRule{}
			return a.gone(ctx, rule, ref, a.delete(ctx, rule, ref, unchanged))
		})
	case gang.CreateTemplate:
		return each(ctx, a, action, []*resourceapi.ResourceClaimTemplate{action.Template}, func(ctx context.Context, template *resourceapi.ResourceClaimTemplate) error {
			return ignore(apierrors.IsAlreadyExists, a.client.Create(ctx, template.DeepCopy()))
		})
	case gang.DeleteTemplate:
		return each(ctx, a, action, []gang.Ref{action.Template}, func(ctx context.Context, ref gang.Ref) error {
			template := &resourceapi.ResourceClaimTemplate{}
			return a.gone(ctx, template, ref, a.delete(ctx, template, ref, uidOnly))
		})
	case gang.DeleteClaims:
		return each(ctx, a, action, action.Claims, func(ctx context.Context, ref gang.Ref) error {
			return ignore(apierrors.IsNotFound, a.delete(ctx, &resourceapi.ResourceClaim{}, ref, unchanged))
		})
	case gang.TouchPods:
		return each(ctx, a, action, action.Pods, func(ctx context.Context, ref gang.Ref) error {
			pod := &corev1.Pod{}
			return a.gone(ctx, pod, ref, a.patch(ctx, pod, ref, uidOnly, annotate(v1alpha1.TouchedAnnotation, a.stamped(gang.StampTouched)), nil))
		})
	case gang.EvictPods:
		return a.evict(ctx, action)
	case gang.MarkReady:
		if err := a.tryMarkReady(ctx, action); err != nil {
			return err
		}
		return each(ctx, a, action, action.Claims, func(ctx context.Context, claim gang.ReadyClaim) error { return a.markReady(ctx, claim) })
	default:
		return fmt.Errorf("action %s of type %T is not implemented", action.Verb(), action)
	}
}

// checkReady returns a conflict when a claim of the action is not at the API server as it was observed.
func (a *applier) checkReady(ctx context.Context, claim *v1alpha1.GangClaim, action gang.MarkReady) error {
	var claims resourceapi.ResourceClaimList
	if err := a.live.List(ctx, &claims, client.InNamespace(claim.Namespace), client.MatchingLabels{v1alpha1.GangLabel: string(claim.UID)}); err != nil {
		return fmt.Errorf("list claims of GangClaim %s at the API server: %w", keyOf(claim), err)
	}
	versions := map[types.UID]string{}
	for i := range claims.Items {
		versions[claims.Items[i].UID] = claims.Items[i].ResourceVersion
	}
	for _, ready := range action.Claims {
		if versions[ready.UID] != ready.ResourceVersion {
			return changed(ready)
		}
	}
	return nil
}

func changed(claim gang.ReadyClaim) error {
	return apierrors.NewConflict(resourceapi.Resource("resourceclaims"), claim.Name, errors.New("the claim is not as it was observed"))
}

// tryMarkReady asks the API server whether all claims of the action could be marked ready: each is still as
// it was observed, and no admission policy is against it. Nothing is written.
func (a *applier) tryMarkReady(ctx context.Context, action gang.MarkReady) error {
	return sideBySide(action.Claims, func(claim gang.ReadyClaim) error {
		err := a.markReady(ctx, claim, client.DryRunAll)
		if apierrors.IsBadRequest(err) {
			// There is an admission webhook that cannot be asked without effect.
			now := &resourceapi.ResourceClaim{}
			if err = a.live.Get(ctx, types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}, now); err == nil &&
				(now.UID != claim.UID || now.ResourceVersion != claim.ResourceVersion) {
				err = changed(claim)
			}
		}
		if err != nil {
			return fmt.Errorf("try to %s %s: %w", action.Verb(), name(claim), err)
		}
		return nil
	})
}

func (a *applier) markReady(ctx context.Context, claim gang.ReadyClaim, options ...client.PatchOption) error {
	return a.patch(ctx, &resourceapi.ResourceClaim{}, claim.Ref, unchanged, annotate(v1alpha1.ReadyAnnotation, claim.Plan), nil, options...)
}

// each writes all objects of an action side by side. One that fails does not keep the others from being
// written.
func each[T any](ctx context.Context, a *applier, action gang.Action, objects []T, write func(context.Context, T) error) error {
	return sideBySide(objects, func(object T) error {
		if err := write(ctx, object); err != nil {
			return fmt.Errorf("%s %s: %w", action.Verb(), name(object), err)
		}
		return a.wrote(action.Verb())
	})
}

// sideBySide calls do for all objects, some at the same time, and returns all errors.
func sideBySide[T any](objects []T, do func(T) error) error {
	errs := make([]error, len(objects))
	var group errgroup.Group
	group.SetLimit(writesAtOnce)
	for i, object := range objects {
		group.Go(func() error {
			errs[i] = do(object)
			return nil
		})
	}
	_ = group.Wait() // errors are in errs
	return errors.Join(errs...)
}

func name(object any) string {
	var ref gang.Ref
	switch o := object.(type) {
	case gang.Ref:
		ref = o
	case gang.ReadyClaim:
		ref = o.Ref
	case client.Object:
		ref = refOf(o)
	}
	return types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}.String()
}

// evict asks whether all pods could be evicted before it evicts the first.
func (a *applier) evict(ctx context.Context, action gang.EvictPods) error {
	for _, ref := range action.Pods {
		if err := a.evictPod(ctx, ref, metav1.DryRunAll); err != nil {
			return fmt.Errorf("try to evict pod %s: %w", name(ref), err)
		}
	}
	return each(ctx, a, action, action.Pods, func(ctx context.Context, ref gang.Ref) error { return a.evictPod(ctx, ref) })
}

// evictPod takes a pod that is gone for done.
func (a *applier) evictPod(ctx context.Context, ref gang.Ref, dryRun ...string) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ref.Namespace, Name: ref.Name}}
	return a.gone(ctx, pod, ref, a.client.SubResource("eviction").Create(ctx, pod, &policyv1.Eviction{
		ObjectMeta: pod.ObjectMeta,
		DeleteOptions: &metav1.DeleteOptions{
			Preconditions: metav1.NewUIDPreconditions(string(ref.UID)),
			DryRun:        dryRun,
		},
	}))
}

// setFinalizer leaves the finalizers of others as they were observed: the resourceVersion sees to it.
func (a *applier) setFinalizer(ctx context.Context, action gang.Action, ref gang.Ref, want bool) error {
	claim := &v1alpha1.GangClaim{}
	if err := a.client.Get(ctx, types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}, claim); err != nil {
		return ignore(apierrors.IsNotFound, fmt.Errorf("%s %s: %w", action.Verb(), name(ref), err))
	}
	if claim.UID != ref.UID {
		return nil // another one of the same name
	}
	var finalizers []string
	for _, finalizer := range claim.Finalizers {
		if finalizer != gang.Finalizer {
			finalizers = append(finalizers, finalizer)
		}
	}
	if want {
		finalizers = append(finalizers, gang.Finalizer)
	}
	if len(finalizers) == len(claim.Finalizers) {
		return nil
	}
	patch := map[string]any{"finalizers": finalizers}
	if err := ignore(apierrors.IsNotFound, a.patch(ctx, &v1alpha1.GangClaim{}, refOf(claim), unchanged, patch, nil)); err != nil {
		return fmt.Errorf("%s %s: %w", action.Verb(), name(ref), err)
	}
	return a.wrote(action.Verb())
}

// condition says what must not have changed for a write to be made.
type condition bool

const (
	uidOnly   condition = false // the object is the same
	unchanged condition = true  // nothing of the object has changed
)

// patch changes fields of the metadata, and of the spec, with a JSON merge patch.
func (a *applier) patch(ctx context.Context, object client.Object, ref gang.Ref, condition condition, metadata, spec map[string]any, options ...client.PatchOption) error {
	metadata["uid"] = ref.UID
	if condition == unchanged {
		metadata["resourceVersion"] = ref.ResourceVersion
	}
	body := map[string]any{"metadata": metadata}
	if spec != nil {
		body["spec"] = spec
	}
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	object.SetNamespace(ref.Namespace)
	object.SetName(ref.Name)
	return a.client.Patch(ctx, object, client.RawPatch(types.MergePatchType, data), options...)
}

func (a *applier) delete(ctx context.Context, object client.Object, ref gang.Ref, condition condition) error {
	preconditions := client.Preconditions{UID: &ref.UID}
	if condition == unchanged {
		preconditions.ResourceVersion = &ref.ResourceVersion
	}
	object.SetNamespace(ref.Namespace)
	object.SetName(ref.Name)
	return a.client.Delete(ctx, object, preconditions)
}

func (a *applier) stamped(did string) string { return gang.Stamp(did, a.clock.Now()) }

func (a *applier) stamp(object client.Object, did string) {
	annotations := object.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[v1alpha1.TouchedAnnotation] = a.stamped(did)
	object.SetAnnotations(annotations)
}

func annotate(key, value string) map[string]any {
	return map[string]any{"annotations": map[string]any{key: value}}
}

func ignore(kind func(error) bool, err error) error {
	if kind(err) {
		return nil
	}
	return err
}

// gone takes an object that is not there, or that another one has replaced, for done. Another conflict is
// none of that: the API server gives up on a patch after some tries against other writers.
func (a *applier) gone(ctx context.Context, object client.Object, ref gang.Ref, err error) error {
	switch {
	case apierrors.IsNotFound(err), otherUID(err):
		return nil
	case !apierrors.IsConflict(err):
		return err
	}
	if readErr := a.live.Get(ctx, types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}, object); readErr != nil {
		return ignore(apierrors.IsNotFound, readErr)
	}
	if object.GetUID() != ref.UID {
		return nil
	}
	return err
}

// otherUID says that a patch was refused because it names another UID.
func otherUID(err error) bool {
	status := apierrors.APIStatus(nil)
	if !apierrors.IsInvalid(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return false
	}
	for _, cause := range status.Status().Details.Causes {
		if cause.Field == "metadata.uid" {
			return true
		}
	}
	return false
}
