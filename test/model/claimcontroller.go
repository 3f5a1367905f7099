// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package model

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// claimController is the resource claim controller: it makes claims from templates for pods that name them,
// once, and takes allocations and claims from pods that are over.
type claimController struct {
	w     *world
	cache *cache
	// made is when the claim of a pod was made, as long as the controller believes that it exists.
	made map[madeFor]time.Time
	// failed counts the attempts that failed.
	failed map[key]int
}

// madeFor is an entry of spec.resourceClaims of a pod.
type madeFor struct {
	pod types.UID
	ref string
}

func newClaimController(w *world) *claimController {
	c := &claimController{w: w, made: map[madeFor]time.Time{}, failed: map[key]int{}}
	c.cache = newCache(w, c.seen)
	c.cache.start()
	return c
}

func (c *claimController) seen(ch change) {
	switch o := ch.object().(type) {
	case *corev1.Pod:
		before, _ := ch.before.(*corev1.Pod)
		touched := before != nil && before.Annotations[v1alpha1.TouchedAnnotation] != o.Annotations[v1alpha1.TouchedAnnotation]
		for _, ref := range o.Spec.ResourceClaims {
			made := madeFor{o.UID, ref.Name}
			if ch.after == nil || touched && c.w.now.Sub(c.made[made]) > 100*time.Millisecond {
				delete(c.made, made)
			}
		}
		c.soon(ch.key, o.UID)
	case *resourceapi.ResourceClaimTemplate:
		if ch.after == nil {
			return
		}
		for _, pod := range list[*corev1.Pod](&c.cache.objects) {
			for _, ref := range pod.Spec.ResourceClaims {
				if ref.ResourceClaimTemplateName != nil && *ref.ResourceClaimTemplateName == o.Name {
					c.soon(keyOf(pod), pod.UID)
				}
			}
		}
	case *resourceapi.ResourceClaim:
		c.w.after(c.w.writeTime(), func() { c.release(ch.key) })
		if ch.before == nil || ch.after == nil {
			c.w.after(c.w.between(10*time.Millisecond, 500*time.Millisecond), c.countQuota)
		}
	}
}

// countQuota is the quota controller: the planner reads what it wrote.
func (c *claimController) countQuota() {
	for _, q := range list[*corev1.ResourceQuota](&c.w.api.objects) {
		used := *resource.NewQuantity(int64(len(c.w.api.objects[claims])), resource.DecimalSI)
		if was := q.Status.Used[quotaOfClaims]; was.Cmp(used) != 0 || q.Status.Hard == nil {
			_, _ = update(c.w.api, keyOf(q), preconditions{}, func(q *corev1.ResourceQuota) {
				q.Status.Hard = q.Spec.Hard
				q.Status.Used = corev1.ResourceList{quotaOfClaims: used}
			})
		}
	}
}

func (c *claimController) soon(pod key, uid types.UID) {
	c.w.after(c.w.writeTime(), func() { c.sync(pod, uid) })
}

// sync makes the claims that a pod lacks.
func (c *claimController) sync(name key, uid types.UID) {
	pod := get[*corev1.Pod](&c.cache.objects, name)
	if pod == nil || pod.UID != uid || over(pod) {
		for _, claim := range list[*resourceapi.ResourceClaim](&c.w.api.objects) {
			if owner := metav1.GetControllerOfNoCopy(claim); owner != nil && owner.UID == uid {
				c.release(keyOf(claim))
			}
		}
		return
	}
	if pod.DeletionTimestamp != nil {
		return
	}
	for _, ref := range pod.Spec.ResourceClaims {
		if owned := c.claimOf(pod, ref.Name); owned != nil {
			c.record(pod, ref.Name, owned.Name)
			continue
		}
		if !c.made[madeFor{pod.UID, ref.Name}].IsZero() {
			continue // it believes that the claim exists
		}
		template := get[*resourceapi.ResourceClaimTemplate](&c.cache.objects, key{Namespace: pod.Namespace, Name: *ref.ResourceClaimTemplateName})
		if template == nil {
			continue
		}
		claim, err := create(c.w.api, newClaim(pod, ref.Name, template, c.w.api.serial))
		if err != nil {
			c.failed[name]++
			backoff := min(5*time.Millisecond<<min(c.failed[name], 20), 1000*time.Second)
			c.w.logf("claim controller: no claim for pod %s: %v; again in %s", name.Name, err, backoff)
			c.w.after(backoff, func() { c.sync(name, uid) })
			return
		}
		c.w.logf("claim controller: claim %s for pod %s", claim.Name, name.Name)
		delete(c.failed, name)
		c.made[madeFor{pod.UID, ref.Name}] = c.w.now
		c.cache.reach(claims, c.w.api.version)
		c.w.after(c.w.writeTime(), func() { c.record(pod, ref.Name, claim.Name) })
	}
}

