// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package gang_test

import (
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/gang"
	"github.com/switchyard-dev/switchyard/pkg/gang/gangtest"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// rule is one rule of the protocol: when this has come true, and that was changed, so is decided.
type rule struct {
	name   string
	world  func() *gangtest.World // default: two bare nodes and the gang g with two pods of a Job
	until  predicate              // default: at once, after the finalizer was added
	change func(*gangtest.World)
	later  time.Duration

	planned string // reason of the condition Planned
	state   string // reason of the condition Running
	step    v1alpha1.GangStep
	because string // reason of status.plan.reason
	says    string // part of the message of Planned, or of Running when planned
	verbs   string // of the actions
}

const anyVerbs = "*"

func (r rule) check(t *testing.T) {
	t.Helper()
	world := r.world
	if world == nil {
		world = func() *gangtest.World { return gangWorld("job") }
	}
	w := world()
	if r.until == nil {
		w.UpdateGang("g", func(g *v1alpha1.GangClaim) { g.Finalizers = []string{gang.Finalizer} })
	} else if ok, err := w.Run(10*time.Minute, func() bool { return r.until(w) }); !ok || err != nil {
		t.Fatalf("what should have come first did not: %v", err)
	}
	if r.change != nil {
		r.change(w)
	}
	w.Now = w.Now.Add(r.later)
	d, err := w.Reconcile("g")
	if err != nil {
		t.Fatal(err)
	}
	planned, state := find(d.Status, v1alpha1.ConditionPlanned), find(d.Status, v1alpha1.ConditionRunning)
	if planned.Reason != r.planned || state.Reason != r.state {
		t.Errorf("Planned is %s and Running %s, want %s and %s\n%s\n%s", planned.Reason, state.Reason, r.planned, r.state,
			planned.Message, state.Message)
	}
	var at v1alpha1.GangStep
	var why string
	if d.Status.Plan != nil {
		at = d.Status.Plan.Step
		why, _, _ = strings.Cut(d.Status.Plan.Reason, ":")
	}
	if at != r.step || why != r.because {
		t.Errorf("step is %q because %q, want %q because %q", at, why, r.step, r.because)
	}
	if !strings.Contains(planned.Message+"\n"+state.Message, r.says) {
		t.Errorf("nobody says %q:\n%s\n%s", r.says, planned.Message, state.Message)
	}
	var verbs []string
	for _, a := range d.Actions {
		verbs = append(verbs, a.Verb())
	}
	if got := strings.Join(verbs, " "); r.verbs != anyVerbs && got != r.verbs {
		t.Errorf("actions are %q, want %q", got, r.verbs)
	}
}

func find(s v1alpha1.GangClaimStatus, conditionType string) metav1.Condition {
	for _, c := range s.Conditions {
		if c.Type == conditionType {
			return c
		}
	}
	return metav1.Condition{}
}

func check(t *testing.T, rules []rule) {
	t.Helper()
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) { r.check(t) })
	}
}

// noRoom is a cluster on which nothing of the gang fits.
func noRoom() *gangtest.World {
	w := gangtest.NewWorld(gangtest.Node("a", 4, 2)...)
	w.AddGang("g", 2, 4)
	w.AddPod("p0", "g", "job")
	w.AddPod("p1", "g", "job")
	return w
}

func gate(p *corev1.Pod) {
	p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "not-yet"}}
}

func TestWait(t *testing.T) {
	check(t, []rule{
		{
			name:    "fewer pods than members: waits for pods",
			change:  func(w *gangtest.World) { w.RemovePod("p1") },
			planned: gang.ReasonWaitingForMembers, state: gang.StateWaiting, says: "1 of 2 members exist",
		},
		{
			name:    "more pods than members: not planned, since each would get devices",
			change:  func(w *gangtest.World) { w.AddPod("p2", "g", "job") },
			planned: gang.ReasonTooManyMembers, state: gang.StateWaiting, says: "delete pod p2, or set spec.members",
		},
		{
			name:    "pods that are being deleted or have ended are no members",
			change:  func(w *gangtest.World) { w.DeletePod("p0"); w.EndPod("p1", corev1.PodFailed) },
			planned: gang.ReasonWaitingForMembers, state: gang.StateWaiting, says: "0 of 2 members exist",
		},
		{
			name:    "a member with scheduling gates is not there yet",
			change:  func(w *gangtest.World) { w.UpdatePod("p1", gate) },
			planned: gang.ReasonWaitingForMembers, state: gang.StateWaiting, says: "pod p1 has scheduling gates",
		},
		{
			name: "a pod that names the template twice would get twice the devices",
			change: func(w *gangtest.World) {
				w.UpdatePod("p1", func(p *corev1.Pod) {
					p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: "more", ResourceClaimTemplateName: ptr.To("g")})
				})
			},
			planned: gang.ReasonMalformedMember, state: gang.StateWaiting, says: "pod p1 names the ResourceClaimTemplate g 2 times",
		},
		{
			name:    "a claim of the pod for another template is no business of the gang",
			change:  otherClaim,
			planned: gang.ReasonPlanned, state: gang.StateFencing, step: v1alpha1.StepFencing, verbs: "CreateRules",
		},
		{
			name: "someone else's template of the same name is left alone",
			change: func(w *gangtest.World) {
				w.Templates["g"] = &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: gangtest.Namespace, Name: "g", UID: "x"}}
			},
			planned: gang.ReasonTemplateConflict, state: gang.StateWaiting, says: "delete or rename it",
		},
		{
			name:    "pods that have claims from someone else's template stand in the way",
			change:  foreignClaim,
			planned: gang.ReasonForeignClaims, state: gang.StateWaiting, says: "pods p0, p1 name the ResourceClaimTemplate g",
		},
		{
			name: "a pod that has a node without a claim passed the gang by",
			change: func(w *gangtest.World) {
				w.UpdatePod("p0", func(p *corev1.Pod) { p.Spec.NodeName = "a" })
			},
			planned: gang.ReasonForeignClaims, state: gang.StateWaiting,
		},
		{
			name: "no place: the planner's refusal is passed on", world: noRoom,
			planned: string(placement.ReasonNoFeasibleDomain), state: gang.StateWaiting, says: "needs 2 × 4 devices, each in one domain; 0 fit",
		},
		{
			name: "no place within the scheduling timeout", world: noRoom, until: reason(string(placement.ReasonNoFeasibleDomain)),
			later: 10 * time.Minute, planned: gang.ReasonSchedulingTimeout, state: gang.StateTimedOut, says: "Last: needs 2 × 4",
		},
		{
			name: "after the timeout the message stays", world: noRoom, until: reason(gang.ReasonSchedulingTimeout),
			planned: gang.ReasonSchedulingTimeout, state: gang.StateTimedOut, says: "Last: needs 2 × 4",
		},
		{
			name: "after the timeout the gang is not planned even when there is room", world: noRoom, until: reason(gang.ReasonSchedulingTimeout),
			change:  func(w *gangtest.World) { w.Devices = append(w.Devices, gangtest.Node("b", 2, 4)...) },
			planned: gang.ReasonSchedulingTimeout, state: gang.StateTimedOut,
		},
		{
			name: "after the timeout a new pod starts it anew", world: noRoom, until: reason(gang.ReasonSchedulingTimeout),
			change:  func(w *gangtest.World) { w.RemovePod("p1"); w.AddPod("q1", "g", "job") },
			planned: string(placement.ReasonNoFeasibleDomain), state: gang.StateWaiting,
		},
		{
			name: "after the timeout a new spec starts it anew", world: noRoom, until: reason(gang.ReasonSchedulingTimeout),
			change: func(w *gangtest.World) {
				w.UpdateGang("g", func(g *v1alpha1.GangClaim) { g.Generation++; g.Spec.DevicesPerMember = 2 })
			},
			planned: gang.ReasonPlanned, state: gang.StateFencing, step: v1alpha1.StepFencing, verbs: "CreateRules",
		},
		{
			name: "a timeout of 0 waits for ever",
			world: func() *gangtest.World {
				w := noRoom()
				w.UpdateGang("g", func(g *v1alpha1.GangClaim) { g.Spec.SchedulingTimeout = &metav1.Duration{} })
				return w
			},
			until: reason(string(placement.ReasonNoFeasibleDomain)), later: 24 * time.Hour,
			planned: string(placement.ReasonNoFeasibleDomain), state: gang.StateWaiting,
		},
		{
			name: "a plan for another number of members is not committed",
			change: func(w *gangtest.World) {
				w.Plan = func(*gangtest.World, placement.Gang) placement.Decision {
					return placement.Decision{Plan: &v1alpha1.GangPlan{Members: 1}}
				}
			},
			planned: gang.ReasonPlanning, state: gang.StateWaiting, says: "the members changed",
		},
	})
}

