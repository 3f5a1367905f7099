// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// pollEvery is how often a condition is looked at.
const pollEvery = 150 * time.Millisecond

// Until looks at a condition until it holds. It fails with the last error when the time is up.
func (c *Cluster) Until(ctx context.Context, timeout time.Duration, what string, condition func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	var last error
	for {
		done, err := condition(ctx)
		if done && err == nil {
			return nil
		}
		if ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			if last != nil {
				return fmt.Errorf("waited %s for %s: %w", timeout, what, last)
			}
			return fmt.Errorf("waited %s for %s", timeout, what)
		case <-ticker.C:
		}
	}
}

// ReadyNodes returns the names of the nodes that are Ready.
func (c *Cluster) ReadyNodes(ctx context.Context) ([]string, error) {
	nodes, err := c.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var names []string
	for _, n := range nodes.Items {
		for _, cond := range n.Status.Conditions {
			if cond.Type == corev1.NodeReady && cond.Status == corev1.ConditionTrue {
				names = append(names, n.Name)
			}
		}
	}
	return names, nil
}

// ResourceSlices returns every published slice.
func (c *Cluster) ResourceSlices(ctx context.Context) ([]resourceapi.ResourceSlice, error) {
	list, err := c.Client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// ResourceClaims returns the claims of a namespace.
func (c *Cluster) ResourceClaims(ctx context.Context, namespace string) ([]resourceapi.ResourceClaim, error) {
	list, err := c.Client.ResourceV1().ResourceClaims(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// GangClaim returns one GangClaim.
func (c *Cluster) GangClaim(ctx context.Context, namespace, name string) (*v1alpha1.GangClaim, error) {
	claim := &v1alpha1.GangClaim{}
	return claim, c.Gangs.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, claim)
}

// Pods returns the pods of a namespace that match a label selector (all, when it is empty).
func (c *Cluster) Pods(ctx context.Context, namespace, selector string) ([]corev1.Pod, error) {
	list, err := c.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// Pod returns one pod.
func (c *Cluster) Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	return c.Client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
}

// untilPods is Until for a condition of pods. When the time is up it tells of those that the condition returned last.
func (c *Cluster) untilPods(ctx context.Context, timeout time.Duration, what string, condition func(context.Context) (bool, []corev1.Pod, error)) error {
	var last []corev1.Pod
	err := c.Until(ctx, timeout, what, func(ctx context.Context) (bool, error) {
		done, pods, err := condition(ctx)
		if err == nil {
			last = pods
		}
		return done, err
	})
	if err == nil {
		return nil
	}
	for i := range last {
		// The API server has no cache for Events: they are not for each poll.
		err = fmt.Errorf("%w; %s is %s (%s)", err, last[i].Name, last[i].Status.Phase, c.lastEvent(ctx, &last[i]))
	}
	return err
}

// WaitPodRunning waits until all of the pod's containers run, and says what held it up when they do not.
func (c *Cluster) WaitPodRunning(ctx context.Context, namespace, name string, timeout time.Duration) error {
	return c.untilPods(ctx, timeout, "pod "+name+" to run", func(ctx context.Context) (bool, []corev1.Pod, error) {
		pod, err := c.Pod(ctx, namespace, name)
		if err != nil {
			return false, nil, err
		}
		return Running(pod), []corev1.Pod{*pod}, nil
	})
}

// WaitRunning waits until at least one pod matches and all that match run.
func (c *Cluster) WaitRunning(ctx context.Context, namespace, selector string, timeout time.Duration) error {
	return c.untilPods(ctx, timeout, "pods "+selector+" to run", func(ctx context.Context) (bool, []corev1.Pod, error) {
		pods, err := c.Pods(ctx, namespace, selector)
		waiting := slices.DeleteFunc(pods, func(p corev1.Pod) bool { return Running(&p) })
		return len(pods) > 0 && len(waiting) == 0, waiting, err
	})
}

// Running reports whether the pod runs with every container ready.
func Running(pod *corev1.Pod) bool {
	if pod.Status.Phase != corev1.PodRunning || len(pod.Status.ContainerStatuses) < len(pod.Spec.Containers) {
		return false
	}
	for _, s := range pod.Status.ContainerStatuses {
		if !s.Ready {
			return false
		}
	}
	return true
}

// WaitUnschedulable waits until the scheduler has tried the pod and refused it; it returns the scheduler's message.
func (c *Cluster) WaitUnschedulable(ctx context.Context, namespace, name string, timeout time.Duration) (string, error) {
	var message string
	err := c.Until(ctx, timeout, "pod "+name+" to be refused", func(ctx context.Context) (bool, error) {
		pod, err := c.Pod(ctx, namespace, name)
		if err != nil {
			return false, err
		}
		for _, cond := range pod.Status.Conditions {
			if cond.Type == corev1.PodScheduled && cond.Reason == corev1.PodReasonUnschedulable {
				message = cond.Message
				return true, nil
			}
		}
		if pod.Spec.NodeName != "" {
			return false, fmt.Errorf("pod %s was placed on %s", name, pod.Spec.NodeName)
		}
		return false, nil
	})
	return message, err
}

// Events returns the Events about one object.
func (c *Cluster) Events(ctx context.Context, namespace, kind, name string) ([]corev1.Event, error) {
	list, err := c.Client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.Set{"involvedObject.kind": kind, "involvedObject.name": name}.String(),
	})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

func (c *Cluster) lastEvent(ctx context.Context, pod *corev1.Pod) string {
	events, err := c.Events(ctx, pod.Namespace, "Pod", pod.Name)
	if err != nil || len(events) == 0 {
		return "no Event yet"
	}
	last := events[len(events)-1]
	return last.Reason + ": " + last.Message
}

// Exec runs a command in a pod's first container and returns its standard output.
func (c *Cluster) Exec(ctx context.Context, namespace, pod string, command ...string) (string, error) {
	return c.Kubectl(ctx, append([]string{"exec", "-n", namespace, pod, "--"}, command...)...)
}

// Apply applies a manifest of the repository.
func (c *Cluster) Apply(ctx context.Context, file string) error {
	_, err := c.Kubectl(ctx, "apply", "-f", file)
	return err
}

// ApplyYAML applies a manifest given as text, in a namespace.
func (c *Cluster) ApplyYAML(ctx context.Context, namespace, manifest string) error {
	_, err := c.kubectlInput(ctx, manifest, "apply", "-n", namespace, "-f", "-")
	return err
}

// DeleteManifest deletes what a manifest of the repository names and waits until it is gone.
func (c *Cluster) DeleteManifest(ctx context.Context, file string, timeout time.Duration) error {
	_, err := c.Kubectl(ctx, "delete", "--ignore-not-found", "--timeout="+timeout.String(), "-f", file)
	return err
}
