// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

const (
	image      = "localhost/busybox:1"
	classGPU   = v1alpha1.DriverName
	attrDomain = v1alpha1.DriverName + "/nvswitchDomain"
)

// request asks for count GPUs under the given name, of those that every selector takes.
func request(name string, count int64, selectors ...string) resourceapi.DeviceRequest {
	r := resourceapi.DeviceRequest{Name: name, Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: classGPU, Count: count}}
	for _, s := range selectors {
		r.Exactly.Selectors = append(r.Exactly.Selectors, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: s}})
	}
	return r
}

// onIndex selects the GPU with an NVML index.
func onIndex(index string) string {
	return `device.attributes["` + v1alpha1.DriverName + `"].index == ` + index
}

// claimSpec is a claim for the requests; edit changes it further.
func claimSpec(requests []resourceapi.DeviceRequest, edit ...func(*resourceapi.DeviceClaim)) resourceapi.ResourceClaimSpec {
	spec := resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: requests}}
	for _, e := range edit {
		e(&spec.Devices)
	}
	return spec
}

// sameDomain makes all devices of the claim share one NVSwitch domain.
func sameDomain(c *resourceapi.DeviceClaim) {
	c.Constraints = append(c.Constraints, resourceapi.DeviceConstraint{MatchAttribute: ptr.To(resourceapi.FullyQualifiedName(attrDomain))})
}

// withConfig gives the named requests (all, when none is named) an opaque configuration.
func withConfig(raw string, requests ...string) func(*resourceapi.DeviceClaim) {
	return func(c *resourceapi.DeviceClaim) {
		c.Config = append(c.Config, resourceapi.DeviceClaimConfiguration{
			Requests: requests,
			DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
				Driver: v1alpha1.DriverName, Parameters: runtime.RawExtension{Raw: []byte(raw)},
			}},
		})
	}
}

// container sleeps and uses the named claims; "claim/request" uses one request of a claim.
func container(name string, claims ...corev1.ResourceClaim) corev1.Container {
	return corev1.Container{
		Name: name, Image: image, ImagePullPolicy: corev1.PullNever,
		Command:   []string{"sleep", "infinity"},
		Resources: corev1.ResourceRequirements{Claims: claims},
	}
}

func uses(claim string) corev1.ResourceClaim { return corev1.ResourceClaim{Name: claim} }

func usesRequest(claim, request string) corev1.ResourceClaim {
	return corev1.ResourceClaim{Name: claim, Request: request}
}

// pod runs the containers on a node (any node, when empty).
func pod(name, node string, containers ...corev1.Container) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: ptr.To[int64](1), // 0 would free the GPU before the kubelet has unprepared it
			RestartPolicy:                 corev1.RestartPolicyAlways,
			Containers:                    containers,
		},
	}
	if node != "" {
		p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node}
	}
	return p
}

// claims adds the pod's claims by pod-local name and claim name.
func withClaims(p *corev1.Pod, byLocalName map[string]string) *corev1.Pod {
	for local, name := range byLocalName {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: local, ResourceClaimName: ptr.To(name)})
	}
	return p
}

// fromTemplate adds a claim that is made from a template.
func fromTemplate(p *corev1.Pod, local, template string) *corev1.Pod {
	p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: local, ResourceClaimTemplateName: ptr.To(template)})
	return p
}
