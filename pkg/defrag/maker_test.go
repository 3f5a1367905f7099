// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package defrag_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/defrag"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// broken is a node of two domains of four: one pod in domain 1, two in domain 0.
func broken(l *lab) {
	l.node("node-b", 4, 4)
	l.single("infer-1", "node-b", 0)
	l.single("infer-3", "node-b", 2)
	l.single("infer-7", "node-b", 6)
}

type edit = func(*corev1.Pod, *resourceapi.ResourceClaim)

func priority(p int32) edit {
	return func(pod *corev1.Pod, _ *resourceapi.ResourceClaim) { pod.Spec.Priority = ptr.To(p) }
}

func movable(pod *corev1.Pod, _ *resourceapi.ResourceClaim) {
	pod.Labels["switchyard.dev/movable"] = "true"
}

func namespace(name string) edit {
	return func(pod *corev1.Pod, claim *resourceapi.ResourceClaim) { pod.Namespace, claim.Namespace = name, name }
}

func ownedBy(uid string) edit {
	return func(pod *corev1.Pod, _ *resourceapi.ResourceClaim) { pod.OwnerReferences[0].UID = types.UID(uid) }
}

func ownedByA(apiVersion, kind string) edit {
	return func(pod *corev1.Pod, _ *resourceapi.ResourceClaim) {
		pod.OwnerReferences[0].APIVersion, pod.OwnerReferences[0].Kind = apiVersion, kind
	}
}

func TestWhoseReplacementsAreKnown(t *testing.T) {
	for _, test := range []struct {
		rule string
		with []edit
	}{
		{"a ReplicaSet's", []edit{ownedByA("apps/v1", "ReplicaSet")}},
		{"a StatefulSet's", []edit{ownedByA("apps/v1", "StatefulSet")}},
		{"a ReplicationController's", []edit{ownedByA("v1", "ReplicationController")}},
		{"a Job's, whose owner has opted in", []edit{ownedByA("batch/v1", "Job"), movable}},
		{"those of a kind that is not known, whose owner has opted in", []edit{ownedByA("kubeflow.org/v1", "PyTorchJob"), movable}},
	} {
		t.Run(test.rule, func(t *testing.T) {
			l := newLab()
			l.node("node-a", 4)
			l.node("node-b", 1)
			l.single("v", "node-a", 0, test.with...)
			if d := l.one(t, gang("g", 1, 4)); d.Plan == nil || len(d.Plan.Moves) != 1 {
				t.Errorf("not moved: %+v", d.Room)
			}
		})
	}
}

