// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/utils/ptr"
)

// byRequest sorts the device nodes of an allocation by request name.
func byRequest(devices []held) map[string][]string {
	nodes := map[string][]string{}
	for _, d := range devices {
		nodes[d.request] = append(nodes[d.request], d.node())
	}
	for _, n := range nodes {
		slices.Sort(n)
	}
	return nodes
}

func (s *space) wantGPUs(pod, container string, want []string) {
	s.Helper()
	if got := s.gpusIn(pod, container); !slices.Equal(got, want) {
		s.Errorf("container %s of pod %s has %v, want %v", container, pod, got, want)
	}
}

func TestRequestsMapToContainersByName(t *testing.T) {
	s := newSpace(t)
	s.claim("two", claimSpec([]resourceapi.DeviceRequest{request("big", 2), request("small", 1)}))
	p := pod("mapped", "node-b",
		container("both", uses("gpus")),
		container("big", usesRequest("gpus", "big")),
		container("small", usesRequest("gpus", "small")),
		container("none"))
	s.run(withClaims(p, map[string]string{"gpus": "two"}))

	nodes := byRequest(s.allocated("two"))
	s.wantGPUs("mapped", "both", slices.Sorted(slices.Values(append(slices.Clone(nodes["big"]), nodes["small"]...))))
	s.wantGPUs("mapped", "big", nodes["big"])
	s.wantGPUs("mapped", "small", nodes["small"])
	s.wantGPUs("mapped", "none", nil)
}

func TestSeveralClaimsInOnePod(t *testing.T) {
	s := newSpace(t)
	s.claim("first", claimSpec([]resourceapi.DeviceRequest{request("gpu", 1)}))
	s.claim("second", claimSpec([]resourceapi.DeviceRequest{request("gpu", 2)}, sameDomain))
	p := pod("several", "node-a", container("work", uses("one"), uses("two")))
	s.run(withClaims(p, map[string]string{"one": "first", "two": "second"}))

	all := append(nodesOf(s.allocated("first")), nodesOf(s.allocated("second"))...)
	s.wantGPUs("several", "work", slices.Sorted(slices.Values(all)))
}

func TestOneClaimSharedByPodsAndContainers(t *testing.T) {
	s := newSpace(t)
	s.claim("shared", claimSpec([]resourceapi.DeviceRequest{request("gpu", 1)}))
	for _, name := range []string{"left", "right"} {
		s.run(withClaims(pod(name, "", container("one", uses("gpu")), container("two", uses("gpu"))), map[string]string{"gpu": "shared"}))
	}
	want := nodesOf(s.allocated("shared"))
	for _, name := range []string{"left", "right"} {
		s.wantGPUs(name, "one", want)
		s.wantGPUs(name, "two", want)
	}
	// The claim stays prepared for the pod that is left.
	s.deletePod("left")
	s.wantGPUs("right", "one", want)
}

func TestInitContainerSeesTheGPU(t *testing.T) {
	s := newSpace(t)
	s.claim("init", claimSpec([]resourceapi.DeviceRequest{request("gpu", 1)}))
	p := withClaims(pod("init", "node-a", container("main")), map[string]string{"gpu": "init"})
	check := container("check", uses("gpu"))
	check.Command = []string{"sh", "-c", deviceNodes + ` | grep -q /dev/nvidia && sleep 0`}
	p.Spec.InitContainers = []corev1.Container{check}
	s.run(p)
	s.wantGPUs("init", "main", nil)
}

// Mode All takes every GPU of the node, without a count.
func TestAllocationModeAll(t *testing.T) {
	s := newSpace(t)
	r := request("all", 0)
	r.Exactly.AllocationMode, r.Exactly.Count = resourceapi.DeviceAllocationModeAll, 0
	s.claim("all", claimSpec([]resourceapi.DeviceRequest{r}))
	s.run(withClaims(pod("all", "node-b", container("work", uses("gpus"))), map[string]string{"gpus": "all"}))
	if got := s.gpusIn("all", "work"); len(got) != 8 {
		t.Errorf("the container has %v, want all eight GPUs", got)
	}
}

// What is asked for first is had as long as there is some, and a container that names the parent request gets what was chosen.
func TestFirstAvailable(t *testing.T) {
	s := newSpace(t)
	s.fromGuide("claims", "preferably-hopper")
	for i, chosen := range []string{"gpus/hopper", "gpus/hopper", "gpus/any"} {
		name := fmt.Sprintf("pod-%d", i)
		s.run(fromTemplate(pod(name, "", container("work", usesRequest("c", "gpus"))), "c", "preferably-hopper"))
		devices := s.allocated(s.claimOf(name, "c"))
		if len(devices) != 4 || devices[0].request != chosen {
			t.Fatalf("pod %s got %d devices for %q, want 4 for %s", name, len(devices), devices[0].request, chosen)
		}
		s.wantGPUs(name, "work", nodesOf(devices))
	}
}

// Only those of node-a are sold with 80 GB.
func TestAGPUByItsMemory(t *testing.T) {
	s := newSpace(t)
	s.fromGuide("claims", "big")
	s.run(fromTemplate(pod("big", "", container("work", uses("gpu"))), "gpu", "big"))
	if devices := s.allocated(s.claimOf("big", "gpu")); devices[0].pool != "node-a" {
		t.Errorf("the pod has a GPU of %s", devices[0].pool)
	}
	s.create(fromTemplate(pod("none", "node-b", container("work", uses("gpu"))), "gpu", "big"))
	if _, err := the.WaitUnschedulable(s.ctx, s.name, "none", patience); err != nil {
		t.Error(err)
	}
}

