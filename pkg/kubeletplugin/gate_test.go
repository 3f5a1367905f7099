// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/utils/clock"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

const testPlan = "0123456789abcdef"

// gangClaim stores a claim of a gang that is not complete yet.
func (m *testMachine) gangClaim(name string, devices ...string) *resourceapi.ResourceClaim {
	m.t.Helper()
	claim := m.claim(name, devices...)
	claim.Labels = map[string]string{v1alpha1.GangLabel: "gang-uid", v1alpha1.PlanLabel: testPlan}
	claim.Annotations = map[string]string{v1alpha1.GangClaimAnnotation: "ml/llama-tp4"}
	return m.update(claim)
}

func (m *testMachine) update(claim *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
	m.t.Helper()
	return must[*resourceapi.ResourceClaim](m.t)(m.client.ResourceV1().ResourceClaims(claim.Namespace).Update(m.t.Context(), claim, metav1.UpdateOptions{}))
}

// open marks a claim as the controller does, for the plan.
func (m *testMachine) open(claim *resourceapi.ResourceClaim, plan string) *resourceapi.ResourceClaim {
	m.t.Helper()
	claim = claim.DeepCopy()
	if claim.Annotations == nil {
		claim.Annotations = map[string]string{}
	}
	claim.Annotations[v1alpha1.ReadyAnnotation] = plan
	return m.update(claim)
}

// count is how many requests of a verb for ResourceClaims the API server has had.
func (m *testMachine) count(verb string) int {
	n := 0
	for _, action := range m.client.Actions() {
		if action.Matches(verb, "resourceclaims") {
			n++
		}
	}
	return n
}

// waitingCall is a Prepare of one claim that is under way.
type waitingCall struct {
	p       *testPlugin
	claim   *resourceapi.ResourceClaim
	started time.Time
	result  chan kubeletplugin.PrepareResult
}

// call prepares a claim, and returns when the call is done or waits for something.
func (p *testPlugin) call(ctx context.Context, claim *resourceapi.ResourceClaim, others ...*resourceapi.ResourceClaim) *waitingCall {
	p.t.Helper()
	c := &waitingCall{p: p, claim: claim, started: time.Now(), result: make(chan kubeletplugin.PrepareResult, 1)}
	go func() {
		results, err := p.PrepareResourceClaims(ctx, append(others, claim))
		result := results[claim.UID]
		result.Err = errors.Join(result.Err, err)
		c.result <- result
	}()
	synctest.Wait()
	return c
}

// waiting is how many claims the metric says wait.
func (p *testPlugin) waiting() float64 {
	p.t.Helper()
	var metric dto.Metric
	if err := p.metrics.gangClaimsWaiting.Write(&metric); err != nil {
		p.t.Fatal(err)
	}
	return metric.GetGauge().GetValue()
}

// mustWait fails unless the call is still under way, with nothing reserved.
func (c *waitingCall) mustWait() {
	c.p.t.Helper()
	synctest.Wait()
	select {
	case result := <-c.result:
		c.p.t.Fatalf("the call returned (%v), want it to wait", result)
	default:
	}
	if _, ok := c.p.store.Get(c.claim.UID); ok {
		c.p.t.Error("the waiting claim has a record")
	}
	if got := c.p.waiting(); got != 1 {
		c.p.t.Errorf("%v claims count as waiting, want 1", got)
	}
}

// end waits for the end of the call and returns how long it took, and its error.
func (c *waitingCall) end() (time.Duration, error) {
	c.p.t.Helper()
	result := <-c.result
	if got := c.p.waiting(); got != 0 {
		c.p.t.Errorf("%v claims count as waiting after the call, want 0", got)
	}
	_, prepared := c.p.store.Get(c.claim.UID)
	if prepared != (result.Err == nil) {
		c.p.t.Errorf("the claim has a record: %t, the call's error: %v", prepared, result.Err)
	}
	return time.Since(c.started), result.Err
}

// mustPrepareWithin fails unless the call ends well, no later than that after its start.
func (c *waitingCall) mustPrepareWithin(limit time.Duration) {
	c.p.t.Helper()
	if took, err := c.end(); err != nil || took > limit {
		c.p.t.Errorf("the call took %v and returned %v, want it to succeed within %v", took, err, limit)
	}
}