func TestTheFewestPodsAreMovedAndEachHasAPlace(t *testing.T) {
	for _, test := range []struct {
		rule  string
		world func(*lab)
		gang  placement.Gang
		want  string
	}{
		{"the domain with the fewest pods in the way is freed", broken, gang("g", 1, 4), "infer-7 node-b.1/gpu-6 > node-b.0/gpu-1"},
		{"of two that cost as many pods, the less important ones are moved", func(l *lab) {
			l.node("node-a", 4)
			l.node("node-b", 4)
			l.node("node-c", 2)
			l.single("rather", "node-b", 0, priority(-5))
			l.single("important", "node-a", 0, priority(50))
			l.single("other", "node-c", 0)
		}, gang("g", 1, 4), "rather node-b.0/gpu-0 > node-c.0/gpu-1"},
		{"of two that cost the same otherwise, the younger ones are moved", func(l *lab) {
			l.node("node-a", 4)
			l.node("node-b", 4)
			l.single("old", "node-a", 0, func(p *corev1.Pod, _ *resourceapi.ResourceClaim) {
				p.Status.StartTime = ptr.To(metav1.NewTime(now.Add(-50 * time.Hour)))
			})
			l.single("young", "node-b", 0)
		}, gang("g", 1, 4), "young node-b.0/gpu-0 > node-a.0/gpu-1"},
		{"a pod goes where a domain is broken already, not to a whole one", func(l *lab) {
			l.node("node-a", 3)
			l.node("node-b", 4)
			l.node("node-c", 3)
			l.single("v", "node-b", 0)
			l.single("w", "node-c", 1, ownedBy("w"))
		}, gang("g", 1, 4), "v node-b.0/gpu-0 > node-c.0/gpu-0"},
		{"several members are made room for at once", func(l *lab) {
			broken(l)
			l.node("node-c", 4)
			l.node("node-d", 1)
			l.single("c", "node-c", 3)
		}, gang("g", 2, 4), "c node-c.0/gpu-3 > node-d.0/gpu-0, infer-7 node-b.1/gpu-6 > node-b.0/gpu-1"},
		{"a pod that fits no other node is left, and another is moved", func(l *lab) {
			l.node("node-a", 4)
			l.node("node-b", 4)
			l.node("node-c", 1)
			l.single("bound", "node-a", 0, func(p *corev1.Pod, _ *resourceapi.ResourceClaim) {
				p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "node-a"}
				p.Spec.Priority = ptr.To(int32(-1))
			})
			l.single("free", "node-b", 0, ownedBy("other"))
		}, gang("g", 1, 4), "free node-b.0/gpu-0 > node-c.0/gpu-0"},
		{"a pod of the gang's priority is moved when it has opted in", func(l *lab) {
			l.node("node-a", 4)
			l.node("node-b", 4)
			l.single("equal", "node-a", 0, priority(100))
			l.single("opted-in", "node-b", 0, priority(100), movable)
		}, gang("g", 1, 4), "opted-in node-b.0/gpu-0 > node-a.0/gpu-1"},
		{"of pods in one disruption budget no more are moved than it allows", func(l *lab) {
			l.node("node-a", 4)
			l.node("node-b", 4)
			l.node("node-c", 4)
			l.node("node-d", 3)
			for i, node := range []string{"node-a", "node-b"} {
				l.single(fmt.Sprintf("in-budget-%d", i), node, 0, ownedBy(node))
			}
			l.single("outside", "node-c", 0, priority(50), namespace("db"), ownedBy("db"))
			l.maker.SetBudget(budget("infer", 1))
		}, gang("g", 2, 4), "outside node-c.0/gpu-0 > node-b.0/gpu-1, in-budget-0 node-a.0/gpu-0 > node-b.0/gpu-2"},
		{"room for CPU counts what the moved pods free", func(l *lab) {
			l.node("node-a", 4)
			l.node("node-b", 2)
			l.single("v", "node-a", 0, func(p *corev1.Pod, _ *resourceapi.ResourceClaim) {
				p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("62")
			})
		}, gang("g", 1, 4), "v node-a.0/gpu-0 > node-b.0/gpu-0"},
		{"a claim with a prioritized list is moved to what suits one of its alternatives", func(l *lab) {
			l.node("node-a", 4)
			l.node("node-b", 1)
			l.single("v", "node-a", 0, func(_ *corev1.Pod, c *resourceapi.ResourceClaim) {
				sub := func(name, selector string) resourceapi.DeviceSubRequest {
					return resourceapi.DeviceSubRequest{
						Name: name, DeviceClassName: v1alpha1.DriverName, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
						Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: selector}}},
					}
				}
				c.Spec.Devices.Requests[0] = resourceapi.DeviceRequest{Name: "gpu", FirstAvailable: []resourceapi.DeviceSubRequest{
					sub("never", "false"), sub("b", `device.attributes["gpu.switchyard.dev"].id == "node-b-0"`),
				}}
			})
		}, gang("g", 1, 4), "v node-a.0/gpu-0 > node-b.0/gpu-0"},
	} {
		t.Run(test.rule, func(t *testing.T) {
			l := newLab()
			test.world(l)
			d := l.one(t, test.gang)
			if d.Plan == nil {
				t.Fatalf("no plan: %s: %s; %+v", d.Refusal.Reason, d.Refusal.Message, d.Room)
			}
			if got := moves(d.Plan.Moves); got != test.want {
				t.Errorf("moves %s, want %s", got, test.want)
			}
			if d.Room.Reason != defrag.ReasonMoving {
				t.Errorf("reason %s: %s", d.Room.Reason, d.Room.Message)
			}
			for _, m := range d.Plan.Moves {
				if m.Why == "" || m.ClaimUID == "" || m.OwnerUID == "" || m.PodUID == "" {
					t.Errorf("incomplete: %+v", m)
				}
			}
		})
	}
}

