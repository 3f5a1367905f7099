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
	"sync"
	"testing"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/switchyard-dev/switchyard/pkg/cdi"
	"github.com/switchyard-dev/switchyard/pkg/checkpoint"
	"github.com/switchyard-dev/switchyard/pkg/device"
	"github.com/switchyard-dev/switchyard/pkg/nvml"
	"github.com/switchyard-dev/switchyard/pkg/resourcemodel"
	"github.com/switchyard-dev/switchyard/pkg/simulator"
)

// migMachine is a machine with simulated GPUs, of which the first ones are in MIG mode. Everything but
// the API server is real: NVML discovery, partitions, CDI specs, the checkpoint.
type migMachine struct {
	*testMachine
	hardware  *simulator.Node
	configure func(*Config)
}

func newMIGMachine(t *testing.T, profileName string, inMIGMode int) *migMachine {
	t.Helper()
	m := newMachine(t, 0)
	hardware, configure := simulatedHardware(t, m, profileName)
	for gpu := range inMIGMode {
		if err := hardware.SetMIGMode(gpu, true); err != nil {
			t.Fatal(err)
		}
	}
	return &migMachine{m, hardware, configure}
}

// boot starts a plugin that has looked at the hardware and reconciled once.
func (m *migMachine) boot(change ...func(*Config)) *testPlugin {
	m.t.Helper()
	p := m.start(append([]func(*Config){m.configure}, change...)...)
	p.discovery.look(p.ctx)
	p.reconciler.reconcile(p.ctx)
	return p
}

// partition is the device name of a partition.
func (p *testPlugin) partition(gpu int, profile string, start int) string {
	p.t.Helper()
	for _, place := range p.discovery.known.GPUs[gpu].Partitions() {
		if place.Profile.Name == profile && place.Placement.Start == start {
			return place.Name()
		}
	}
	p.t.Fatalf("GPU %d has no place for a %s at %d", gpu, profile, start)
	return ""
}

// instances are the partitions that exist, as profile IDs and starts by GPU; "+" are compute instances.
func (m *migMachine) instances() []string {
	m.t.Helper()
	state := must[simulator.State](m.t)(m.hardware.State())
	found := []string{}
	for i, gpu := range state.GPUs {
		if gpu.MIG == nil {
			continue
		}
		for _, gi := range gpu.MIG.Instances {
			found = append(found, fmt.Sprintf("%d:%d@%d%s", i, gi.ProfileID, gi.Start, strings.Repeat("+", len(gi.Compute))))
		}
	}
	return found
}

func (m *migMachine) mustHave(when string, want ...string) {
	m.t.Helper()
	if got := m.instances(); !slices.Equal(got, want) {
		m.t.Errorf("%s there are %v, want %v", when, got, want)
	}
}

// made are the partitions in the ledger.
func (p *testPlugin) made() int {
	p.t.Helper()
	return len(must[[]device.PartitionRef](p.t)(p.partitions.ledger.list()))
}

// taintsOf are the keys of the taints of a partition, without the driver's name, as published.
func (p *testPlugin) taintsOf(name string) string {
	p.t.Helper()
	resources := resourcemodel.DriverResources(testNode, p.discovery.known)
	for _, slice := range resources.Pools[testNode].Slices {
		for _, d := range slice.Devices {
			if d.Name == name {
				var keys []string
				for _, taint := range d.Taints {
					keys = append(keys, strings.TrimPrefix(taint.Key, "gpu.switchyard.dev/"))
				}
				return strings.Join(keys, ",")
			}
		}
	}
	p.t.Fatalf("%s is not published", name)
	return ""
}

