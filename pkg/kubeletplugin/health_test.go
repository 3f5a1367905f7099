// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/switchyard-dev/switchyard/pkg/checkpoint"
	"github.com/switchyard-dev/switchyard/pkg/device"
	"github.com/switchyard-dev/switchyard/pkg/health"
	"github.com/switchyard-dev/switchyard/pkg/nvml"
	"github.com/switchyard-dev/switchyard/pkg/simulator"
)

// sickPlatform is hardware that also tells the health that it is told to.
type sickPlatform struct {
	*fakePlatform
	readings   map[string]health.Readings
	readErr    error
	hang       chan struct{} // when set, Discover waits until it is closed
	events     chan nvml.HealthEvent
	watchErr   error
	watchCalls int
}

func (p *sickPlatform) Discover(ctx context.Context) (device.Inventory, error) {
	p.mu.Lock()
	hang := p.hang
	p.mu.Unlock()
	if hang != nil {
		<-hang
	}
	return p.fakePlatform.Discover(ctx)
}

func (p *sickPlatform) ReadHealth(context.Context) (map[string]health.Readings, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.readings, p.readErr
}

func (p *sickPlatform) WatchHealth(ctx context.Context, started func(monitored, gpus int), tell func(nvml.HealthEvent)) error {
	p.mu.Lock()
	err := p.watchErr
	p.watchCalls++
	p.mu.Unlock()
	if err != nil {
		return err
	}
	started(1, 1)
	for {
		select {
		case <-ctx.Done():
			return nil
		case event := <-p.events:
			tell(event)
		}
	}
}

// act sets the recovery action that GPU i tells.
func (p *sickPlatform) act(i int, action health.RecoveryAction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.readings = map[string]health.Readings{gpus(i + 1).GPUs[i].UUID: {RecoveryAction: &action}}
}

// sickMachine is a machine with such hardware.
type sickMachine struct {
	*testMachine
	sick   *sickPlatform
	policy health.Policy
}

func newSickMachine(t *testing.T, gpuCount int) *sickMachine {
	m := newMachine(t, gpuCount)
	return &sickMachine{testMachine: m, sick: &sickPlatform{fakePlatform: m.platform, events: make(chan nvml.HealthEvent)}}
}

// process starts a plugin that has not looked at the hardware yet.
func (m *sickMachine) process() *testPlugin {
	m.t.Helper()
	p := m.start()
	p.config.Platform = m.sick
	p.config.HealthPolicy = m.policy
	p.discovery = newDiscovery(p.ctx, p.Driver)
	return p
}

func (m *sickMachine) ready() *testPlugin {
	m.t.Helper()
	p := m.process()
	p.discovery.look(p.ctx)
	p.reconciler.reconcile(p.ctx)
	return p
}

func xidOf(i int, code uint64) nvml.HealthEvent {
	return nvml.HealthEvent{UUID: gpus(i + 1).GPUs[i].UUID, XID: code, Type: "XidCriticalError"}
}

// taints lists the taints of what is to be published, as "<index>:<key>=<value>:<effect>".
func (p *testPlugin) taints() []string {
	p.t.Helper()
	var all []string
	for _, slice := range p.desired.Pools[testNode].Slices {
		all = append(all, taintsOf(slice.Devices)...)
	}
	return all
}

func taintsOf(devices []resourceapi.Device) []string {
	var all []string
	for _, d := range devices {
		for _, taint := range d.Taints {
			all = append(all, fmt.Sprintf("%d:%s=%s:%s", *d.Attributes["index"].IntValue, strings.TrimPrefix(taint.Key, "gpu.switchyard.dev/"), taint.Value, taint.Effect))
		}
	}
	return all
}

func (p *testPlugin) wantTaints(when string, want ...string) {
	p.t.Helper()
	if got := p.taints(); !slices.Equal(got, want) {
		p.t.Errorf("%s: taints %q, want %q", when, got, want)
	}
}

