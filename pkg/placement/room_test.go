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
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// mover makes room by moving every pod at the same price, but for those that stay.
type mover struct {
	c *placement.Cluster
	// stay are pods that must not be moved.
	stay map[string]bool
	// report says to report only: no plan.
	report bool
	// lose says who may go without a place.
	lose func(placement.Resident) bool
	// during is called between the search and the trial.
	during func()

	said []string
}

func (m *mover) Wanted(placement.Gang) bool { return true }

func (m *mover) MakeRoom(ctx context.Context, room *placement.Room) (*v1alpha1.GangPlan, *v1alpha1.GangDefragmentation) {
	if room.Blocker() != "" {
		m.said = append(m.said, "blocked by "+room.Blocker())
		return nil, nil
	}
	for range 4 {
		t := room.Cheapest(func(r placement.Resident) (placement.Price, bool) {
			return placement.Price{Pods: 1}, r.Pod != nil && len(r.Devices) == 1 && !m.stay[r.Pod.Name]
		})
		if t.Members < len(room.Gang().Pods) {
			m.said = append(m.said, fmt.Sprintf("%d of %d", t.Members, len(room.Gang().Pods)))
			return nil, nil
		}
		if m.during != nil {
			m.during()
		}
		plan, obstacle := room.Try(ctx, t, m.lose)
		if obstacle != nil {
			who := "gang"
			if obstacle.Victim != nil {
				who = obstacle.Victim.Pod.Name
				m.stay[who] = true
			}
			m.said = append(m.said, who+": "+obstacle.Why)
			if obstacle.Interrupted {
				return nil, nil
			}
			continue
		}
		for _, move := range t.Moves {
			m.said = append(m.said, fmt.Sprintf("%s %s > %s/%s %s", move.Pod.Name, move.FromDomain, move.Node, move.To.Device, move.Domain))
		}
		plan = plan.DeepCopy()
		for _, move := range t.Moves {
			plan.Moves = append(plan.Moves, v1alpha1.GangMove{Pod: move.Pod.Name, To: v1alpha1.GangMovePlace{Node: move.Node, Pool: move.To.Pool, Device: move.To.Device}})
		}
		if m.report {
			return nil, &v1alpha1.GangDefragmentation{Reason: "Found", Moves: plan.Moves}
		}
		return plan, &v1alpha1.GangDefragmentation{Reason: "Moving"}
	}
	return nil, nil
}

// needing has each member request so much CPU.
func needing(cpu string) func(*placement.Gang) {
	return func(g *placement.Gang) {
		for _, p := range g.Pods {
			p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse(cpu)
		}
	}
}

// resident runs a pod with devices of a node.
func resident(c *placement.Cluster, name, node string, cpu string, change func(*corev1.Pod, *resourceapi.ResourceClaim), devices ...int) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "web", Name: name, UID: types.UID("pod-" + name)},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)},
		}}}},
	}
	claim := single(name, node, devices...)
	if change != nil {
		change(pod, claim)
	}
	c.SetPod(pod)
	c.SetClaim(claim)
}

// room plans with the mover and returns what it said.
func (m *mover) room(gangs ...placement.Gang) ([]placement.Decision, string) {
	m.said = nil
	decisions := m.c.PlanWithRoom(context.Background(), gangs, m)
	return decisions, strings.Join(m.said, "; ")
}

// occupied is two nodes of two domains of four; pods a0 and a4 are in either domain of node-a, b0 and b4 of node-b.
func occupied(t *testing.T) *mover {
	t.Helper()
	c := clusterOf(t, readyNode("node-a"), hgx("node-a"), readyNode("node-b"), hgx("node-b"))
	for _, node := range []string{"a", "b"} {
		resident(c, node+"0", "node-"+node, "1", nil, 0)
		resident(c, node+"4", "node-"+node, "1", nil, 4)
	}
	return &mover{c: c, stay: map[string]bool{}}
}