func TestWhoMustNotBeMoved(t *testing.T) {
	type with = edit
	for _, test := range []struct {
		rule   string
		with   with
		more   func(*lab)
		reason string
	}{
		{"a claim that two pods use", func(_ *corev1.Pod, c *resourceapi.ResourceClaim) {
			c.Status.ReservedFor = append(c.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: "x", UID: "x"})
		}, nil, defrag.NotOnePod},
		{"a pod that is being deleted", func(p *corev1.Pod, _ *resourceapi.ResourceClaim) {
			p.DeletionTimestamp = ptr.To(metav1.NewTime(now))
		}, nil, defrag.Ending},
		{"a pod that has ended", func(p *corev1.Pod, _ *resourceapi.ResourceClaim) { p.Status.Phase = corev1.PodSucceeded }, nil, defrag.Ending},
		{"a member of a gang", func(_ *corev1.Pod, c *resourceapi.ResourceClaim) {
			c.Labels = map[string]string{v1alpha1.GangLabel: "other"}
		}, nil, defrag.GangMember},
		{"a pod of a native group", func(p *corev1.Pod, _ *resourceapi.ResourceClaim) {
			p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{}
		}, nil, defrag.GangMember},
		{"a pod with two devices", func(_ *corev1.Pod, c *resourceapi.ResourceClaim) {
			r := c.Status.Allocation.Devices.Results
			second := r[0]
			second.Device = "gpu-1"
			c.Status.Allocation.Devices.Results = append(r, second)
		}, nil, defrag.SeveralDevices},
		{"a pod with two claims", func(p *corev1.Pod, _ *resourceapi.ResourceClaim) {
			p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: "nic", ResourceClaimTemplateName: ptr.To("nic")})
		}, nil, defrag.SeveralDevices},
		{"a pod with two requests", func(_ *corev1.Pod, c *resourceapi.ResourceClaim) {
			c.Spec.Devices.Requests = append(c.Spec.Devices.Requests, resourceapi.DeviceRequest{Name: "more"})
		}, nil, defrag.SeveralDevices},
		{"a bare pod", func(p *corev1.Pod, _ *resourceapi.ResourceClaim) { p.OwnerReferences = nil }, nil, defrag.NotReplaced},
		{"a pod of a DaemonSet", func(p *corev1.Pod, _ *resourceapi.ResourceClaim) { p.OwnerReferences[0].Kind = "DaemonSet" }, nil, defrag.NotReplaced},
		{"a mirror pod", func(p *corev1.Pod, _ *resourceapi.ResourceClaim) { p.OwnerReferences[0].Kind = "Node" }, nil, defrag.NotReplaced},
		{"a pod of a Job, which may count it as failed", ownedByA("batch/v1", "Job"), nil, defrag.NotReplaced},
		{"a pod of an Indexed Job, whose others depend on it", func(p *corev1.Pod, c *resourceapi.ResourceClaim) {
			ownedByA("batch/v1", "Job")(p, c)
			p.Annotations = map[string]string{"batch.kubernetes.io/job-completion-index": "1"}
		}, nil, defrag.NotReplaced},
		{"a pod of a kind that is not known", ownedByA("kubeflow.org/v1", "PyTorchJob"), nil, defrag.NotReplaced},
		{"a pod of a kind of the same name in another group", ownedByA("example.com/v1", "StatefulSet"), nil, defrag.NotReplaced},
		{"a pod of a ReplicationController of another group", ownedByA("example.com/v1", "ReplicationController"), nil, defrag.NotReplaced},
		{"a pod of a LeaderWorkerSet", func(p *corev1.Pod, c *resourceapi.ResourceClaim) {
			ownedByA("apps/v1", "StatefulSet")(p, c)
			p.Labels["leaderworkerset.sigs.k8s.io/name"] = "llm"
		}, nil, defrag.NotReplaced},
		{"a bare pod with the label", func(p *corev1.Pod, c *resourceapi.ResourceClaim) {
			movable(p, c)
			p.OwnerReferences = nil
		}, nil, defrag.NotReplaced},
		{"a pod whose claim tolerates the fence, with the label", func(p *corev1.Pod, c *resourceapi.ResourceClaim) {
			movable(p, c)
			c.Spec.Devices.Requests[0].Exactly.Tolerations = []resourceapi.DeviceToleration{{Operator: resourceapi.DeviceTolerationOpExists}}
		}, nil, defrag.NotForeseen},
		{"a pod that names a claim", func(p *corev1.Pod, _ *resourceapi.ResourceClaim) {
			p.Spec.ResourceClaims[0] = corev1.PodResourceClaim{Name: "gpu", ResourceClaimName: ptr.To("v")}
		}, nil, defrag.NotReplaced},
		{"a pod of the same priority", priority(100), nil, defrag.PriorityNotLower},
		{"a pod of a higher priority", priority(101), nil, defrag.HigherPriority},
		{"a pod of a higher priority that has opted in", func(p *corev1.Pod, c *resourceapi.ResourceClaim) {
			movable(p, c)
			priority(101)(p, c)
		}, nil, defrag.HigherPriority},
		{"a pod with a persistent volume", func(p *corev1.Pod, _ *resourceapi.ResourceClaim) {
			p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{}}}}
		}, nil, defrag.NotForeseen},
		{"a pod with a required anti-affinity", func(p *corev1.Pod, _ *resourceapi.ResourceClaim) {
			p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: make([]corev1.PodAffinityTerm, 1)}}
		}, nil, defrag.NotForeseen},
		{"a pod with a required spread", func(p *corev1.Pod, _ *resourceapi.ResourceClaim) {
			p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{WhenUnsatisfiable: corev1.DoNotSchedule}}
		}, nil, defrag.NotForeseen},
		{"a pod with a host port", func(p *corev1.Pod, _ *resourceapi.ResourceClaim) {
			p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 80}}
		}, nil, defrag.NotForeseen},
		{"a pod with a sidecar on a host port", func(p *corev1.Pod, _ *resourceapi.ResourceClaim) {
			p.Spec.InitContainers = []corev1.Container{{RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways), Ports: []corev1.ContainerPort{{HostPort: 80}}}}
		}, nil, defrag.NotForeseen},
		{"a pod that may take an hour to end", func(p *corev1.Pod, _ *resourceapi.ResourceClaim) {
			p.Spec.TerminationGracePeriodSeconds = ptr.To(int64(3600))
		}, nil, defrag.LongGracePeriod},
		{"a pod that may take longer to end than a Duration can be", func(p *corev1.Pod, _ *resourceapi.ResourceClaim) {
			p.Spec.TerminationGracePeriodSeconds = ptr.To(int64(1) << 34)
		}, nil, defrag.LongGracePeriod},
		{"a pod whose disruption budget allows none", nil, func(l *lab) { l.maker.SetBudget(budget("none", 0)) }, defrag.DisruptionBudget},
		{"a pod whose disruption budget is not up to date", nil, func(l *lab) {
			b := budget("stale", 1)
			b.Generation = 2
			l.maker.SetBudget(b)
		}, defrag.DisruptionBudget},
		{"a pod in two disruption budgets", nil, func(l *lab) {
			l.maker.SetBudget(budget("one", 5))
			l.maker.SetBudget(budget("two", 5))
		}, defrag.DisruptionBudget},
		{"a pod that came in place of one that was evicted", func(p *corev1.Pod, _ *resourceapi.ResourceClaim) {
			p.CreationTimestamp = metav1.NewTime(now.Add(-10 * time.Minute))
		}, func(l *lab) { l.maker.SetGang(past("web", "before", v1alpha1.EvictionSucceeded, 10*time.Minute)) }, defrag.CoolingDown},
		{"a pod that was not evicted a while ago", nil, func(l *lab) {
			l.maker.SetGang(past("web", "v", v1alpha1.EvictionRefused, 10*time.Minute))
		}, defrag.RefusedBefore},
		{"a pod of a namespace of which too many were evicted", nil, func(l *lab) {
			for i := range 20 {
				l.maker.SetGang(past("web", fmt.Sprint(i), v1alpha1.EvictionFailed, time.Duration(35+i)*time.Minute))
			}
		}, defrag.EvictionBudget},
		{"a pod that suits no other node", func(p *corev1.Pod, _ *resourceapi.ResourceClaim) {
			p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "node-a"}
		}, nil, defrag.NoPlaceElsewhere},
		{"a pod that tolerates no taint of what is free", nil, func(l *lab) {
			for _, name := range []string{"node-b"} {
				l.SetRule(&resourceapi.DeviceTaintRule{
					ObjectMeta: metav1.ObjectMeta{Name: "broken"},
					Spec: resourceapi.DeviceTaintRuleSpec{
						DeviceSelector: &resourceapi.DeviceTaintSelector{Driver: ptr.To(v1alpha1.DriverName), Pool: &name},
						Taint:          resourceapi.DeviceTaint{Key: "xid", Effect: resourceapi.DeviceTaintEffectNoSchedule},
					},
				})
			}
		}, defrag.NoPlaceElsewhere},
	} {
		t.Run(test.rule, func(t *testing.T) {
			l := newLab()
			l.node("node-a", 4)
			l.node("node-b", 1)
			var with []edit
			if test.with != nil {
				with = append(with, test.with)
			}
			l.single("v", "node-a", 0, with...)
			if test.more != nil {
				test.more(l)
			}
			d := l.one(t, gang("g", 1, 4))
			if d.Plan != nil {
				t.Fatalf("moved: %s", moves(d.Plan.Moves))
			}
			if d.Room == nil || d.Room.Reason != defrag.ReasonNoMoves || len(d.Room.RuledOut) != 1 {
				t.Fatalf("reported %+v", d.Room)
			}
			out := d.Room.RuledOut[0]
			if out.Reason != test.reason || out.Pods != 1 || !strings.Contains(out.Example, "web/v ") {
				t.Errorf("ruled out: %+v, want %s", out, test.reason)
			}
			if !strings.Contains(d.Room.Message, out.Example) || !strings.Contains(d.Room.Message, "0 of 1 member") {
				t.Errorf("the message does not say why: %s", d.Room.Message)
			}
		})
	}
}