func otherClaim(w *gangtest.World) {
	p := w.Pods["p0"]
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: gangtest.Namespace, Name: "nic", Annotations: map[string]string{resourceapi.PodResourceClaimAnnotation: "nic"},
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(p, corev1.SchemeGroupVersion.WithKind("Pod"))},
	}}
	w.Identify(c)
	w.Claims["nic"] = c
}

func foreignClaim(w *gangtest.World) {
	t := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: gangtest.Namespace, Name: "g"}}
	t.Spec.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "r", Exactly: &resourceapi.ExactDeviceRequest{Count: 1}}}
	w.Templates["g"] = t
	w.RunClaimController()
	delete(w.Templates, "g")
}

func reason(r string) predicate {
	return func(w *gangtest.World) bool { return find(w.Gangs["g"].Status, v1alpha1.ConditionPlanned).Reason == r }
}

func TestCommitIsBeforeAnythingElse(t *testing.T) {
	w := gangWorld("job")
	d, err := w.Reconcile("g")
	if err != nil {
		t.Fatal(err)
	}
	if len(d.Actions) != 1 || d.Actions[0].Verb() != "AddFinalizer" || d.Status.Plan != nil {
		t.Fatalf("a gang without finalizer: %+v", d)
	}
	if d, err = w.Reconcile("g"); err != nil {
		t.Fatal(err)
	}
	p := d.Status.Plan
	if p == nil || p.Attempt != 1 || len(p.Hash) != 16 || p.Step != v1alpha1.StepFencing || !p.StepSince.Equal(ptr.To(metav1.NewMicroTime(w.Now))) {
		t.Errorf("the plan is %+v", p)
	}
	if d.Status.Domains != "a.0,a.1" || d.Status.Ready != "0/2" || d.Status.ObservedGeneration != 1 {
		t.Errorf("the status is %+v", d.Status)
	}
}

func TestFence(t *testing.T) {
	fencing := step("g", v1alpha1.StepFencing)
	check(t, []rule{
		{
			name: "a rule is touched 100 ms after it was made, not before", until: fencing, later: 50 * time.Millisecond,
			planned: gang.ReasonPlanned, state: gang.StateFencing, step: v1alpha1.StepFencing,
		},
		{
			name: "each rule is touched once", until: fencing, later: 100 * time.Millisecond,
			planned: gang.ReasonPlanned, state: gang.StateFencing, step: v1alpha1.StepFencing, verbs: "TouchRules",
		},
		{
			name: "a rule that is lost is made again", until: fencing, change: func(w *gangtest.World) { clear(w.Rules) },
			planned: gang.ReasonPlanned, state: gang.StateFencing, step: v1alpha1.StepFencing, verbs: "CreateRules",
		},
		{
			name: "a rule that someone changed is repaired", until: fencing, change: breakRules,
			planned: gang.ReasonPlanned, state: gang.StateFencing, step: v1alpha1.StepFencing, verbs: "RepairRules",
		},
		{
			name: "a rule whose stamp is lost is touched", until: fencing, change: func(w *gangtest.World) {
				for n, r := range w.Rules {
					r = r.DeepCopy()
					r.Annotations = nil
					w.Rules[n] = r
				}
			},
			planned: gang.ReasonPlanned, state: gang.StateFencing, step: v1alpha1.StepFencing, verbs: "TouchRules",
		},
		{
			name: "a rule that someone deletes slowly is waited for", until: fencing, change: func(w *gangtest.World) {
				for n, r := range w.Rules {
					r = r.DeepCopy()
					r.DeletionTimestamp = ptr.To(metav1.NewTime(w.Now))
					w.Rules[n] = r
				}
			},
			planned: gang.ReasonPlanned, state: gang.StateFencing, step: v1alpha1.StepFencing,
		},
		{
			name: "a member that goes: taken back", until: fencing, change: func(w *gangtest.World) { w.RemovePod("p0") },
			planned: gang.StateTakingBack, state: gang.StateTakingBack, step: v1alpha1.StepTakingBack, because: gang.ReasonMemberLost,
			verbs: "NeutralizeRules", says: "1 of 2 members to be placed are gone",
		},
		{
			name: "a pod too many: taken back", until: fencing, change: func(w *gangtest.World) { w.AddPod("p2", "g", "x") },
			planned: gang.StateTakingBack, state: gang.StateTakingBack, step: v1alpha1.StepTakingBack, because: gang.ReasonTooManyMembers,
			verbs: "NeutralizeRules",
		},
		{
			name: "a template of someone else: taken back, and that template stays", until: fencing, change: func(w *gangtest.World) {
				w.Templates["g"] = &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: gangtest.Namespace, Name: "g", UID: "x"}}
			},
			planned: gang.StateTakingBack, state: gang.StateTakingBack, step: v1alpha1.StepTakingBack, because: gang.ReasonTemplateConflict,
			verbs: "NeutralizeRules",
		},
	})
	for problem, says := range map[gang.DeviceProblem]string{
		gang.DeviceGone: "is gone", gang.DeviceTainted: "was tainted", gang.DeviceMoved: "another NVSwitch domain",
		gang.DeviceNotSelected: "is not selected by the DeviceClass", gang.DeviceNodeUnusable: "takes no pods now", "Melted": "Melted",
	} {
		rule{
			until: fencing, change: func(w *gangtest.World) { w.Devices[7].Problem = problem }, says: says,
			planned: gang.StateTakingBack, state: gang.StateTakingBack, step: v1alpha1.StepTakingBack, because: gang.ReasonDeviceUnusable,
			verbs: "NeutralizeRules",
		}.check(t)
	}
}