func TestPartitionIsMadeForItsClaimAndDestroyedAfterIt(t *testing.T) {
	m := newMIGMachine(t, "hgx-h100", 1)
	p := m.boot()
	claim := m.claim("a", p.partition(0, "3g.40gb", 4))
	for range 2 { // the second time everything is there
		devices := p.mustPrepare(claim)
		if len(devices) != 1 || *devices[0].Metadata.Attributes["profile"].StringValue != "3g.40gb" {
			t.Errorf("prepared %+v", devices)
		}
		m.mustHave("after Prepare", "0:9@4+")
	}
	record, _ := p.store.Get(claim.UID)
	if record.State != checkpoint.Prepared || !strings.HasPrefix(record.Devices[0].UUID, "MIG-") {
		t.Errorf("record %+v", record)
	}
	spec := string(must[[]byte](t)(os.ReadFile(filepath.Join(p.config.CDIDir, "gpu.switchyard.dev-claim_"+string(claim.UID)+".json"))))
	for _, node := range []string{"/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap21", "/dev/nvidia-caps/nvidia-cap22"} {
		if !strings.Contains(spec, `"`+node+`"`) {
			t.Errorf("the CDI spec has no %s: %s", node, spec)
		}
	}
	p.mustUnprepare(claim)
	m.mustHave("after Unprepare")
	if p.made() != 0 || p.reconciler.isPrepared(claim.UID) {
		t.Errorf("%d partitions are noted, prepared: %v", p.made(), p.reconciler.isPrepared(claim.UID))
	}
}

func TestPartitionsOfAClaimAreMadeTogetherOrNotAtAll(t *testing.T) {
	m := newMIGMachine(t, "hgx-h100", 2)
	p := m.boot()
	claim := m.claim("a", p.partition(0, "1g.10gb", 6), p.partition(1, "2g.20gb", 0))
	for name, test := range map[string]struct {
		gpu       int
		operation simulator.MIGOperation
	}{
		"the first":                      {0, simulator.CreateGPUInstance},
		"compute instance of the first":  {0, simulator.CreateComputeInstance},
		"the second":                     {1, simulator.CreateGPUInstance},
		"compute instance of the second": {1, simulator.CreateComputeInstance},
	} {
		if err := m.hardware.FailNextMIG(test.gpu, test.operation, gonvml.ERROR_UNKNOWN); err != nil {
			t.Fatal(err)
		}
		p.mustRefuse(claim, "mig")
		m.mustHave("after " + name + " failed")
		if p.made() != 0 {
			t.Errorf("after %s failed %d partitions are noted", name, p.made())
		}
	}
	p.mustPrepare(claim)
	m.mustHave("after Prepare", "0:19@6+", "1:14@0+")

	t.Run("and not without their CDI spec", func(t *testing.T) {
		p.mustUnprepare(claim)
		p.config.Specs = brokenSpecs{p.config.Specs}
		p.mustRefuse(claim, errTest.Error())
		m.mustHave("after the CDI spec failed")
	})
}

// brokenSpecs cannot write.
type brokenSpecs struct{ SpecWriter }

func (brokenSpecs) WriteClaim(types.UID, []cdi.ClaimDevice) ([]string, error) { return nil, errTest }

func TestFieldCase14_PartitionIsRefusedWhereTheHardwareIsTaken(t *testing.T) {
	m := newMIGMachine(t, "hgx-h100", 1)
	p := m.boot()
	p.mustPrepare(m.claim("a", p.partition(0, "1g.10gb", 0)))
	// The scheduler would not allocate it: the counters are used.
	p.mustRefuse(m.claim("b", p.partition(0, "4g.40gb", 0)), "no room", "default/a", "memory slices 0 to 0")
	p.mustRefuse(m.claim("c", p.discovery.known.GPUs[0].Name()), "MIG mode", "claim a MIG partition")
	m.mustHave("after refusals", "0:19@0+")
	p.mustPrepare(m.claim("d", p.partition(0, "3g.40gb", 4)))
}

