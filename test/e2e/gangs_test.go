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
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/test/cluster"
)

// gang is a GangClaim and its pods, named <name>-0 and so on.
type gang struct {
	*space
	name    string
	members int
	devices int
}

func (s *space) gang(name string, members, devices int, edit ...func(*v1alpha1.GangClaim)) *gang {
	s.Helper()
	claim := &v1alpha1.GangClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: s.name}}
	claim.Spec.Members, claim.Spec.DevicesPerMember = int32(members), int32(devices)
	for _, e := range edit {
		e(claim)
	}
	s.must(the.Gangs.Create(s.ctx, claim))
	g := &gang{space: s, name: name, members: members, devices: devices}
	for i := range members {
		g.member(i)
	}
	return g
}

// member makes a member's pod.
func (g *gang) member(i int) {
	g.Helper()
	p := pod(g.podName(i), "", container("work", uses("gpus")))
	p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpus", ResourceClaimTemplateName: ptr.To(g.name)}}
	g.create(p)
}

func (g *gang) podName(i int) string { return fmt.Sprintf("%s-%d", g.name, i) }

// until waits until the GangClaim is as it should be, and returns it.
func (g *gang) until(what string, ok func(*v1alpha1.GangClaim) bool) *v1alpha1.GangClaim {
	g.Helper()
	var claim *v1alpha1.GangClaim
	g.must(the.Until(g.ctx, patience, "gang "+g.name+" to "+what, func(ctx context.Context) (bool, error) {
		var err error
		if claim, err = the.GangClaim(ctx, g.space.name, g.name); err != nil {
			return false, err
		}
		if ok(claim) {
			return true, nil
		}
		return false, fmt.Errorf("status: %+v", claim.Status)
	}))
	return claim
}

func (g *gang) untilRunning() *v1alpha1.GangClaim {
	g.Helper()
	return g.until("run", func(c *v1alpha1.GangClaim) bool {
		return meta.IsStatusConditionTrue(c.Status.Conditions, v1alpha1.ConditionRunning)
	})
}

func (g *gang) untilPlanned(reason string) *metav1.Condition {
	g.Helper()
	claim := g.until("say "+reason, func(c *v1alpha1.GangClaim) bool {
		planned := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.ConditionPlanned)
		return planned != nil && planned.Reason == reason
	})
	return meta.FindStatusCondition(claim.Status.Conditions, v1alpha1.ConditionPlanned)
}

// wantWhole checks each member from outside: its container has as many GPUs as asked for, those of its claim and no
// other's, and all in one domain. It returns the domains.
func (g *gang) wantWhole() []string {
	g.Helper()
	var domains, all []string
	for i := range g.members {
		held := g.allocated(g.claimOf(g.podName(i), "gpus"))
		nodes := nodesOf(held)
		g.wantGPUs(g.podName(i), "work", nodes)
		if len(held) != g.devices {
			g.Errorf("%s has %d GPUs, want %d", g.podName(i), len(held), g.devices)
		}
		for _, h := range held {
			if h.domain() != held[0].domain() {
				g.Errorf("%s has GPUs of %s and of %s", g.podName(i), held[0].domain(), h.domain())
			}
			all = append(all, h.pool+h.node())
		}
		domains = append(domains, held[0].domain())
	}
	slices.Sort(all)
	if len(slices.Compact(all)) != g.members*g.devices {
		g.Errorf("members share GPUs: %v", all)
	}
	return domains
}

// wantNoClaims checks that the gang has nothing of the cluster.
func (g *gang) wantNoClaims() {
	g.Helper()
	claims, err := the.ResourceClaims(g.ctx, g.space.name)
	g.must(err)
	for _, c := range claims {
		if strings.HasPrefix(c.Name, g.name+"-") {
			g.Errorf("the waiting gang has claim %s", c.Name)
		}
	}
}

