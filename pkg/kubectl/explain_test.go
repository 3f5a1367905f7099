// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/resourcemodel"
)

var errTest = errors.New("it does not answer")

// together is a pod that waits for four GPUs in one domain, and its claim.
func together(change ...func(*corev1.Pod, *resourceapi.ResourceClaim)) testCluster {
	pod := pendingPod("ml", "same-domain", "four-together")
	claim := claimOf(pod, 4, "gpu.switchyard.dev/nvswitchDomain")
	for _, c := range change {
		c(pod, claim)
	}
	return testCluster{pod, claim}
}

// crowded is the journey's cluster without a domain of four free GPUs.
func crowded(t *testing.T) testCluster {
	t.Helper()
	c := journey(t)
	return c.with(running(t, "ml", "eval", "node-a", c, 4)...)
}

func TestExplainOutput(t *testing.T) {
	c := crowded(t).with(together()...)
	for file, args := range map[string][]string{
		"explain-gang.txt":       {"explain", "gang", "ml/llama-tp4"},
		"explain-pod.txt":        {"explain", "pod", "same-domain"},
		"explain-pod-wide.txt":   {"explain", "pod", "train", "-o", "wide"},
		"explain-pod.json":       {"explain", "pod", "same-domain", "-o", "json"},
		"explain-pod-gang.txt":   {"explain", "pod", "llama-tp4-0"},
		"explain-claim.txt":      {"explain", "claim", "same-domain-gpus"},
		"explain-claim-held.txt": {"explain", "claim", "web/infer-7-gpus"},
	} {
		t.Run(file, func(t *testing.T) { c.golden(t, file, args...) })
	}
}

func TestExplainGangOfTheGuide(t *testing.T) {
	journey(t).golden(t, "explain-gang-moves.txt", "explain", "gang", "llama-tp4")
}