func TestFieldCase15_MIGModeIsNeverChanged(t *testing.T) {
	m := newMIGMachine(t, "hgx-h100", 1)
	p := m.boot()
	name := p.partition(0, "1g.10gb", 6)
	claim := m.claim("a", name)
	p.mustPrepare(claim)
	p.mustUnprepare(claim)
	if calls := m.hardware.Unsimulated(); len(calls) > 0 {
		t.Errorf("called %v", calls)
	}
	modes := func() string {
		state := must[simulator.State](t)(m.hardware.State())
		return fmt.Sprint(state.GPUs[0].MIG.Enabled, state.GPUs[1].MIG.Enabled)
	}
	if got := modes(); got != "true false" {
		t.Errorf("MIG modes %s", got)
	}

	// An administrator turns it off: what was listed stays listed, tainted, and is not made.
	if err := m.hardware.SetMIGMode(0, false); err != nil {
		t.Fatal(err)
	}
	p.discovery.look(p.ctx)
	if got := p.taintsOf(name); got != "mig-unavailable" {
		t.Errorf("taints %q", got)
	}
	p.mustRefuse(m.claim("b", name), "MIG mode", "off")
	p.mustPrepare(m.claim("whole", p.discovery.known.GPUs[0].Name()))
	if got := modes(); got != "false false" {
		t.Errorf("MIG modes %s", got)
	}
}

func TestFieldCase16_GPUsWithoutMIGModePublishNoPartitions(t *testing.T) {
	m := newMIGMachine(t, "hgx-h100", 0)
	p := m.boot()
	slices := resourcemodel.DriverResources(testNode, p.discovery.known).Pools[testNode].Slices
	if len(slices) != 1 || len(slices[0].Devices) != 8 || len(slices[0].SharedCounters) != 0 || slices[0].Devices[0].ConsumesCounters != nil {
		t.Errorf("%d slices, the first %+v", len(slices), slices[0])
	}
}

func TestFieldCase17_NotPreparedBeforeTheCapabilityNodesAreThere(t *testing.T) {
	m := newMIGMachine(t, "hgx-h100", 1)
	p := m.boot()
	claim := m.claim("a", p.partition(0, "3g.40gb", 4))
	p.mustPrepare(claim)
	if err := os.Remove(filepath.Join(m.hardware.DevRoot(), "dev/nvidia-caps/nvidia-cap22")); err != nil {
		t.Fatal(err)
	}
	if _, err := p.prepare(claim); err == nil || !containsAll(err.Error(), []string{"nvidia-cap22", "nvidia-modprobe"}) {
		t.Errorf("prepare = %v, want that the node is missing", err)
	}
	m.mustHave("of a claim that was prepared before", "0:9@4+")
	if err := m.hardware.EnsureFiles(); err != nil {
		t.Fatal(err)
	}
	p.mustPrepare(claim)
}

func TestFieldCase18_SchedulerOrderPacksPartitions(t *testing.T) {
	m := newMIGMachine(t, "hgx-h100", 2)
	p := m.boot()
	var smallest []string
	for _, slice := range resourcemodel.DriverResources(testNode, p.discovery.known).Pools[testNode].Slices {
		for _, d := range slice.Devices {
			if profile := d.Attributes[resourcemodel.AttributeProfile].StringValue; profile != nil && *profile == "1g.10gb" {
				smallest = append(smallest, d.Name)
			}
		}
	}
	var want []string
	for gpu := range 2 { // all of one GPU before the next
		for _, start := range []int{6, 5, 4, 3, 2, 1, 0} {
			want = append(want, p.partition(gpu, "1g.10gb", start))
		}
	}
	if !slices.Equal(smallest, want) {
		t.Errorf("1g.10gb are offered in the order %v, want %v", smallest, want)
	}
}

