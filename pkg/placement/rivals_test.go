// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

func TestRivals(t *testing.T) {
	extended := gpuClass()
	extended.Name, extended.Spec.ExtendedResourceName = "ext", ptr.To("nvidia.com/gpu")
	extended.CreationTimestamp = metav1.NewTime(time.Unix(1, 0))
	older := gpuClass()
	older.Name, older.Spec.ExtendedResourceName, older.Spec.Selectors = "old", ptr.To("nvidia.com/gpu"), []resourceapi.DeviceSelector{cel("false")}
	waiting := single("claim", "n", 0)
	waiting.Status = resourceapi.ResourceClaimStatus{}
	other := waiting.DeepCopy()
	other.Spec.Devices.Requests[0].Exactly.Selectors = []resourceapi.DeviceSelector{cel("false")}
	errs := waiting.DeepCopy()
	errs.Spec.Devices.Requests[0].Exactly.Selectors = []resourceapi.DeviceSelector{cel(`device.attributes["x"].y`)}
	first := waiting.DeepCopy()
	first.Spec.Devices.Requests[0] = resourceapi.DeviceRequest{Name: "r", FirstAvailable: []resourceapi.DeviceSubRequest{{Name: "s", DeviceClassName: driver}}}
	adminAccess := waiting.DeepCopy()
	adminAccess.Spec.Devices.Requests[0].Exactly.AdminAccess = ptr.To(true)
	ours := waiting.DeepCopy()
	ours.Labels = map[string]string{v1alpha1.GangLabel: "uid-g"}
	allocated := single("claim", "n", 5)

	withClaim := podOf("p", "")
	withClaim.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "c", ResourceClaimName: ptr.To("claim")}}
	fromTemplate := podOf("p", "")
	fromTemplate.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "c", ResourceClaimTemplateName: ptr.To("t")}}
	made := fromTemplate.DeepCopy()
	made.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "c", ResourceClaimName: ptr.To("claim")}}
	notNeeded := fromTemplate.DeepCopy()
	notNeeded.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "c"}}
	requests := func(name corev1.ResourceName) *corev1.Pod {
		p := podOf("p", "")
		p.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{name: resource.MustParse("1")}}}}
		return p
	}
	change := func(p *corev1.Pod, change func(*corev1.Pod)) *corev1.Pod {
		p = p.DeepCopy()
		change(p)
		return p
	}
	tests := map[string]struct {
		objects []any
		want    int
	}{
		"a claim that could match":                  {[]any{waiting, withClaim}, 1},
		"a claim made from a template":              {[]any{waiting, made}, 1},
		"a claim that is not made yet":              {[]any{fromTemplate}, 0},
		"a claim that is not needed":                {[]any{notNeeded}, 0},
		"a claim that cannot match":                 {[]any{other, withClaim}, 0},
		"a claim with a selector that errs":         {[]any{errs, withClaim}, 1},
		"a prioritized list":                        {[]any{first, withClaim}, 1},
		"admin access":                              {[]any{adminAccess, withClaim}, 0},
		"an allocated claim":                        {[]any{allocated, withClaim}, 0},
		"the gang itself":                           {[]any{ours, withClaim}, 0},
		"an extended resource of the newest class":  {[]any{requests("nvidia.com/gpu")}, 1},
		"the implicit extended resource of a class": {[]any{requests("deviceclass.resource.kubernetes.io/" + driver)}, 1},
		"another extended resource":                 {[]any{requests("example.com/gpu")}, 0},
		"a pod that is bound":                       {[]any{waiting, change(withClaim, func(p *corev1.Pod) { p.Spec.NodeName = "n" })}, 0},
		"a pod that is ending":                      {[]any{waiting, change(withClaim, func(p *corev1.Pod) { p.DeletionTimestamp = ptr.To(metav1.Now()) })}, 0},
		"a pod that is over":                        {[]any{waiting, change(withClaim, func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })}, 0},
		"a pod with a scheduling gate":              {[]any{waiting, change(withClaim, func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "x"}} })}, 0},
		"a pod that is gated is not known to be either": {[]any{waiting, change(withClaim, func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonSchedulingGated}}
		})}, 1},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c := clusterOf(t, append([]any{readyNode("n"), hgx("n"), extended, older}, test.objects...)...)
			if got := c.Rivals([]placement.DeviceID{{Driver: driver, Pool: "n", Device: "gpu-3"}}, "uid-g"); len(got) != test.want {
				t.Errorf("rivals %v, want %d", got, test.want)
			}
		})
	}
}