func TestFieldCase20_ATaintOutlivesARestartAndEndsWithTheRecovery(t *testing.T) {
	m := newSickMachine(t, 3)
	p := m.ready()
	p.wantTaints("at first")

	if again := p.discovery.noteEvent(p.ctx, xidOf(1, 48)); !again {
		t.Error("after a new XID the hardware is not looked at")
	}
	p.wantTaints("at once, without a look", "1:unhealthy=XID48:NoSchedule")
	m.expectEvent("Warning", "GPUUnhealthy", gpu(1), "XID48", "double-bit")
	m.sick.act(1, health.RecoveryGPUReset)
	p.discovery.look(p.ctx)
	p.wantTaints("after a look", "1:unhealthy=XID48:NoSchedule")

	p = m.process()
	p.discovery.publishKnown()
	p.wantTaints("after a restart, before any look", "1:unhealthy=XID48:NoSchedule")
	m.sick.readErr = errTest
	p.discovery.look(p.ctx)
	p.wantTaints("after a restart, when the health cannot be read", "1:unhealthy=XID48:NoSchedule")
	m.sick.readErr = nil
	if len(m.events.Events) > 0 {
		t.Errorf("the restart makes the Event %q", <-m.events.Events)
	}

	m.sick.act(1, health.RecoveryNone)
	m.clock.Step(time.Minute)
	p.discovery.look(p.ctx)
	p.wantTaints("after the repair")
	m.expectEvent("Normal", "GPURecovered", gpu(1))
	if files := must[[]os.DirEntry](t)(os.ReadDir(filepath.Join(p.config.PluginDir, healthDirName))); len(files) > 0 {
		t.Errorf("%v is kept of healthy GPUs", files)
	}
}

func TestFieldCase20_AFailedPublishOfATaintIsRepeated(t *testing.T) {
	m := newSickMachine(t, 2)
	p := m.run("", func(c *Config) { c.Platform = m.sick })
	m.eventually("the GPUs are published", func(context.Context) bool { return len(m.slices()) == 1 })
	failures := 4
	m.client.PrependReactor("update", "resourceslices", func(k8stesting.Action) (bool, runtime.Object, error) {
		failures--
		return failures >= 0, nil, errTest
	})
	m.sick.events <- xidOf(1, 119)
	m.eventually("the taint is published", func(context.Context) bool {
		return slices.Equal(taintsOf(m.slices()[0].Spec.Devices), []string{"1:unhealthy=XID119:NoSchedule"})
	})
	if failures >= 0 {
		t.Errorf("%d more writes were to fail", failures)
	}
	m.eventually("the plugin is ready again", func(ctx context.Context) bool { return p.Ready(ctx) == nil })
}

func TestFieldCase21_OneSickGPUSaysNothingOfTheOthers(t *testing.T) {
	for name, happens := range map[string]func(*sickMachine, *testPlugin){
		"a lost GPU":        func(m *sickMachine, _ *testPlugin) { m.platform.set(without(gpus(3), 1), nil) },
		"an XID":            func(_ *sickMachine, p *testPlugin) { p.discovery.noteEvent(p.ctx, xidOf(1, 79)) },
		"a recovery action": func(m *sickMachine, _ *testPlugin) { m.sick.act(1, health.RecoveryNodeReboot) },
	} {
		t.Run(name, func(t *testing.T) {
			m := newSickMachine(t, 3)
			p := m.ready()
			happens(m, p)
			p.discovery.look(p.ctx)
			if got := p.taints(); len(got) != 1 || !strings.HasPrefix(got[0], "1:unhealthy=") {
				t.Errorf("taints %q, want one of GPU 1", got)
			}
			p.mustRefuse(m.claim("sick", gpu(1)), gpu(1), "is unhealthy", "delete the pod")
			p.mustPrepare(m.claim("well", gpu(0), gpu(2)))
		})
	}
	for name, event := range map[string]nvml.HealthEvent{
		"an event of no GPU":          {Type: "XidCriticalError", XID: 79},
		"an event of an unknown GPU":  {Type: "XidCriticalError", XID: 79, UUID: "GPU-unknown"},
		"an event that is no XID":     {Type: "DoubleBitEccError", UUID: gpus(1).GPUs[0].UUID},
		"the XID of the action":       xidOf(0, health.CodeRecoveryAction),
		"an XID of an application":    xidOf(0, 31),
		"an XID that needs no action": xidOf(0, 43),
	} {
		t.Run(name+" taints nothing", func(t *testing.T) {
			m := newSickMachine(t, 3)
			p := m.ready()
			if again, want := p.discovery.noteEvent(p.ctx, event), event.XID != 31 && event.XID != 43; again != want {
				t.Errorf("the hardware is looked at: %v, want %v", again, want)
			}
			p.discovery.look(p.ctx)
			p.wantTaints("then")
		})
	}
}