func TestAGangBehindOneThatAsksForTheSameIsGivenRoomByItsOwnPolicy(t *testing.T) {
	policy := func(p v1alpha1.DefragmentationPolicy) func(*placement.Gang) {
		return func(g *placement.Gang) { g.Claim.Spec.Defragmentation = p }
	}
	for _, test := range []struct {
		rule   string
		before v1alpha1.DefragmentationPolicy
		behind v1alpha1.DefragmentationPolicy
		moves  bool
		reason string // of the report about the one behind; empty for none
	}{
		{"one that wants no moves does not keep another from them", v1alpha1.DefragmentationNever, v1alpha1.DefragmentationEvict, true, defrag.ReasonMoving},
		{"one that wants to see them only does not keep another from them", v1alpha1.DefragmentationPlan, v1alpha1.DefragmentationEvict, true, defrag.ReasonMoving},
		{"nor from seeing them", v1alpha1.DefragmentationNever, v1alpha1.DefragmentationPlan, false, defrag.ReasonMovesFound},
		{"they are not looked for twice", v1alpha1.DefragmentationPlan, v1alpha1.DefragmentationPlan, false, ""},
		{"one that wants none is not told of any", v1alpha1.DefragmentationPlan, v1alpha1.DefragmentationNever, false, ""},
	} {
		t.Run(test.rule, func(t *testing.T) {
			l := newLab()
			for i, node := range []string{"node-a", "node-b", "node-c"} {
				l.node(node, 4)
				l.single(fmt.Sprint("v", i), node, 0)
			}
			d := l.plan(gang("a", 1, 4, policy(test.before)), gang("b", 1, 4, policy(test.behind)))
			if d[0].Plan != nil || (d[1].Plan != nil) != test.moves {
				t.Fatalf("planned %+v and %+v", d[0].Plan, d[1].Plan)
			}
			reason := ""
			if d[1].Room != nil {
				reason = d[1].Room.Reason
			}
			if reason != test.reason {
				t.Errorf("reported %q, want %q", reason, test.reason)
			}
		})
	}
}

