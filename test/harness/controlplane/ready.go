// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
)

// waitForClaims waits until kube-controller-manager makes claims: some seconds lie between its start and that of
// its controllers.
func (cp *ControlPlane) waitForClaims(ctx context.Context) error {
	const name = "probe"
	if err := cp.CreateNamespace(ctx, name); err != nil {
		return err
	}
	meta := metav1.ObjectMeta{Namespace: name, Name: name}
	template := &resourceapi.ResourceClaimTemplate{ObjectMeta: meta}
	template.Spec.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "none", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "none"}}}
	if _, err := cp.client.ResourceV1().ResourceClaimTemplates(name).Create(ctx, template, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("probe kube-controller-manager: %w", err)
	}
	pod := &corev1.Pod{ObjectMeta: meta, Spec: corev1.PodSpec{
		NodeSelector:   map[string]string{"none": "none"},
		Containers:     []corev1.Container{{Name: name, Image: name}},
		ResourceClaims: []corev1.PodResourceClaim{{Name: name, ResourceClaimTemplateName: ptr.To(name)}},
	}}
	pods := cp.client.CoreV1().Pods(name)
	var last error
	if err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, startTimeout, true, func(ctx context.Context) (bool, error) {
		if err := cp.Err(); err != nil {
			return false, err
		}
		// Refused until the namespace has its service account.
		if _, last = pods.Create(ctx, pod, metav1.CreateOptions{}); last != nil && !apierrors.IsAlreadyExists(last) {
			return false, nil
		}
		found, err := pods.Get(ctx, name, metav1.GetOptions{})
		last = err
		return err == nil && len(found.Status.ResourceClaimStatuses) > 0, nil
	}); err != nil {
		return fmt.Errorf("wait until kube-controller-manager makes a claim: %w", errors.Join(err, last))
	}
	if err := cp.client.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("probe kube-controller-manager: %w", err)
	}
	return nil
}
