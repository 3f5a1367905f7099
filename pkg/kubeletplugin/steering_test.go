// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"maps"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/resourcemodel"
)

const testSteering = 2 * time.Second

// steeredNode is a node of four GPUs whose free counts are looked at, without a plugin around.
type steeredNode struct {
	*steering
	t     *testing.T
	clock *clocktesting.FakeClock
	busy  map[string]bool
}

func newSteeredNode(t *testing.T) *steeredNode {
	n := &steeredNode{t: t, clock: clocktesting.NewFakeClock(time.Now()), busy: map[string]bool{}}
	n.steering = newSteering(testSteering, n.clock, func() map[string]bool {
		return maps.Clone(n.busy)
	})
	n.steering.knowFences()
	<-n.again()
	n.expect(4)
	return n
}

// expect looks at the free count that is published of the domain.
func (n *steeredNode) expect(free int64) {
	n.t.Helper()
	pool := n.steer(resourcemodel.DriverResources(testNode, gpus(4))).Pools[testNode]
	for _, d := range pool.Slices[0].Devices {
		if got := d.Attributes[resourcemodel.AttributeNVSwitchDomainFree].IntValue; got == nil || *got != free {
			n.t.Fatalf("%s of device %s is %v, want %d", resourcemodel.AttributeNVSwitchDomainFree, d.Name, got, free)
		}
	}
}

// expectLater looks at when discovery publishes next: not before the time has passed, and then.
func (n *steeredNode) expectLater(after time.Duration) {
	n.t.Helper()
	n.clock.Step(after - time.Millisecond)
	select {
	case <-n.later():
		n.t.Fatalf("published again before %v had passed", after)
	default:
	}
	n.clock.Step(time.Millisecond)
	select {
	case <-n.later():
	default:
		n.t.Fatalf("not published again after %v", after)
	}
}

func fence(node string, change ...func(*resourceapi.DeviceTaintRule)) *resourceapi.DeviceTaintRule {
	rule := &resourceapi.DeviceTaintRule{
		ObjectMeta: metav1.ObjectMeta{Name: "fence", UID: "fence-uid", Labels: map[string]string{v1alpha1.GangLabel: "gang-uid"}},
		Spec: resourceapi.DeviceTaintRuleSpec{
			DeviceSelector: &resourceapi.DeviceTaintSelector{Driver: new(v1alpha1.DriverName), Pool: &node},
			Taint:          resourceapi.DeviceTaint{Key: v1alpha1.ReservedTaintKey, Value: "gang-uid", Effect: resourceapi.DeviceTaintEffectNoSchedule},
		},
	}
	for _, c := range change {
		c(rule)
	}
	return rule
}

func neutral(rule *resourceapi.DeviceTaintRule) {
	rule.Spec.Taint.Effect = resourceapi.DeviceTaintEffectNone
}

func TestFreeCountsChangeOnceInAWhile(t *testing.T) {
	n := newSteeredNode(t)
	n.clock.Step(testSteering)
	n.busy["gpu-0"], n.busy[gpu(0)] = true, true // the first is no GPU of this node
	n.expect(3)

	n.busy[gpu(1)] = true
	n.clock.Step(testSteering / 2)
	n.expect(3)
	n.busy[gpu(2)] = true // what happens meanwhile is published with it
	n.expect(3)
	n.expectLater(testSteering / 2)
	n.expect(1)
}

func TestFreeCountsDoNotChangeWhileAFenceIsMadeOrTakenDown(t *testing.T) {
	n := newSteeredNode(t)
	n.clock.Step(testSteering)
	n.seeFence(fence(testNode), false)
	n.busy[gpu(0)] = true
	n.expect(4)
	n.clock.Step(time.Second)
	n.seeFence(fence(testNode), false) // touched, or its status was written: it does not begin anew
	n.expect(4)
	n.expectLater(fenceMaking - time.Second)
	n.expect(3)

	n.clock.Step(testSteering)
	n.seeFence(fence(testNode, neutral), false)
	n.busy[gpu(1)] = true
	n.expect(3)
	n.clock.Step(time.Second)
	n.seeFence(fence(testNode, neutral), true)
	n.expect(3)
	n.clock.Step(fenceEnding - time.Millisecond)
	n.expect(3)
	n.clock.Step(time.Millisecond)
	n.expect(2)
}