func explained(t *testing.T, c testCluster, kind, name string) explanation {
	t.Helper()
	out, _, err := c.run(t, "explain", kind, name, "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	var e explanation
	if err := json.Unmarshal([]byte(out), &e); err != nil {
		t.Fatal(err)
	}
	return e
}

func TestExplainGangStates(t *testing.T) {
	c := journey(t)
	free := c.without("web", "infer-7").without("web", "infer-7-gpus")
	for name, tc := range map[string]struct {
		cluster       testCluster
		reason        string
		message, help string
	}{
		"members are missing":       {c.without("ml", "llama-tp4-1"), "WaitingForMembers", "1 of 2 members exist", ""},
		"a place that nobody takes": {free, reasonHasPlace, "node-a.0, node-b.1", "see whether switchyard-controller runs"},
		"the controller moves pods": {c.with(waitingGang("llama-tp4", 2, 4, func(g *v1alpha1.GangClaim) { g.Spec.Defragmentation = v1alpha1.DefragmentationEvict })[0]), "NoFeasibleDomain", "", "The controller does so"},
		"moving does not help":      {c.with(budget(0)), "NoFeasibleDomain", "", "moving pods does not: "},
		"an invalid field": {c.with(waitingGang("llama-tp4", 2, 4, func(g *v1alpha1.GangClaim) {
			g.Spec.Tolerations = []resourceapi.DeviceToleration{{Key: v1alpha1.ReservedTaintKey}}
		})[0]), "InvalidSpec", "spec.tolerations[0].key", ""},
		"no such class": {c.without("", v1alpha1.DriverName), "NoSuchClass", v1alpha1.DriverName, ""},
	} {
		t.Run(name, func(t *testing.T) {
			e := explained(t, tc.cluster, "gang", "llama-tp4")
			if e.Reason != tc.reason || !strings.Contains(e.Message, tc.message) || !strings.Contains(e.Help, tc.help) || (tc.help == "") != (e.Help == "") {
				t.Errorf("got %+v", e)
			}
		})
	}
}

func TestExplainPodStates(t *testing.T) {
	c := crowded(t)
	change := func(do func(*corev1.Pod, *resourceapi.ResourceClaim)) testCluster { return c.with(together(do)...) }
	requests := func(do func(*resourceapi.DeviceClaim)) testCluster {
		return change(func(_ *corev1.Pod, claim *resourceapi.ResourceClaim) { do(&claim.Spec.Devices) })
	}
	bare := together()[:1]
	asExtended := func(count int64) testCluster {
		class := gpuClass()
		class.Name, class.Spec.ExtendedResourceName = "legacy", ptr.To("nvidia.com/gpu")
		pods := together(func(p *corev1.Pod, _ *resourceapi.ResourceClaim) {
			p.Spec.ResourceClaims, p.Status.ResourceClaimStatuses = nil, nil
			p.Spec.Containers[0].Resources.Requests["nvidia.com/gpu"] = *resource.NewQuantity(count, resource.DecimalSI)
		})
		return c.with(class, pods[0]).with(running(t, "ml", "more", "node-a", c, 5)...)
	}
	for name, tc := range map[string]struct {
		cluster       testCluster
		reason        string
		message, help string
	}{
		"it asks for no GPU":        {change(func(p *corev1.Pod, _ *resourceapi.ResourceClaim) { p.Spec.ResourceClaims = nil }), "", "has no spec.resourceClaims", ""},
		"neither template nor gang": {change(func(p *corev1.Pod, _ *resourceapi.ResourceClaim) { p.Status.ResourceClaimStatuses = nil }), "TemplateMissing", "neither a ResourceClaimTemplate four-together nor a GangClaim", ""},
		"the claim is not made yet": {change(func(p *corev1.Pod, _ *resourceapi.ResourceClaim) { p.Status.ResourceClaimStatuses = nil }).with(&resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "four-together"}}), "ClaimNotMade", "kube-controller-manager", ""},
		"the claim is gone":         {c.with(bare...), "ClaimMissing", "ResourceClaim same-domain-gpus does not exist", ""},
		"no claim was needed": {change(func(p *corev1.Pod, _ *resourceapi.ResourceClaim) {
			p.Status.ResourceClaimStatuses[0].ResourceClaimName = nil
		}), "", "kube-scheduler has not bound it", ""},
		"it is gated": {change(func(p *corev1.Pod, _ *resourceapi.ResourceClaim) {
			p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "queue"}}
		}), "SchedulingGated", "scheduling gate queue", ""},
		"an extended resource of a DeviceClass":   {asExtended(6), "NoFeasibleDomain", "needs 6 GPUs on one node", "it fits when "},
		"an extended resource that is free now":   {asExtended(1), reasonHasPlace, "its devices are free: ", "kube-scheduler tries again"},
		"an extended resource of a device plugin": {asExtended(1).without("", "legacy"), "", "no extended resource of a DeviceClass", ""},
		"it has ended":            {change(func(p *corev1.Pod, _ *resourceapi.ResourceClaim) { p.Status.Phase = corev1.PodFailed }), "", "it has ended", ""},
		"devices are free by now": {requests(func(d *resourceapi.DeviceClaim) { d.Requests[0].Exactly.Count = 3 }), reasonHasPlace, "node-a.0", "kube-scheduler tries again"},
		"others are in the way":   {c.with(together()...), "NoFeasibleDomain", "needs 4 GPUs in one NVSwitch domain; found none", "it fits when "},
		"at one NUMA node": {requests(func(d *resourceapi.DeviceClaim) {
			d.Constraints[0].MatchAttribute = ptr.To[resourceapi.FullyQualifiedName]("resource.kubernetes.io/numaNode")
		}), "NoFeasibleDomain", "at one NUMA node", "it fits when "},
		"on one node": {requests(func(d *resourceapi.DeviceClaim) { d.Constraints, d.Requests[0].Exactly.Count = nil, 8 }), "NoFeasibleDomain", "on one node", "it fits when "},
		"a constraint on other things": {requests(func(d *resourceapi.DeviceClaim) {
			d.Constraints[0].MatchAttribute = ptr.To[resourceapi.FullyQualifiedName]("gpu.switchyard.dev/productName")
		}), "NotAllocated", "is not allocated", "does not understand"},
		"a constraint with a typo": {requests(func(d *resourceapi.DeviceClaim) {
			d.Constraints[0].MatchAttribute = ptr.To[resourceapi.FullyQualifiedName]("gpu.switchyard.dev/nvswitchdomain")
		}), "NoSuchAttribute", "spec.devices.constraints[0].matchAttribute: no device has an attribute gpu.switchyard.dev/nvswitchdomain", "create the pod anew"},
		"a class that does not exist": {requests(func(d *resourceapi.DeviceClaim) {
			d.Requests[0].Exactly.DeviceClassName = "gpu.nvidia.com"
		}), "NoSuchClass", "spec.devices.requests[0].exactly.deviceClassName: there is no DeviceClass gpu.nvidia.com", "create the pod anew"},
		"an alternative of a class that does not exist": {requests(func(d *resourceapi.DeviceClaim) {
			d.Requests[0] = resourceapi.DeviceRequest{Name: "gpu", FirstAvailable: []resourceapi.DeviceSubRequest{{Name: "a", DeviceClassName: v1alpha1.DriverName}, {Name: "b", DeviceClassName: "none"}}}
		}), "NoSuchClass", "spec.devices.requests[0].firstAvailable[1].deviceClassName: there is no DeviceClass none", "create the pod anew"},
		"a selector that fails": {requests(func(d *resourceapi.DeviceClaim) {
			d.Requests[0].Exactly.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: `device.attributes["gpu.switchyard.dev"].nosuch == 1`}}}
		}), "SelectorFails", "spec.devices.requests[0].exactly.selectors[0].cel.expression fails", ""},
		"all devices of a node": {requests(func(d *resourceapi.DeviceClaim) {
			d.Requests[0].Exactly.AllocationMode = resourceapi.DeviceAllocationModeAll
		}), "NotAllocated", "", "does not understand"},
		"a list of alternatives":        {requests(func(d *resourceapi.DeviceClaim) { d.Requests[0].Exactly = nil }), "NotAllocated", "", "does not understand"},
		"more than any node has":        {requests(func(d *resourceapi.DeviceClaim) { d.Requests[0].Exactly.Count = 16 }), "NoFeasibleDomain", "16 GPUs", ""},
		"more than a claim can have":    {requests(func(d *resourceapi.DeviceClaim) { d.Requests[0].Exactly.Count = 33 }), "TooManyDevices", "asks for 33 devices; a ResourceClaim can have 32", "several pods"},
		"more than an int32 can have":   {requests(func(d *resourceapi.DeviceClaim) { d.Requests[0].Exactly.Count = 1<<32 + 1 }), "TooManyDevices", "asks for 4294967297 devices", "several pods"},
		"a quota counts the claim once": {c.with(together()...).with(&corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "q"}, Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{}}}), "NoFeasibleDomain", "", "it fits when "},
	} {
		t.Run(name, func(t *testing.T) {
			e := explained(t, tc.cluster, "pod", "same-domain")
			if e.Reason != tc.reason || !strings.Contains(e.Message, tc.message) || !strings.Contains(e.Help, tc.help) || (tc.help == "") != (e.Help == "") {
				t.Errorf("got %+v", e)
			}
		})
	}
}