// mustFail fails unless the call ends with an error of a kind and with the words.
func (c *waitingCall) mustFail(kind errorKind, words ...string) time.Duration {
	c.p.t.Helper()
	took, err := c.end()
	if err == nil || kindOf(err) != kind || !containsAll(err.Error(), words) {
		c.p.t.Errorf("the call returned %v (kind %s), want kind %s with %q", err, kindOf(err), kind, words)
	}
	return took
}

// gated runs a test of the gate on a clock of its own.
func gated(t *testing.T, name string, test func(t *testing.T, m *testMachine, p *testPlugin)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			m := newMachine(t, 4)
			p := m.ready()
			p.clock = clock.RealClock{} // which is the bubble's
			test(t, m, p)
		})
	})
}

func TestGateWaitsForTheGang(t *testing.T) {
	gated(t, "a claim is prepared when it is marked ready", func(_ *testing.T, m *testMachine, p *testPlugin) {
		claim := m.gangClaim("member", gpu(0))
		call := p.call(p.ctx, claim)
		call.mustWait()
		m.open(claim, testPlan)
		call.mustPrepareWithin(0)
	})
	gated(t, "a mark of another plan does not open it", func(_ *testing.T, m *testMachine, p *testPlugin) {
		claim := m.gangClaim("member", gpu(0))
		call := p.call(p.ctx, claim)
		claim = m.open(claim, "fedcba9876543210")
		call.mustWait()
		m.open(claim, testPlan)
		call.mustPrepareWithin(0)
	})
	gated(t, "devices of a waiting claim are free for others", func(_ *testing.T, m *testMachine, p *testPlugin) {
		claim := m.gangClaim("member", gpu(0))
		call := p.call(p.ctx, claim)
		call.mustWait()
		other := m.claim("other", gpu(0))
		p.mustPrepare(other)
		p.mustUnprepare(other)
		p.mustUnprepare(claim) // nor is the claim locked
		m.open(claim, testPlan)
		call.mustPrepareWithin(0)
	})
	gated(t, "other claims of the call do not wait", func(t *testing.T, m *testMachine, p *testPlugin) {
		claim, plain := m.gangClaim("member", gpu(0)), m.claim("plain", gpu(1))
		call := p.call(p.ctx, claim, plain)
		call.mustWait()
		if _, ok := p.store.Get(plain.UID); !ok {
			t.Error("the plain claim is not prepared")
		}
		m.open(claim, testPlan)
		call.mustPrepareWithin(0)
	})
	gated(t, "what the claim says at the end counts", func(t *testing.T, m *testMachine, p *testPlugin) {
		claim := m.gangClaim("member", gpu(0))
		call := p.call(p.ctx, claim)
		claim = claim.DeepCopy()
		claim.Status.Allocation.Devices.Results[0].Device = gpu(2)
		m.open(claim, testPlan)
		call.mustPrepareWithin(0)
		if record, _ := p.store.Get(claim.UID); record.Devices[0].Name != gpu(2) {
			t.Errorf("prepared %v, want the device of the newest allocation", record.Devices)
		}
	})
	gated(t, "a GPU that was lost meanwhile is refused", func(_ *testing.T, m *testMachine, p *testPlugin) {
		claim := m.gangClaim("member", gpu(0))
		call := p.call(p.ctx, claim)
		m.platform.set(without(gpus(4), 0), nil)
		p.discovery.look(p.ctx)
		m.open(claim, testPlan)
		call.mustFail(kindDeviceUnhealthy)
	})
}

