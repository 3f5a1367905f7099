// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build verify

package verify

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
)

// NVML opens device nodes below /dev, also those of a driver that is loaded after the pod has started; and the
// kubelet has the runtime make a file for the termination message, by default there.
func TestTheDaemonSetSeesTheHostsDeviceNodesAndWritesNothingBesideThem(t *testing.T) {
	pod := object[*appsv1.DaemonSet](t, "switchyard-kubelet-plugin").Spec.Template.Spec
	hostPaths := map[string]string{}
	for _, volume := range pod.Volumes {
		if volume.HostPath != nil {
			hostPaths[volume.Name] = volume.HostPath.Path
		}
	}
	for _, container := range pod.Containers {
		message := container.TerminationMessagePath
		if message == "" {
			message = corev1.TerminationMessagePathDefault
		}
		dev := false
		for _, mount := range container.VolumeMounts {
			if strings.HasPrefix(message, mount.MountPath+"/") {
				t.Errorf("container %s writes its termination message %s into volume %s", container.Name, message, mount.Name)
			}
			if hostPaths[mount.Name] != "/dev" {
				continue
			}
			dev = mount.MountPath == "/dev"
			if propagation := mount.MountPropagation; propagation == nil || *propagation != corev1.MountPropagationHostToContainer || !mount.ReadOnly {
				t.Errorf("container %s mounts the host's /dev with propagation %v, read-only %t; want HostToContainer, true", container.Name, propagation, mount.ReadOnly)
			}
		}
		if !dev {
			t.Errorf("container %s does not have the host's /dev at /dev", container.Name)
		}
	}
}

// A registration directory that this pod made would be that of no kubelet, and nothing would tell so: the plugin refuses
// one that is not there, so the pod must not have it made.
func TestTheDaemonSetMakesNoRegistrationDirectory(t *testing.T) {
	for _, volume := range object[*appsv1.DaemonSet](t, "switchyard-kubelet-plugin").Spec.Template.Spec.Volumes {
		if volume.Name != "registry" {
			continue
		}
		if hostPath := volume.HostPath; hostPath.Type == nil || *hostPath.Type != corev1.HostPathDirectory {
			t.Errorf("the volume registry is %v, want a Directory", hostPath)
		}
		return
	}
	t.Error("there is no volume registry")
}

// With the default a budget also keeps pods that are not ready, for ever if they never become so.
func TestAControllerThatDoesNotStartHoldsUpNoDrain(t *testing.T) {
	budget := object[*policyv1.PodDisruptionBudget](t, "switchyard-controller")
	if policy := budget.Spec.UnhealthyPodEvictionPolicy; policy == nil || *policy != policyv1.AlwaysAllow {
		t.Errorf("unhealthyPodEvictionPolicy is %v, want AlwaysAllow", policy)
	}
}
