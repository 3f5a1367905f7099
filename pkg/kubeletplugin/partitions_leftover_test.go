// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/switchyard-dev/switchyard/pkg/checkpoint"
	"github.com/switchyard-dev/switchyard/pkg/device"
	"github.com/switchyard-dev/switchyard/pkg/nvml"
	"github.com/switchyard-dev/switchyard/pkg/simulator"
)

// leaveBehind prepares a claim, and unprepares it while NVML is away, so that its partition stays.
func (m *migMachine) leaveBehind(p *testPlugin, claim *resourceapi.ResourceClaim) {
	m.t.Helper()
	p.mustPrepare(claim)
	if err := m.hardware.SetDriverFailure(simulator.DriverNotLoaded); err != nil {
		m.t.Fatal(err)
	}
	p.mustUnprepare(claim)
	if err := m.hardware.SetDriverFailure(""); err != nil {
		m.t.Fatal(err)
	}
	m.mustHave("of the earlier claim", "0:5@2+")
}

// tenacious is hardware whose compute instances cannot be destroyed for a while. It counts the GPU instances that
// are made.
type tenacious struct {
	Partitioner
	// refusals are how the next calls to destroy compute instances end.
	refusals []error
	made     int
}

func (p *tenacious) CreateGPUInstance(ctx context.Context, ref device.PartitionRef) error {
	p.made++
	return p.Partitioner.CreateGPUInstance(ctx, ref)
}

func (p *tenacious) DestroyComputeInstances(ctx context.Context, ref device.PartitionRef) error {
	if len(p.refusals) > 0 {
		err := p.refusals[0]
		p.refusals = p.refusals[1:]
		return err
	}
	return p.Partitioner.DestroyComputeInstances(ctx, ref)
}

func TestPartitionOfAnEarlierClaimIsNeverHandedOn(t *testing.T) {
	for name, later := range map[string]func(*testPlugin, *resourceapi.ResourceClaim){
		"when the kubelet asks again": func(p *testPlugin, claim *resourceapi.ResourceClaim) { p.mustPrepare(claim) },
		"by the reconciler":           func(p *testPlugin, _ *resourceapi.ResourceClaim) { p.reconciler.reconcile(p.ctx) },
	} {
		t.Run(name, func(t *testing.T) {
			m := newMIGMachine(t, "a30-pcie", 1)
			p := m.boot()
			platform := &tenacious{Partitioner: p.partitions.platform}
			p.partitions.platform = platform
			place := p.partition(0, "2g.12gb", 2)
			m.leaveBehind(p, m.claim("earlier", place))
			next := m.claim("next", place)
			for range 2 { // as long as it is in use
				// Prepare tries once, and once more when it takes everything back.
				platform.refusals = []error{nvml.ErrPartitionInUse, nvml.ErrPartitionInUse}
				if _, err := p.prepare(next); !errors.Is(err, nvml.ErrPartitionInUse) {
					t.Fatalf("prepare = %v, want that a process still uses the partition", err)
				}
			}
			later(p, next)
			record, _ := p.store.Get(next.UID)
			if platform.made != 2 || record.State != checkpoint.Prepared {
				t.Errorf("%d GPU instances were made, want that of the earlier claim and another; record %+v", platform.made, record)
			}
			m.mustHave("afterwards", "0:5@2+")
		})
	}
	t.Run("while NVML is away", func(t *testing.T) {
		m := newMIGMachine(t, "a30-pcie", 1)
		p := m.boot()
		platform := &tenacious{Partitioner: p.partitions.platform}
		p.partitions.platform = platform
		place := p.partition(0, "2g.12gb", 2)
		m.leaveBehind(p, m.claim("earlier", place))
		// It answers again one call later.
		platform.refusals = []error{&nvml.UnavailableError{Reason: nvml.ReasonNotResponding, Message: "away"}}
		next := m.claim("next", place)
		if _, err := p.prepare(next); !errors.Is(err, nvml.ErrUnavailable) {
			t.Fatalf("prepare = %v, want that NVML is away", err)
		}
		p.mustPrepare(next)
		if platform.made != 2 {
			t.Errorf("%d GPU instances were made, want that of the earlier claim and another", platform.made)
		}
	})
}

func TestPartitionWhoseRecordIsDamagedMeanwhileIsKept(t *testing.T) {
	for name, meanwhile := range map[string]func(*testing.T, *migMachine, *testPlugin, *resourceapi.ResourceClaim){
		"by the reconciler": func(_ *testing.T, _ *migMachine, p *testPlugin, _ *resourceapi.ResourceClaim) {
			p.reconciler.reconcile(p.ctx) // its look finds the damage
		},
		"by another plugin, in a rolling update": func(_ *testing.T, m *migMachine, p *testPlugin, claim *resourceapi.ResourceClaim) {
			m.start(m.configure).store.Get(claim.UID)
			p.reconciler.reconcile(p.ctx)
		},
		"by Prepare for a second pod of the claim": func(t *testing.T, _ *migMachine, p *testPlugin, claim *resourceapi.ResourceClaim) {
			if _, err := p.prepare(claim); kindOf(err) != kindNotReady {
				t.Errorf("prepare = %v, want to be told to try again", err)
			}
		},
		"by Prepare of another in its place": func(t *testing.T, m *migMachine, p *testPlugin, _ *resourceapi.ResourceClaim) {
			if _, err := p.prepare(m.claim("b", p.partition(0, "4g.24gb", 0))); err == nil {
				t.Error("another claim is prepared in its place")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMIGMachine(t, "a30-pcie", 1)
			p := m.boot()
			claim := m.claim("a", p.partition(0, "2g.12gb", 2))
			p.mustPrepare(claim)
			m.pod("a", true)
			if err := os.WriteFile(filepath.Join(p.config.PluginDir, checkpointDirName, string(claim.UID)+".json"), []byte("{"), 0o600); err != nil {
				t.Fatal(err)
			}
			meanwhile(t, m, p, claim)
			m.mustHave("once the damage is found", "0:5@2+")
			p.reconciler.reconcile(p.ctx)
			m.mustHave("after it is rebuilt", "0:5@2+")
			p.mustPrepare(claim)
			p.mustUnprepare(claim)
			m.mustHave("after Unprepare")
		})
	}
}