func TestFieldCase22_AGPUThatTellsNothingOfItsHealthIsUsedLikeAnyOther(t *testing.T) {
	m := newSickMachine(t, 2)
	m.sick.readErr = errTest
	m.sick.watchErr = fmt.Errorf("%w: test", nvml.ErrEventsNotSupported)
	p := m.run("", func(c *Config) { c.Platform = m.sick })
	m.eventually("the plugin is ready", func(ctx context.Context) bool { return p.Ready(ctx) == nil })
	m.eventually("it is asked for events again", func(context.Context) bool {
		m.platform.mu.Lock()
		defer m.platform.mu.Unlock()
		return m.sick.watchCalls > 2
	})
	m.eventually("the GPUs are published", func(context.Context) bool { return len(m.slices()) == 1 })
	claim := m.claim("train", gpu(0), gpu(1))
	if message := p.nodePrepare(claim)[string(claim.UID)].GetError(); message != "" {
		t.Error(message)
	}
	if got := taintsOf(m.slices()[0].Spec.Devices); len(got) > 0 {
		t.Errorf("taints %q", got)
	}
}

func TestARebootForgetsWhatWasKnownAgainstAGPU(t *testing.T) {
	m := newSickMachine(t, 2)
	p := m.ready()
	p.discovery.noteEvent(p.ctx, xidOf(1, 119))
	m.reboot()
	p = m.ready()
	p.wantTaints("after a reboot")
	if files := must[[]os.DirEntry](t)(os.ReadDir(filepath.Join(p.config.PluginDir, healthDirName))); len(files) > 0 {
		t.Errorf("%v is kept of another boot", files)
	}
}

func TestRemovingTheFileForgetsWhatWasKnownAgainstAGPU(t *testing.T) {
	m := newSickMachine(t, 3)
	p := m.ready()
	p.discovery.noteEvent(p.ctx, xidOf(1, 119))
	p.discovery.noteEvent(p.ctx, xidOf(2, 119))
	if err := os.Remove(filepath.Join(p.config.PluginDir, healthDirName, gpu(1)+healthFileExt)); err != nil {
		t.Fatal(err)
	}
	p.discovery.look(p.ctx)
	p.wantTaints("then", "2:unhealthy=XID119:NoSchedule")
}

func TestADamagedHealthFileCostsTheOthersNothing(t *testing.T) {
	for name, content := range map[string]string{"cut off": `{"version":1,"bootID":"`, "empty": ""} {
		t.Run(name, func(t *testing.T) {
			m := newSickMachine(t, 3)
			p := m.ready()
			p.discovery.noteEvent(p.ctx, xidOf(1, 119))
			p.discovery.noteEvent(p.ctx, xidOf(2, 119))
			file := filepath.Join(p.config.PluginDir, healthDirName, gpu(1)+healthFileExt)
			if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			p = m.ready()
			p.wantTaints("after a restart", "2:unhealthy=XID119:NoSchedule")
			if got := metricValue(t, p.metrics.errors.WithLabelValues("health_file")); got == 0 {
				t.Error("no error is counted")
			}
			p.discovery.noteEvent(p.ctx, xidOf(1, 46))
			p = m.ready()
			p.wantTaints("when it was written again", "1:unhealthy=XID46:NoSchedule", "2:unhealthy=XID119:NoSchedule")
		})
	}
}