// wantNoFences waits until no taint rule of Switchyard is left.
func (s *space) wantNoFences() {
	s.Helper()
	s.must(the.Until(s.ctx, patience, "the fences to be gone", func(ctx context.Context) (bool, error) {
		rules, err := the.Client.ResourceV1().DeviceTaintRules().List(ctx, metav1.ListOptions{LabelSelector: v1alpha1.GangLabel})
		if err == nil && len(rules.Items) > 0 {
			err = fmt.Errorf("%d are left, the first is %s", len(rules.Items), rules.Items[0].Name)
		}
		return err == nil, err
	}))
}

// started returns when the pod's container started, and when its claim was allocated to it at the latest.
func (g *gang) started(i int) time.Time {
	g.Helper()
	p, err := the.Pod(g.ctx, g.space.name, g.podName(i))
	g.must(err)
	return p.Status.ContainerStatuses[0].State.Running.StartedAt.Time
}

// shortHold ends the restart grace early, so that a test sees the end of the fence.
func shortHold(c *v1alpha1.GangClaim) {
	c.Spec.RestartGracePeriod = &metav1.Duration{Duration: time.Second}
}

// Room for one member is no room: the gang waits with its reason and has nothing. When the pod that stands in the way
// ends, both members start, each in one domain; after the grace nothing of the fence is left.
func TestGangStartsAsAWhole(t *testing.T) {
	s := newSpace(t)
	s.claim("half", claimSpec([]resourceapi.DeviceRequest{request("gpu", 4)}))
	s.run(withClaims(pod("half", "node-a", container("work", uses("gpu"))), map[string]string{"gpu": "half"}))
	s.single("in-the-way", "node-b", "1")
	s.single("beside", "node-b", "6")

	g := s.gang("train", 2, 4, shortHold)
	message := g.untilPlanned("NoFeasibleDomain").Message
	for _, want := range []string{"needs 2 × 4", "found 1 (node-a.0)", s.name + "/in-the-way"} {
		if !strings.Contains(message, want) {
			t.Errorf("the reason does not say %q: %s", want, message)
		}
	}
	g.wantNoClaims()

	s.deletePod("in-the-way")
	g.untilRunning()
	domains := g.wantWhole()
	slices.Sort(domains)
	if !slices.Equal(domains, []string{"node-a.0", "node-b.0"}) {
		t.Errorf("the members are in %v", domains)
	}
	if apart := g.started(0).Sub(g.started(1)).Abs(); apart > 10*time.Second {
		t.Errorf("the members started %s apart", apart)
	}
	s.wantNoFences()
}

// The controller is down when the pods come, and again in the middle: nothing starts meanwhile, all starts afterwards.
func TestGangWaitsForTheController(t *testing.T) {
	s := newSpace(t)
	scale := func(replicas int) {
		_, err := the.Kubectl(s.ctx, "scale", "-n", cluster.Namespace, "deployment/switchyard-controller", fmt.Sprintf("--replicas=%d", replicas))
		s.must(err)
	}
	scale(0)
	t.Cleanup(func() { s.must(the.WaitController(context.Background(), patience)) })
	t.Cleanup(func() { s.ctx = context.Background(); scale(2) })
	s.must(the.Until(s.ctx, patience, "the controller to be gone", func(ctx context.Context) (bool, error) {
		pods, err := the.Pods(ctx, cluster.Namespace, cluster.ControllerLabel)
		return len(pods) == 0, err
	}))
	g := s.gang("late", 2, 4, shortHold)
	s.must(the.Until(s.ctx, patience, "the claim controller to say that there is no template", func(ctx context.Context) (bool, error) {
		events, err := the.Events(ctx, s.name, "Pod", g.podName(0))
		return err == nil && slices.ContainsFunc(events, func(e corev1.Event) bool { return e.Reason == "FailedResourceClaimCreation" }), err
	}))
	g.wantNoClaims()
	scale(2)
	g.untilRunning()
	g.wantWhole()
	s.wantNoFences()
}