func TestQuiesce(t *testing.T) {
	quiescing := step("g", v1alpha1.StepQuiescing)
	rival := func() *gangtest.World {
		w := gangWorld("job")
		w.AddSingle("rival", 99)
		greedy := w.Schedule
		w.Schedule = func(w *gangtest.World) {
			if r := w.Pods["rival"]; len(r.Status.Conditions) > 0 {
				greedy(w)
			}
		}
		return w
	}
	check(t, []rule{
		{
			name: "nobody else wants devices: released at once", until: quiescing,
			planned: gang.ReasonPlanned, state: gang.StateReleasing, step: v1alpha1.StepReleasing, verbs: "CreateTemplate",
		},
		{
			name: "a pod on which the scheduler has not decided is waited for", until: quiescing, world: rival, later: 9 * time.Second,
			planned: gang.ReasonPlanned, state: gang.StateQuiescing, step: v1alpha1.StepQuiescing, says: "decide on 1 other pod",
		},
		{
			name: "10 s are enough", until: quiescing, world: rival, later: 10 * time.Second,
			planned: gang.ReasonPlanned, state: gang.StateReleasing, step: v1alpha1.StepReleasing, verbs: "CreateTemplate",
		},
		{
			name: "a pod that was created after the fence is not waited for", until: quiescing,
			change: func(w *gangtest.World) {
				w.Now = w.Now.Add(2 * time.Second)
				w.AddSingle("new", 99)
			},
			planned: gang.ReasonPlanned, state: gang.StateReleasing, step: v1alpha1.StepReleasing, verbs: "CreateTemplate",
		},
		{
			name: "a pod that was found unschedulable is decided", until: quiescing, world: rival,
			change: func(w *gangtest.World) {
				w.UpdatePod("rival", func(p *corev1.Pod) {
					p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, LastTransitionTime: metav1.NewTime(w.Now)}}
				})
			},
			planned: gang.ReasonPlanned, state: gang.StateReleasing, step: v1alpha1.StepReleasing, verbs: "CreateTemplate",
		},
		{
			name: "a decision of the scheduler that lands after the fence takes a planned device: taken back", until: quiescing, world: rival,
			change:  func(w *gangtest.World) { w.Allocate(w.ClaimOf(w.Pods["rival"]).Name, w.Devices[:1]) },
			says:    "device gpu-0 of pool a, which was planned, was allocated to claim ml/rival",
			planned: gang.StateTakingBack, state: gang.StateTakingBack, step: v1alpha1.StepTakingBack, because: gang.ReasonDeviceTaken,
			verbs: "NeutralizeRules",
		},
		{
			name: "a decision of the scheduler that lands after the fence takes a partition of a planned GPU: taken back", until: quiescing,
			world: func() *gangtest.World {
				w := rival()
				w.Devices[0].Siblings = []string{"mig-0"}
				w.Devices = append(w.Devices, &gangtest.Device{Node: "a", Name: "mig-0", ID: "a-mig-0", Domain: "a.0.parts"})
				return w
			},
			change: func(w *gangtest.World) {
				w.Allocate(w.ClaimOf(w.Pods["rival"]).Name, w.Devices[len(w.Devices)-1:])
			},
			says:    "device mig-0 of pool a, which excludes one that was planned, was allocated to claim ml/rival",
			planned: gang.StateTakingBack, state: gang.StateTakingBack, step: v1alpha1.StepTakingBack, because: gang.ReasonDeviceTaken,
			verbs: "NeutralizeRules",
		},
		{
			name: "a rule that is lost meanwhile: fenced again, and quiesced again", until: quiescing,
			change:  func(w *gangtest.World) { clear(w.Rules) },
			planned: gang.ReasonPlanned, state: gang.StateFencing, step: v1alpha1.StepFencing, verbs: "CreateRules",
		},
	})
}

// released is a world whose template exists, with claims when there are to be some, and no allocation.
func released(owner string, claims bool) func() *gangtest.World {
	return func() *gangtest.World {
		w := gangWorld(owner)
		w.Schedule = func(w *gangtest.World) {
			if !claims {
				for n, c := range w.Claims {
					if c.Labels[v1alpha1.GangLabel] != "" {
						delete(w.Claims, n)
					}
				}
			}
		}
		return w
	}
}

func allocate(pod string, devices ...int) func(*gangtest.World) {
	return func(w *gangtest.World) {
		var list []*gangtest.Device
		for _, i := range devices {
			list = append(list, w.Devices[i])
		}
		w.Allocate(w.ClaimOf(w.Pods[pod]).Name, list)
	}
}

func bind(pod, node string) func(*gangtest.World) {
	return func(w *gangtest.World) { w.UpdatePod(pod, func(p *corev1.Pod) { p.Spec.NodeName = node }) }
}

func changes(list ...func(*gangtest.World)) func(*gangtest.World) {
	return func(w *gangtest.World) {
		for _, c := range list {
			c(w)
		}
	}
}