func TestFieldCase19_ManualChangesAreNoticed(t *testing.T) {
	m := newMIGMachine(t, "hgx-h100", 1)
	p := m.boot()
	at4, over4, beside := p.partition(0, "2g.20gb", 4), p.partition(0, "3g.40gb", 4), p.partition(0, "1g.10gb", 6)

	made := must[simulator.GPUInstance](t)(m.hardware.CreatePartition(0, "2g.20gb", 4))
	p.discovery.look(p.ctx)
	m.expectEvent("MIGPartitionsChanged", "profile 14 at memory slice 4")
	if got := p.taintsOf(at4) + "|" + p.taintsOf(over4) + "|" + p.taintsOf(beside); got != "|mig-occupied|" {
		t.Errorf("taints %q: what is in the place of a static partition is to be tainted", got)
	}
	t.Run("a static partition is used and never destroyed", func(t *testing.T) {
		claim := m.claim("adopts", at4)
		p.mustPrepare(claim)
		p.mustRefuse(m.claim("over", over4), "no room", "default/adopts")
		p.mustUnprepare(claim)
		m.mustHave("after its claim", "0:14@4+")
		p.mustRefuse(m.claim("over2", over4), "no room", "not made by this driver")
	})
	if err := m.hardware.DestroyPartition(0, made.ID); err != nil {
		t.Fatal(err)
	}
	p.discovery.look(p.ctx)
	m.expectEvent("MIGPartitionsChanged", "none any more")
	if got := p.taintsOf(over4); got != "" {
		t.Errorf("taints %q after it is gone", got)
	}

	t.Run("a partition of ours that somebody destroyed is made anew", func(t *testing.T) {
		claim := m.claim("victim", over4)
		p.mustPrepare(claim)
		if err := m.hardware.DestroyPartition(0, 2); err != nil {
			t.Fatal(err)
		}
		p.discovery.look(p.ctx)
		select {
		case <-p.reconcileNow:
		default:
			t.Error("discovery asked for no reconciliation")
		}
		p.reconciler.reconcile(p.ctx)
		m.mustHave("after reconciliation", "0:9@4+")
		p.mustUnprepare(claim)
		m.mustHave("after Unprepare")
	})
	t.Run("a GPU instance of somebody without a compute instance is left alone", func(t *testing.T) {
		half := halfPartition(t, m.hardware, 19, 6)
		p.discovery.look(p.ctx)
		if got := p.taintsOf(beside); got != "mig-occupied" {
			t.Errorf("taints %q", got)
		}
		p.mustRefuse(m.claim("half", beside), "nvidia-smi mig -cci")
		m.mustHave("after the refusal", "0:19@6")
		if ret := half.Destroy(); ret != gonvml.SUCCESS {
			t.Fatal(ret)
		}
	})
}

// halfPartition makes a GPU instance on the first GPU.
func halfPartition(t *testing.T, hardware *simulator.Node, profileID, start uint32) gonvml.GpuInstance {
	t.Helper()
	lib := hardware.NVML()
	if ret := lib.Init(); ret != gonvml.SUCCESS {
		t.Fatal(ret)
	}
	defer func() { _ = lib.Shutdown() }() // it counts, and does not fail
	gpu, ret := lib.DeviceGetHandleByIndex(0)
	if ret != gonvml.SUCCESS {
		t.Fatal(ret)
	}
	gi, ret := gpu.CreateGpuInstanceWithPlacement(&gonvml.GpuInstanceProfileInfo{Id: profileID}, &gonvml.GpuInstancePlacement{Start: start, Size: 1})
	if ret != gonvml.SUCCESS {
		t.Fatal(ret)
	}
	return gi
}

// dyingPartitioner stops for good before or after a call, as the process that makes it does when it is
// killed.
type dyingPartitioner struct {
	Partitioner
	at   string
	dead chan struct{}
	once *sync.Once
}

func (d dyingPartitioner) call(ctx context.Context, name string, call func() error) error {
	if d.at == "before "+name {
		d.die(ctx)
	}
	err := call()
	if d.at == "after "+name {
		d.die(ctx)
	}
	return err
}

func (d dyingPartitioner) die(context.Context) {
	d.once.Do(func() { close(d.dead) })
	select {} // until the test process ends
}

func (d dyingPartitioner) CreateGPUInstance(ctx context.Context, ref device.PartitionRef) error {
	return d.call(ctx, "create GPU instance", func() error { return d.Partitioner.CreateGPUInstance(ctx, ref) })
}