// overtaken is the platform of a process that somebody overtakes: right before its first GPU instance he makes
// the same.
type overtaken struct {
	Partitioner
	overtake func()
}

func (o *overtaken) CreateGPUInstance(ctx context.Context, ref device.PartitionRef) error {
	if o.overtake != nil {
		o.overtake()
		o.overtake = nil
	}
	return o.Partitioner.CreateGPUInstance(ctx, ref)
}

func TestPartitionThatSomebodyMadeMeanwhileIsHis(t *testing.T) {
	m := newMIGMachine(t, "a30-pcie", 1)
	p := m.boot()
	p.partitions.platform = &overtaken{p.partitions.platform, func() {
		must[simulator.GPUInstance](t)(m.hardware.CreatePartition(0, "2g.12gb", 2))
	}}
	claim := m.claim("a", p.partition(0, "2g.12gb", 2))
	if _, err := p.prepare(claim); !errors.Is(err, nvml.ErrNoRoom) {
		t.Errorf("prepare = %v, want that there is no room", err)
	}
	m.mustHave("after it failed", "0:5@2+")
	if p.made() != 0 {
		t.Error("a partition of somebody else is noted as ours")
	}
	p.mustPrepare(claim)
	p.mustUnprepare(claim)
	m.mustHave("after a claim that used it", "0:5@2+")
}

func TestAdminAccessToAPartitionThatIsGoneIsNoError(t *testing.T) {
	m := newMIGMachine(t, "a30-pcie", 1)
	p := m.boot()
	name := p.partition(0, "1g.6gb", 3)
	owner, admin := m.claim("owner", name), m.claim("admin", name)
	admin.Status.Allocation.Devices.Results[0].AdminAccess = new(true)
	p.mustPrepare(owner)
	p.mustPrepare(admin)
	p.mustUnprepare(owner)
	m.mustHave("after the owner's claim")
	if err := p.reconciler.ensureSpec(p.ctx, admin.UID, false); err != nil {
		t.Errorf("ensure the CDI spec of the admin's claim: %v", err)
	}
	p.mustUnprepare(admin)
}

func TestPartitionIsUnpreparedWhateverBecameOfItsGPU(t *testing.T) {
	for name, test := range map[string]struct {
		happens func(*migMachine) error
		left    int
	}{
		"it needs a reset": {func(m *migMachine) error {
			return m.hardware.FailNextMIG(0, simulator.DestroyComputeInstance, gonvml.ERROR_RESET_REQUIRED)
		}, 1},
		"it does not say what is wrong": {func(m *migMachine) error {
			return m.hardware.FailNextMIG(0, simulator.DestroyGPUInstance, gonvml.ERROR_UNKNOWN)
		}, 1},
		"the plugin may not change partitions": {func(m *migMachine) error {
			return m.hardware.FailNextMIG(0, simulator.DestroyComputeInstance, gonvml.ERROR_NO_PERMISSION)
		}, 1},
		"the operating system refuses": {func(m *migMachine) error {
			return m.hardware.FailNextMIG(0, simulator.DestroyGPUInstance, gonvml.ERROR_OPERATING_SYSTEM)
		}, 1},
		"somebody else destroyed it meanwhile": {func(m *migMachine) error {
			return m.hardware.FailNextMIG(0, simulator.DestroyGPUInstance, gonvml.ERROR_INVALID_ARGUMENT)
		}, 1},
		"the driver is being upgraded": {func(m *migMachine) error {
			return m.hardware.FailNextMIG(0, simulator.DestroyComputeInstance, gonvml.ERROR_LIB_RM_VERSION_MISMATCH)
		}, 1},
		"its MIG mode was turned off": {func(m *migMachine) error { return m.hardware.SetMIGMode(0, false) }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMIGMachine(t, "a30-pcie", 1)
			p := m.boot()
			claim := m.claim("a", p.partition(0, "2g.12gb", 2))
			p.mustPrepare(claim)
			if err := test.happens(m); err != nil {
				t.Fatal(err)
			}
			p.mustUnprepare(claim) // a drain before the reset must end
			if p.made() != test.left {
				t.Errorf("%d partitions are noted, want %d", p.made(), test.left)
			}
			p.reconciler.reconcile(p.ctx)
			m.mustHave("after reconciliation")
			if p.made() != 0 {
				t.Errorf("%d partitions are noted after reconciliation", p.made())
			}
		})
	}
}