func TestAReloadedDriverHasResetTheGPUs(t *testing.T) {
	for name, test := range map[string]struct {
		reason string
		want   []string
	}{
		"a driver that was not loaded":  {nvml.ReasonDriverNotLoaded, nil},
		"a driver that did not respond": {nvml.ReasonNotResponding, []string{"1:unhealthy=XID119:NoSchedule"}},
	} {
		t.Run(name, func(t *testing.T) {
			m := newSickMachine(t, 2)
			p := m.ready()
			p.discovery.noteEvent(p.ctx, xidOf(1, 119))
			m.platform.set(device.Inventory{}, &nvml.UnavailableError{Reason: test.reason, Message: "test"})
			for range 3 {
				p.discovery.look(p.ctx)
			}
			m.platform.set(gpus(2), nil)
			p.discovery.look(p.ctx)
			p.wantTaints("then", test.want...)
		})
	}
}

func TestEvictionIsForGPUsOnWhichNothingGoesOn(t *testing.T) {
	m := newSickMachine(t, 3)
	m.policy = must[health.Policy](t)(health.ParsePolicy("NoExecute", map[string]string{"63": "NoSchedule"}))
	p := m.ready()
	for i, code := range []uint64{95, 48, 63} {
		p.discovery.noteEvent(p.ctx, xidOf(i, code))
	}
	p.wantTaints("then", "0:unhealthy=XID95:NoExecute", "1:unhealthy=XID48:NoSchedule", "2:unhealthy=XID63:NoSchedule")
}

func TestADegradedGPUIsShownAndUsed(t *testing.T) {
	m := newSickMachine(t, 1)
	with := func(links int) device.Inventory {
		inv := gpus(1)
		inv.GPUs[0].NVLinks = links
		return inv
	}
	m.platform.set(with(18), nil)
	p := m.ready()
	p.wantTaints("with all links")
	m.platform.set(with(17), nil)
	p.discovery.look(p.ctx)
	p.wantTaints("with a link down", "0:degraded=NVLinkDown:None")
	m.expectEvent("Warning", "GPUDegraded", "1 of 18 NVLinks are down")
	p.mustPrepare(m.claim("train", gpu(0)))
	seen, _ := p.hardware.load()
	if got := p.healthReport(seen).Devices[0]; got.Health != kubeletplugin.HealthStatusHealthy || !strings.Contains(got.Message, "NVLinkDown") {
		t.Errorf("the kubelet is told %+v", got)
	}
	p = m.ready()
	p.wantTaints("after a restart", "0:degraded=NVLinkDown:None")
	m.platform.set(with(18), nil)
	p.discovery.look(p.ctx)
	p.wantTaints("with all links again")
}

