// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	volumehelpers "k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("set up the scheme: %w", err)
		}
	}
	return scheme, nil
}

// cacheOptions keep of every object what is decided on and no more: with 1,000 nodes, 8,000 GPUs and
// 10,000 claims the rest is most of the memory. Objects from the cache are shared: copy before you
// change one.
func cacheOptions() cache.Options {
	shared := &sharer{}
	return cache.Options{
		DefaultTransform:             shared.strip,
		DefaultUnsafeDisableDeepCopy: ptr.To(true),
		ReaderFailOnMissingInformer:  true,
	}
}

// cached are the kinds that are read from the cache.
func cached() []client.Object {
	return []client.Object{
		&v1alpha1.GangClaim{},
		&corev1.Pod{},
		&corev1.Node{},
		&corev1.ResourceQuota{},
		&corev1.PersistentVolumeClaim{},
		&corev1.PersistentVolume{},
		&storagev1.StorageClass{},
		&schedulingv1.PriorityClass{},
		&policyv1.PodDisruptionBudget{},
		&resourceapi.ResourceClaim{},
		&resourceapi.ResourceClaimTemplate{},
		&resourceapi.ResourceSlice{},
		&resourceapi.DeviceClass{},
		&resourceapi.DeviceTaintRule{},
	}
}

// strip drops what nothing here reads.
func (s *sharer) strip(object any) (any, error) {
	if o, ok := object.(metav1.Object); ok {
		o.SetManagedFields(nil)
	}
	switch o := object.(type) {
	case *corev1.Pod:
		stripPod(o)
	case *corev1.Node:
		keepAnnotations(o)
		o.Status.Images, o.Status.VolumesInUse, o.Status.VolumesAttached = nil, nil, nil
		o.Status.NodeInfo, o.Status.Addresses, o.Status.Capacity = corev1.NodeSystemInfo{}, nil, nil
	case *resourceapi.ResourceClaim:
		o.Status.Devices = nil
	case *corev1.PersistentVolumeClaim:
		keepAnnotations(o, corev1.BetaStorageClassAnnotation, volumehelpers.AnnBindCompleted, volumehelpers.AnnSelectedNode)
	case *corev1.PersistentVolume:
		keepAnnotations(o, corev1.BetaStorageClassAnnotation)
		o.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{}
	case *storagev1.StorageClass:
		keepAnnotations(o)
		o.Parameters = nil
	case *resourceapi.ResourceSlice:
		keepAnnotations(o)
		s.share(o)
	case *corev1.ResourceQuota, *policyv1.PodDisruptionBudget, *resourceapi.DeviceClass, *schedulingv1.PriorityClass:
		keepAnnotations(o.(metav1.Object))
	}
	return object, nil
}

// keepAnnotations drops the others.
func keepAnnotations(o metav1.Object, names ...string) {
	var kept map[string]string
	for _, name := range names {
		if value := o.GetAnnotations()[name]; value != "" {
			if kept == nil {
				kept = map[string]string{}
			}
			kept[name] = value
		}
	}
	o.SetAnnotations(kept)
}

// stripPod keeps what kube-scheduler filters nodes by, and the pod's state.
func stripPod(pod *corev1.Pod) {
	keepAnnotations(pod, v1alpha1.TouchedAnnotation)
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			c := &containers[i]
			containers[i] = corev1.Container{Name: c.Name, Resources: c.Resources, Ports: c.Ports, RestartPolicy: c.RestartPolicy}
		}
	}
	pod.Spec.EphemeralContainers = nil
	pod.Spec.HostAliases, pod.Spec.ImagePullSecrets, pod.Spec.DNSConfig = nil, nil, nil
	volumes := pod.Spec.Volumes[:0]
	for _, volume := range pod.Spec.Volumes {
		// Only those that bind a pod to a place.
		if volume.PersistentVolumeClaim != nil || volume.Ephemeral != nil {
			volumes = append(volumes, volume)
		}
	}
	pod.Spec.Volumes = volumes
	pod.Status.ContainerStatuses = endTimes(pod.Status.ContainerStatuses)
	pod.Status.InitContainerStatuses, pod.Status.EphemeralContainerStatuses = nil, nil
	pod.Status.PodIPs, pod.Status.HostIPs = nil, nil
}

// endTimes keeps when containers ended.
func endTimes(statuses []corev1.ContainerStatus) []corev1.ContainerStatus {
	var kept []corev1.ContainerStatus
	for _, status := range statuses {
		if ended := status.State.Terminated; ended != nil {
			kept = append(kept, corev1.ContainerStatus{
				Name:  status.Name,
				State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: ended.FinishedAt}},
			})
		}
	}
	return kept
}