func TestReleaseAndVerify(t *testing.T) {
	releasing := step("g", v1alpha1.StepReleasing)
	both := changes(allocate("p0", 0, 1, 2, 3), bind("p0", "a"), allocate("p1", 4, 5, 6, 7), bind("p1", "a"))
	takenBack := func(r rule) rule {
		r.planned, r.state, r.step = gang.StateTakingBack, gang.StateTakingBack, v1alpha1.StepTakingBack
		return r
	}
	check(t, []rule{
		{
			name: "one shot: the template goes when all members have their claims", world: released("job", true), until: releasing,
			planned: gang.ReasonPlanned, state: gang.StateReleasing, step: v1alpha1.StepReleasing, verbs: "DeleteTemplate",
			says: "the claims of pods p0, p1 are not allocated",
		},
		{
			name: "members without a claim are given 2 s", world: released("job", false), until: releasing, later: 1800 * time.Millisecond,
			planned: gang.ReasonPlanned, state: gang.StateReleasing, step: v1alpha1.StepReleasing, says: "pods p0, p1 have no claim",
		},
		{
			name: "members without a claim after 2 s are touched", world: released("job", false), until: releasing, later: 2 * time.Second,
			planned: gang.ReasonPlanned, state: gang.StateReleasing, step: v1alpha1.StepReleasing, verbs: "TouchPods",
		},
		{
			name: "the second touch comes when twice the time has passed", world: released("job", false),
			until:   func(w *gangtest.World) bool { return w.Pods["p0"] != nil && w.Pods["p0"].Annotations != nil },
			later:   1800 * time.Millisecond,
			planned: gang.ReasonPlanned, state: gang.StateReleasing, step: v1alpha1.StepReleasing,
		},
		{
			name: "a template that was deleted too early is made again", world: released("job", false), until: releasing,
			change:  func(w *gangtest.World) { clear(w.Templates) },
			planned: gang.ReasonPlanned, state: gang.StateReleasing, step: v1alpha1.StepReleasing, verbs: "CreateTemplate",
		},
		{
			name: "all on the plan, in one observation: the gate opens", world: released("job", true), until: releasing, change: both,
			planned: gang.ReasonPlanned, state: gang.StateStarting, step: v1alpha1.StepStarting, verbs: "DeleteTemplate MarkReady",
		},
		{
			name: "allocated without a node is not placed: a volume may be waited for", world: released("job", true), until: releasing,
			change:  changes(both, bind("p1", "")),
			planned: gang.ReasonPlanned, state: gang.StateReleasing, step: v1alpha1.StepReleasing, verbs: "DeleteTemplate",
			says: "pod p1 has devices and no node",
		},
		takenBack(rule{
			name: "not all by the deadline, 10 s and 0.2 s a member", world: released("job", true), until: releasing, later: 10400 * time.Millisecond,
			because: gang.ReasonVerifyTimeout, verbs: "DeleteTemplate", says: "within 10.4s",
		}),
		takenBack(rule{
			name: "what the scheduler says is passed on", world: released("job", true), until: releasing, later: 11 * time.Second,
			change: func(w *gangtest.World) {
				w.UpdatePod("p0", func(p *corev1.Pod) {
					p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "Insufficient cpu"}}
				})
			},
			because: gang.ReasonVerifyTimeout, verbs: "DeleteTemplate", says: "(kube-scheduler on pod p0: Insufficient cpu)",
		}),
		takenBack(rule{
			name: "a claim allocated off the plan", world: released("job", true), until: releasing, change: allocate("p0", 8, 9, 10, 11),
			because: gang.ReasonAllocatedOffPlan, verbs: "DeleteTemplate",
		}),
		takenBack(rule{
			name: "the template replaced by one that asks for something else", world: released("job", true), until: releasing,
			change: func(w *gangtest.World) {
				c := w.Templates["g"].DeepCopy()
				c.Spec.Spec.Devices.Requests[0].Exactly.Count = 1
				w.Templates["g"] = c
			},
			because: gang.ReasonTemplateConflict, verbs: "DeleteTemplate",
		}),
		takenBack(rule{
			name: "a claim made from another template with our labels", world: released("job", true), until: releasing,
			change: func(w *gangtest.World) {
				c := w.ClaimOf(w.Pods["p0"]).DeepCopy()
				c.Spec.Devices.Requests[0].Exactly.Count = 1
				w.Claims[c.Name] = c
			},
			because: gang.ReasonClaimDiffers, verbs: "DeleteTemplate",
		}),
		takenBack(rule{
			name: "a planned device allocated to another after the release", world: released("job", true), until: releasing,
			change:  func(w *gangtest.World) { w.AddSingle("s", 1); allocate("s", 0)(w) },
			because: gang.ReasonDeviceTaken, verbs: "DeleteTemplate",
		}),
		takenBack(rule{
			name: "a planned device lost after the release", world: released("job", true), until: releasing,
			change:  func(w *gangtest.World) { w.Devices[0].Problem = gang.DeviceGone },
			because: gang.ReasonDeviceUnusable, verbs: "DeleteTemplate",
		}),
		{
			name: "a member that was deleted may be replaced until the deadline", world: released("job", true), until: releasing,
			change:  func(w *gangtest.World) { w.RemovePod("p0") },
			planned: gang.ReasonPlanned, state: gang.StateReleasing, step: v1alpha1.StepReleasing, says: "1 member is gone and not replaced",
		},
		{
			name: "a later pod that got a claim loses it: not a member", world: released("job", true), until: releasing,
			change:  changes(func(w *gangtest.World) { w.AddPod("surge", "g", "other"); w.RunClaimController() }, both),
			planned: gang.ReasonPlanned, state: gang.StateStarting, step: v1alpha1.StepStarting, verbs: "DeleteTemplate MarkReady DeleteClaims",
		},
		{
			name: "a later pod that took a member's devices is evicted", world: released("job", true), until: releasing,
			change: changes(func(w *gangtest.World) { w.AddPod("surge", "g", "other"); w.RunClaimController() },
				allocate("surge", 0, 1, 2, 3), allocate("p1", 4, 5, 6, 7), bind("p1", "a")),
			planned: gang.ReasonPlanned, state: gang.StateReleasing, step: v1alpha1.StepReleasing, verbs: "DeleteTemplate EvictPods",
		},
		{
			name: "a later bare pod that took a member's devices keeps them: members are interchangeable", world: released("job", true), until: releasing,
			change: changes(func(w *gangtest.World) { w.AddPod("bare", "g", ""); w.RunClaimController() },
				allocate("bare", 0, 1, 2, 3), bind("bare", "a")),
			planned: gang.ReasonPlanned, state: gang.StateReleasing, step: v1alpha1.StepReleasing, verbs: "DeleteTemplate DeleteClaims",
			says: "the claim of pod p0 is not allocated",
		},
	})
}

func TestTakeBack(t *testing.T) {
	takingBack := step("g", v1alpha1.StepTakingBack)
	releasing := step("g", v1alpha1.StepReleasing)
	clean := func(w *gangtest.World) bool { return takingBack(w) && len(w.Rules) == 0 }
	late := func(owner string) func() *gangtest.World { return released(owner, true) }
	noTemplate := func(w *gangtest.World) { clear(w.Templates) }
	givenUp := func(w *gangtest.World) {
		w.UpdateGang("g", func(g *v1alpha1.GangClaim) {
			g.Status.Plan.Step, g.Status.Plan.StepSince = v1alpha1.StepTakingBack, metav1.NewMicroTime(w.Now)
			g.Status.Plan.Reason = gang.ReasonVerifyTimeout + ": too late"
		})
	}
	check(t, []rule{
		{
			name: "unallocated claims are deleted when the template is gone", world: late("job"), until: releasing, later: time.Minute,
			change:  noTemplate,
			planned: gang.StateTakingBack, state: gang.StateTakingBack, step: v1alpha1.StepTakingBack, because: gang.ReasonVerifyTimeout,
			verbs: "DeleteClaims",
		},
		{
			name: "allocated claims of owned pods are given back by eviction", world: late("job"), until: releasing, later: time.Minute,
			change:  changes(noTemplate, allocate("p0", 0, 1, 2, 3)),
			planned: gang.StateTakingBack, state: gang.StateTakingBack, step: v1alpha1.StepTakingBack, because: gang.ReasonVerifyTimeout,
			verbs: "DeleteClaims EvictPods",
		},
		{
			name: "the last allocations came just now: the gang starts", world: late("job"), until: releasing,
			change:  changes(noTemplate, givenUp, allocate("p0", 0, 1, 2, 3), bind("p0", "a"), allocate("p1", 4, 5, 6, 7), bind("p1", "a")),
			planned: gang.ReasonPlanned, state: gang.StateStarting, step: v1alpha1.StepStarting, verbs: "MarkReady",
		},
		{
			name: "the next plan waits as long as this one has waited", world: late("job"), until: clean,
			planned: gang.ReasonBackingOff, state: gang.StateWaiting, step: v1alpha1.StepTakingBack, because: gang.ReasonVerifyTimeout,
		},
		{
			name: "then it is planned anew, as the second attempt", world: late("job"), until: clean, later: 15 * time.Second,
			planned: gang.ReasonPlanned, state: gang.StateFencing, step: v1alpha1.StepFencing, verbs: "CreateRules",
		},
		{
			name: "no place any more: the plan is forgotten", world: late("job"), until: clean, later: 15 * time.Second,
			change:  func(w *gangtest.World) { w.Devices = nil },
			planned: string(placement.ReasonNoFeasibleDomain), state: gang.StateWaiting,
		},
		{
			name: "plans that fail count for the scheduling timeout", world: late("job"), until: clean, later: 15 * time.Minute,
			planned: gang.ReasonSchedulingTimeout, state: gang.StateTimedOut, says: "Last: ",
		},
		{
			name: "a bare pod keeps its place, and the rest is planned around it", world: late(""), until: releasing,
			change: changes(noTemplate, givenUp, allocate("p0", 0, 1, 2, 3), bind("p0", "a"),
				func(w *gangtest.World) {
					delete(w.Claims, w.ClaimOf(w.Pods["p1"]).Name)
					clear(w.Rules)
					w.Now = w.Now.Add(time.Minute)
				}),
			planned: gang.ReasonPlanned, state: gang.StateFencing, step: v1alpha1.StepFencing, verbs: "CreateRules", says: "1 member of 4 devices",
		},
		{
			name: "a bare pod with devices that no plan can use stands in the way", world: late(""), until: releasing,
			change: changes(noTemplate, givenUp, allocate("p0", 0, 1, 2, 3), bind("p0", "a"),
				func(w *gangtest.World) {
					delete(w.Claims, w.ClaimOf(w.Pods["p1"]).Name)
					clear(w.Rules)
					c := w.ClaimOf(w.Pods["p0"]).DeepCopy()
					c.Spec.Devices.Constraints = nil
					w.Claims[c.Name] = c
					w.Now = w.Now.Add(time.Minute)
				}),
			planned: gang.ReasonForeignClaims, state: gang.StateWaiting, says: "delete it, or let it end",
		},
	})
}