func TestRoomFindsPlacesThatMovesMake(t *testing.T) {
	for _, test := range []struct {
		rule   string
		change func(*mover)
		gang   placement.Gang
		plan   string
		said   string
	}{
		{"one pod is moved, beside another", nil, gangOf("g", 1, 4), "node-a node-a.0 ×1: 0 1 2 3", "a0 node-a.0 > node-a/gpu-5 node-a.1"},
		{
			"who must stay is left", func(m *mover) { m.stay["a0"], m.stay["a4"] = true, true }, gangOf("g", 1, 4),
			"node-b node-b.0 ×1: 0 1 2 3", "b0 node-b.0 > node-a/gpu-1 node-a.0",
		},
		{
			"nobody may be moved", func(m *mover) { m.stay = map[string]bool{"a0": true, "a4": true, "b0": true, "b4": true} },
			gangOf("g", 1, 4), "NoFeasibleDomain", "0 of 1",
		},
		{
			"several are moved", nil, gangOf("g", 3, 4), "node-a node-a.0 ×1: 0 1 2 3; node-a node-a.1 ×1: 4 5 6 7; node-b node-b.0 ×1: 0 1 2 3",
			"a0 node-a.0 > node-b/gpu-5 node-b.1; a4 node-a.1 > node-b/gpu-6 node-b.1; b0 node-b.0 > node-b/gpu-7 node-b.1",
		},
		{
			"not all can have a place", nil, gangOf("g", 4, 4), "NoFeasibleDomain",
			"a0: no device and node that suit it are free elsewhere; 3 of 4",
		},
		{
			"all members at one node", nil, gangOf("g", 2, 4, scopes(v1alpha1.MemberNVSwitchDomain, v1alpha1.GangNode)),
			"node-a node-a.0 ×1: 0 1 2 3; node-a node-a.1 ×1: 4 5 6 7",
			"a0 node-a.0 > node-b/gpu-1 node-b.0; a4 node-a.1 > node-b/gpu-2 node-b.0",
		},
		{
			"a node where the CPU is short even then is left", func(m *mover) { resident(m.c, "cpu", "node-a", "63", nil) }, gangOf("g", 1, 4),
			"node-b node-b.0 ×1: 0 1 2 3", "b0 node-b.0 > node-b/gpu-5 node-b.1",
		},
		{
			"a node where the CPU is short if who is moved comes back is left", func(m *mover) {
				resident(m.c, "a0", "node-a", "2", nil, 0)
				resident(m.c, "cpu", "node-a", "60", nil)
			}, gangOf("g", 1, 4, needing("2")),
			"node-b node-b.0 ×1: 0 1 2 3", "gang: node node-a keeps devices for which pods that are moved may come back, and would not have room for all then: cpu: 1 × 2 requested, 1 left; b0 node-b.0",
		},
		{
			"a node is not left when it keeps no device for who is moved", func(m *mover) {
				resident(m.c, "a0", "node-a", "2", nil, 0)
				resident(m.c, "cpu", "node-a", "60", nil)
				resident(m.c, "rest", "node-a", "0", nil, 5, 6, 7)
				m.stay["b0"], m.stay["b4"] = true, true
			}, gangOf("g", 1, 4, needing("2")),
			"node-a node-a.0 ×1: 0 1 2 3", "a0 node-a.0 > node-b/gpu-1 node-b.0",
		},
		{"a claim of another class goes where its class is", func(m *mover) {
			m.c.SetClass(&resourceapi.DeviceClass{
				ObjectMeta: metav1.ObjectMeta{Name: "b"},
				Spec:       resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{cel(`device.attributes["gpu.switchyard.dev"].id.startsWith("node-b")`)}},
			})
			resident(m.c, "a0", "node-a", "1", func(_ *corev1.Pod, c *resourceapi.ResourceClaim) {
				c.Spec.Devices.Requests[0].Exactly.DeviceClassName = "b"
			}, 0)
		}, gangOf("g", 1, 4), "node-a node-a.0 ×1: 0 1 2 3", "a0 node-a.0 > node-b/gpu-1 node-b.0"},
		{
			"a pod is not sent where its volume cannot be used", func(m *mover) {
				resident(m.c, "a0", "node-a", "1", func(pod *corev1.Pod, _ *resourceapi.ResourceClaim) {
					pod.Spec.Volumes = mounting("data", "node-a").Spec.Volumes
				}, 0)
				claim := volumeClaim("data", "", "v")
				claim.Namespace = "web"
				m.c.SetVolumeClaim(claim)
				m.c.SetVolume(persistent("v", "", corev1.VolumeBound, corev1.LabelHostname, "node-a"))
			}, gangOf("g", 2, 4, scopes(v1alpha1.MemberNVSwitchDomain, v1alpha1.GangNode)),
			"node-b node-b.0 ×1: 0 1 2 3; node-b node-b.1 ×1: 4 5 6 7", "a0: no device and node that suit it are free elsewhere; b0 node-b.0 > node-a/gpu-1 node-a.0",
		},
		{
			"a volume that ends with the pod binds it nowhere", func(m *mover) {
				resident(m.c, "a0", "node-a", "1", func(pod *corev1.Pod, _ *resourceapi.ResourceClaim) {
					pod.Spec.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}}
				}, 0)
				claim := volumeClaim("a0-scratch", "", "v", madeFor("a0"))
				claim.Namespace = "web"
				m.c.SetVolumeClaim(claim)
				m.c.SetVolume(persistent("v", "", corev1.VolumeBound, corev1.LabelHostname, "node-a"))
			}, gangOf("g", 2, 4, scopes(v1alpha1.MemberNVSwitchDomain, v1alpha1.GangNode)),
			"node-a node-a.0 ×1: 0 1 2 3; node-a node-a.1 ×1: 4 5 6 7", "a0 node-a.0 > node-b/gpu-1 node-b.0",
		},
		{"a claim of a class that is gone has no place", func(m *mover) {
			resident(m.c, "a0", "node-a", "1", func(_ *corev1.Pod, c *resourceapi.ResourceClaim) {
				c.Spec.Devices.Requests[0].Exactly.DeviceClassName = "gone"
			}, 0)
			m.stay["a4"], m.stay["b0"], m.stay["b4"] = true, true, true
		}, gangOf("g", 1, 4), "NoFeasibleDomain", "a0: no device and node that suit it are free elsewhere; 0 of 1"},
		{"a claim whose selector does not compile has no place", func(m *mover) {
			resident(m.c, "a0", "node-a", "1", func(_ *corev1.Pod, c *resourceapi.ResourceClaim) {
				c.Spec.Devices.Requests[0].Exactly.Selectors = []resourceapi.DeviceSelector{cel("(")}
			}, 0)
			m.stay["a4"], m.stay["b0"], m.stay["b4"] = true, true, true
		}, gangOf("g", 1, 4), "NoFeasibleDomain", "does not compile"},
		{"a claim for all devices has no place that is foreseen", func(m *mover) {
			resident(m.c, "a0", "node-a", "1", func(_ *corev1.Pod, c *resourceapi.ResourceClaim) {
				c.Spec.Devices.Requests[0].Exactly.AllocationMode = resourceapi.DeviceAllocationModeAll
			}, 0)
			m.stay["a4"], m.stay["b0"], m.stay["b4"] = true, true, true
		}, gangOf("g", 1, 4), "NoFeasibleDomain", "a0: no device"},
		{"the allocator has the last word about a pod", func(m *mover) {
			resident(m.c, "a0", "node-a", "1", func(_ *corev1.Pod, c *resourceapi.ResourceClaim) {
				c.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: ptr.To(resourceapi.FullyQualifiedName("gpu.switchyard.dev/none"))}}
			}, 0)
			m.stay["a4"], m.stay["b0"], m.stay["b4"] = true, true, true
		}, gangOf("g", 1, 4), "NoFeasibleDomain", "kube-scheduler's allocator finds no device for it on node node-a"},
		{"devices that another gang keeps are not made room on, nor gone to", func(m *mover) {
			m.c.SetGang(&v1alpha1.GangClaim{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "other", UID: "other"},
				Status: v1alpha1.GangClaimStatus{Plan: &v1alpha1.GangPlan{Step: v1alpha1.StepHolding, Placements: []v1alpha1.GangPlacement{
					{Node: "node-a", Pool: "node-a", Devices: []v1alpha1.GangDevice{{Name: "gpu-1"}, {Name: "gpu-5"}}},
				}}},
			})
		}, gangOf("g", 1, 4), "node-b node-b.0 ×1: 0 1 2 3", "b0 node-b.0 > node-a/gpu-2 node-a.0"},
		{"pods that change meanwhile end the search", func(m *mover) {
			m.during = func() { resident(m.c, "a0", "node-a", "2", nil, 0) }
		}, gangOf("g", 1, 4), "NoFeasibleDomain", "gang: pods changed while moves were looked for"},
	} {
		t.Run(test.rule, func(t *testing.T) {
			m := occupied(t)
			if test.change != nil {
				test.change(m)
			}
			before := m.c.Marks()
			decisions, said := m.room(test.gang)
			if got := describe(decisions[0]); got != test.plan {
				t.Errorf("planned %s, want %s", got, test.plan)
			}
			if !strings.Contains(said, test.said) {
				t.Errorf("said %s, want %s", said, test.said)
			}
			if after := m.c.Marks(); after != before && m.during == nil || strings.Contains(after, "supposed") {
				t.Errorf("the what-if left its marks:\n%s\nbefore:\n%s", after, before)
			}
		})
	}
}