func TestExplainPodWithTwoClaims(t *testing.T) {
	for name, tc := range map[string]struct {
		counts        [2]int64
		message, help string
	}{
		"the second has no place": {[2]int64{1, 9}, "needs 9 GPUs on one node; found none", ""},
		"the first has none":      {[2]int64{9, 1}, "needs 9 GPUs on one node; found none", ""},
		"each has one":            {[2]int64{3, 3}, "its devices are free", "the pod has 2 claims, and needs the devices of all of them on one node"},
	} {
		t.Run(name, func(t *testing.T) {
			c := crowded(t)
			pod := pendingPod("ml", "two", "some")
			for i, count := range tc.counts {
				claim := claimOf(pod, count, "")
				claim.Name, claim.UID = fmt.Sprintf("claim-%d", i), types.UID(fmt.Sprintf("claim-%d", i))
				c = c.with(claim)
			}
			pod.Spec.ResourceClaims, pod.Status.ResourceClaimStatuses = []corev1.PodResourceClaim{
				{Name: "a", ResourceClaimName: ptr.To("claim-0")}, {Name: "b", ResourceClaimName: ptr.To("claim-1")},
			}, nil
			e := explained(t, c.with(pod), "pod", "two")
			if !strings.Contains(e.Message, tc.message) || !strings.Contains(e.Help, tc.help) || (tc.help == "") != (e.Help == "") {
				t.Errorf("the pod: got %+v", e)
			}
			if e := explained(t, c.with(pod), "claim", "claim-1"); e.Reason == reasonHasPlace && !strings.Contains(e.Help, "the pod has 2 claims") {
				t.Errorf("the claim: got %+v", e)
			}
		})
	}
}