// unready takes the mark from a member's claim.
func unready(pod string) func(*gangtest.World) {
	return func(w *gangtest.World) {
		c := w.ClaimOf(w.Pods[pod]).DeepCopy()
		delete(c.Annotations, v1alpha1.ReadyAnnotation)
		w.Claims[c.Name] = c
	}
}

func TestStartAndHold(t *testing.T) {
	starting, holding := step("g", v1alpha1.StepStarting), step("g", v1alpha1.StepHolding)
	check(t, []rule{
		{
			name: "marking is completed after a crash", until: starting, change: unready("p1"),
			planned: gang.ReasonPlanned, state: gang.StateStarting, step: v1alpha1.StepStarting, verbs: "MarkReady",
		},
		{
			name: "a member lost before any was marked: nobody starts", until: starting,
			change:  changes(unready("p0"), unready("p1"), func(w *gangtest.World) { w.RemovePod("p1") }),
			planned: gang.StateTakingBack, state: gang.StateTakingBack, step: v1alpha1.StepTakingBack, because: gang.ReasonMemberLost,
			verbs: "EvictPods",
		},
		{
			name: "a member lost after some were marked: the place is held", until: starting, change: func(w *gangtest.World) { w.RemovePod("p1") },
			planned: gang.ReasonPlanned, state: gang.StateDegraded, step: v1alpha1.StepHolding, verbs: anyVerbs,
		},
		{
			name: "all run: the fence is held", until: starting,
			planned: gang.ReasonPlanned, state: gang.StateRunning, step: v1alpha1.StepHolding, says: "2 of 2 members run",
		},
		{
			name: "a rule that is lost while it is held is made again", until: holding, change: func(w *gangtest.World) { clear(w.Rules) },
			planned: gang.ReasonPlanned, state: gang.StateRunning, step: v1alpha1.StepHolding, verbs: "CreateRules",
		},
		{
			name: "the restart grace is over: unfenced", until: holding, later: 5 * time.Minute,
			planned: gang.ReasonPlanned, state: gang.StateRunning, step: v1alpha1.StepUnfencing, verbs: "NeutralizeRules",
		},
		{
			name: "a lost member: waits for its replacement", until: holding, change: func(w *gangtest.World) { w.RemovePod("p1") },
			planned: gang.ReasonPlanned, state: gang.StateDegraded, step: v1alpha1.StepHolding, says: "1 of 2 members is lost and 0 are replaced",
		},
		{
			name: "the replacement waits for the devices of the one that ends", until: holding,
			change:  func(w *gangtest.World) { w.DeletePod("p1"); w.AddPod("q1", "g", "job") },
			planned: gang.ReasonPlanned, state: gang.StateDegraded, step: v1alpha1.StepHolding, says: "the devices of pod p1, which is lost, are not free yet",
		},
		{
			name: "the replacement is planned on the devices that were freed, under the same fence", until: holding,
			change:  func(w *gangtest.World) { w.RemovePod("p1"); w.AddPod("q1", "g", "job") },
			planned: gang.ReasonPlanned, state: gang.StateQuiescing, step: v1alpha1.StepQuiescing, says: "1 member of 4 devices: 1 on a in a.1",
		},
		{
			name: "more pods than lost members: none is planned", until: holding,
			change:  func(w *gangtest.World) { w.RemovePod("p1"); w.AddPod("q1", "g", "job"); w.AddPod("q2", "g", "job") },
			planned: gang.ReasonPlanned, state: gang.StateDegraded, step: v1alpha1.StepHolding, says: "2 pods name the ResourceClaimTemplate g and wait, 1 is expected",
		},
		{
			name: "the freed devices are broken: held no longer", until: holding,
			change: func(w *gangtest.World) {
				w.RemovePod("p1")
				w.AddPod("q1", "g", "job")
				w.Devices[5].Problem = gang.DeviceTainted
			},
			planned: gang.ReasonPlanned, state: gang.StateDegraded, step: v1alpha1.StepUnfencing, verbs: "NeutralizeRules",
		},
		{
			name: "after the fence went a replacement is planned anew", until: all(step("g", v1alpha1.StepUnfencing), noRules),
			change:  func(w *gangtest.World) { w.RemovePod("p1"); w.AddPod("q1", "g", "job") },
			planned: gang.ReasonPlanned, state: gang.StateFencing, step: v1alpha1.StepFencing, verbs: "CreateRules",
		},
		{
			name: "one member succeeded: it needs no replacement", until: holding,
			change:  func(w *gangtest.World) { w.EndPod("p1", corev1.PodSucceeded) },
			planned: gang.ReasonPlanned, state: gang.StateRunning, step: v1alpha1.StepHolding, says: "1 of 2 members run, 1 has finished",
		},
		{
			name: "all members failed: their places are held", until: holding,
			change: changes(func(w *gangtest.World) { w.EndPod("p0", corev1.PodFailed); w.EndPod("p1", corev1.PodFailed) },
				(*gangtest.World).RunClaimController),
			later:   time.Minute,
			planned: gang.ReasonPlanned, state: gang.StateDegraded, step: v1alpha1.StepHolding,
		},
		{
			name: "no pod is left at all: held for 30 s, they may be made anew", until: degraded, later: 29 * time.Second,
			world:   deletedWhileHeld,
			planned: gang.ReasonPlanned, state: gang.StateDegraded, step: v1alpha1.StepHolding,
		},
		{
			name: "no pod is left for 30 s: over", until: degraded, later: 30 * time.Second,
			world:   deletedWhileHeld,
			planned: gang.ReasonPlanned, state: gang.StateDegraded, step: v1alpha1.StepUnfencing, verbs: "NeutralizeRules",
		},
		{
			name: "all members failed and none is made anew: held for the Job controller's longest back-off, not for an hour", until: holding,
			change: changes(hourOfGrace, func(w *gangtest.World) {
				w.EndPod("p0", corev1.PodFailed)
				w.EndPod("p1", corev1.PodFailed)
				w.RunClaimController()
				_, _ = w.Reconcile("g")
			}),
			later:   6 * time.Minute,
			planned: gang.ReasonPlanned, state: gang.StateDegraded, step: v1alpha1.StepUnfencing, verbs: "NeutralizeRules",
		},
		{
			name: "a grace of more than an hour, of before there was a limit, is an hour", until: holding,
			change: func(w *gangtest.World) {
				w.UpdateGang("g", func(g *v1alpha1.GangClaim) { g.Spec.RestartGracePeriod = &metav1.Duration{Duration: 99 * time.Hour} })
			},
			later:   time.Hour,
			planned: gang.ReasonPlanned, state: gang.StateRunning, step: v1alpha1.StepUnfencing, verbs: "NeutralizeRules",
		},
		{
			name: "the last member failed after the fence went: not over before its replacement can exist", until: all(step("g", v1alpha1.StepUnfencing), noRules),
			change: changes(func(w *gangtest.World) {
				w.EndPod("p0", corev1.PodSucceeded)
				w.EndPod("p1", corev1.PodFailed)
				w.RunClaimController()
				_, _ = w.Reconcile("g")
			}),
			later:   359 * time.Second,
			planned: gang.ReasonPlanned, state: gang.StateDegraded, step: v1alpha1.StepUnfencing,
		},
		{
			name: "all pods were deleted: over", until: completed("g"), world: deletedWhileHeld,
			planned: gang.ReasonCompleted, state: gang.StateCompleted, says: "of 2 members 2 were deleted",
		},
	})
}