// A pod that was unschedulable before a device became free may be given it right now: the scheduler
// says so only when it has decided anew.
func TestUnschedulablePodsAreUndecidedOnceADeviceBecomesFree(t *testing.T) {
	start := time.Unix(1_700_000_000, 0)
	said := start.Add(time.Minute)
	reserved := resourceapi.DeviceTaint{Key: v1alpha1.ReservedTaintKey, Value: "uid-x", Effect: resourceapi.DeviceTaintEffectNoSchedule}
	fence := rule("r", "n", "gpu-1", reserved)
	tests := map[string]struct {
		before, after []func(*placement.Cluster)
		pause         time.Duration // after the last change
		decided       bool
	}{
		"nothing became free since": {decided: true},
		"a claim was given back":    {after: []func(*placement.Cluster){func(c *placement.Cluster) { c.DeleteClaim(nameOf("x")) }}},
		"a claim was given back and the scheduler has had the time to look": {
			after: []func(*placement.Cluster){func(c *placement.Cluster) { c.DeleteClaim(nameOf("x")) }}, pause: 31 * time.Second, decided: true,
		},
		"a claim was deallocated": {after: []func(*placement.Cluster){func(c *placement.Cluster) {
			claim := single("x", "n", 0)
			claim.Status = resourceapi.ResourceClaimStatus{}
			c.SetClaim(claim)
		}}},
		"a claim changed and kept its device": {after: []func(*placement.Cluster){func(c *placement.Cluster) { c.SetClaim(single("x", "n", 0)) }}, decided: true},
		"a device elsewhere was given back":   {after: []func(*placement.Cluster){func(c *placement.Cluster) { c.DeleteClaim(nameOf("y")) }}, decided: true},
		"a fence was dropped": {
			before: []func(*placement.Cluster){func(c *placement.Cluster) { c.SetRule(fence) }},
			after:  []func(*placement.Cluster){func(c *placement.Cluster) { c.DeleteRule("r") }},
		},
		"a fence was opened": {
			before: []func(*placement.Cluster){func(c *placement.Cluster) { c.SetRule(fence) }},
			after: []func(*placement.Cluster){func(c *placement.Cluster) {
				open := fence.DeepCopy()
				open.Spec.Taint.Effect = resourceapi.DeviceTaintEffectNone
				c.SetRule(open)
			}},
		},
		"a fence was touched": {
			before:  []func(*placement.Cluster){func(c *placement.Cluster) { c.SetRule(fence) }},
			after:   []func(*placement.Cluster){func(c *placement.Cluster) { c.SetRule(fence.DeepCopy()) }},
			decided: true,
		},
		"a slice was written again": {after: []func(*placement.Cluster){func(c *placement.Cluster) { c.SetSlice(hgx("n")) }}, decided: true},
		"a slice lost its taint": {
			before: []func(*placement.Cluster){func(c *placement.Cluster) {
				s := hgx("n")
				s.Spec.Devices[1].Taints = []resourceapi.DeviceTaint{reserved}
				c.SetSlice(s)
			}},
			after: []func(*placement.Cluster){func(c *placement.Cluster) { c.SetSlice(hgx("n")) }},
		},
		"a device was published": {
			before: []func(*placement.Cluster){func(c *placement.Cluster) { c.DeleteSlice("n-slice-0") }},
			after:  []func(*placement.Cluster){func(c *placement.Cluster) { c.SetSlice(hgx("n")) }},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			clock := clocktesting.NewFakeClock(start)
			c := placement.NewClusterAt(clock)
			waiting := single("claim", "n", 0)
			waiting.Status = resourceapi.ResourceClaimStatus{}
			pod := podOf("p", "")
			pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "c", ResourceClaimName: ptr.To("claim")}}
			pod.Status.Conditions = []corev1.PodCondition{{
				Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, LastTransitionTime: metav1.NewTime(said),
			}}
			for _, o := range []any{gpuClass(), hgx("n"), single("x", "n", 0), single("y", "n", 7), waiting, pod} {
				set(t, c, o)
			}
			for _, change := range test.before {
				change(c)
			}
			clock.SetTime(said.Add(10 * time.Second))
			for _, change := range test.after {
				change(c)
			}
			clock.Step(test.pause)
			rivals := c.Rivals([]placement.DeviceID{{Driver: driver, Pool: "n", Device: "gpu-0"}, {Driver: driver, Pool: "n", Device: "gpu-1"}}, "uid-g")
			if len(rivals) != 1 {
				t.Fatalf("rivals %v, want one", rivals)
			}
			if want := map[bool]time.Time{true: said}[test.decided]; !rivals[0].Decided.Equal(want) {
				t.Errorf("decided %v, want %v", rivals[0].Decided, want)
			}
		})
	}
}

