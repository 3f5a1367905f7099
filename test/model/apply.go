// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package model

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/gang"
)

// apply writes one action: its objects in any order, each at a time of its own. One that fails does not keep
// the others from being written.
func (c *controller) apply(g *v1alpha1.GangClaim, a gang.Action, done func(error)) {
	if victims, ok := a.(gang.EvictVictims); ok {
		c.evictVictims(g, victims, done)
		return
	}
	writes := c.writes(a)
	if len(writes) == 0 {
		done(nil)
		return
	}
	left := len(writes)
	var failed error
	for _, i := range c.w.rand.Perm(len(writes)) {
		took := c.w.writeTime()
		if c.w.chance(0.1) {
			took += c.w.between(0, 500*time.Millisecond)
		}
		c.after(took, func() {
			c.w.checker.acts(c, g, a)
			if err := writes[i](); err != nil {
				failed = err
				c.logf("%s fails: %v", a.Verb(), err)
			} else {
				c.logf("%s", a.Verb())
			}
			if left--; left == 0 {
				done(failed)
			}
		})
	}
}

func gone(err error) error {
	if err == errNotFound || err == errConflict { //nolint:errorlint // they are never wrapped
		return nil
	}
	return err
}

func each[T any](of []T, do func(T) error) []func() error {
	var out []func() error
	for _, o := range of {
		out = append(out, func() error { return do(o) })
	}
	return out
}

func refKey(r gang.Ref) key { return key{Namespace: r.Namespace, Name: r.Name} }

func same(r gang.Ref) preconditions { return preconditions{uid: r.UID} }

func unchanged(r gang.Ref) preconditions {
	return preconditions{uid: r.UID, version: r.ResourceVersion}
}

// did notes a write to a kind.
func did[T any](c *controller, k kind, _ T, err error) error {
	if err == nil {
		c.mine(k)
	}
	return err
}

func (c *controller) writes(a gang.Action) []func() error {
	if c.w.fault.drops(a) {
		return nil
	}
	switch a := a.(type) {
	case gang.AddFinalizer:
		return each([]gang.Ref{a.Claim}, func(r gang.Ref) error { return c.setFinalizer(r, true) })
	case gang.RemoveFinalizer:
		return each([]gang.Ref{a.Claim}, func(r gang.Ref) error { return c.setFinalizer(r, false) })
	case gang.CreateTemplate:
		return each([]*resourceapi.ResourceClaimTemplate{a.Template}, func(t *resourceapi.ResourceClaimTemplate) error {
			_, err := create(c.w.api, t)
			if err == errExists { //nolint:errorlint // it is never wrapped
				return nil
			}
			return did(c, templates, t, err)
		})
	case gang.DeleteTemplate:
		return each([]gang.Ref{a.Template}, func(r gang.Ref) error {
			return gone(did(c, templates, r, remove[*resourceapi.ResourceClaimTemplate](c.w.api, refKey(r), same(r))))
		})
	case gang.DeleteClaims:
		return each(a.Claims, func(r gang.Ref) error {
			when := unchanged(r)
			if c.w.fault == blindDelete {
				when.version = ""
			}
			err := did(c, claims, r, remove[*resourceapi.ResourceClaim](c.w.api, refKey(r), when))
			if err == errNotFound { //nolint:errorlint // it is never wrapped
				return nil
			}
			return err
		})
	case gang.MarkReady:
		return each(a.Claims, func(r gang.ReadyClaim) error {
			o, err := update(c.w.api, refKey(r.Ref), unchanged(r.Ref), func(o *resourceapi.ResourceClaim) {
				o.Annotations[v1alpha1.ReadyAnnotation] = r.Plan
			})
			return did(c, claims, o, err)
		})
	case gang.TouchPods:
		return each(a.Pods, func(r gang.Ref) error {
			o, err := update(c.w.api, refKey(r), same(r), func(o *corev1.Pod) { stamp(o, gang.Stamp(gang.StampTouched, c.w.now)) })
			return gone(did(c, pods, o, err))
		})
	case gang.EvictPods:
		return each(a.Pods, func(r gang.Ref) error {
			return gone(did(c, pods, r, remove[*corev1.Pod](c.w.api, refKey(r), same(r))))
		})
	default:
		return c.ruleWrites(a)
	}
}

func (c *controller) ruleWrites(a gang.Action) []func() error {
	type rule = resourceapi.DeviceTaintRule
	patch := func(r gang.Ref, did string, change func(*rule)) error {
		_, err := update(c.w.api, refKey(r), same(r), func(o *rule) {
			change(o)
			stamp(o, gang.Stamp(did, c.w.now))
		})
		if err == nil {
			c.mine(rules)
		}
		return gone(err)
	}
	switch a := a.(type) {
	case gang.CreateRules:
		return each(a.Rules, func(r *rule) error {
			r = r.DeepCopy()
			stamp(r, gang.Stamp(gang.StampCreated, c.w.now))
			_, err := create(c.w.api, r)
			if err == errExists { //nolint:errorlint // it is never wrapped
				return nil
			}
			return did(c, rules, r, err)
		})
	case gang.RepairRules:
		return each(a.Rules, func(r *rule) error {
			o, err := update(c.w.api, keyOf(r), preconditions{uid: r.UID, version: r.ResourceVersion}, func(o *rule) {
				o.Spec = *r.Spec.DeepCopy()
				stamp(o, gang.Stamp(gang.StampCreated, c.w.now))
			})
			return did(c, rules, o, err)
		})
	case gang.TouchRules:
		return each(a.Rules, func(r gang.Ref) error { return patch(r, gang.StampTouched, func(*rule) {}) })
	case gang.NeutralizeRules:
		return each(a.Rules, func(r gang.Ref) error {
			if c.w.fault == noNeutral {
				return gone(did(c, rules, r, remove[*rule](c.w.api, refKey(r), same(r))))
			}
			return patch(r, gang.StampNeutralized, func(o *rule) { o.Spec.Taint.Effect = resourceapi.DeviceTaintEffectNone })
		})
	case gang.DeleteRules:
		return each(a.Rules, func(r gang.Ref) error {
			err := did(c, rules, r, remove[*rule](c.w.api, refKey(r), unchanged(r)))
			if err == errNotFound { //nolint:errorlint // it is never wrapped
				return nil
			}
			return err
		})
	default:
		c.w.fail("the model does not know action %s", a.Verb())
		return nil
	}
}

func stamp(o object, value string) {
	annotations := o.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[v1alpha1.TouchedAnnotation] = value
	o.SetAnnotations(annotations)
}

func (c *controller) setFinalizer(r gang.Ref, want bool) error {
	live := get[*v1alpha1.GangClaim](&c.cache.objects, refKey(r))
	if live == nil || live.UID != r.UID || slices.Contains(live.Finalizers, gang.Finalizer) == want {
		return nil
	}
	_, err := update(c.w.api, refKey(r), preconditions{uid: live.UID, version: live.ResourceVersion}, func(g *v1alpha1.GangClaim) {
		g.Finalizers = nil
		if want {
			g.Finalizers = []string{gang.Finalizer}
		}
	})
	if err == errNotFound { //nolint:errorlint // it is never wrapped
		return nil
	}
	return did(c, gangClaims, ptr.To(0), err)
}
