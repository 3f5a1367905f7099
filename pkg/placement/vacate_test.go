// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// occupancies says of each domain "name free+freed: residents", with ? where it is not clear.
func occupancies(c *placement.Cluster) string {
	var list []string
	for _, o := range c.Occupancies() {
		text := fmt.Sprintf("%s %d+%d:", o.Domain, o.Free, o.Freed)
		for _, r := range o.Residents {
			text += " " + r.Claim.Name
		}
		if o.Unclear {
			text += "?"
		}
		list = append(list, text)
	}
	return strings.Join(list, "; ")
}

func TestOccupancies(t *testing.T) {
	for rule, test := range map[string]struct {
		change func(*placement.Cluster)
		want   string
	}{
		"domains are listed by name, with who is there": {func(*placement.Cluster) {}, "node-a.0 3+1: a0; node-a.1 3+1: a4; node-b.0 3+1: b0; node-b.1 3+1: b4"},
		"a claim of several devices is one resident, in each domain": {func(c *placement.Cluster) {
			resident(c, "large", "node-a", "1", nil, 1, 2, 5)
		}, "node-a.0 1+3: a0 large; node-a.1 2+2: a4 large; node-b.0 3+1: b0; node-b.1 3+1: b4"},
		"a device with a taint does not become free": {func(c *placement.Cluster) {
			c.SetRule(&resourceapi.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: "sick"}, Spec: resourceapi.DeviceTaintRuleSpec{
				DeviceSelector: &resourceapi.DeviceTaintSelector{Driver: new(v1alpha1.DriverName), Pool: new("node-a"), Device: new("gpu-0")},
				Taint:          resourceapi.DeviceTaint{Key: "sick", Effect: resourceapi.DeviceTaintEffectNoSchedule},
			}})
		}, "node-a.0 3+0: a0; node-a.1 3+1: a4; node-b.0 3+1: b0; node-b.1 3+1: b4"},
		"what a gang's plan reserves is not clear": {func(c *placement.Cluster) {
			c.SetGang(&v1alpha1.GangClaim{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "other", UID: "other"},
				Status: v1alpha1.GangClaimStatus{Plan: &v1alpha1.GangPlan{Step: v1alpha1.StepHolding, Placements: []v1alpha1.GangPlacement{
					{Node: "node-a", Pool: "node-a", Devices: []v1alpha1.GangDevice{{Name: "gpu-1"}}},
				}}},
			})
		}, "node-a.0 2+1: a0?; node-a.1 3+1: a4; node-b.0 3+1: b0; node-b.1 3+1: b4"},
	} {
		t.Run(rule, func(t *testing.T) {
			c := occupied(t).c
			test.change(c)
			if got := occupancies(c); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

func TestProductsAreKnownByPoolAndDomain(t *testing.T) {
	on := func(domain, product string) []gpu {
		return []gpu{{domain: domain, product: product}, {domain: domain, product: product}}
	}
	c := clusterOf(t, sliceOf("node-a", append(on("node-a.0", "H100"), on("node-a.1", "A100")...)...), sliceOf("node-b", on("node-b.0", "A100")...))
	if got := c.Products(); len(got) != 2 || got["node-a"] != "H100" || got["node-b"] != "A100" {
		t.Errorf("pools have %v", got)
	}
	got := ""
	for _, o := range c.Occupancies() {
		got += o.Domain + " " + o.Product + "; "
	}
	if want := "node-a.0 H100; node-a.1 A100; node-b.0 A100; "; got != want {
		t.Errorf("domains have %s, want %s", got, want)
	}
}

func TestAPartitionIsAResidentOfItsGPUsDomain(t *testing.T) {
	c := clusterOf(t, append(partitioned("node-a"), migClass())...)
	onPartition(c, "m0", "node-a", "mig-0-0")
	if got := occupancies(c); got != "node-a.0 1+1: m0" {
		t.Errorf("got %s", got)
	}
}

// vacate says where the residents of a domain go.
func vacate(c *placement.Cluster, domain string, loss func(string, int) int) string {
	free := map[string]int{}
	var wanted placement.Occupancy
	for _, o := range c.Occupancies() {
		if free[o.Domain] = o.Free; o.Domain == domain {
			wanted = o
		}
	}
	moves, obstacle := c.Vacate(context.Background(), wanted, free, loss)
	if obstacle != nil {
		return obstacle.Why
	}
	var list []string
	for _, m := range moves {
		list = append(list, fmt.Sprintf("%s > %s/%s", m.Claim.Name, m.Domain, m.To.Device))
	}
	return strings.Join(list, ", ")
}

func TestVacateTakesThePlaceWithTheLeastLossAndThenTheTightest(t *testing.T) {
	none := func(string, int) int { return 0 }
	four := func(_ string, free int) int { return free/4 - (free-1)/4 }
	c := clusterOf(t, readyNode("node-a"), hgx("node-a"), readyNode("node-b"), sliceOf("node-b", gpus(5, "node-b.0", 0)...))
	resident(c, "a0", "node-a", "1", nil, 0)
	resident(c, "a4", "node-a", "1", nil, 4)
	if got := vacate(c, "node-a.0", none); got != "a0 > node-a.1/gpu-5" {
		t.Errorf("beside a whole domain: %s", got)
	}
	resident(c, "b0", "node-b", "1", nil, 0)
	resident(c, "a5", "node-a", "1", nil, 5)
	resident(c, "a6", "node-a", "1", nil, 6)
	if got := vacate(c, "node-a.0", none); got != "a0 > node-a.1/gpu-7" {
		t.Errorf("the tightest: %s", got)
	}
	if got := vacate(c, "node-a.0", func(_ string, free int) int { return 1 / free }); got != "a0 > node-b.0/gpu-1" {
		t.Errorf("the least loss: %s", got)
	}
	resident(c, "a7", "node-a", "1", nil, 7)
	if got := vacate(c, "node-a.0", four); got != "a0 > node-b.0/gpu-1" {
		t.Errorf("at a loss where there is nothing else: %s", got)
	}
	resident(c, "b1", "node-b", "1", nil, 1, 2, 3, 4)
	before := c.Marks()
	if got := vacate(c, "node-a.0", none); got != "no device and node that suit it are free elsewhere in a domain that is broken already" {
		t.Errorf("without a place: %s", got)
	}
	if after := c.Marks(); after != before {
		t.Errorf("the what-if left its marks:\n%s\nbefore:\n%s", after, before)
	}
}

func TestVacateAsksTheAllocator(t *testing.T) {
	c := occupied(t).c
	resident(c, "a0", "node-a", "1", func(_ *corev1.Pod, c *resourceapi.ResourceClaim) {
		c.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: new(resourceapi.FullyQualifiedName("gpu.switchyard.dev/none"))}}
	}, 0)
	if got := vacate(c, "node-a.0", func(string, int) int { return 0 }); !strings.Contains(got, "kube-scheduler's allocator finds no device for it on node node-a") {
		t.Errorf("got %s", got)
	}
	resident(c, "a0", "node-a", "1", func(_ *corev1.Pod, c *resourceapi.ResourceClaim) {
		c.Spec.Devices.Requests[0].Exactly.Selectors = []resourceapi.DeviceSelector{cel("(")}
	}, 0)
	if got := vacate(c, "node-a.0", func(string, int) int { return 0 }); !strings.Contains(got, "does not compile") {
		t.Errorf("got %s", got)
	}
}

func TestVacateIsInterruptedByPodsThatChange(t *testing.T) {
	c := occupied(t).c
	o := c.Occupancies()[0]
	resident(c, "a0", "node-a", "2", nil, 0)
	if _, obstacle := c.Vacate(context.Background(), o, map[string]int{}, func(string, int) int { return 0 }); obstacle == nil || !obstacle.Interrupted {
		t.Errorf("got %+v", obstacle)
	}
}