// A replacement that has no place times out before the restart grace is over: the fence goes when that is over, and
// nothing is written meanwhile.
func TestHoldingEndsAfterTheSchedulingTimeoutOfAReplacement(t *testing.T) {
	w := gangWorld("job")
	w.UpdateGang("g", func(g *v1alpha1.GangClaim) { g.Spec.SchedulingTimeout = &metav1.Duration{Duration: 30 * time.Second} })
	if ok, err := w.Run(10*time.Minute, func() bool { return step("g", v1alpha1.StepHolding)(w) }); !ok || err != nil {
		t.Fatalf("the gang does not run: %v", err)
	}
	for _, p := range gangtest.Sorted(w.Pods) {
		w.RemovePod(p.Name)
		w.AddPod("again-"+p.Name, "g", "job")
	}
	w.NodeFull["a"] = true
	lost := w.Now
	if ok, err := w.Run(2*time.Minute, func() bool { return state(gang.StateTimedOut)(w) }); !ok || err != nil {
		t.Fatalf("the replacements do not time out: %v", err)
	}
	writes, events := w.Writes, len(w.Events)
	w.Now = w.Now.Add(time.Second)
	for w.Now.Before(lost.Add(5 * time.Minute)) {
		if _, err := w.Reconcile("g"); err != nil {
			t.Fatal(err)
		}
		w.Now = w.Now.Add(10 * time.Second)
	}
	if w.Writes != writes || len(w.Events) != events || !step("g", v1alpha1.StepHolding)(w) {
		t.Errorf("%d writes and %d events while the fence is held", w.Writes-writes, len(w.Events)-events)
	}
	if ok, err := w.Run(time.Minute, func() bool { return running("g", 2)(w) }); !ok || err != nil {
		t.Errorf("without the fence the replacements have a place on another node, and do not start: %v", err)
	}
}

// A pod comes to a gang that has ended, and goes: the gang has ended still, and does not wait for anybody.
func TestGangThatHasEndedIsOverAfterAPodCameAndWent(t *testing.T) {
	w := gangWorld("job")
	if ok, err := w.Run(10*time.Minute, func() bool { return running("g", 2)(w) }); !ok || err != nil {
		t.Fatalf("the gang does not run: %v", err)
	}
	w.EndPod("p0", corev1.PodSucceeded)
	w.EndPod("p1", corev1.PodSucceeded)
	if ok, err := w.Run(time.Minute, func() bool { return completed("g")(w) }); !ok || err != nil {
		t.Fatalf("the gang does not end: %v", err)
	}
	w.AddPod("q", "g", "job")
	if ok, err := w.Run(time.Minute, func() bool { return state(gang.StateWaiting)(w) }); !ok || err != nil {
		t.Fatalf("the gang does not wait for the others: %v", err)
	}
	w.RemovePod("q")
	if ok, err := w.Run(time.Minute, func() bool { return completed("g")(w) }); !ok || err != nil {
		t.Errorf("the gang is %s: %v", find(w.Gangs["g"].Status, v1alpha1.ConditionRunning).Message, err)
	}
}

// A GPU lost a link, and with it its domain and its member. The replacement is planned on it, in its new domain: that it is not as
// the plan before says is no fault of the new plan.
func TestPlanIsNotJudgedByWhatIsKnownOfThePlanBefore(t *testing.T) {
	for name, change := range map[string]func(*gang.Observation, placement.DeviceID){
		"the device is in another domain": func(o *gang.Observation, d placement.DeviceID) { o.Devices[d] = gang.DeviceMoved },
		"someone had the device when it was looked": func(o *gang.Observation, d placement.DeviceID) {
			o.Holders[d] = gang.Holder{UID: "other"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := gangWorld("job")
			over := all(step("g", v1alpha1.StepUnfencing), noRules)
			if ok, err := w.Run(10*time.Minute, func() bool { return over(w) }); !ok || err != nil {
				t.Fatalf("the gang does not run: %v", err)
			}
			w.RemovePod("p1")
			w.AddPod("q1", "g", "job")
			o := w.Observe("g")
			if o.Placement == nil || o.Placement.Plan == nil {
				t.Fatal("the replacement has no place")
			}
			for _, d := range gang.PlannedDevices(o.Placement.Plan) {
				change(&o, d)
			}
			d := gang.Decide(o) // it did not end
			if d.Status.Plan.Step != v1alpha1.StepFencing || d.Status.Attempts != 2 {
				t.Errorf("step is %s, because %q, after %d plans", d.Status.Plan.Step, d.Status.Plan.Reason, d.Status.Attempts)
			}
		})
	}
}

// Most jobs lose all members soon after the first: what was lost while the first replacement starts is replaced, too.
func TestMemberThatIsLostWhileAReplacementStartsIsReplaced(t *testing.T) {
	w := gangWorld("job")
	reach := func(what string, done predicate) {
		t.Helper()
		if ok, err := w.Run(time.Minute, func() bool { return done(w) }); !ok || err != nil {
			t.Fatalf("%s: %v, %+v", what, err, w.Gangs["g"].Status.Plan)
		}
	}
	reach("the gang does not run", step("g", v1alpha1.StepHolding))
	w.RemovePod("p1")
	w.AddPod("q1", "g", "job")
	reach("the replacement is not started", step("g", v1alpha1.StepStarting))
	w.RemovePod("p0")
	reach("the other loss is not noticed", step("g", v1alpha1.StepHolding))
	w.AddPod("q0", "g", "job")
	reach("the other replacement does not run", running("g", 2))
}

func state(reason string) predicate {
	return func(w *gangtest.World) bool {
		return find(w.Gangs["g"].Status, v1alpha1.ConditionRunning).Reason == reason
	}
}

func hourOfGrace(w *gangtest.World) {
	w.UpdateGang("g", func(g *v1alpha1.GangClaim) { g.Spec.RestartGracePeriod = &metav1.Duration{Duration: time.Hour} })
}

