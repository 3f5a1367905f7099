// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

func (u *users) wipeStatus() string {
	g := one[*v1alpha1.GangClaim](u, nil)
	if g == nil {
		return ""
	}
	u.w.checker.disturb()
	u.w.checker.wiped[g.UID] = true
	_, _ = update(u.w.api, keyOf(g), preconditions{}, func(g *v1alpha1.GangClaim) { g.Status = v1alpha1.GangClaimStatus{} })
	return "wipes the status of gang " + g.Name
}

// replaceGang deletes a GangClaim by force; half the time another one of its name follows at once.
func (u *users) replaceGang() string {
	g := one[*v1alpha1.GangClaim](u, nil)
	if g == nil {
		return ""
	}
	_, _ = update(u.w.api, keyOf(g), preconditions{}, func(g *v1alpha1.GangClaim) { g.Finalizers = nil })
	if get[*v1alpha1.GangClaim](&u.w.api.objects, keyOf(g)) != nil {
		_ = remove[*v1alpha1.GangClaim](u.w.api, keyOf(g), preconditions{})
	}
	u.w.checker.disturb()
	if t := get[*resourceapi.ResourceClaimTemplate](&u.w.api.objects, keyOf(g)); t != nil && len(t.OwnerReferences) > 0 {
		u.w.after(u.w.between(10*time.Millisecond, time.Second), func() {
			_ = remove[*resourceapi.ResourceClaimTemplate](u.w.api, keyOf(t), preconditions{uid: t.UID}) // garbage collection
		})
	}
	if u.w.rand.IntN(2) == 0 {
		return "removes gang " + g.Name
	}
	n := u.newGang(g.Name)
	if u.w.rand.IntN(2) == 0 {
		n.Spec = *g.Spec.DeepCopy()
	}
	u.w.must(create(u.w.api, n))
	return "replaces gang " + g.Name
}

func (u *users) changeSpec() string {
	g := one[*v1alpha1.GangClaim](u, nil)
	if g == nil {
		return ""
	}
	_, _ = update(u.w.api, keyOf(g), preconditions{}, func(g *v1alpha1.GangClaim) {
		g.Generation++
		g.Spec.RestartGracePeriod = &metav1.Duration{Duration: anyOf(u, 0, 10*time.Second)}
		g.Spec.SchedulingTimeout = &metav1.Duration{Duration: anyOf(u, 0, 30*time.Second)}
	})
	return "changes the spec of gang " + g.Name
}

func ofGang[T object](o T) bool { return gangOf(o) != "" }

func (u *users) deleteRule() string {
	r := one(u, ofGang[*resourceapi.DeviceTaintRule])
	if r == nil {
		return ""
	}
	u.w.checker.disturb()
	_ = remove[*resourceapi.DeviceTaintRule](u.w.api, keyOf(r), preconditions{})
	return "deletes rule " + r.Name
}

func (u *users) changeRule() string {
	r := one(u, ofGang[*resourceapi.DeviceTaintRule])
	if r == nil {
		return ""
	}
	_, _ = update(u.w.api, keyOf(r), preconditions{}, func(r *resourceapi.DeviceTaintRule) {
		r.Spec.Taint.Effect = anyOf(u, resourceapi.DeviceTaintEffectNone, resourceapi.DeviceTaintEffectNoSchedule)
	})
	u.w.checker.disturb()
	u.w.checker.touchedRules[r.UID] = true
	return "changes rule " + r.Name
}

func (u *users) deleteTemplate() string {
	t := one(u, ofGang[*resourceapi.ResourceClaimTemplate])
	if t == nil {
		return ""
	}
	_ = remove[*resourceapi.ResourceClaimTemplate](u.w.api, keyOf(t), preconditions{})
	return "deletes template " + t.Name
}

func (u *users) deleteClaim() string {
	c := one(u, ofGang[*resourceapi.ResourceClaim])
	if c == nil {
		return ""
	}
	_ = remove[*resourceapi.ResourceClaim](u.w.api, keyOf(c), preconditions{})
	u.w.checker.disturb()
	return "deletes claim " + c.Name
}

// foreignTemplate puts a template of a gang's name there, and takes it away after a while.
func (u *users) foreignTemplate() string {
	name := fmt.Sprintf("g%d", u.w.rand.IntN(6))
	t := singleTemplate(1)
	t.Name = name
	stored, err := create(u.w.api, t)
	if err != nil {
		return ""
	}
	u.w.after(u.w.between(time.Second, 10*time.Second), func() {
		_ = remove[*resourceapi.ResourceClaimTemplate](u.w.api, keyOf(stored), preconditions{uid: stored.UID})
	})
	return "creates a template of their own: " + name
}

func (u *users) quota() string {
	const name = "quota"
	if q := get[*corev1.ResourceQuota](&u.w.api.objects, key{Namespace: namespace, Name: name}); q != nil {
		_ = remove[*corev1.ResourceQuota](u.w.api, keyOf(q), preconditions{})
		return "deletes the quota"
	}
	limit := int64(len(u.w.api.objects[claims]) + u.w.rand.IntN(3))
	u.w.must(create(u.w.api, &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{
			quotaOfClaims: *resource.NewQuantity(limit, resource.DecimalSI),
		}},
	}))
	u.w.claimer.countQuota()
	return fmt.Sprintf("sets a quota of %d claims", limit)
}

func (u *users) gatePod() string {
	p := one(u, func(p *corev1.Pod) bool { return p.Spec.NodeName == "" })
	if p == nil {
		return ""
	}
	// Gates cannot be added: the pod is replaced by one that has some for a while.
	gated := p.DeepCopy()
	gated.ResourceVersion, gated.Name, gated.Status = "", p.Name+"g", corev1.PodStatus{Phase: corev1.PodPending}
	gated.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/wait"}}
	_ = remove[*corev1.Pod](u.w.api, keyOf(p), preconditions{})
	stored, err := create(u.w.api, gated)
	if err != nil {
		return ""
	}
	u.w.after(u.w.between(time.Second, 8*time.Second), func() {
		_, _ = update(u.w.api, keyOf(stored), preconditions{uid: stored.UID}, func(p *corev1.Pod) { p.Spec.SchedulingGates = nil })
	})
	return "replaces pod " + p.Name + " by one with a scheduling gate"
}

func (u *users) crash() string {
	u.w.crash(u.w.between(0, 2*time.Second))
	return "the controller is killed"
}

func (u *users) loseLease() string {
	u.w.loseLease()
	return "the controller loses its lease, and goes on for a while"
}

func (u *users) restartScheduler() string {
	u.w.restartScheduler()
	return "kube-scheduler restarts"
}
