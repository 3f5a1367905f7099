// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What deployments/manifests call the plugin's namespace and service account.
const (
	PluginNamespace      = "switchyard-system"
	PluginServiceAccount = "switchyard-kubelet-plugin"
)

// RuntimeVersion is the container runtime of nodes that join: one with CDI.
const RuntimeVersion = "containerd://2.4.2"

// JoinNode makes what a kubelet and the DaemonSet's controller make for a new node: the Node object,
// with a container runtime's version and room for pods, and a pod of the plugin that is bound to it. It returns the
// token of that pod. The manifests must have been applied.
func (cp *ControlPlane) JoinNode(ctx context.Context, name, runtimeVersion string) (token string, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("join node %s: %w", name, err)
		}
	}()
	core := cp.client.CoreV1()
	node, err := core.Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	node.Status.NodeInfo.ContainerRuntimeVersion = runtimeVersion
	node.Status.Allocatable = corev1.ResourceList{corev1.ResourcePods: resource.MustParse("110")}
	if _, err := core.Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{}); err != nil {
		return "", err
	}
	pod, err := core.Pods(PluginNamespace).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "plugin-"},
		Spec: corev1.PodSpec{
			NodeName:           name,
			ServiceAccountName: PluginServiceAccount,
			Containers:         []corev1.Container{{Name: "plugin", Image: "none"}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return cp.PodToken(ctx, pod)
}

// RemoveNode deletes a Node object and, as the garbage collector would, its ResourceSlices.
func (cp *ControlPlane) RemoveNode(ctx context.Context, name string) error {
	return errors.Join(
		cp.client.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{}),
		cp.DeleteSlices(ctx, name))
}

// DeleteSlices deletes the ResourceSlices of a node.
func (cp *ControlPlane) DeleteSlices(ctx context.Context, node string) error {
	err := cp.client.ResourceV1().ResourceSlices().DeleteCollection(ctx, metav1.DeleteOptions{}, SlicesOf(node))
	if err != nil {
		return fmt.Errorf("delete ResourceSlices of node %s: %w", node, err)
	}
	return nil
}

// SlicesOf selects the ResourceSlices of a node.
func SlicesOf(node string) metav1.ListOptions {
	return metav1.ListOptions{FieldSelector: resourceapi.ResourceSliceSelectorNodeName + "=" + node}
}

// CreateNamespace creates a namespace in which claims may have administrative access.
func (cp *ControlPlane) CreateNamespace(ctx context.Context, name string) error {
	_, err := cp.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name:   name,
		Labels: map[string]string{resourceapi.DRAAdminNamespaceLabelKey: "true"},
	}}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create namespace %s: %w", name, err)
	}
	return nil
}