// past is a GangClaim whose status tells of an eviction.
func past(namespace, pod string, outcome v1alpha1.EvictionOutcome, ago time.Duration) *v1alpha1.GangClaim {
	return &v1alpha1.GangClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "past", UID: "past"},
		Status: v1alpha1.GangClaimStatus{Evictions: []v1alpha1.GangEviction{{
			Time: metav1.NewMicroTime(now.Add(-ago)), Namespace: namespace, Pod: pod, OwnerUID: "rs-infer", Outcome: outcome,
		}}},
	}
}

func TestWhatIsOverIsForgotten(t *testing.T) {
	for rule, change := range map[string]func(*lab){
		"a cooldown that has passed": func(l *lab) {
			l.maker.SetGang(past("web", "v", v1alpha1.EvictionRefused, 31*time.Minute))
		},
		"a pod that is older than the eviction of its sibling": func(l *lab) {
			l.maker.SetGang(past("web", "sibling", v1alpha1.EvictionSucceeded, time.Minute))
		},
		"a disruption budget that was deleted": func(l *lab) {
			l.maker.SetBudget(budget("none", 0))
			l.maker.DeleteBudget(types.NamespacedName{Namespace: "web", Name: "none"})
		},
		"a disruption budget that was changed": func(l *lab) {
			l.maker.SetBudget(budget("none", 0))
			l.maker.SetBudget(budget("none", 1))
		},
	} {
		t.Run(rule, func(t *testing.T) {
			l := newLab()
			broken(l)
			change(l)
			if d := l.one(t, gang("g", 1, 4)); d.Plan == nil {
				t.Errorf("not moved: %+v", d.Room)
			}
		})
	}
}