func TestPodsThatMayLoseTheirPlaceDo(t *testing.T) {
	m := occupied(t)
	m.lose = func(r placement.Resident) bool { return r.Pod.Name != "b0" }
	before := m.c.Marks()
	// Four members on four domains: whoever goes has no place elsewhere, and b0 must have one.
	if decisions, said := m.room(gangOf("g", 4, 4)); decisions[0].Plan != nil || !strings.HasPrefix(said, "b0: no device") {
		t.Errorf("planned %s, said %s", describe(decisions[0]), said)
	}
	m.stay, m.lose = map[string]bool{}, func(placement.Resident) bool { return true }
	decisions, said := m.room(gangOf("g", 4, 4))
	if decisions[0].Plan == nil || said != "a0 node-a.0 > / ; a4 node-a.1 > / ; b0 node-b.0 > / ; b4 node-b.1 > / " {
		t.Errorf("planned %s, said %s", describe(decisions[0]), said)
	}
	if after := m.c.Marks(); after != before {
		t.Errorf("marks are left:\n%s", after)
	}
	// A committed plan keeps nothing for them.
	g := gangOf("g", 4, 4)
	g.Claim.Status.Plan = decisions[0].Plan
	m.c.SetGang(g.Claim)
	m.c.DeleteGang(types.NamespacedName{Namespace: "ml", Name: "g"})
	if after := m.c.Marks(); after != before {
		t.Errorf("the reservation is left:\n%s", after)
	}
}