func TestTheKubeletIsToldOfASickGPU(t *testing.T) {
	m := newSickMachine(t, 2)
	p := m.ready()
	p.discovery.noteEvent(p.ctx, xidOf(1, 119))
	seen, _ := p.hardware.load()
	devices := p.healthReport(seen).Devices
	if devices[0].Health != kubeletplugin.HealthStatusHealthy || devices[0].Message != "" {
		t.Errorf("of GPU 0 it is told %+v", devices[0])
	}
	if devices[1].Health != kubeletplugin.HealthStatusUnhealthy || !strings.Contains(devices[1].Message, "XID 119") {
		t.Errorf("of GPU 1 it is told %+v", devices[1])
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(newHealthCollector(p.hardware))
	families := must[[]*dto.MetricFamily](t)(registry.Gather())
	var got []string
	for _, metric := range families[0].GetMetric() {
		text := fmt.Sprint(metric.GetGauge().GetValue())
		for _, label := range metric.GetLabel() {
			text += " " + label.GetValue()
		}
		got = append(got, text)
	}
	// By the labels' names: device, effect, pci_bus_id, reason.
	want := []string{"1 " + gpu(0) + "  0000:10:00.0 ", "0 " + gpu(1) + " NoSchedule 0000:11:00.0 XID119"}
	if families[0].GetName() != "switchyard_device_health" || !slices.Equal(got, want) {
		t.Errorf("metric %s has %q, want %q", families[0].GetName(), got, want)
	}
}

// metricValue is the value of a counter or gauge.
func metricValue(t *testing.T, metric prometheus.Metric) float64 {
	t.Helper()
	var value dto.Metric
	if err := metric.Write(&value); err != nil {
		t.Fatal(err)
	}
	return value.GetCounter().GetValue() + value.GetGauge().GetValue()
}

func TestPodsThatHoldASickGPUAreTold(t *testing.T) {
	m := newSickMachine(t, 3)
	m.policy.EvictFatal = true
	p := m.ready()
	for i, name := range []string{"other", "holder"} {
		p.mustPrepare(m.claim(name, gpu(i)))
	}
	gone := m.claim("gone", gpu(2))
	p.mustPrepare(gone)
	m.deleteClaim(gone)

	tell := func() {
		t.Helper()
		for len(p.holderNews) > 0 {
			if err := p.eventOnHolders(p.ctx, <-p.holderNews); err != nil {
				t.Fatal(err)
			}
		}
	}
	p.discovery.noteEvent(p.ctx, xidOf(1, 119))
	p.discovery.noteEvent(p.ctx, xidOf(2, 119))
	tell()
	m.expectEvent("Warning GPUUnhealthy", gpu(1), "XID119", "left alone", "(claim holder)")
	p.discovery.noteEvent(p.ctx, xidOf(1, 95))
	tell()
	m.expectEvent("Warning GPUUnhealthy", gpu(1), "XID95", "deletes the pods", "(claim holder)")
	for _, event := range m.seen {
		if strings.Contains(event, "(claim other)") || strings.Contains(event, "(claim gone)") {
			t.Errorf("an Event says %q", event)
		}
	}
	pods := podsOf(&resourceapi.ResourceClaim{Status: resourceapi.ResourceClaimStatus{ReservedFor: []resourceapi.ResourceClaimConsumerReference{
		{Resource: "pods", Name: "a", UID: "1"}, {APIGroup: "scheduling.k8s.io", Resource: "podgroups", Name: "b"},
	}}})
	if len(pods) != 1 || pods[0].Kind != "Pod" || pods[0].Name != "a" || pods[0].UID != "1" {
		t.Errorf("the claim is reserved for %v", pods)
	}
}

func TestNewsOfAGPUConcernsItsPartitions(t *testing.T) {
	partition := device.PartitionRef{GPU: gpu(1), ProfileID: 19, Start: 2}.Name()
	for name, want := range map[string]bool{gpu(1): true, partition: true, gpu(0): false, device.PartitionRef{GPU: gpu(0), ProfileID: 19}.Name(): false} {
		record := checkpoint.Record{Devices: []checkpoint.Device{{Name: name}}}
		if got := (holderNews{device: gpu(1)}).concerns(record); got != want {
			t.Errorf("a claim of %s is concerned: %v, want %v", name, got, want)
		}
	}
}

// The simulator's MIG mode, with every place a device.
func TestPartitionsOfASickGPUAreSick(t *testing.T) {
	m := newMachine(t, 0)
	hardware, config := simulatedHardware(t, m, "hgx-h100")
	if err := hardware.SetMIGMode(3, true); err != nil {
		t.Fatal(err)
	}
	p := m.run("", config)
	m.eventually("the GPUs are known", func(context.Context) bool { seen, _ := p.hardware.load(); return seen != nil })
	if err := hardware.InjectXID(3, 119); err != nil {
		t.Fatal(err)
	}
	m.eventually("all partitions of the GPU, and no others, are reported as unhealthy", func(context.Context) bool {
		seen, _ := p.hardware.load()
		sick, partitions := 0, 0
		for _, reported := range p.healthReport(seen).Devices {
			ofGPU3 := seen.byName[reported.DeviceName].gpu.Index == 3
			if _, ok := device.ParsePartitionName(reported.DeviceName); ok {
				partitions++
			}
			if (reported.Health == kubeletplugin.HealthStatusUnhealthy) != ofGPU3 {
				return false
			}
			if ofGPU3 {
				sick++
			}
		}
		return partitions > 0 && sick == partitions+1
	})
}

func TestHolderNewsIsRepeatedUntilTheAPIServerAnswers(t *testing.T) {
	m := newSickMachine(t, 1)
	p := m.run("", func(c *Config) { c.Platform = m.sick })
	m.eventually("the plugin is ready", func(ctx context.Context) bool { return p.Ready(ctx) == nil })
	claim := m.claim("holder", gpu(0))
	if message := p.nodePrepare(claim)[string(claim.UID)].GetError(); message != "" {
		t.Fatal(message)
	}
	failures := 1
	m.client.PrependReactor("get", "resourceclaims", func(k8stesting.Action) (bool, runtime.Object, error) {
		failures--
		return failures >= 0, nil, errTest
	})
	m.sick.events <- xidOf(0, 119)
	m.eventually("the pod is told", func(context.Context) bool {
		for len(m.events.Events) > 0 {
			m.seen = append(m.seen, <-m.events.Events)
		}
		return slices.ContainsFunc(m.seen, func(event string) bool { return containsAll(event, []string{"GPUUnhealthy", "(claim holder)"}) })
	})
}

func TestOnlyAClaimThatToleratesItGetsASickGPU(t *testing.T) {
	exists := resourceapi.DeviceToleration{Key: "gpu.switchyard.dev/unhealthy", Operator: resourceapi.DeviceTolerationOpExists}
	for name, test := range map[string]struct {
		health     device.Health
		toleration resourceapi.DeviceToleration
		ok         bool
	}{
		"the key is tolerated":              {device.Health{Reason: "XID119"}, exists, true},
		"the value is tolerated":            {device.Health{Reason: "XID119"}, resourceapi.DeviceToleration{Key: exists.Key, Operator: resourceapi.DeviceTolerationOpEqual, Value: "XID119"}, true},
		"another value is tolerated":        {device.Health{Reason: "XID119"}, resourceapi.DeviceToleration{Key: exists.Key, Operator: resourceapi.DeviceTolerationOpEqual, Value: "XID46"}, false},
		"another effect is tolerated":       {device.Health{Reason: "XID119", Evict: true}, resourceapi.DeviceToleration{Key: exists.Key, Operator: resourceapi.DeviceTolerationOpExists, Effect: resourceapi.DeviceTaintEffectNoSchedule}, false},
		"another key is tolerated":          {device.Health{Reason: "XID119"}, resourceapi.DeviceToleration{Key: "example.com/x", Operator: resourceapi.DeviceTolerationOpExists}, false},
		"a GPU that does not answer":        {device.Health{Reason: device.ReasonNotAnswering}, exists, true},
		"nothing can be done without NVML":  {device.Health{Reason: device.ReasonNVMLUnavailable}, exists, false},
		"of a lost GPU nothing can be done": {device.Health{Reason: device.ReasonLost}, exists, false},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, 1)
			inv := gpus(1)
			inv.GPUs[0].Health = test.health
			seen := newSnapshot(inv, m.clock.Now(), m.clock.Now(), nil)
			r := result("gpus", testNode, gpu(0))
			r.Tolerations = []resourceapi.DeviceToleration{test.toleration}
			if err := checkDevice(r, seen); (err == nil) != test.ok {
				t.Errorf("checkDevice = %v, want that it passes: %v", err, test.ok)
			}
			r.Tolerations = nil
			if err := checkDevice(r, seen); kindOf(err) != kindDeviceUnhealthy {
				t.Errorf("without toleration: %v", err)
			}
		})
	}
}