func TestGateDoesNotWait(t *testing.T) {
	gated(t, "for a plain claim, and asks nobody", func(t *testing.T, m *testMachine, p *testPlugin) {
		claim := m.claim("plain", gpu(0))
		m.client.ClearActions()
		p.call(p.ctx, claim).mustPrepareWithin(0)
		if actions := m.client.Actions(); len(actions) > 0 {
			t.Errorf("the API server was asked: %v", actions)
		}
	})
	gated(t, "for a claim that is ready, and watches nothing", func(t *testing.T, m *testMachine, p *testPlugin) {
		claim := m.open(m.gangClaim("member", gpu(0)), testPlan)
		p.call(p.ctx, claim).mustPrepareWithin(0)
		if n := m.count("watch"); n > 0 {
			t.Errorf("%d watches", n)
		}
	})
	gated(t, "for a claim that was prepared before the plugin restarted", func(_ *testing.T, m *testMachine, p *testPlugin) {
		claim := m.open(m.gangClaim("member", gpu(0)), testPlan)
		p.call(p.ctx, claim).mustPrepareWithin(0)
		claim.Annotations = nil // somebody took the mark away from a running pod's claim
		claim = m.update(claim)
		again := m.ready()
		again.clock = clock.RealClock{}
		again.call(again.ctx, claim).mustPrepareWithin(0)
	})
	gated(t, "for a running pod's claim whose record was lost", func(t *testing.T, m *testMachine, _ *testPlugin) {
		claim := m.gangClaim("member", gpu(0))
		m.pod("member", true)
		again := m.ready()
		again.clock = clock.RealClock{}
		if _, ok := again.store.Get(claim.UID); !ok {
			t.Fatal("the claim was not adopted")
		}
		again.call(again.ctx, claim).mustPrepareWithin(0)
	})
	gated(t, "for a claim that the controller did not make", func(_ *testing.T, m *testMachine, p *testPlugin) {
		claim := m.gangClaim("forged", gpu(0))
		delete(claim.Labels, v1alpha1.PlanLabel)
		if took := p.call(p.ctx, m.update(claim)).mustFail(kindGangIncomplete, "default/forged", v1alpha1.PlanLabel); took > 0 {
			t.Errorf("it took %v", took)
		}
	})
}

func TestGateStaysShut(t *testing.T) {
	gated(t, "for 40 s at most, and says where to look", func(t *testing.T, m *testMachine, p *testPlugin) {
		call := p.call(p.ctx, m.gangClaim("member", gpu(0)))
		if took := call.mustFail(kindGangIncomplete, "the gang is not complete yet", "waited 40s", "tries again", "GangClaim ml/llama-tp4"); took != 40*time.Second {
			t.Errorf("it took %v", took)
		}
	})
	gated(t, "no longer than the kubelet waits for the answer", func(t *testing.T, m *testMachine, p *testPlugin) {
		ctx, cancel := context.WithTimeout(p.ctx, 15*time.Second)
		defer cancel()
		if took := p.call(ctx, m.gangClaim("member", gpu(0))).mustFail(kindGangIncomplete, "not complete yet"); took != 13*time.Second {
			t.Errorf("it took %v", took)
		}
	})
	gated(t, "and does not hold up a call that is given up", func(t *testing.T, m *testMachine, p *testPlugin) {
		ctx, cancel := context.WithCancel(p.ctx)
		call := p.call(ctx, m.gangClaim("member", gpu(0)))
		call.mustWait()
		cancel()
		if took := call.mustFail(kindGangIncomplete); took > 0 {
			t.Errorf("it took %v", took)
		}
	})
	gated(t, "and does not hold up a shutdown", func(t *testing.T, m *testMachine, p *testPlugin) {
		call := p.call(p.ctx, m.gangClaim("member", gpu(0)))
		call.mustWait()
		p.gate.close()
		if took := call.mustFail(kindNotReady, "default/member", "shutting down", "try again"); took > 0 {
			t.Errorf("it took %v", took)
		}
		late := p.call(p.ctx, m.gangClaim("late", gpu(1)))
		if took := late.mustFail(kindNotReady, "shutting down"); took > 0 {
			t.Errorf("a call after the shutdown took %v", took)
		}
	})
	gated(t, "when the claim is deleted", func(_ *testing.T, m *testMachine, p *testPlugin) {
		claim := m.gangClaim("member", gpu(0))
		call := p.call(p.ctx, claim)
		m.deleteClaim(claim)
		call.mustFail(kindInvalidAllocation, "default/member was deleted", "GangClaim ml/llama-tp4")
	})
	gated(t, "when the claim is being deleted", func(_ *testing.T, m *testMachine, p *testPlugin) {
		claim := m.gangClaim("member", gpu(0))
		call := p.call(p.ctx, claim)
		claim.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		m.update(claim)
		call.mustFail(kindInvalidAllocation, "was deleted")
	})
	gated(t, "when the claim loses its devices", func(_ *testing.T, m *testMachine, p *testPlugin) {
		claim := m.gangClaim("member", gpu(0))
		call := p.call(p.ctx, claim)
		claim = claim.DeepCopy()
		claim.Status.Allocation = nil
		m.update(claim)
		call.mustFail(kindInvalidAllocation, "lost its devices")
	})
	gated(t, "when another claim has its name", func(_ *testing.T, m *testMachine, p *testPlugin) {
		claim := m.gangClaim("member", gpu(0))
		call := p.call(p.ctx, claim)
		claim = claim.DeepCopy()
		claim.UID = "another-uid"
		m.open(claim, testPlan)
		call.mustFail(kindInvalidAllocation, "member-uid", "another has its name")
	})
	gated(t, "without the name of the GangClaim, and says its UID", func(_ *testing.T, m *testMachine, p *testPlugin) {
		claim := m.gangClaim("member", gpu(0))
		claim.Annotations = nil
		p.call(p.ctx, m.update(claim)).mustFail(kindGangIncomplete, "namespace default", "gang-uid")
	})
}

