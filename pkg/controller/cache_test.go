// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/gang"
)

func TestStripKeepsWhatIsDecidedOn(t *testing.T) {
	managed := []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}
	cpu := corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}
	touched := gang.Stamp(gang.StampTouched, time.Unix(1, 0))
	ended := metav1.Unix(2, 0)
	for name, test := range map[string]struct{ object, want any }{
		"of a pod: requests, ports, volumes that bind it to a place, stamps, when containers ended": {
			&corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{
					Labels: map[string]string{"a": "b"}, ManagedFields: managed,
					Annotations: map[string]string{v1alpha1.TouchedAnnotation: touched, "long": "text"},
				},
				Spec: corev1.PodSpec{
					NodeSelector: map[string]string{"zone": "a"},
					Containers: []corev1.Container{{
						Name: "work", Image: "image", Command: []string{"run"}, Env: []corev1.EnvVar{{Name: "A"}}, Resources: cpu,
						Ports: []corev1.ContainerPort{{HostPort: 80}},
					}},
					Volumes: []corev1.Volume{
						{Name: "secret", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{}}},
						{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{}}},
					},
				},
				Status: corev1.PodStatus{Phase: corev1.PodSucceeded, ContainerStatuses: []corev1.ContainerStatus{
					{Name: "work", ImageID: "sha", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: ended, Message: "text"}}},
					{Name: "side", ImageID: "sha", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}},
				}},
			},
			&corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{
					Labels:      map[string]string{"a": "b"},
					Annotations: map[string]string{v1alpha1.TouchedAnnotation: touched},
				},
				Spec: corev1.PodSpec{
					NodeSelector: map[string]string{"zone": "a"},
					Containers:   []corev1.Container{{Name: "work", Resources: cpu, Ports: []corev1.ContainerPort{{HostPort: 80}}}},
					Volumes:      []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{}}}},
				},
				Status: corev1.PodStatus{Phase: corev1.PodSucceeded, ContainerStatuses: []corev1.ContainerStatus{
					{Name: "work", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: ended}}},
				}},
			},
		},
		"of a node: labels, taints, allocatable and conditions": {
			&corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"zone": "a"}, Annotations: map[string]string{"a": "b"}},
				Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: "a"}}},
				Status: corev1.NodeStatus{
					Allocatable: cpu.Requests, Capacity: cpu.Requests, Images: []corev1.ContainerImage{{SizeBytes: 1}},
					Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady}}, NodeInfo: corev1.NodeSystemInfo{KernelVersion: "6"},
				},
			},
			&corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"zone": "a"}},
				Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: "a"}}},
				Status:     corev1.NodeStatus{Allocatable: cpu.Requests, Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady}}},
			},
		},
		"of a claim: all but what drivers report": {
			&resourceapi.ResourceClaim{
				ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{v1alpha1.ReadyAnnotation: "hash"}, ManagedFields: managed},
				Status:     resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{}, Devices: []resourceapi.AllocatedDeviceStatus{{Device: "a"}}},
			},
			&resourceapi.ResourceClaim{
				ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{v1alpha1.ReadyAnnotation: "hash"}},
				Status:     resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{}},
			},
		},
		"of a volume claim: how far it is bound": {
			&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
				Annotations:   map[string]string{"pv.kubernetes.io/bind-completed": "yes", "volume.kubernetes.io/selected-node": "node-a", "long": "text"},
				ManagedFields: managed,
			}},
			&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
				Annotations: map[string]string{"pv.kubernetes.io/bind-completed": "yes", "volume.kubernetes.io/selected-node": "node-a"},
			}},
		},
		"of a volume: where it can be used, not where it comes from": {
			&corev1.PersistentVolume{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"zone": "a"}, Annotations: map[string]string{"volume.beta.kubernetes.io/storage-class": "fast", "long": "text"}},
				Spec: corev1.PersistentVolumeSpec{
					NodeAffinity:           &corev1.VolumeNodeAffinity{},
					PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/data"}},
				},
			},
			&corev1.PersistentVolume{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"zone": "a"}, Annotations: map[string]string{"volume.beta.kubernetes.io/storage-class": "fast"}},
				Spec:       corev1.PersistentVolumeSpec{NodeAffinity: &corev1.VolumeNodeAffinity{}},
			},
		},
		"of a storage class: not its parameters": {
			&storagev1.StorageClass{Provisioner: "local", Parameters: map[string]string{"a": "b"}},
			&storagev1.StorageClass{Provisioner: "local"},
		},
		"of a rule: its annotations, which say what it was made for": {
			&resourceapi.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{v1alpha1.TouchedAnnotation: touched}, ManagedFields: managed}},
			&resourceapi.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{v1alpha1.TouchedAnnotation: touched}}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := (&sharer{}).strip(test.object)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestNote(t *testing.T) {
	for name, test := range map[string]struct {
		message string
		cut     bool
	}{
		"one that fits stays":                     {message: "short"},
		"one that is too long is cut":             {message: string(make([]byte, maxNote+1)), cut: true},
		"a character is not cut in two, by bytes": {message: "x" + string(repeat('é', maxNote)), cut: true},
	} {
		t.Run(name, func(t *testing.T) {
			got := note(test.message)
			if len(got) > maxNote {
				t.Errorf("the note has %d bytes, want at most %d", len(got), maxNote)
			}
			if (got != test.message) != test.cut {
				t.Errorf("the note is %q", got)
			}
			for _, r := range got {
				if r == '\uFFFD' {
					t.Fatal("a character was cut in two")
				}
			}
		})
	}
}

func repeat(r rune, n int) []rune {
	runes := make([]rune, n)
	for i := range runes {
		runes[i] = r
	}
	return runes
}