func TestSelectorsOfRivalsThatCostTooMuchCountAsMatching(t *testing.T) {
	waiting := single("claim", "n", 0)
	waiting.Status = resourceapi.ResourceClaimStatus{}
	waiting.Spec.Devices.Requests[0].Exactly.Selectors = []resourceapi.DeviceSelector{expensive("false")}
	pod := podOf("p", "")
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "c", ResourceClaimName: ptr.To("claim")}}
	c := clusterOf(t, readyNode("n"), hgx("n"), waiting, pod)
	var devices []placement.DeviceID
	for _, d := range hgx("n").Spec.Devices {
		devices = append(devices, placement.DeviceID{Driver: driver, Pool: "n", Device: d.Name})
	}
	if got := c.Rivals(devices[:1], "uid-g"); len(got) != 0 {
		t.Errorf("rivals %v on one device, want none", got)
	}
	if got := c.Rivals(devices, "uid-g"); len(got) != 1 {
		t.Errorf("rivals %v on all devices, want the pod", got)
	}
}

// evaluating is a context that calls a function whenever a selector is evaluated: CEL asks the context whether it is
// done.
type evaluating struct {
	context.Context

	call func()
}

func (e evaluating) Done() <-chan struct{} {
	e.call()
	return e.Context.Done()
}

func TestEventsDoNotWaitForSelectors(t *testing.T) {
	waiting := single("claim", "n", 0)
	waiting.Status = resourceapi.ResourceClaimStatus{}
	waiting.Spec.Devices.Requests[0].Exactly.Selectors = []resourceapi.DeviceSelector{expensive("true")}
	pod := podOf("p", "")
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "c", ResourceClaimName: ptr.To("claim")}}
	tests := map[string]func(context.Context, *placement.Cluster) bool{
		"of rivals, which are those of when they were asked for": func(ctx context.Context, c *placement.Cluster) bool {
			return len(c.RivalsIn(ctx, []placement.DeviceID{{Driver: driver, Pool: "n", Device: "gpu-3"}}, "uid-g")) == 1
		},
		"of a gang, which is planned on what is there in the end": func(ctx context.Context, c *placement.Cluster) bool {
			return c.Plan(ctx, []placement.Gang{gangOf("g", 1, 1)})[0].Refusal != nil
		},
	}
	for name, ask := range tests {
		t.Run(name, func(t *testing.T) {
			c := clusterOf(t, readyNode("n"), hgx("n"), waiting, pod)
			var events sync.Mutex
			evaluations := 0
			ctx := evaluating{context.Background(), func() {
				events.Lock()
				defer events.Unlock()
				evaluations++
				if c.Locked() {
					t.Error("the lock is held while a selector is evaluated")
					return
				}
				c.DeletePod(nameOf("p"))
				c.DeleteSlice("n-slice-0")
			}}
			if !ask(ctx, c) {
				t.Error("the answer is another")
			}
			if evaluations == 0 {
				t.Error("no selector was evaluated")
			}
		})
	}
}