func TestWhatIsFoundIsKeptFromGangsBehind(t *testing.T) {
	first, second := gangOf("a", 1, 4), gangOf("b", 2, 4)
	for rule, test := range map[string]struct {
		report bool
		said   string
	}{
		"a plan with moves is the only one":                                      {false, "a0 node-a.0 > node-a/gpu-5 node-a.1; blocked by ml/a"},
		"moves that are reported keep their place from gangs, and not from pods": {true, "a0 node-a.0 > node-a/gpu-5 node-a.1; b0 node-b.0 > node-a/gpu-1 node-a.0; b4 node-b.1 > node-a/gpu-2 node-a.0"},
	} {
		t.Run(rule, func(t *testing.T) {
			m := occupied(t)
			m.report = test.report
			before := m.c.Marks()
			if _, said := m.room(second, first); said != test.said {
				t.Errorf("said %s, want %s", said, test.said)
			}
			if after := m.c.Marks(); after != before {
				t.Errorf("marks are left:\n%s", after)
			}
		})
	}
}

func TestPodsMovedForACommittedPlanKeepWhatIsMeantForThem(t *testing.T) {
	m := occupied(t)
	g := gangOf("g", 1, 4)
	decisions, _ := m.room(g)
	g.Claim = g.Claim.DeepCopy()
	g.Claim.Status.Plan = decisions[0].Plan
	m.c.SetGang(g.Claim)
	to := decisions[0].Plan.Moves[0].To // node-a/gpu-5
	a0, there := m.c.Resident(types.NamespacedName{Namespace: "web", Name: "a0"})
	if !there || a0.Pod == nil {
		t.Fatalf("a0 is %+v", a0)
	}
	if stuck := m.c.Elsewhere(g.Claim, []placement.Resident{a0}); stuck != nil {
		t.Errorf("a0 is stuck: %s", stuck.Why)
	}
	// Another gang is not planned on it.
	if got := planOf(t, m.c, gangOf("h", 1, 3)); strings.Contains(got, "node-a.1") && strings.Contains(got, " 5 ") {
		t.Errorf("another gang gets %s, with %s", got, to.Device)
	}
	if _, said := m.room(gangOf("i", 1, 4)); said != "blocked by ml/g" {
		t.Errorf("another gang that needs room: %s", said)
	}
	// When everything else is taken there is no place any more.
	for i, free := range []struct {
		node string
		gpus []int
	}{{"node-a", []int{5, 6, 7}}, {"node-b", []int{1, 2, 3, 5, 6, 7}}} {
		resident(m.c, fmt.Sprint("more", i), free.node, "1", nil, free.gpus...)
	}
	if stuck := m.c.Elsewhere(g.Claim, []placement.Resident{a0}); stuck == nil || stuck.Victim.Pod.Name != "a0" {
		t.Errorf("stuck: %+v", stuck)
	}
	// Released: the moves are over.
	g.Claim = g.Claim.DeepCopy()
	g.Claim.Status.Plan.Step = v1alpha1.StepHolding
	m.c.SetGang(g.Claim)
	if _, said := m.room(gangOf("i", 1, 4)); strings.Contains(said, "blocked") {
		t.Errorf("another gang that needs room after that: %s", said)
	}
	if _, there := m.c.Resident(types.NamespacedName{Name: "nobody"}); there {
		t.Error("a claim that does not exist has a resident")
	}
}