func (d dyingPartitioner) CreateComputeInstance(ctx context.Context, ref device.PartitionRef) error {
	return d.call(ctx, "create compute instance", func() error { return d.Partitioner.CreateComputeInstance(ctx, ref) })
}

func (d dyingPartitioner) DestroyComputeInstances(ctx context.Context, ref device.PartitionRef) error {
	return d.call(ctx, "destroy compute instance", func() error { return d.Partitioner.DestroyComputeInstances(ctx, ref) })
}

func (d dyingPartitioner) DestroyGPUInstance(ctx context.Context, ref device.PartitionRef) error {
	return d.call(ctx, "destroy GPU instance", func() error { return d.Partitioner.DestroyGPUInstance(ctx, ref) })
}

func TestPartitionOfAProcessThatDied(t *testing.T) {
	for _, at := range []string{
		"before create GPU instance", "after create GPU instance", "before create compute instance", "after create compute instance",
		"before destroy compute instance", "after destroy compute instance", "before destroy GPU instance", "after destroy GPU instance",
	} {
		t.Run(at, func(t *testing.T) {
			m := newMIGMachine(t, "a30-pcie", 1)
			dying := dyingPartitioner{at: at, dead: make(chan struct{}), once: &sync.Once{}}
			p := m.boot(func(c *Config) {
				dying.Partitioner = c.Partitions
				c.Partitions = dying
			})
			name := p.partition(0, "2g.12gb", 2)
			claim := m.claim("a", name)
			go func() {
				if _, err := p.prepare(claim); err != nil {
					t.Errorf("prepare: %v", err)
				}
				p.mustUnprepare(claim)
				t.Error("the process did not die")
			}()
			<-dying.dead

			t.Run("is finished when the kubelet asks again", func(t *testing.T) {
				p := m.boot()
				m.mustHave("after the restart", "0:5@2+") // the claim is still allocated
				p.mustPrepare(claim)
				m.mustHave("after Prepare", "0:5@2+")
				record, _ := p.store.Get(claim.UID)
				if record.State != checkpoint.Prepared || record.Devices[0].UUID == "" || p.made() != 1 {
					t.Errorf("record %+v, %d partitions are noted", record, p.made())
				}
			})
			t.Run("is gone with its claim", func(t *testing.T) {
				m.deleteClaim(claim)
				p := m.boot()
				m.clock.Step(m.config().OrphanGrace)
				p.reconciler.reconcile(p.ctx)
				m.mustHave("after reconciliation")
				if p.made() != 0 || len(p.store.List()) != 0 {
					t.Errorf("%d partitions are noted, records %+v", p.made(), p.store.List())
				}
				p.mustPrepare(m.claim("next", p.partition(0, "4g.24gb", 0)))
			})
		})
	}
}