// pending is the i-th pod that waits for a GPU with the selectors; its claim is set, it is not.
func pending(t *testing.T, c *placement.Cluster, i int, selectors ...resourceapi.DeviceSelector) *corev1.Pod {
	t.Helper()
	claim := single(fmt.Sprintf("claim-%02d", i), "n", 0)
	claim.Status = resourceapi.ResourceClaimStatus{}
	claim.Spec.Devices.Requests[0].Exactly.Selectors = selectors
	set(t, c, claim)
	pod := podOf(fmt.Sprintf("p-%02d", i), "")
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "c", ResourceClaimName: &claim.Name}}
	return pod
}

func TestOnceSelectorsOfRivalsHaveCostTooMuchNoneIsEvaluated(t *testing.T) {
	var devices []placement.DeviceID
	for _, d := range hgx("n").Spec.Devices {
		devices = append(devices, placement.DeviceID{Driver: driver, Pool: "n", Device: d.Name})
	}
	evaluations := map[int]int{}
	for _, pods := range []int{1, 20} {
		c := clusterOf(t, readyNode("n"), hgx("n"))
		for i := range pods {
			set(t, c, pending(t, c, i, expensive(fmt.Sprintf("%d == 20", i))))
		}
		ctx := evaluating{context.Background(), func() { evaluations[pods]++ }}
		if got := c.RivalsIn(ctx, devices, "uid-g"); len(got) != pods {
			t.Errorf("%d rivals, want all %d", len(got), pods)
		}
	}
	if evaluations[1] == 0 || evaluations[20] != evaluations[1] {
		t.Errorf("%d evaluations for one pod whose selector costs more than all may together, %d for 20 of them", evaluations[1], evaluations[20])
	}
}

func TestSelectorsOfRivalsThatAreExpensiveToCompileAreNotAll(t *testing.T) {
	c := clusterOf(t, readyNode("n"), hgx("n"))
	const pods = 40
	for i := range pods {
		// They select no device, and cost nothing to evaluate.
		long := strings.Repeat("x", resourceapi.CELSelectorExpressionMaxLength-20)
		set(t, c, pending(t, c, i, cel(fmt.Sprintf("%q == '%d'", long, i))))
	}
	got := c.Rivals([]placement.DeviceID{{Driver: driver, Pool: "n", Device: "gpu-0"}}, "uid-g")
	if len(got) == pods || len(got) < pods-2 {
		t.Errorf("%d rivals, want all %d but for the one or two whose selectors can be compiled at that cost", len(got), pods)
	}
}

// It is called for each gang that quiesces whenever pods change, and events wait meanwhile.
func TestManyPodsThatWaitCostLittleToLookAt(t *testing.T) {
	c := clusterOf(t, readyNode("n"), hgx("n"))
	const pods = 1000
	for i := range pods {
		pod := pending(t, c, i)
		pod.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("1Gi"),
		}}}}
		set(t, c, pod)
	}
	devices := []placement.DeviceID{{Driver: driver, Pool: "n", Device: "gpu-0"}}
	if allocations := testing.AllocsPerRun(3, func() { c.Rivals(devices, "uid-g") }); allocations > 5*pods {
		t.Errorf("%v allocations for %d pods", allocations, pods)
	}
}