// A member that is deleted while the fence is held comes back onto its devices, though others wait for some.
func TestGangMemberComesBackToItsPlace(t *testing.T) {
	s := newSpace(t)
	g := s.gang("elastic", 2, 4, func(c *v1alpha1.GangClaim) {
		c.Spec.RestartGracePeriod = &metav1.Duration{Duration: time.Hour}
		c.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: `device.attributes["gpu.switchyard.dev"].architecture == "Ampere"`,
		}}}
	})
	g.untilRunning()
	g.wantWhole()
	lost := nodesOf(g.allocated(g.claimOf(g.podName(1), "gpus")))

	s.claim("envious", claimSpec([]resourceapi.DeviceRequest{request("gpu", 1, onIndex(strings.TrimPrefix(lost[0], "/dev/nvidia")))}))
	s.create(withClaims(pod("envious", "node-b", container("work", uses("gpu"))), map[string]string{"gpu": "envious"}))
	_, err := the.WaitUnschedulable(s.ctx, s.name, "envious", patience)
	s.must(err)
	s.deletePod(g.podName(1))
	g.member(1)
	s.must(the.WaitPodRunning(s.ctx, s.name, g.podName(1), patience))
	g.untilRunning()
	g.wantWhole()
	if back := nodesOf(g.allocated(g.claimOf(g.podName(1), "gpus"))); !slices.Equal(back, lost) {
		t.Errorf("the member had %v and came back to %v", lost, back)
	}
}

// Deleting the GangClaim of a running gang leaves its pods alone and takes the fence away.
func TestGangClaimDeletedUnderRunningPods(t *testing.T) {
	s := newSpace(t)
	g := s.gang("orphans", 2, 2, func(c *v1alpha1.GangClaim) { c.Spec.RestartGracePeriod = &metav1.Duration{Duration: time.Hour} })
	g.untilRunning()
	s.must(the.Gangs.Delete(s.ctx, &v1alpha1.GangClaim{ObjectMeta: metav1.ObjectMeta{Name: g.name, Namespace: s.name}}))
	s.wantNoFences()
	g.wantWhole()
}

// A node that is lost takes its members with it: they are placed anew, on what is left.
func TestGangOnANodeThatIsLost(t *testing.T) {
	s := newSpace(t)
	g := s.gang("moved", 2, 4, func(c *v1alpha1.GangClaim) {
		c.Spec.RestartGracePeriod = &metav1.Duration{}
		c.Spec.Topology.Gang = v1alpha1.GangNode
	})
	g.untilRunning()
	g.wantWhole()
	p, err := the.Pod(s.ctx, s.name, g.podName(0))
	s.must(err)
	lost := p.Spec.NodeName
	t.Cleanup(func() {
		s.ctx = context.Background()
		s.must(the.Node(s.ctx, "start", lost))
		_, err := the.Kubectl(s.ctx, "taint", "node", lost, "node.kubernetes.io/out-of-service-")
		s.must(err)
		s.must(the.WaitPlugins(s.ctx, patience))
	})
	s.must(the.Node(s.ctx, "stop", lost))
	s.must(the.Until(s.ctx, patience, lost+" to be not ready", func(ctx context.Context) (bool, error) {
		ready, err := the.ReadyNodes(ctx)
		return !slices.Contains(ready, lost), err
	}))
	_, err = the.Kubectl(s.ctx, "taint", "node", lost, "node.kubernetes.io/out-of-service=test:NoExecute")
	s.must(err)
	for i := range g.members {
		s.deletePod(g.podName(i)) // as its owner would not have to: garbage collection does it
		g.member(i)
	}
	g.untilRunning()
	g.wantWhole()
	if p, err = the.Pod(s.ctx, s.name, g.podName(0)); err != nil || p.Spec.NodeName == lost {
		t.Errorf("the member is on %s again (%v)", p.Spec.NodeName, err)
	}
}