func TestMovesThatWaitAreReportedAndNotMade(t *testing.T) {
	for _, test := range []struct {
		rule   string
		limits func(*defrag.Limits)
		gang   placement.Gang
		more   func(*lab)
		reason string
		says   string
	}{
		{
			"Plan reports", nil, gang("g", 1, 4, func(g *placement.Gang) { g.Claim.Spec.Defragmentation = v1alpha1.DefragmentationPlan }), nil,
			defrag.ReasonMovesFound, "evict 1 pod: web/infer-7 (node-b.1/gpu-6 → node-b.0/gpu-1, priority 0). The gang then gets node-b.1",
		},
		{"a gang that has just begun to wait", nil, gang("g", 1, 4, func(g *placement.Gang) {
			g.Claim.Status.WaitingSince = ptr.To(metav1.NewMicroTime(now.Add(-29 * time.Second)))
		}), nil, defrag.ReasonWaiting, "within 30s"},
		{
			"a gang that has not begun to wait", nil, gang("g", 1, 4, func(g *placement.Gang) { g.Claim.Status.WaitingSince = nil }), nil,
			defrag.ReasonWaiting, "within 30s",
		},
		{"an hour that has no eviction left", func(l *defrag.Limits) { l.PerHour = 1 }, gang("g", 1, 4), func(l *lab) {
			l.maker.SetGang(past("db", "x", v1alpha1.EvictionFailed, 59*time.Minute))
		}, defrag.ReasonEvictionBudget, "0 more of at most 1 pods"},
		{"another gang for which pods are being moved", nil, gang("g", 1, 4), func(l *lab) {
			l.SetGang(&v1alpha1.GangClaim{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "first", UID: "first"},
				Status: v1alpha1.GangClaimStatus{Plan: &v1alpha1.GangPlan{Step: v1alpha1.StepEvicting, Moves: []v1alpha1.GangMove{{
					To: v1alpha1.GangMovePlace{Pool: "elsewhere", Device: "gpu-0"},
				}}}},
			})
		}, defrag.ReasonOneAtATime, "ml/first"},
	} {
		t.Run(test.rule, func(t *testing.T) {
			var with []func(*defrag.Limits)
			if test.limits != nil {
				with = append(with, test.limits)
			}
			l := newLab(with...)
			broken(l)
			if test.more != nil {
				test.more(l)
			}
			d := l.one(t, test.gang)
			if d.Plan != nil || d.Refusal.Reason != placement.ReasonNoFeasibleDomain {
				t.Fatalf("decided %+v", d)
			}
			if d.Room.Reason != test.reason || !strings.Contains(d.Room.Message, test.says) || !defrag.Found(d.Room.Reason) {
				t.Errorf("%s: %s", d.Room.Reason, d.Room.Message)
			}
			if got := moves(d.Room.Moves); got != "infer-7 node-b.1/gpu-6 > node-b.0/gpu-1" {
				t.Errorf("moves %s", got)
			}
			if d.Room.Cost != "1 pod, importance 32, lost work 3" || len(d.Room.Domains) != 1 || d.Room.Domains[0] != "node-b.1" {
				t.Errorf("cost %q, domains %v", d.Room.Cost, d.Room.Domains)
			}
		})
	}
}

