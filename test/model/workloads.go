// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package model

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// keeper is what keeps the pods of a workload.
type keeper string

const (
	// bare pods are kept by nobody.
	bare keeper = "bare"
	// job replaces pods that failed or are being deleted, until enough have succeeded.
	job keeper = "job"
	// deployment replaces every pod that has ended or is being deleted, and may have more than it
	// should for a while.
	deployment keeper = "deployment"
)

// workload has pods that are alike.
type workload struct {
	name     string
	keeper   keeper
	template string
	replicas int
	surge    int
	cpu      int64 // millicores a pod
	twice    bool  // the pods name the template twice
	made     int

	// movable pods may be moved for gangs, slow ones take long to end.
	movable, slow bool
	priority      int32
}

const workloadLabel = "workload"

// workloads are the controllers that keep pods.
type workloads struct {
	w   *world
	all map[string]*workload
	n   int
}

func newWorkloads(w *world) *workloads {
	ws := &workloads{w: w, all: map[string]*workload{}}
	w.api.watchers = append(w.api.watchers, func(ch change) {
		if pod, ok := ch.object().(*corev1.Pod); ok {
			ws.soon(pod.Labels[workloadLabel])
		}
	})
	return ws
}

// add makes a workload; its pods come soon.
func (ws *workloads) add(l workload) *workload {
	ws.n++
	l.name = fmt.Sprintf("%s-%s-%d", l.template, l.keeper, ws.n)
	ws.all[l.name] = &l
	if l.keeper == bare {
		for range l.replicas {
			ws.create(&l)
		}
	}
	ws.soon(l.name)
	return &l
}

func (ws *workloads) sorted() []*workload {
	var out []*workload
	for _, name := range slices.Sorted(maps.Keys(ws.all)) {
		out = append(out, ws.all[name])
	}
	return out
}

// drop deletes a workload and its pods.
func (ws *workloads) drop(l *workload) {
	delete(ws.all, l.name)
	for _, pod := range ws.pods(l.name) {
		_ = remove[*corev1.Pod](ws.w.api, keyOf(pod), preconditions{})
	}
}

// pods are the pods of a workload, oldest first.
func (ws *workloads) pods(name string) []*corev1.Pod {
	out := slices.DeleteFunc(list[*corev1.Pod](&ws.w.api.objects), func(p *corev1.Pod) bool { return p.Labels[workloadLabel] != name })
	slices.SortFunc(out, func(a, b *corev1.Pod) int {
		return cmp.Or(len(a.Name)-len(b.Name), cmp.Compare(a.Name, b.Name))
	})
	return out
}

func (ws *workloads) soon(name string) {
	if l := ws.all[name]; l != nil && l.keeper != bare {
		ws.w.after(ws.w.between(5*1e6, 100*1e6), func() { ws.sync(name) })
	}
}

func (ws *workloads) sync(name string) {
	l := ws.all[name]
	if l == nil || l.keeper == bare {
		return
	}
	var active []*corev1.Pod
	succeeded := 0
	for _, pod := range ws.pods(name) {
		switch {
		case pod.Status.Phase == corev1.PodSucceeded && l.keeper == job:
			succeeded++
		case pod.DeletionTimestamp == nil && !over(pod):
			active = append(active, pod)
		case over(pod) && pod.DeletionTimestamp == nil && l.keeper == deployment:
			_ = remove[*corev1.Pod](ws.w.api, keyOf(pod), preconditions{})
		}
	}
	want := l.replicas + l.surge - succeeded
	for n := len(active); n < want; n++ {
		ws.create(l)
	}
	for n := len(active); n > max(want, 0); n-- {
		_ = remove[*corev1.Pod](ws.w.api, keyOf(active[n-1]), preconditions{})
	}
}

// create makes a pod.
func (ws *workloads) create(l *workload) {
	l.made++
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("%s-%d", l.name, l.made), Labels: map[string]string{workloadLabel: l.name}},
		Spec: corev1.PodSpec{
			ResourceClaims: []corev1.PodResourceClaim{{Name: "gpus", ResourceClaimTemplateName: ptr.To(l.template)}},
			Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceCPU: *resource.NewMilliQuantity(l.cpu, resource.DecimalSI),
			}}}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
	if l.twice {
		pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, corev1.PodResourceClaim{Name: "more", ResourceClaimTemplateName: ptr.To(l.template)})
	}
	if l.movable {
		pod.Labels[v1alpha1.MovableLabel] = "true"
	}
	if l.slow {
		pod.Labels[slowLabel] = "true"
	}
	if l.priority != 0 {
		pod.Spec.Priority = ptr.To(l.priority)
	}
	if l.keeper != bare {
		// Pods of Jobs are moved with the label only, those of ReplicaSets without it too.
		apiVersion, kind := "batch/v1", "Job"
		if l.keeper == deployment {
			apiVersion, kind = "apps/v1", "ReplicaSet"
		}
		pod.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: apiVersion, Kind: kind, Name: l.name, UID: types.UID("owner-" + l.name), Controller: ptr.To(true),
		}}
	}
	ws.w.must(create(ws.w.api, pod))
}