func TestExplainPodThatHasItsDevices(t *testing.T) {
	c := journey(t)
	has := func(do func(*corev1.Pod, *resourceapi.ResourceClaim)) testCluster {
		held := running(t, "ml", "held", "node-a", c, 5)
		pod, _ := held[0].(*corev1.Pod)
		claim, _ := held[1].(*resourceapi.ResourceClaim)
		do(pod, claim)
		return c.with(pod, claim)
	}
	full := make([]resourceapi.ResourceClaimConsumerReference, resourceapi.ResourceClaimReservedForMaxSize)
	for i := range full {
		full[i] = resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: "other", UID: "other"}
	}
	for name, tc := range map[string]struct {
		do            func(*corev1.Pod, *resourceapi.ResourceClaim)
		message, help string
	}{
		"it runs":                {func(*corev1.Pod, *resourceapi.ResourceClaim) {}, "it is on node node-a with node-a.0/GPU5", ""},
		"its containers are due": {func(p *corev1.Pod, _ *resourceapi.ResourceClaim) { p.Status.Phase = corev1.PodPending }, "it is on node", "kubectl describe pod"},
		"its gang is not complete": {func(p *corev1.Pod, claim *resourceapi.ResourceClaim) {
			p.Status.Phase, claim.Labels = corev1.PodPending, map[string]string{v1alpha1.GangLabel: "uid"}
		}, "it is on node", "its gang is not complete yet"},
		"the claim is shared by too many": {func(p *corev1.Pod, claim *resourceapi.ResourceClaim) {
			p.Spec.NodeName, claim.Status.ReservedFor = "", full
		}, "is reserved for 256 pods", ""},
		"as an extended resource": {func(p *corev1.Pod, claim *resourceapi.ResourceClaim) {
			p.Spec.ResourceClaims, p.Status.ResourceClaimStatuses = nil, nil
			p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: claim.Name, RequestMappings: []corev1.ContainerExtendedResourceRequest{{ResourceName: "nvidia.com/gpu"}}}
		}, "it is on node node-a with node-a.0/GPU5", ""},
		"it is not bound yet": {func(p *corev1.Pod, _ *resourceapi.ResourceClaim) { p.Spec.NodeName = "" }, "has not bound it", ""},
	} {
		t.Run(name, func(t *testing.T) {
			e := explained(t, has(tc.do), "pod", "held")
			if !strings.Contains(e.Message, tc.message) || !strings.Contains(e.Help, tc.help) || (tc.help == "") != (e.Help == "") {
				t.Errorf("got %+v", e)
			}
		})
	}
}