// A GPU that is sick is what makes NVML hang.
func TestATaintDoesNotWaitForALookThatHangs(t *testing.T) {
	m := newSickMachine(t, 2)
	p := m.run("", func(c *Config) { c.Platform = m.sick })
	m.eventually("the plugin is ready", func(ctx context.Context) bool { return p.Ready(ctx) == nil })
	m.eventually("the GPUs are published", func(context.Context) bool { return len(m.slices()) == 1 })
	hang := make(chan struct{})
	t.Cleanup(func() { close(hang) })
	m.platform.mu.Lock()
	m.sick.hang = hang
	looks := m.platform.looks
	m.platform.mu.Unlock()
	m.eventually("no look ends any more", func(context.Context) bool {
		m.platform.mu.Lock()
		defer m.platform.mu.Unlock()
		before := looks
		looks = m.platform.looks
		return before == looks
	})
	m.sick.events <- xidOf(1, 119)
	m.eventually("the taint is published", func(context.Context) bool {
		return slices.Equal(taintsOf(m.slices()[0].Spec.Devices), []string{"1:unhealthy=XID119:NoSchedule"})
	})
}

func TestEventsAskForALookAtMostOnceASecond(t *testing.T) {
	m := newSickMachine(t, 2)
	p := m.ready()
	d := p.discovery
	paused := make(chan bool)
	events := []nvml.HealthEvent{{Type: "DoubleBitEccError"}, {Type: "DoubleBitEccError"}}
	go func() { paused <- d.pause(p.ctx, 10*time.Second) }()
	for _, event := range events {
		d.healthEvents <- event
	}
	// 10 s for the next look as planned, 1 s for the one because of the events.
	m.eventually("it waits", func(context.Context) bool { return m.clock.HasWaiters() })
	m.clock.Step(fastDiscovery - time.Millisecond)
	select {
	case <-paused:
		t.Error("it looks again less than a second after the last look")
	default:
	}
	m.eventually("it looks after a second", func(context.Context) bool {
		m.clock.Step(time.Millisecond)
		select {
		case again := <-paused:
			return again
		default:
			return false
		}
	})
	if m.clock.Since(d.lastLook) > 2*time.Second {
		t.Errorf("it looks %v after the last look", m.clock.Since(d.lastLook))
	}
}

