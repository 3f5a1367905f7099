// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build verify

package verify

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
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