func TestASecondFenceKeepsFreeCountsForLonger(t *testing.T) {
	n := newSteeredNode(t)
	n.clock.Step(testSteering)
	n.seeFence(fence(testNode), false)
	n.busy[gpu(0)] = true
	n.expect(4)
	n.clock.Step(fenceMaking - time.Second)
	n.seeFence(fence(testNode, func(r *resourceapi.DeviceTaintRule) { r.UID = "another" }), false)
	n.clock.Step(time.Second)
	n.expect(4)
	n.clock.Step(fenceMaking - time.Second)
	n.expect(3)
}

func TestFreeCountsDoNotChangeBeforeTheFencesAreKnown(t *testing.T) {
	busy := map[string]bool{}
	clock := clocktesting.NewFakeClock(time.Now())
	n := &steeredNode{t: t, clock: clock, steering: newSteering(testSteering, clock, func() map[string]bool { return busy })}
	n.expect(4)
	busy = map[string]bool{gpu(0): true}
	clock.Step(time.Hour)
	n.expect(4)
	n.knowFences()
	<-n.again()
	n.expect(3)
}

func TestFencesOfOtherNodesAreNoneOfOurs(t *testing.T) {
	for name, test := range map[string]struct {
		rule *resourceapi.DeviceTaintRule
		want bool
	}{
		"this node's pool":    {fence(testNode), true},
		"another node's pool": {fence("node-b"), false},
		"all pools":           {fence(testNode, func(r *resourceapi.DeviceTaintRule) { r.Spec.DeviceSelector.Pool = nil }), true},
		"all devices":         {fence(testNode, func(r *resourceapi.DeviceTaintRule) { r.Spec.DeviceSelector = nil }), true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := concerns(test.rule, testNode); got != test.want {
				t.Errorf("concerns = %v, want %v", got, test.want)
			}
		})
	}
}

func TestSteeringIsOffByDefault(t *testing.T) {
	m := newMachine(t, 4)
	p := m.ready()
	for _, d := range p.desired.Pools[testNode].Slices[0].Devices {
		if _, is := d.Attributes[resourcemodel.AttributeNVSwitchDomainFree]; is {
			t.Errorf("device %s has %s", d.Name, resourcemodel.AttributeNVSwitchDomainFree)
		}
	}
}

func TestAPreparedGPUIsNotCountedAsFree(t *testing.T) {
	m := newMachine(t, 4)
	p := m.start(func(c *Config) { c.SteeringInterval = testSteering })
	p.discovery.look(p.ctx)
	p.reconciler.reconcile(p.ctx)
	p.steering.knowFences()
	free := func() int64 {
		p.discovery.publishAgain()
		return *p.desired.Pools[testNode].Slices[0].Devices[0].Attributes[resourcemodel.AttributeNVSwitchDomainFree].IntValue
	}
	if got := free(); got != 4 {
		t.Fatalf("%d GPUs are free, want 4", got)
	}
	claim := m.claim("one", gpu(2))
	admin := allocated([]resourceapi.DeviceRequestAllocationResult{result("gpus", testNode, gpu(3))})
	admin.Status.Allocation.Devices.Results[0].AdminAccess = new(true)
	p.mustPrepare(claim)
	p.mustPrepare(m.store("monitor", admin))
	<-p.steering.again()
	m.clock.Step(testSteering)
	if got := free(); got != 3 {
		t.Errorf("%d GPUs are free with one that is prepared and one that is looked at, want 3", got)
	}
	p.mustUnprepare(claim)
	<-p.steering.again()
	m.clock.Step(testSteering)
	if got := free(); got != 4 {
		t.Errorf("%d GPUs are free after it was given back, want 4", got)
	}
}

func TestAGPUThatWasPreparedBeforeARebootIsCountedAsFree(t *testing.T) {
	m := newMachine(t, 4)
	claim := m.claim("one", gpu(2))
	m.ready().mustPrepare(claim)
	m.reboot()
	p := m.start(func(c *Config) { c.SteeringInterval = testSteering })
	p.discovery.look(p.ctx)
	if got := *p.desired.Pools[testNode].Slices[0].Devices[0].Attributes[resourcemodel.AttributeNVSwitchDomainFree].IntValue; got != 4 || !p.isPrepared(claim.UID) {
		t.Errorf("%d GPUs are free, want 4, with a record of before the reboot: %t", got, p.isPrepared(claim.UID))
	}
}