// Another leader's clock was an hour ahead: what it wrote counts as now, and nothing waits for that hour.
func TestTimesFromTheFuture(t *testing.T) {
	ahead := func(w *gangtest.World) { w.Now = w.Now.Add(-time.Hour) }
	check(t, []rule{
		{
			name: "a rule made in the future is touched", until: step("g", v1alpha1.StepFencing), change: ahead,
			planned: gang.ReasonPlanned, state: gang.StateFencing, step: v1alpha1.StepFencing, verbs: "TouchRules",
		},
		{
			name: "a rule that lost its effect in the future is stamped anew", change: ahead,
			until: func(w *gangtest.World) bool {
				for _, r := range w.Rules {
					return r.Spec.Taint.Effect == resourceapi.DeviceTaintEffectNone
				}
				return false
			},
			planned: gang.ReasonPlanned, state: gang.StateRunning, step: v1alpha1.StepUnfencing, verbs: "NeutralizeRules",
		},
	})
	now := func(w *gangtest.World) { _, _ = w.Reconcile("g") }
	check(t, []rule{
		{
			name: "a gang whose pods are gone since the future is held from now on", until: degraded, world: deletedWhileHeld,
			change: changes(ahead, now), later: 30 * time.Second,
			planned: gang.ReasonPlanned, state: gang.StateDegraded, step: v1alpha1.StepUnfencing, verbs: "NeutralizeRules",
		},
		{
			name: "a member that was lost in the future is lost now", until: step("g", v1alpha1.StepHolding),
			change: changes(func(w *gangtest.World) { w.RemovePod("p1") }, now, ahead, now), later: 5 * time.Minute,
			planned: gang.ReasonPlanned, state: gang.StateDegraded, step: v1alpha1.StepUnfencing, verbs: "NeutralizeRules",
		},
	})
	for _, begins := range []v1alpha1.GangStep{v1alpha1.StepFencing, v1alpha1.StepReleasing, v1alpha1.StepHolding, v1alpha1.StepUnfencing} {
		w := gangWorld("job")
		for _, now := range []predicate{step("g", begins), all(running("g", 2), noRules)} {
			if ok, err := w.Run(6*time.Minute, func() bool { return now(w) }); !ok || err != nil {
				t.Errorf("in step %s: the gang does not run and lose its fence: %v, %+v", begins, err, w.Gangs["g"].Status.Plan)
			}
			ahead(w)
		}
	}
}

// A rule cannot be made: someone deleted it, and a finalizer keeps it. The plan is given up, and the gang planned anew.
func TestFencingEnds(t *testing.T) {
	w := gangWorld("job")
	fencing := step("g", v1alpha1.StepFencing)
	if ok, err := w.Run(time.Minute, func() bool { return fencing(w) && len(w.Rules) > 0 }); !ok || err != nil {
		t.Fatal(err)
	}
	var kept string
	for n, r := range w.Rules {
		r = r.DeepCopy()
		r.DeletionTimestamp = ptr.To(metav1.NewTime(w.Now))
		w.Rules[n], kept = r, n
	}
	if ok, err := w.Run(40*time.Second, func() bool { return step("g", v1alpha1.StepTakingBack)(w) }); !ok || err != nil {
		t.Fatalf("the plan is not given up: %v", err)
	}
	if why := w.Gangs["g"].Status.Plan.Reason; !strings.HasPrefix(why, "FenceTimeout: ") || !strings.Contains(why, kept+" is being deleted and has a finalizer") {
		t.Errorf("given up because %s", why)
	}
	if ok, err := w.Run(3*time.Minute, func() bool { return running("g", 2)(w) }); !ok || err != nil {
		t.Errorf("the gang does not run under another plan: %v, %+v", err, w.Gangs["g"].Status.Plan)
	}
}

// A PodGroup with the entry of its pods has one claim for all of them.
func TestClaimOfAPodGroupIsRefused(t *testing.T) {
	w := released("job", true)()
	if ok, err := w.Run(time.Minute, func() bool { return step("g", v1alpha1.StepReleasing)(w) }); !ok || err != nil {
		t.Fatal(err)
	}
	c := w.ClaimOf(w.Pods["p0"]).DeepCopy()
	c.OwnerReferences[0].Kind, c.OwnerReferences[0].Name, c.OwnerReferences[0].UID = "PodGroup", "group", "group-uid"
	w.Claims[c.Name] = c
	d, err := w.Reconcile("g")
	if err != nil {
		t.Fatal(err)
	}
	if p := d.Status.Plan; p.Step != v1alpha1.StepTakingBack || !strings.Contains(p.Reason, "was made for PodGroup group") {
		t.Errorf("step is %s because %s", p.Step, p.Reason)
	}
}

// Members with spec.schedulingGroup, which is scheduled as a whole by kube-scheduler, are members as others.
func TestPodsOfAPodGroupAreMembers(t *testing.T) {
	w := gangtest.NewWorld(gangtest.Node("a", 2, 4)...)
	w.AddGang("g", 2, 4)
	for _, name := range []string{"p0", "p1"} {
		w.AddPod(name, "g", "job", func(p *corev1.Pod) {
			p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: ptr.To("group")}
		})
	}
	if ok, err := w.Run(time.Minute, func() bool { return running("g", 2)(w) }); !ok || err != nil {
		t.Errorf("the gang does not run: %v, %+v", err, w.Gangs["g"].Status)
	}
}

func TestAttemptsAreCountedOverPlansThatAreForgotten(t *testing.T) {
	w := released("job", true)()
	if ok, err := w.Run(5*time.Minute, func() bool { return w.Gangs["g"].Status.Attempts == 2 }); !ok || err != nil {
		t.Fatalf("no second attempt: %v", err)
	}
	devices := w.Devices
	w.Devices = nil
	if ok, err := w.Run(5*time.Minute, func() bool { return w.Gangs["g"].Status.Plan == nil }); !ok || err != nil {
		t.Fatalf("the plan is not forgotten: %v", err)
	}
	w.Devices = devices
	if ok, err := w.Run(5*time.Minute, func() bool { return w.Gangs["g"].Status.Plan != nil }); !ok || err != nil || w.Gangs["g"].Status.Plan.Attempt != 3 {
		t.Errorf("the plan after two is %+v, %v", w.Gangs["g"].Status.Plan, err)
	}
}

func degraded(w *gangtest.World) bool {
	return len(w.Pods) == 0 && find(w.Gangs["g"].Status, v1alpha1.ConditionRunning).Reason == gang.StateDegraded
}

// deletedWhileHeld is a world in which somebody deletes the Job when all members run.
func deletedWhileHeld() *gangtest.World {
	w := gangWorld("job")
	schedule := w.Schedule
	w.Schedule = func(w *gangtest.World) {
		schedule(w)
		if step("g", v1alpha1.StepHolding)(w) {
			for _, p := range gangtest.Sorted(w.Pods) {
				w.RemovePod(p.Name)
			}
		}
	}
	return w
}