// A GPU is chosen with the network card of another driver beside it. That driver is not there, so the pod does not start.
func TestAGPUAndTheNetworkCardBesideIt(t *testing.T) {
	s := newSpace(t)
	const nic = "nic.example.com"
	var root string
	published, err := the.ResourceSlices(s.ctx)
	s.must(err)
	for _, slice := range published {
		for _, d := range slice.Spec.Devices {
			if index := d.Attributes["index"].IntValue; slice.Spec.Pool.Name == "node-a" && index != nil && *index == 6 {
				root = *d.Attributes[deviceattribute.StandardDeviceAttributePCIeRoot].StringValue
			}
		}
	}
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: nic}, Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{
		{CEL: &resourceapi.CELDeviceSelector{Expression: `device.driver == "` + nic + `"`}},
	}}}
	slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: nic}, Spec: resourceapi.ResourceSliceSpec{
		Driver: nic, NodeName: ptr.To("node-a"), Pool: resourceapi.ResourcePool{Name: "node-a", ResourceSliceCount: 1},
		Devices: []resourceapi.Device{{Name: "nic", Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			deviceattribute.StandardDeviceAttributePCIeRoot: {StringValue: &root},
		}}},
	}}
	s.Cleanup(func() {
		_ = the.Client.ResourceV1().DeviceClasses().Delete(context.Background(), nic, metav1.DeleteOptions{})
		_ = the.Client.ResourceV1().ResourceSlices().Delete(context.Background(), nic, metav1.DeleteOptions{})
	})
	_, err = the.Client.ResourceV1().DeviceClasses().Create(s.ctx, class, metav1.CreateOptions{})
	s.must(err)
	_, err = the.Client.ResourceV1().ResourceSlices().Create(s.ctx, slice, metav1.CreateOptions{})
	s.must(err)
	s.fromGuide("claims", "gpu-and-nic")
	s.create(fromTemplate(pod("both", "", container("work", uses("c"))), "c", "gpu-and-nic"))
	s.must(the.Until(s.ctx, patience, "the pod to be placed", func(ctx context.Context) (bool, error) {
		p, err := the.Pod(ctx, s.name, "both")
		return err == nil && p.Spec.NodeName != "", err
	}))
	devices := s.allocated(s.claimOf("both", "c"))
	if len(devices) != 2 || devices[0].node() != "/dev/nvidia6" || devices[1].device.Name != "nic" {
		t.Errorf("allocated are %+v, want the GPU below %s and the card", devices, root)
	}
}

// Admin access reaches GPUs that another claim holds, and leaves them with their holder.
func TestAdminAccessBesideAHolder(t *testing.T) {
	s := newSpace(t)
	ns, err := the.Client.CoreV1().Namespaces().Get(s.ctx, s.name, metav1.GetOptions{})
	s.must(err)
	ns.Labels[resourceapi.DRAAdminNamespaceLabelKey] = "true"
	_, err = the.Client.CoreV1().Namespaces().Update(s.ctx, ns, metav1.UpdateOptions{})
	s.must(err)

	s.claim("holder", claimSpec([]resourceapi.DeviceRequest{request("gpu", 1, onIndex("3"))}))
	s.run(withClaims(pod("holder", "node-a", container("work", uses("gpu"))), map[string]string{"gpu": "holder"}))

	s.fromGuide("claims", "monitor")
	s.run(fromTemplate(pod("admin", "node-a", container("watch", uses("gpus"))), "gpus", "monitor"))
	if got := s.gpusIn("admin", "watch"); len(got) != 8 {
		t.Errorf("the monitor has %v, want all eight GPUs", got)
	}
	s.deletePod("admin")
	s.wantGPUs("holder", "work", []string{"/dev/nvidia3"})
}

// Field cases 11 and 12: a configuration reaches the subrequests of the request that it names, and what it
// gets wrong is named on the pod.
func TestFieldCase12_UnknownConfigFieldIsNamedOnThePod(t *testing.T) {
	for name, tc := range map[string]struct {
		config string
		words  []string
	}{
		"unknown field":       {`{"apiVersion":"switchyard.dev/v1alpha1","kind":"GPUConfig","shering":{}}`, []string{"shering"}},
		"unknown kind":        {`{"apiVersion":"switchyard.dev/v1alpha1","kind":"GpuConfig"}`, []string{"GpuConfig"}},
		"unknown api version": {`{"apiVersion":"switchyard.dev/v9","kind":"GPUConfig"}`, []string{"switchyard.dev/v9"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSpace(t)
			claimName := strings.ReplaceAll(name, " ", "-")
			first := resourceapi.DeviceRequest{Name: "gpus", FirstAvailable: []resourceapi.DeviceSubRequest{{Name: "one", DeviceClassName: classGPU, Count: 1}}}
			s.claim(claimName, claimSpec([]resourceapi.DeviceRequest{first}, withConfig(tc.config, "gpus")))
			s.create(withClaims(pod("refused", "node-a", container("work", uses("c"))), map[string]string{"c": claimName}))
			s.eventually("Pod", "refused", tc.words...)
		})
	}
}

func TestValidConfigIsAccepted(t *testing.T) {
	s := newSpace(t)
	s.claim("configured", claimSpec([]resourceapi.DeviceRequest{request("gpu", 1)}, withConfig(`{"apiVersion":"switchyard.dev/v1alpha1","kind":"GPUConfig"}`)))
	s.run(withClaims(pod("configured", "node-a", container("work", uses("gpu"))), map[string]string{"gpu": "configured"}))
	s.wantGPUs("configured", "work", nodesOf(s.allocated("configured")))
}