// partitioned is a node of two GPUs of which each may be had as two partitions: mig-0-0, mig-0-1 and so on.
func partitioned(node string) []any {
	s, counters := sliceOf(node, gpus(2, node+".0", 0)...), sliceOf(node)
	counters.Name = node + "-counters"
	s.Spec.Pool.ResourceSliceCount, counters.Spec.Pool.ResourceSliceCount = 2, 2
	for g := range 2 {
		set := fmt.Sprintf("gpu-%d", g)
		counter := func(n string) map[string]resourceapi.Counter {
			return map[string]resourceapi.Counter{"slices": {Value: resource.MustParse(n)}}
		}
		counters.Spec.SharedCounters = append(counters.Spec.SharedCounters, resourceapi.CounterSet{Name: set, Counters: counter("2")})
		s.Spec.Devices[g].ConsumesCounters = []resourceapi.DeviceCounterConsumption{{CounterSet: set, Counters: counter("2")}}
		for p := range 2 {
			s.Spec.Devices = append(s.Spec.Devices, resourceapi.Device{
				Name: fmt.Sprintf("mig-%d-%d", g, p),
				Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
					"type": {StringValue: ptr.To("mig")}, "id": {StringValue: ptr.To(fmt.Sprintf("%s-m%d%d", node, g, p))},
				},
				ConsumesCounters: []resourceapi.DeviceCounterConsumption{{CounterSet: set, Counters: counter("1")}},
			})
		}
	}
	return []any{s, counters, readyNode(node)}
}