func TestWhatCannotBeSaysWhy(t *testing.T) {
	for _, test := range []struct {
		rule   string
		world  func(*lab)
		limits func(*defrag.Limits)
		gang   placement.Gang
		reason string
		says   string
	}{
		{"no node is large enough", broken, nil, gang("g", 1, 5), defrag.ReasonNoMoves, "a place for 0 of 1 member"},
		{"the gang is too large for any place", func(l *lab) {
			for i := range 180 {
				l.node(fmt.Sprintf("node-with-a-name-that-is-as-long-as-such-names-get-%d", i), 2)
			}
			l.node("rest", 1)
			l.single("v", "node-with-a-name-that-is-as-long-as-such-names-get-0", 0)
		}, nil, gang("g", 180, 2), defrag.ReasonNoMoves, "too large for one selector"},
		{"the best attempt is told", broken, nil, gang("g", 2, 4), defrag.ReasonNoMoves, "a place for 1 of 2 members, by moving web/infer-7"},
		{"more moves than are allowed", func(l *lab) {
			l.node("node-a", 4)
			l.node("node-b", 2)
			l.single("a", "node-a", 0)
			l.single("b", "node-a", 1)
		}, func(l *defrag.Limits) { l.Moves = 1 }, gang("g", 1, 4), defrag.ReasonTooManyMoves, "it takes 2 moves, of which 1 are allowed for one gang: at the least web/a, web/b"},
		{"the members do not fit the node even without the pods", func(l *lab) {
			l.node("node-a", 4)
			l.node("node-b", 1)
			l.single("v", "node-a", 0)
			l.SetPod(&corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "web", Name: "cpu", UID: "cpu"},
				Spec: corev1.PodSpec{NodeName: "node-a", Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("61")},
				}}}},
			})
		}, nil, gang("g", 1, 4), defrag.ReasonNoMoves, "0 of 1 member"},
		{"pods whose priority is not lower fill the cluster", func(l *lab) {
			l.node("node-a", 4)
			for i := range 7 {
				if i < 3 {
					l.single(fmt.Sprint("x", i), "node-a", i, priority(100))
				}
			}
		}, nil, gang("g", 1, 4), defrag.ReasonNoMoves, "3 pods (PriorityNotLower: web/x0 has priority 100, the gang's, and no label switchyard.dev/movable=true)"},
	} {
		t.Run(test.rule, func(t *testing.T) {
			var with []func(*defrag.Limits)
			if test.limits != nil {
				with = append(with, test.limits)
			}
			l := newLab(with...)
			test.world(l)
			d := l.one(t, test.gang)
			if d.Plan != nil || d.Room == nil {
				t.Fatalf("decided %+v", d)
			}
			if d.Room.Reason != test.reason || !strings.Contains(d.Room.Message, test.says) || defrag.Found(d.Room.Reason) || len(d.Room.Moves) > 0 {
				t.Errorf("%s: %s %v", d.Room.Reason, d.Room.Message, d.Room.Moves)
			}
		})
	}
}

func TestPodsAreEvictedWithoutAPlaceOnlyWherePreemptionIsAllowed(t *testing.T) {
	full := func(l *lab) {
		l.node("node-a", 4)
		l.single("low", "node-a", 0, priority(-5))
		l.single("equal", "node-a", 1, priority(100), movable)
		l.node("node-b", 4)
		for i := range 4 {
			l.single(fmt.Sprint("b", i), "node-b", i, priority(int32(10*i)))
		}
	}
	preempt := func(l *defrag.Limits) { l.Preempt = true }
	l := newLab()
	full(l)
	if d := l.one(t, gang("g", 1, 4)); d.Plan != nil || d.Room.Reason != defrag.ReasonNoMoves {
		t.Errorf("without: %+v", d)
	}
	l = newLab(preempt)
	full(l)
	d := l.one(t, gang("g", 1, 4))
	if d.Plan == nil {
		t.Fatalf("with: %+v", d.Room)
	}
	lost := 0
	for _, m := range d.Plan.Moves {
		if m.To.Node == "" {
			lost++
		}
		if m.To.Node == "" && m.Pod == "equal" {
			t.Error("the pod of the gang's priority loses its place")
		}
	}
	if lost == 0 || !strings.Contains(d.Room.Message, "no place") {
		t.Errorf("moves %s: %s", moves(d.Plan.Moves), d.Room.Message)
	}
	g := gang("g", 1, 4)
	g.Claim.Status.Plan = d.Plan
	l.SetGang(g.Claim)
	if got := l.maker.Recheck(l.Cluster, g); got != "" {
		t.Errorf("Recheck says %s", got)
	}
	// Where moves serve, nobody loses anything.
	l = newLab(preempt)
	broken(l)
	if d := l.one(t, gang("g", 1, 4)); moves(d.Plan.Moves) != "infer-7 node-b.1/gpu-6 > node-b.0/gpu-1" {
		t.Errorf("moves %s", moves(d.Plan.Moves))
	}
	// And where not even that serves, the first reason stands.
	if d := l.one(t, gang("h", 3, 4)); d.Plan != nil || d.Room.Reason != defrag.ReasonNoMoves {
		t.Errorf("impossible: %+v", d.Room)
	}
}

