// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build integration

package integration

import (
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/test/harness/plugin"
)

// steer applies deployments/manifests/steering, and makes a namespace that is steered.
func steer(t *testing.T) (namespace string) {
	t.Helper()
	if err := cluster.Apply(t.Context(), manifests+"/steering"); err != nil {
		t.Fatal(err)
	}
	created, err := cluster.Client().CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		GenerateName: "steered-", Labels: map[string]string{"switchyard.dev/steering": "enabled"},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return created.Name
}

// oneGPU is a claim as users write it.
func oneGPU(change ...func(*resourceapi.ResourceClaim)) *resourceapi.ResourceClaim {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{GenerateName: "one-"}}
	claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: v1alpha1.DriverName}}}
	for _, c := range change {
		c(claim)
	}
	return claim
}

func dryRun(t *testing.T, namespace string, claim *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
	t.Helper()
	created, err := cluster.Client().ResourceV1().ResourceClaims(namespace).Create(t.Context(), claim, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		t.Fatal(err)
	}
	return created
}

func TestClaimsOfOneGPUAreSteered(t *testing.T) {
	namespace := steer(t)
	eventually(t, "the policy is in force", func() error {
		if list := dryRun(t, namespace, oneGPU()).Spec.Devices.Requests[0].FirstAvailable; len(list) < 2 {
			return errors.New("the claim is as it was")
		}
		return nil
	})
	exactly := func(change func(*resourceapi.ExactDeviceRequest)) func(*resourceapi.ResourceClaim) {
		return func(c *resourceapi.ResourceClaim) { change(c.Spec.Devices.Requests[0].Exactly) }
	}
	for name, test := range map[string]struct {
		claim     *resourceapi.ResourceClaim
		namespace string
		steered   bool
	}{
		"a GPU of the class": {claim: oneGPU(), steered: true},
		"with a selector and a toleration": {claim: oneGPU(exactly(func(e *resourceapi.ExactDeviceRequest) {
			e.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: "true"}}}
			e.Tolerations = []resourceapi.DeviceToleration{{Key: "maintenance", Operator: resourceapi.DeviceTolerationOpExists}}
		})), steered: true},
		"of another of our classes": {claim: oneGPU(exactly(func(e *resourceapi.ExactDeviceRequest) { e.DeviceClassName = "nvlink.gpu.switchyard.dev" })), steered: true},
		"no request":                {claim: oneGPU(func(c *resourceapi.ResourceClaim) { c.Spec.Devices.Requests = nil })},
		"two GPUs":                  {claim: oneGPU(exactly(func(e *resourceapi.ExactDeviceRequest) { e.Count = 2 }))},
		"all GPUs":                  {claim: oneGPU(exactly(func(e *resourceapi.ExactDeviceRequest) { e.AllocationMode = resourceapi.DeviceAllocationModeAll }))},
		"a partition":               {claim: oneGPU(exactly(func(e *resourceapi.ExactDeviceRequest) { e.DeviceClassName = "mig.gpu.switchyard.dev" }))},
		"another's class":           {claim: oneGPU(exactly(func(e *resourceapi.ExactDeviceRequest) { e.DeviceClassName = "gpu.example.com" }))},
		"two requests": {claim: oneGPU(func(c *resourceapi.ResourceClaim) {
			second := c.Spec.Devices.Requests[0].DeepCopy()
			second.Name = "second"
			c.Spec.Devices.Requests = append(c.Spec.Devices.Requests, *second)
		})},
		"the scheduler's own": {claim: oneGPU(func(c *resourceapi.ResourceClaim) {
			c.Annotations = map[string]string{resourceapi.ExtendedResourceClaimAnnotation: "true"}
		})},
		"a namespace without": {claim: oneGPU(), namespace: "default"},
	} {
		t.Run(name, func(t *testing.T) {
			in := namespace
			if test.namespace != "" {
				in = test.namespace
			}
			before := test.claim.DeepCopy()
			after := dryRun(t, in, test.claim)
			if !test.steered {
				if len(after.Spec.Devices.Requests) > 0 && len(after.Spec.Devices.Requests[0].FirstAvailable) > 0 {
					t.Errorf("the claim was changed: %+v", after.Spec.Devices.Requests)
				}
				return
			}
			request, was := after.Spec.Devices.Requests[0], before.Spec.Devices.Requests[0].Exactly
			if request.Name != "gpu" || request.Exactly != nil || len(request.FirstAvailable) < 2 {
				t.Fatalf("the claim was not steered: %+v", request)
			}
			for i, entry := range request.FirstAvailable {
				selectors := len(was.Selectors) + 1
				if i == len(request.FirstAvailable)-1 {
					selectors--
				}
				if entry.DeviceClassName != was.DeviceClassName || entry.Count != 1 || len(entry.Tolerations) != len(was.Tolerations) || len(entry.Selectors) != selectors {
					t.Errorf("entry %d is %+v, want what was asked for, and a selector in all but the last", i, entry)
				}
			}
		})
	}
}

// The counts change only once the plugin may follow the fences of gangs: with the rights of the manifests.
func TestTheFreeGPUsOfADomainArePublished(t *testing.T) {
	steer(t)
	n := newNode(t, "a100-2x4")
	n.running(t, plugin.Options{Args: []string{"--steering-interval=1s"}})
	want := func(first, second int64, whole bool) {
		t.Helper()
		eventually(t, fmt.Sprintf("%d and %d GPUs of the domains are free", first, second), func() error {
			for i, d := range n.published(t) {
				inDomain := first
				if i >= 4 {
					inDomain = second
				}
				free, all := ptr.Deref(d.Attributes["nvswitchDomainFree"].IntValue, -1), ptr.Deref(d.Attributes["nodeWhole"].BoolValue, !whole)
				if free != inDomain || all != whole {
					return fmt.Errorf("device %d says %d, and whether all of the node are, %t", i, free, all)
				}
			}
			return nil
		})
	}
	want(4, 4, true)
	names := n.published(t)
	claim := n.gpus(t, "two", names[0].Name, names[5].Name)
	n.prepare(t, claim)
	want(3, 3, false)

	n.unprepare(t, claim)
	want(4, 4, true)
}