func TestTerminate(t *testing.T) {
	deleted := func(w *gangtest.World) { w.DeleteGang("g") }
	starting := step("g", v1alpha1.StepStarting)
	check(t, []rule{
		{
			name: "a gang that waits is let go", change: deleted,
			planned: gang.ReasonDeleted, state: gang.StateTerminating, verbs: "RemoveFinalizer",
		},
		{
			name: "a gang that is released: the template first", world: released("job", true), until: step("g", v1alpha1.StepReleasing), change: deleted,
			planned: gang.ReasonDeleted, state: gang.StateTerminating, step: v1alpha1.StepReleasing, verbs: "DeleteTemplate",
		},
		{
			name: "a gang of which nobody was started: its members give back", until: starting,
			change:  changes(unready("p0"), unready("p1"), deleted),
			planned: gang.ReasonDeleted, state: gang.StateTerminating, step: v1alpha1.StepStarting, verbs: "EvictPods",
		},
		{
			name: "a gang whose start was begun: it is finished", until: starting, change: changes(unready("p1"), deleted),
			planned: gang.ReasonDeleted, state: gang.StateTerminating, step: v1alpha1.StepStarting, verbs: "MarkReady",
		},
		{
			name: "a gang that runs: the fence", until: step("g", v1alpha1.StepHolding), change: deleted,
			planned: gang.ReasonDeleted, state: gang.StateTerminating, step: v1alpha1.StepHolding, verbs: "NeutralizeRules",
		},
	})
}

func told(events []gang.Event) []string {
	var out []string
	for _, e := range events {
		on := "g"
		if e.Pod != nil {
			on = e.Pod.Name
		}
		out = append(out, on+" "+e.Type+" "+e.Reason)
	}
	return out
}

func TestEventsAreSentOnceForAReasonAndToThePodsThatWait(t *testing.T) {
	w := noRoom()
	plan := w.Plan
	w.Plan = func(w *gangtest.World, g placement.Gang) placement.Decision {
		d := plan(w, g)
		d.Refusal.Message += w.Now.String() // changes each time
		return d
	}
	for range 3 {
		if _, err := w.Reconcile("g"); err != nil {
			t.Fatal(err)
		}
		w.Now = w.Now.Add(time.Second)
	}
	want := []string{"g Warning NoFeasibleDomain", "p0 Warning NoFeasibleDomain", "p1 Warning NoFeasibleDomain"}
	if got := told(w.Events); !slices.Equal(got, want) {
		t.Errorf("events are\n%s", strings.Join(got, "\n"))
	}
}

func TestEventsOfAGangThatStartsAndLosesAMember(t *testing.T) {
	w := gangWorld("job")
	for _, e := range []event{{running("g", 2), replace("p0", "q0")}, {all(running("g", 2), noRules), func(*gangtest.World) {}}} {
		if ok, err := w.Run(10*time.Minute, func() bool { return e.when(w) }); !ok || err != nil {
			t.Fatal(err)
		}
		e.do(w)
	}
	want := []string{
		"g Normal Planned", "p0 Normal Planned", "p1 Normal Planned", "g Normal Released", "g Normal Running",
		"g Warning Degraded", "g Normal Planned", "q0 Normal Planned", "g Normal Running",
	}
	if got := told(w.Events); !slices.Equal(got, want) {
		t.Errorf("events are\n%s", strings.Join(got, "\n"))
	}
}

func TestLongMessagesFit(t *testing.T) {
	w := noRoom()
	w.Plan = func(*gangtest.World, placement.Gang) placement.Decision {
		return placement.Decision{Refusal: &placement.Refusal{Reason: "R", Message: strings.Repeat("×", 50000)}}
	}
	w.UpdateGang("g", func(g *v1alpha1.GangClaim) { g.Finalizers = []string{gang.Finalizer} })
	d, err := w.Reconcile("g")
	if err != nil {
		t.Fatal(err)
	}
	fits := func(what, message string, most int) {
		if len(message) > most || len(message) < most-4 || !strings.HasSuffix(message, "×...") || !utf8.ValidString(message) {
			t.Errorf("%s has %d bytes, and ends with %q", what, len(message), message[len(message)-8:])
		}
	}
	for _, e := range d.Events {
		fits("an event", e.Message, 1000)
	}
	fits("a condition", find(d.Status, v1alpha1.ConditionPlanned).Message, 2048)
}

// Claims come from one cache and holders from another: that of p1 is gone from the first, or has no allocation there
// any more, and is still in the second.
func TestReplacementWaitsForAClaimThatIsGoneFromOneCacheOnly(t *testing.T) {
	for name, remove := range map[string]func(*gangtest.World, *resourceapi.ResourceClaim){
		"gone": func(w *gangtest.World, c *resourceapi.ResourceClaim) { delete(w.Claims, c.Name) },
		"deallocated": func(w *gangtest.World, c *resourceapi.ResourceClaim) {
			c.Status = resourceapi.ResourceClaimStatus{}
			w.Claims[c.Name] = c
		},
	} {
		t.Run(name, func(t *testing.T) { wantHeld(t, remove) })
	}
}

func wantHeld(t *testing.T, remove func(*gangtest.World, *resourceapi.ResourceClaim)) {
	t.Helper()
	w := gangWorld("job")
	holding := step("g", v1alpha1.StepHolding)
	if ok, err := w.Run(10*time.Minute, func() bool { return holding(w) }); !ok || err != nil {
		t.Fatalf("the gang does not run: %v", err)
	}
	before := w.Observe("g")
	claim := w.ClaimOf(w.Pods["p1"]).DeepCopy()
	w.RemovePod("p1")
	remove(w, claim)
	w.AddPod("q1", "g", "job")
	o := w.Observe("g")
	o.Holders, o.Placement = before.Holders, nil
	d := gang.Decide(o)
	if state := find(d.Status, v1alpha1.ConditionRunning); d.Status.Plan.Step != v1alpha1.StepHolding || !strings.Contains(state.Message, "are not free yet") {
		t.Errorf("step is %s, %s", d.Status.Plan.Step, state.Message)
	}
	if d.RequeueAfter > time.Second {
		t.Errorf("the next look is after %s, and the last event of the claim may have been told to this decision before the other cache had it", d.RequeueAfter)
	}
}

// A member's pod is deleted during the release; its claim is gone from one cache and not from the other. The
// release goes on: the pod may be replaced until the deadline, and nobody is evicted.
func TestReleaseGoesOnWhileADeletedMembersClaimIsInOneCacheOnly(t *testing.T) {
	w := released("job", true)()
	releasing := step("g", v1alpha1.StepReleasing)
	if ok, err := w.Run(10*time.Minute, func() bool { return releasing(w) }); !ok || err != nil {
		t.Fatalf("the gang is not released: %v", err)
	}
	changes(allocate("p0", 0, 1, 2, 3), bind("p0", "a"), allocate("p1", 4, 5, 6, 7), bind("p1", "a"))(w)
	before := w.Observe("g")
	w.RemovePod("p1")
	o := w.Observe("g")
	o.Holders = before.Holders
	d := gang.Decide(o)
	if d.Status.Plan.Step != v1alpha1.StepReleasing || slices.ContainsFunc(d.Actions, func(a gang.Action) bool { return a.Verb() == "EvictPods" }) {
		t.Errorf("step is %s, because %q; actions %+v", d.Status.Plan.Step, d.Status.Plan.Reason, d.Actions)
	}
	w.AddPod("q1", "g", "job")
	w.Schedule = gangtest.Greedy
	if ok, err := w.Run(5*time.Second, func() bool { return running("g", 2)(w) }); !ok || err != nil || w.Gangs["g"].Status.Plan.Attempt != 1 {
		t.Errorf("the replacement does not start: %v, %+v", err, w.Gangs["g"].Status.Plan)
	}
}