func TestNobodyIsAskedWhereMovesAreNotWanted(t *testing.T) {
	l := newLab()
	broken(l)
	never := gang("g", 1, 4, func(g *placement.Gang) { g.Claim.Spec.Defragmentation = v1alpha1.DefragmentationNever })
	if d := l.one(t, never); d.Room != nil || d.Plan != nil {
		t.Errorf("decided %+v", d)
	}
	l.remove("infer-7")
	if d := l.one(t, gang("h", 1, 4)); d.Room != nil || d.Plan == nil || len(d.Plan.Moves) > 0 {
		t.Errorf("a gang that has a place: %+v", d)
	}
}

func TestOfTwoGangsTheFirstGetsTheMoves(t *testing.T) {
	l := newLab()
	broken(l)
	l.node("node-c", 4)
	l.single("c", "node-c", 0)
	first, second := gang("a", 1, 4), gang("b", 1, 3, func(g *placement.Gang) { g.Claim.Spec.DevicesPerMember = 4; g.Claim.Spec.Selectors = nil })
	second.Claim.Spec.Tolerations = []resourceapi.DeviceToleration{{Key: "other", Operator: resourceapi.DeviceTolerationOpExists}} // not the same request
	decisions := l.plan(second, first)
	if decisions[0].Gang != first.Claim.UID || decisions[0].Plan == nil {
		t.Fatalf("first: %+v", decisions[0])
	}
	if d := decisions[1]; d.Plan != nil || d.Room.Reason != defrag.ReasonOneAtATime {
		t.Errorf("second: %+v", d.Room)
	}
	for _, m := range decisions[1].Room.Moves {
		for _, n := range decisions[0].Plan.Moves {
			if m.PodUID == n.PodUID || m.To == n.To {
				t.Errorf("both move %s, or to the same device", m.Pod)
			}
		}
	}
}

func TestRecheckStopsMovesThatAreNotRightAnyMore(t *testing.T) {
	prepare := func() (*lab, placement.Gang) {
		l := newLab()
		broken(l)
		g := gang("g", 1, 4)
		d := l.one(t, g)
		g.Claim = g.Claim.DeepCopy()
		g.Claim.Status.Plan = d.Plan
		g.Claim.Status.Plan.Step = v1alpha1.StepQuiescing
		l.SetGang(g.Claim)
		return l, g
	}
	for _, test := range []struct {
		rule   string
		change func(*lab)
		says   string
	}{
		{"nothing has changed", func(*lab) {}, ""},
		{"the pod is gone by itself", func(l *lab) { l.remove("infer-7") }, ""},
		{"the pod is ending by itself", func(l *lab) {
			l.single("infer-7", "node-b", 6, func(p *corev1.Pod, _ *resourceapi.ResourceClaim) { p.DeletionTimestamp = ptr.To(metav1.NewTime(now)) })
		}, ""},
		{"its priority is higher now", func(l *lab) { l.single("infer-7", "node-b", 6, priority(500)) }, "must not be moved any more: it has priority 500"},
		{"its disruption budget is used up", func(l *lab) { l.maker.SetBudget(budget("b", 0)) }, "allows no disruption now"},
		{"its claim is another pod's", func(l *lab) {
			l.single("infer-7", "node-b", 6, func(p *corev1.Pod, c *resourceapi.ResourceClaim) {
				p.UID = "another"
				c.Status.ReservedFor[0].UID = "another"
			})
		}, "is another's now"},
		{"everything else is taken", func(l *lab) {
			l.single("x", "node-b", 1)
			l.single("y", "node-b", 3)
		}, "pod web/infer-7 has no place elsewhere any more"},
	} {
		t.Run(test.rule, func(t *testing.T) {
			l, g := prepare()
			test.change(l)
			got := l.maker.Recheck(l.Cluster, g)
			if test.says == "" && got != "" || !strings.Contains(got, test.says) {
				t.Errorf("Recheck says %q, want %q", got, test.says)
			}
		})
	}
	l := newLab()
	if got := l.maker.Recheck(l.Cluster, gang("g", 1, 4)); got != "" {
		t.Errorf("without a plan: %s", got)
	}
}