func TestGateWithoutAWatchReadsTheClaim(t *testing.T) {
	forbidden := apierrors.NewForbidden(resourceapi.Resource("resourceclaims"), "member", errors.New("no watch"))
	gated(t, "when it may not watch", func(_ *testing.T, m *testMachine, p *testPlugin) {
		m.client.PrependWatchReactor("resourceclaims", func(k8stesting.Action) (bool, watch.Interface, error) { return true, nil, forbidden })
		claim := m.gangClaim("member", gpu(0))
		call := p.call(p.ctx, claim)
		call.mustWait()
		m.open(claim, testPlan)
		call.mustPrepareWithin(100 * time.Millisecond)
	})
	gated(t, "when the watch breaks", func(_ *testing.T, m *testMachine, p *testPlugin) {
		broken := watch.NewFake()
		m.client.PrependWatchReactor("resourceclaims", func(k8stesting.Action) (bool, watch.Interface, error) { return true, broken, nil })
		claim := m.gangClaim("member", gpu(0))
		call := p.call(p.ctx, claim)
		m.open(claim, testPlan) // nobody tells
		call.mustWait()
		broken.Stop()
		call.mustPrepareWithin(100 * time.Millisecond)
	})
	gated(t, "when its resource version is too old to watch from", func(_ *testing.T, m *testMachine, p *testPlugin) {
		expired := watch.NewFakeWithChanSize(1, false)
		expired.Error(&metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonExpired})
		first := true
		m.client.PrependWatchReactor("resourceclaims", func(k8stesting.Action) (bool, watch.Interface, error) {
			defer func() { first = false }()
			return first, expired, nil
		})
		claim := m.gangClaim("member", gpu(0))
		call := p.call(p.ctx, claim)
		call.mustWait()
		<-time.After(time.Second) // of the bubble: it is read, and watched again
		m.open(claim, testPlan)
		call.mustPrepareWithin(time.Second)
	})
	gated(t, "until it has been deleted", func(_ *testing.T, m *testMachine, p *testPlugin) {
		m.client.PrependWatchReactor("resourceclaims", func(k8stesting.Action) (bool, watch.Interface, error) { return true, nil, forbidden })
		claim := m.gangClaim("member", gpu(0))
		call := p.call(p.ctx, claim)
		m.deleteClaim(claim)
		call.mustFail(kindInvalidAllocation, "was deleted")
	})
	gated(t, "or waits on when the API server is gone, without storming it", func(t *testing.T, m *testMachine, p *testPlugin) {
		claim := m.gangClaim("member", gpu(0))
		m.client.ClearActions()
		m.client.PrependWatchReactor("resourceclaims", func(k8stesting.Action) (bool, watch.Interface, error) { return true, nil, errTest })
		m.client.PrependReactor("get", "resourceclaims", func(k8stesting.Action) (bool, runtime.Object, error) { return true, nil, errTest })
		if took := p.call(p.ctx, claim).mustFail(kindGangIncomplete, "not complete yet"); took != gateTimeout {
			t.Errorf("it took %v", took)
		}
		if n := m.count("get"); n < 10 || n > 40 {
			t.Errorf("the claim was read %d times in %v", n, gateTimeout)
		}
	})
}