func TestHealthErrorsAreTold(t *testing.T) {
	m := newSickMachine(t, 1)
	m.sick.readErr = errors.New("nvmlDeviceGetFieldValues: test")
	p := m.ready()
	if got := metricValue(t, p.metrics.errors.WithLabelValues("read_health")); got != 1 {
		t.Errorf("%v errors are counted", got)
	}
	p.discovery.noteEvent(p.ctx, xidOf(0, 31))
	p.discovery.noteEvent(p.ctx, xidOf(0, 31))
	if got := metricValue(t, p.metrics.xids.WithLabelValues(gpu(0), "31")); got != 2 {
		t.Errorf("%v XIDs are counted", got)
	}
}

// TestSimulatedGPUsGetSickAndRecover runs on everything that is real but the GPUs and the API server.
func TestSimulatedGPUsGetSickAndRecover(t *testing.T) {
	m := newMachine(t, 0)
	hardware, config := simulatedHardware(t, m, "hgx-h100")
	p := m.run("", config)
	taints := func(what string, want ...string) {
		t.Helper()
		var got []string
		m.eventually(what, func(context.Context) bool {
			if len(m.slices()) != 1 {
				return false
			}
			got = taintsOf(m.slices()[0].Spec.Devices)
			return slices.Equal(got, want)
		})
	}
	taints("the GPUs are published")
	m.eventually("they report events", func(context.Context) bool { return metricValue(t, p.metrics.monitoredDevices) == 8 })
	do := func(errs ...error) {
		t.Helper()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	do(hardware.InjectXID(0, 31), hardware.InjectXID(1, 48), hardware.InjectXID(2, 119), hardware.SetRowRemap(3, true, false),
		hardware.SetRowRemap(4, false, true), hardware.SetNVLink(5, 3, false), hardware.SetRecoveryAction(6, "drain-and-reset"), hardware.LoseGPU(7))
	sick := []string{
		"1:unhealthy=XID48:NoSchedule", "2:unhealthy=XID119:NoSchedule", "3:degraded=RowRemapPending:None",
		"4:unhealthy=RowRemapFailure:NoSchedule", "5:degraded=NVLinkDown:None", "6:unhealthy=NeedsDrainAndReset:NoSchedule", "7:unhealthy=Lost:NoSchedule",
	}
	taints("each GPU has its taint", sick...)

	p.stop()
	p = m.run("", config)
	taints("they stay over a restart", sick...)
	m.eventually("7 GPUs report events", func(context.Context) bool { return metricValue(t, p.metrics.monitoredDevices) == 7 })

	for gpu := range 8 {
		if gpu != 2 { // its XID leaves no trace that a reset could take away
			do(hardware.RecoverGPU(gpu))
		}
	}
	taints("what was reset is well", "2:unhealthy=XID119:NoSchedule")
	state := must[simulator.State](t)(hardware.State())
	do(os.Remove(filepath.Join(p.config.PluginDir, healthDirName, strings.ToLower(state.GPUs[2].UUID)+healthFileExt)))
	taints("what somebody says is repaired is well")
}