func TestACommittedMoveIsJudgedByAControllerThatHasEvaluatedNothing(t *testing.T) {
	m := occupied(t)
	g := gangOf("g", 1, 4).Claim.DeepCopy()
	decisions, _ := m.room(gangOf("g", 1, 4))
	g.Status.Plan = decisions[0].Plan
	restarted := occupied(t).c
	restarted.SetGang(g)
	a0, _ := restarted.Resident(types.NamespacedName{Namespace: "web", Name: "a0"})
	if stuck := restarted.Elsewhere(g, []placement.Resident{a0}); stuck != nil {
		t.Errorf("a0 is stuck: %s", stuck.Why)
	}
}

func migClass() *resourceapi.DeviceClass {
	return &resourceapi.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: "mig"},
		Spec:       resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{cel(`device.attributes["gpu.switchyard.dev"].type == "mig"`)}},
	}
}

// onPartition runs a pod on a partition.
func onPartition(c *placement.Cluster, name, node, device string) {
	resident(c, name, node, "1", func(_ *corev1.Pod, claim *resourceapi.ResourceClaim) {
		claim.Spec.Devices.Requests[0].Exactly.DeviceClassName = "mig"
		claim.Spec.Devices.Requests[0].Exactly.Count = 1
		claim.Status.Allocation.Devices.Results[0].Device = device
	}, 0)
}

func TestPartitionsAreConsolidatedToFreeAGPU(t *testing.T) {
	c := clusterOf(t, append(partitioned("node-a"), migClass())...)
	onPartition(c, "m0", "node-a", "mig-0-0")
	onPartition(c, "m1", "node-a", "mig-1-1")
	m := &mover{c: c, stay: map[string]bool{}}
	decisions, said := m.room(gangOf("g", 1, 1))
	if got := describe(decisions[0]); got != "node-a node-a.0 ×1: 0" || said != "m0  > node-a/mig-1-0 " {
		t.Errorf("planned %s, said %s", got, said)
	}
}

func TestAPodIsNotSentToAPartitionOfTheGPUThatTheGangGets(t *testing.T) {
	c := clusterOf(t, append(append(partitioned("node-a"), partitioned("node-b")...), migClass())...)
	m := &mover{c: c, stay: map[string]bool{}}
	for _, device := range []string{"mig-0-1", "mig-1-0", "mig-1-1"} {
		for _, node := range []string{"node-a", "node-b"} {
			if name := node + "-" + device; name != "node-a-mig-0-1" {
				onPartition(c, name, node, device)
				m.stay[name] = true
			}
		}
	}
	onPartition(c, "m", "node-a", "mig-0-0")
	decisions, said := m.room(gangOf("g", 1, 1))
	if got := describe(decisions[0]); got != "node-a node-a.0 ×1: 0" || said != "m  > node-b/mig-0-0 " {
		t.Errorf("planned %s, said %s", got, said)
	}
	// Nor when the plan is committed.
	g := gangOf("g", 1, 1).Claim.DeepCopy()
	g.Status.Plan = decisions[0].Plan
	c.SetGang(g)
	onPartition(c, "late", "node-b", "mig-0-0")
	r, _ := c.Resident(types.NamespacedName{Namespace: "web", Name: "m"})
	if stuck := c.Elsewhere(g, []placement.Resident{r}); stuck == nil {
		t.Error("m has a place, on the GPU that the gang gets")
	}
}
