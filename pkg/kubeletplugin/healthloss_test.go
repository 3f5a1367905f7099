// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"slices"
	"testing"
	"time"

	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/switchyard-dev/switchyard/pkg/device"
	"github.com/switchyard-dev/switchyard/pkg/health"
	"github.com/switchyard-dev/switchyard/pkg/nvml"
)

// evicting returns a machine whose administrator wants pods off GPUs on which nothing can go on.
func evicting(t *testing.T, gpuCount int) *sickMachine {
	m := newSickMachine(t, gpuCount)
	m.policy = health.Policy{EvictFatal: true}
	return m
}

func TestFieldCase21_NobodyIsEvictedBecauseNVMLIsAway(t *testing.T) {
	for _, reason := range []string{nvml.ReasonLibraryNotFound, nvml.ReasonDriverNotLoaded, nvml.ReasonVersionMismatch, nvml.ReasonNotResponding, nvml.ReasonFailed} {
		t.Run(reason, func(t *testing.T) {
			m := evicting(t, 2)
			p := m.ready()
			m.platform.set(device.Inventory{}, &nvml.UnavailableError{Reason: reason, Message: "test"})
			p.discovery.look(p.ctx)
			p.wantTaints("after one failure")
			for range 10 {
				p.discovery.look(p.ctx)
				p.wantTaints("while NVML is away", "0:unhealthy=NVMLUnavailable:NoSchedule", "1:unhealthy=NVMLUnavailable:NoSchedule")
			}
			p.mustRefuse(m.claim("a", gpu(0)), "NVMLUnavailable", "test")
			p = m.process()
			p.discovery.publishKnown()
			p.wantTaints("after a restart", "0:unhealthy=NVMLUnavailable:NoSchedule", "1:unhealthy=NVMLUnavailable:NoSchedule")
			m.platform.set(gpus(2), nil)
			p.discovery.look(p.ctx)
			p.wantTaints("when it is back")
		})
	}
}

func TestWhatWasKnownAgainstAGPUOutlivesThatNVMLIsAway(t *testing.T) {
	m := evicting(t, 4)
	p := m.ready()
	seen := without(gpus(4), 1)
	seen.GPUs[1].Health = device.Health{Reason: device.ReasonResetRequired, Message: "test"} // GPU 2
	m.platform.set(seen, nil)
	for range 2 {
		p.discovery.look(p.ctx)
	}
	p.discovery.noteEvent(p.ctx, xidOf(3, 119))
	m.platform.set(device.Inventory{}, errTest)
	for range 3 {
		p.discovery.look(p.ctx)
	}
	p.wantTaints("while NVML is away", "0:unhealthy=NVMLUnavailable:NoSchedule", "1:unhealthy=Lost:NoExecute",
		"2:unhealthy=ResetRequired:NoExecute", "3:unhealthy=XID119:NoSchedule")
}

func TestPodsOfALostGPUAreEvictedAfterTwoLooks(t *testing.T) {
	m := evicting(t, 3)
	p := m.ready()
	m.platform.set(without(gpus(3), 1), nil)
	p.discovery.look(p.ctx)
	p.wantTaints("after one look", "1:unhealthy=Lost:NoSchedule")
	m.platform.set(gpus(3), nil)
	p.discovery.look(p.ctx)
	p.wantTaints("when that was nothing")
	m.platform.set(without(gpus(3), 1), nil)
	p.discovery.look(p.ctx)
	p.discovery.look(p.ctx)
	p.wantTaints("after two looks in a row", "1:unhealthy=Lost:NoExecute")
}

// A GPU that is not listed may be one that could not tell its UUID, for whatever reason.
func TestAGPUThatMayBeOneThatDoesNotAnswerIsNotLost(t *testing.T) {
	m := evicting(t, 3)
	p := m.ready()
	seen := without(gpus(3), 1)
	seen.Unidentified, seen.Unanswered = []string{"GPU at index 1: nvmlDeviceGetUUID: unknown error"}, 1
	m.platform.set(seen, nil)
	for range 3 {
		p.discovery.look(p.ctx)
		p.wantTaints("while it does not answer", "1:unhealthy=NotAnswering:NoSchedule")
	}
	p.mustRefuse(m.claim("a", gpu(1)), "NotAnswering", "unknown error")
	m.platform.set(gpus(3), nil)
	p.discovery.look(p.ctx)
	p.wantTaints("when it answers")
}

func TestTheKubeletIsToldHowOldItIsThatAGPUIsHealthy(t *testing.T) {
	m := newSickMachine(t, 2)
	m.platform.set(gpus(2), nil)
	p := m.ready()
	looked := m.clock.Now()
	report := func(when string, at ...time.Time) {
		t.Helper()
		seen, _ := p.hardware.load()
		for i, got := range p.healthReport(seen).Devices {
			if !got.LastUpdated.Equal(at[i]) {
				t.Errorf("%s: GPU %d is %s since %v, want %v", when, i, got.Health, got.LastUpdated, at[i])
			}
		}
	}
	report("at first", looked, looked)

	m.clock.Step(time.Minute)
	p.discovery.noteEvent(p.ctx, xidOf(1, 119))
	report("after an event of another GPU", looked, m.clock.Now())

	m.clock.Step(time.Minute)
	m.platform.set(device.Inventory{}, errTest)
	p.discovery.look(p.ctx)
	report("after a look that failed", looked, m.clock.Now())

	m.clock.Step(time.Minute)
	p.discovery.look(p.ctx)
	report("when none can be used", m.clock.Now(), m.clock.Now())

	m.platform.set(gpus(2), nil)
	p.discovery.look(p.ctx)
	m.platform.set(device.Inventory{}, errTest)
	p = m.process()
	p.discovery.look(p.ctx)
	seen, _ := p.hardware.load()
	var told []kubeletplugin.HealthStatus
	for _, got := range p.healthReport(seen).Devices {
		told = append(told, got.Health)
	}
	if want := []kubeletplugin.HealthStatus{kubeletplugin.HealthStatusUnknown, kubeletplugin.HealthStatusUnhealthy}; !slices.Equal(told, want) {
		t.Errorf("of GPUs that this process has not seen yet the kubelet is told %q, want %q", told, want)
	}
}

// The clock of a node may be years ahead until it is set by the network.
func TestAClockThatIsSetBackKeepsNoGPUSick(t *testing.T) {
	m := newSickMachine(t, 1)
	m.sick.act(0, health.RecoveryNone)
	p := m.ready()
	p.discovery.noteEvent(p.ctx, xidOf(0, 48))
	p.wantTaints("reported", "0:unhealthy=XID48:NoSchedule")

	m.clock.SetTime(m.clock.Now().Add(-365 * 24 * time.Hour))
	p = m.ready()
	m.clock.Step(health.VerdictGrace)
	p.discovery.look(p.ctx)
	p.wantTaints("the GPU says that nothing needs to be done")
}
