// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// A subrequest that cannot be had is passed over, and a container that names the parent request gets what was chosen.
func TestFirstAvailable(t *testing.T) {
	s := newSpace(t)
	sub := func(name string, count int64, product string) resourceapi.DeviceSubRequest {
		return resourceapi.DeviceSubRequest{Name: name, DeviceClassName: classGPU, Count: count, Selectors: []resourceapi.DeviceSelector{{
			CEL: &resourceapi.CELDeviceSelector{Expression: fmt.Sprintf("device.attributes[%q].productName.contains(%q)", classGPU, product)},
		}}}
	}
	s.claim("first", claimSpec([]resourceapi.DeviceRequest{{Name: "gpus", FirstAvailable: []resourceapi.DeviceSubRequest{
		sub("b200", 1, "B200"), sub("a100", 2, "A100"), sub("h100", 4, "H100"),
	}}}))
	s.run(withClaims(pod("first", "", container("work", usesRequest("c", "gpus"))), map[string]string{"c": "first"}))
	devices := s.allocated("first")
	if len(devices) != 2 || devices[0].request != "gpus/a100" {
		t.Fatalf("allocated %d devices for %q, want 2 for gpus/a100", len(devices), devices[0].request)
	}
	s.wantGPUs("first", "work", nodesOf(devices))
}

// Admin access reaches a GPU that another claim holds, and leaves it with its holder.
func TestAdminAccessBesideAHolder(t *testing.T) {
	s := newSpace(t)
	ns, err := the.Client.CoreV1().Namespaces().Get(s.ctx, s.name, metav1.GetOptions{})
	s.must(err)
	ns.Labels[resourceapi.DRAAdminNamespaceLabelKey] = "true"
	_, err = the.Client.CoreV1().Namespaces().Update(s.ctx, ns, metav1.UpdateOptions{})
	s.must(err)

	s.claim("holder", claimSpec([]resourceapi.DeviceRequest{request("gpu", 1, onIndex("3"))}))
	s.run(withClaims(pod("holder", "node-a", container("work", uses("gpu"))), map[string]string{"gpu": "holder"}))

	admin := request("gpu", 1, onIndex("3"))
	admin.Exactly.AdminAccess = ptr.To(true)
	s.claim("admin", claimSpec([]resourceapi.DeviceRequest{admin}))
	s.run(withClaims(pod("admin", "node-a", container("watch", uses("gpu"))), map[string]string{"gpu": "admin"}))

	want := nodesOf(s.allocated("holder"))
	s.wantGPUs("admin", "watch", want)
	s.deletePod("admin")
	s.wantGPUs("holder", "work", want)
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