func TestPartitionWhoseRecordIsDamagedIsDestroyedUnlessAPodRuns(t *testing.T) {
	for running, want := range map[bool][]string{true: {"0:5@2+"}, false: {}} {
		m := newMIGMachine(t, "a30-pcie", 1)
		p := m.boot()
		claim := m.claim("a", p.partition(0, "2g.12gb", 2))
		p.mustPrepare(claim)
		m.pod("a", running)
		record := filepath.Join(p.config.PluginDir, checkpointDirName, string(claim.UID)+".json")
		if err := os.WriteFile(record, []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		p = m.boot()
		m.mustHave(fmt.Sprintf("a pod runs: %v:", running), want...)
		if running {
			p.mustUnprepare(claim)
			m.mustHave("a rebuilt claim is unprepared:")
		}
	}
}

func TestPartitionLedgerThatIsGoneCostsNoGPU(t *testing.T) {
	m := newMIGMachine(t, "a30-pcie", 1)
	p := m.boot()
	claim := m.claim("a", p.partition(0, "1g.6gb", 3))
	p.mustPrepare(claim)
	ledger := filepath.Join(p.config.PluginDir, partitionDirName)
	if err := os.RemoveAll(ledger); err != nil {
		t.Fatal(err)
	}
	p.discovery.look(p.ctx)
	p.mustUnprepare(claim)
	m.mustHave("of which nobody knows any more that it is ours,", "0:14@3+")
	p.mustPrepare(m.claim("b", p.partition(0, "1g.6gb", 2)))
	if p.made() != 1 {
		t.Errorf("%d partitions are noted", p.made())
	}

	// A file in its place cannot be read as a directory.
	if err := errors.Join(os.RemoveAll(ledger), os.WriteFile(ledger, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for range failuresUntilAway {
		p.discovery.look(p.ctx)
	}
	if gpu := p.discovery.known.GPUs[0]; !gpu.Health.Healthy() {
		t.Errorf("health %+v", gpu.Health)
	}
	p.mustRefuse(m.claim("c", p.partition(0, "1g.6gb", 1)), "about to be made")
}

func TestPartitionOutlivesNoReboot(t *testing.T) {
	m := newMIGMachine(t, "a30-pcie", 1)
	claim := m.claim("a", m.boot().partition(0, "2g.12gb", 2))
	m.boot().mustPrepare(claim)
	if err := errors.Join(m.hardware.SetMIGMode(0, false), m.hardware.SetMIGMode(0, true)); err != nil {
		t.Fatal(err)
	}
	m.reboot()
	// Somebody's script makes the same partition at boot: it is not ours any more.
	must[simulator.GPUInstance](t)(m.hardware.CreatePartition(0, "2g.12gb", 2))
	p := m.boot()
	p.mustPrepare(claim)
	p.mustUnprepare(claim)
	m.mustHave("after a claim that was prepared before the reboot", "0:5@2+")
}

func TestPartitionOutlivesNoReloadOfTheDriver(t *testing.T) {
	m := newMIGMachine(t, "a30-pcie", 1)
	module := filepath.Join(t.TempDir(), "nvidia")
	load := func() {
		t.Helper()
		_ = os.Remove(module)
		// Those of other loads stay, so that no two have the same inode.
		if err := os.Symlink(t.TempDir(), module); err != nil {
			t.Fatal(err)
		}
	}
	boot := func() *testPlugin { return m.boot(func(c *Config) { c.ModuleDir = module }) }
	load()
	p := boot()
	claim := m.claim("a", p.partition(0, "2g.12gb", 2))
	p.mustPrepare(claim)
	if boot().made() != 1 {
		t.Error("a partition is forgotten by a restart of the plugin")
	}
	for _, restarted := range []bool{false, true} {
		if err := errors.Join(m.hardware.SetMIGMode(0, false), os.Remove(module)); err != nil {
			t.Fatal(err)
		}
		if p.made() != 1 {
			t.Error("a partition is forgotten while the driver is not loaded")
		}
		load()
		if err := m.hardware.SetMIGMode(0, true); err != nil {
			t.Fatal(err)
		}
		must[simulator.GPUInstance](t)(m.hardware.CreatePartition(0, "2g.12gb", 2))
		if restarted {
			p = boot()
		}
		p.mustUnprepare(claim)
		m.mustHave("which somebody made after a reload,", "0:5@2+")
		p.mustPrepare(claim)
	}
}

func TestPartitionInUseIsNotUnprepared(t *testing.T) {
	m := newMIGMachine(t, "a30-pcie", 1)
	p := m.boot()
	claim := m.claim("a", p.partition(0, "2g.12gb", 2))
	p.mustPrepare(claim)
	if err := m.hardware.FailNextMIG(0, simulator.DestroyComputeInstance, gonvml.ERROR_IN_USE); err != nil {
		t.Fatal(err)
	}
	if err := p.unprepareClaim(p.ctx, claim.UID); !errors.Is(err, nvml.ErrPartitionInUse) {
		t.Errorf("unprepare = %v", err)
	}
	p.mustRefuse(m.claim("b", p.partition(0, "2g.12gb", 2)), "default/a")
	p.mustUnprepare(claim)
	m.mustHave("once it is not in use")
}

func TestPartitionIsUnpreparedWithoutNVML(t *testing.T) {
	m := newMIGMachine(t, "a30-pcie", 1)
	p := m.boot()
	name := p.partition(0, "2g.12gb", 2)
	claim := m.claim("a", name)
	p.mustPrepare(claim)
	if err := m.hardware.SetDriverFailure(simulator.DriverNotLoaded); err != nil {
		t.Fatal(err)
	}
	p.mustUnprepare(claim) // a node whose driver is broken must be able to end pods
	if p.made() != 1 {
		t.Errorf("%d partitions are noted: nobody would destroy it", p.made())
	}
	if err := m.hardware.SetDriverFailure(""); err != nil {
		t.Fatal(err)
	}
	t.Run("it is out of the way of the next claim", func(t *testing.T) {
		p.mustPrepare(m.claim("b", p.partition(0, "4g.24gb", 0)))
		m.mustHave("after the next", "0:0@0+")
	})
	t.Run("it is destroyed when nobody needs the place", func(t *testing.T) {
		p.mustUnprepare(must[*resourceapi.ResourceClaim](t)(m.client.ResourceV1().ResourceClaims("default").Get(p.ctx, "b", metav1.GetOptions{})))
		last := m.claim("c", name)
		p.mustPrepare(last)
		if err := m.hardware.SetDriverFailure(simulator.DriverNotLoaded); err != nil {
			t.Fatal(err)
		}
		p.mustUnprepare(last)
		if err := m.hardware.SetDriverFailure(""); err != nil {
			t.Fatal(err)
		}
		p.reconciler.reconcile(p.ctx)
		m.mustHave("after reconciliation")
	})
}

func TestPartitionsAreMadeAtTheSameTime(t *testing.T) {
	m := newMIGMachine(t, "hgx-h100", 2)
	p := m.boot()
	var claims []*resourceapi.ResourceClaim
	for gpu := range 2 {
		for start := range 7 {
			claims = append(claims, m.claim(fmt.Sprintf("c%d-%d", gpu, start), p.partition(gpu, "1g.10gb", start)))
		}
	}
	results, err := p.PrepareResourceClaims(p.ctx, claims)
	if err != nil {
		t.Fatal(err)
	}
	for uid, result := range results {
		if result.Err != nil {
			t.Errorf("claim %s: %v", uid, result.Err)
		}
	}
	if got := len(m.instances()); got != 14 {
		t.Errorf("%d partitions", got)
	}
}

func TestMIGConfigIsForPartitions(t *testing.T) {
	m := newMIGMachine(t, "a30-pcie", 1)
	p := m.boot()
	claim := m.claim("a", p.partition(0, "1g.6gb", 3))
	configure := func(kind string) {
		claim.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{
			opaque(resourceapi.AllocationConfigSourceClaim, "gpu.switchyard.dev", `{"apiVersion":"switchyard.dev/v1alpha1","kind":"`+kind+`"}`),
		}
	}
	configure("GPUConfig")
	p.mustRefuse(claim, "GPUConfig", "a MIG partition", "use MIGConfig")
	configure("MIGConfig")
	p.mustPrepare(claim)
}

func TestAdminAccessMakesNoPartition(t *testing.T) {
	m := newMIGMachine(t, "a30-pcie", 1)
	p := m.boot()
	name := p.partition(0, "1g.6gb", 3)
	admin := m.claim("admin", name)
	admin.Status.Allocation.Devices.Results[0].AdminAccess = new(true)
	p.mustRefuse(admin, "adminAccess")
	owner := m.claim("owner", name)
	p.mustPrepare(owner)
	p.mustPrepare(admin)
	p.mustUnprepare(admin)
	m.mustHave("after the admin's claim", "0:14@3+")
	p.mustUnprepare(owner)
	m.mustHave("after the owner's")
}
