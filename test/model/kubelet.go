// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package model

import (
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

func itoa(n int) string { return strconv.Itoa(n) }

// kubelet stands for those of all nodes, with the node plugin's start gate.
type kubelet struct {
	w *world
	// prepared says which pod has each device prepared.
	prepared map[device]types.UID
}

func newKubelet(w *world) *kubelet {
	k := &kubelet{w: w, prepared: map[device]types.UID{}}
	w.api.watchers = append(w.api.watchers, func(ch change) {
		switch o := ch.object().(type) {
		case *corev1.Pod:
			k.soon(ch.key, o.UID)
		case *resourceapi.ResourceClaim: // the start gate watches it
			if owner := metav1.GetControllerOfNoCopy(o); owner != nil {
				k.soon(key{Namespace: o.Namespace, Name: owner.Name}, owner.UID)
			}
		case *corev1.Node:
			for _, pod := range list[*corev1.Pod](&w.api.objects) {
				if pod.Spec.NodeName == o.Name {
					k.soon(keyOf(pod), pod.UID)
				}
			}
		}
	})
	return k
}

func (k *kubelet) soon(pod key, uid types.UID) {
	k.w.after(k.w.between(2*time.Millisecond, 30*time.Millisecond), func() { k.sync(pod, uid) })
}

func (k *kubelet) sync(name key, uid types.UID) {
	pod := get[*corev1.Pod](&k.w.api.objects, name)
	if pod == nil || pod.UID != uid {
		k.unprepare(uid)
		return
	}
	if pod.Spec.NodeName == "" {
		return
	}
	node := get[*corev1.Node](&k.w.api.objects, key{Name: pod.Spec.NodeName})
	switch {
	case node == nil: // pod garbage collection
		k.w.after(20*time.Second, func() {
			if get[*corev1.Node](&k.w.api.objects, key{Name: pod.Spec.NodeName}) == nil {
				k.w.api.expunge(name, uid)
			}
		})
	case !nodeReady(node):
	case over(pod):
		k.unprepare(uid)
		if pod.DeletionTimestamp != nil {
			k.w.after(k.w.between(10*time.Millisecond, 100*time.Millisecond), func() { k.w.api.expunge(name, uid) })
		}
	case pod.DeletionTimestamp != nil:
		end := k.w.between(200*time.Millisecond, 400*time.Millisecond)
		if pod.Labels[slowLabel] != "" {
			end = k.w.between(time.Second, 60*time.Second)
		}
		k.w.after(end, func() { k.end(name, uid, corev1.PodFailed) })
	case pod.Status.Phase == corev1.PodPending:
		k.run(pod)
	}
}

// run prepares the claims of a pod and starts its containers.
func (k *kubelet) run(pod *corev1.Pod) {
	podClaims, ok := claimsOf(&k.w.api.objects, pod)
	if !ok {
		return
	}
	for _, c := range podClaims {
		if c.Status.Allocation == nil || len(c.Status.ReservedFor) == 0 || c.Status.ReservedFor[0].UID != pod.UID {
			return
		}
		if c.Labels[v1alpha1.GangLabel] != "" && !isReady(c.Labels, c.Annotations) && k.w.fault != noStartGate {
			return
		}
	}
	for _, c := range podClaims {
		for _, d := range c.Status.Allocation.Devices.Results {
			id := device{d.Pool, d.Device}
			if other := k.prepared[id]; other != "" && other != pod.UID {
				k.w.fail("device %s of %s is prepared for pod %s while another pod has it", d.Device, d.Pool, pod.Name)
			}
			k.prepared[id] = pod.UID
		}
		k.w.checker.started(pod, c)
	}
	k.w.logf("kubelet: pod %s runs", pod.Name)
	_, _ = update(k.w.api, keyOf(pod), preconditions{}, func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning })
}

// end ends the containers of a pod.
func (k *kubelet) end(name key, uid types.UID, phase corev1.PodPhase) {
	pod, err := find[*corev1.Pod](k.w.api, name, preconditions{uid: uid})
	if err != nil || over(pod) {
		return
	}
	if node := get[*corev1.Node](&k.w.api.objects, key{Name: pod.Spec.NodeName}); node == nil || !nodeReady(node) {
		return
	}
	k.w.logf("kubelet: pod %s has ended: %s", name.Name, phase)
	k.unprepare(uid)
	_, _ = update(k.w.api, name, preconditions{}, func(p *corev1.Pod) {
		p.Status.Phase = phase
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.NewTime(k.w.now)},
		}}}
	})
}

func (k *kubelet) unprepare(pod types.UID) {
	for d, uid := range k.prepared {
		if uid == pod {
			delete(k.prepared, d)
		}
	}
}