func TestExplainClaimStates(t *testing.T) {
	c := crowded(t)
	alone := together()[1:]
	if e := explained(t, c.with(alone...), "claim", "same-domain-gpus"); e.Reason != "NoPod" {
		t.Errorf("a claim that nobody wants: got %+v", e)
	}
	held := running(t, "ml", "left", "node-a", c, 6)[1]
	claim, _ := held.(*resourceapi.ResourceClaim)
	claim.Status.ReservedFor = nil
	if e := explained(t, c.with(claim), "claim", "left-gpus"); !strings.Contains(e.Help, "no pod uses it") {
		t.Errorf("a claim that is left over: got %+v", e)
	}
	claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{APIGroup: "scheduling.k8s.io", Resource: "podgroups", Name: "g", UID: "g"}}
	if e := explained(t, c.with(claim), "claim", "left-gpus"); !strings.Contains(e.Message, "for 1 consumer that is no pod") {
		t.Errorf("a claim of a group: got %+v", e)
	}
	other := pendingPod("ml", "another", "")
	other.Spec.ResourceClaims[0] = corev1.PodResourceClaim{Name: "gpus", ResourceClaimName: ptr.To("train-gpus")}
	if e := explained(t, c.with(other), "claim", "train-gpus"); !strings.HasSuffix(e.Message, ", for pod train") {
		t.Errorf("a claim that another pod waits for: got %+v", e)
	}
}

// While the slices of a node are written anew there are two generations, in any order.
func TestExplainNamesDevicesAsTheNewestSliceHasThem(t *testing.T) {
	c := journey(t)
	var older []client.Object
	for _, o := range c {
		slice, is := o.(*resourceapi.ResourceSlice)
		if !is || slice.Spec.Pool.Name != "node-a" {
			continue
		}
		old := slice.DeepCopy()
		old.Name += "-old" // listed after it
		slice.Spec.Pool.Generation++
		for i := range old.Spec.Devices {
			old.Spec.Devices[i].Attributes[resourcemodel.AttributeNVSwitchDomain] = resourceapi.DeviceAttribute{StringValue: ptr.To("another")}
		}
		older = append(older, old)
	}
	if e := explained(t, c.with(older...), "claim", "train-gpus"); e.Claims[0].Devices[0].Domain != "node-a.0" {
		t.Errorf("got %+v", e)
	}
}

func TestExplainIndentsEveryLine(t *testing.T) {
	c := journey(t).with(waitingGang("llama-tp4", 2, 4, func(g *v1alpha1.GangClaim) {
		g.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: "device.attribute.x == 1"}}}
	})[0])
	out, _, err := c.run(t, "explain", "gang", "llama-tp4")
	if err != nil {
		t.Fatal(err)
	}
	first, rest, _ := strings.Cut(out, "\n")
	lines := strings.Split(strings.TrimSuffix(rest, "\n"), "\n")
	if len(lines) < 3 {
		t.Fatalf("got %q", out)
	}
	for _, line := range lines {
		if !strings.HasPrefix(line, "  ") {
			t.Errorf("below %q: got %q", first, line)
		}
	}
}

func TestExplainErrors(t *testing.T) {
	c := journey(t).connection(t, interceptor.Funcs{})
	for want, args := range map[string][]string{
		`"node" cannot be explained: use gang, pod or claim`:                                     {"explain", "node", "a"},
		"it takes a kind and a name: kubectl switchyard explain gang|pod|claim [NAMESPACE/]NAME": {"explain", "pod/train"},
		"pod ml/nobody does not exist":                                                           {"explain", "pod", "nobody"},
		"ResourceClaim web/none does not exist":                                                  {"explain", "claim", "web/none"},
		"GangClaim ml/none does not exist: there":                                                {"explain", "gang", "none"},
		`pod "web/" is no name`:                                                                  {"explain", "pod", "web/"},
	} {
		mustFail(t, c, want, args...)
	}
}