func newClaim(pod *corev1.Pod, ref string, template *resourceapi.ResourceClaimTemplate, serial int) *resourceapi.ResourceClaim {
	claim := &resourceapi.ResourceClaim{ObjectMeta: *template.Spec.ObjectMeta.DeepCopy(), Spec: *template.Spec.Spec.DeepCopy()}
	claim.Namespace, claim.Name = pod.Namespace, pod.Name+"-"+ref+"-"+itoa(serial)
	if claim.Annotations == nil {
		claim.Annotations = map[string]string{}
	}
	claim.Annotations[resourceapi.PodResourceClaimAnnotation] = ref
	claim.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(pod, corev1.SchemeGroupVersion.WithKind("Pod"))}
	return claim
}

func (c *claimController) claimOf(pod *corev1.Pod, ref string) *resourceapi.ResourceClaim {
	for _, claim := range list[*resourceapi.ResourceClaim](&c.cache.objects) {
		if metav1.IsControlledBy(claim, pod) && claim.Annotations[resourceapi.PodResourceClaimAnnotation] == ref && claim.DeletionTimestamp == nil {
			return claim
		}
	}
	return nil
}

// record writes the name of a claim into the status of its pod.
func (c *claimController) record(pod *corev1.Pod, ref, claim string) {
	live := get[*corev1.Pod](&c.w.api.objects, keyOf(pod))
	if live == nil || live.UID != pod.UID {
		return
	}
	for _, s := range live.Status.ResourceClaimStatuses {
		if s.Name == ref && *s.ResourceClaimName == claim {
			return
		}
	}
	_, _ = update(c.w.api, keyOf(pod), preconditions{}, func(p *corev1.Pod) {
		var statuses []corev1.PodResourceClaimStatus
		for _, s := range p.Status.ResourceClaimStatuses {
			if s.Name != ref {
				statuses = append(statuses, s)
			}
		}
		p.Status.ResourceClaimStatuses = append(statuses, corev1.PodResourceClaimStatus{Name: ref, ResourceClaimName: &claim})
	})
}

// release takes the allocation of a claim that nobody uses, and removes it when its pod is over or when it
// is being deleted.
func (c *claimController) release(name key) {
	claim := get[*resourceapi.ResourceClaim](&c.w.api.objects, name)
	if claim == nil {
		return
	}
	owner := metav1.GetControllerOfNoCopy(claim)
	pod := get[*corev1.Pod](&c.w.api.objects, key{Namespace: claim.Namespace, Name: owner.Name})
	gone := pod == nil || pod.UID != owner.UID
	done := gone || over(pod)
	reserved := len(claim.Status.ReservedFor) > 0 && !done
	switch {
	case claim.Status.Allocation != nil && !reserved:
		if !done && c.w.scheduler.bindings[owner.UID] != nil {
			return // reserved a moment later
		}
		c.w.logf("claim controller: claim %s is not used: deallocated", name.Name)
		_, _ = update(c.w.api, name, preconditions{version: claim.ResourceVersion}, func(r *resourceapi.ResourceClaim) {
			r.Status.Allocation, r.Status.ReservedFor, r.Finalizers = nil, nil, nil
		})
	case claim.DeletionTimestamp != nil && claim.Status.Allocation == nil:
		_, _ = update(c.w.api, name, preconditions{version: claim.ResourceVersion}, func(r *resourceapi.ResourceClaim) { r.Finalizers = nil })
	case done:
		_ = remove[*resourceapi.ResourceClaim](c.w.api, name, preconditions{version: claim.ResourceVersion})
	}
}
