// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/switchyard-dev/switchyard/pkg/cdi"
	"github.com/switchyard-dev/switchyard/pkg/device"
)

func TestFieldCase01_RebootMakesEverythingAnew(t *testing.T) {
	m := newMachine(t, 1)
	claim := m.claim("a", gpu(0))
	m.ready().mustPrepare(claim)
	m.reboot()

	p := m.start()
	p.discovery.look(p.ctx)
	p.reconciler.finishRebuild()
	if m.specs.has(claim.UID) {
		t.Fatal("the reboot left the CDI spec")
	}
	p.mustPrepare(claim)
	if !m.specs.has(claim.UID) {
		t.Error("prepared after a reboot without a CDI spec")
	}
	record, _ := p.store.Get(claim.UID)
	if record.BootID != p.bootID {
		t.Errorf("the record is of boot %s, want %s", record.BootID, p.bootID)
	}

	t.Run("a GPU that is gone after the reboot is refused", func(t *testing.T) {
		m.reboot()
		m.platform.set(gpus(0), nil)
		p := m.ready()
		if _, err := p.prepare(claim); kindOf(err) != kindDeviceUnknown {
			t.Errorf("prepare = %v, want that the device does not exist", err)
		}
	})
}

func TestFieldCase02_NoPrepareComesAfterARestart(t *testing.T) {
	m := newMachine(t, 1)
	claim := m.claim("a", gpu(0))
	m.ready().mustPrepare(claim)
	m.specs.clear() // somebody tidied up while the plugin was down

	p := m.ready()
	if !m.specs.has(claim.UID) {
		t.Error("the restarted plugin did not ensure the CDI spec of the running pod")
	}
	p.mustRefuse(m.claim("b", gpu(0)), "default/a")
	p.mustUnprepare(claim)
	p.mustPrepare(m.claim("c", gpu(0)))
}

func TestFieldCase03_ClaimDeletedWhileThePluginIsDown(t *testing.T) {
	for name, change := range map[string]func(*testMachine, *resourceapi.ResourceClaim){
		"deleted": func(m *testMachine, claim *resourceapi.ResourceClaim) { m.deleteClaim(claim) },
		"deleted and made anew under its name": func(m *testMachine, claim *resourceapi.ResourceClaim) {
			m.deleteClaim(claim)
			other := m.claim("other", gpu(1))
			m.deleteClaim(other)
			other.Name = claim.Name
			must[*resourceapi.ResourceClaim](m.t)(m.client.ResourceV1().ResourceClaims(claim.Namespace).Create(m.t.Context(), other, metav1.CreateOptions{}))
		},
		"not allocated any more": func(m *testMachine, claim *resourceapi.ResourceClaim) {
			claim.Status.Allocation = nil
			must[*resourceapi.ResourceClaim](m.t)(m.client.ResourceV1().ResourceClaims(claim.Namespace).UpdateStatus(m.t.Context(), claim, metav1.UpdateOptions{}))
		},
		"not reserved any more": func(m *testMachine, claim *resourceapi.ResourceClaim) {
			claim.Status.ReservedFor = nil
			must[*resourceapi.ResourceClaim](m.t)(m.client.ResourceV1().ResourceClaims(claim.Namespace).UpdateStatus(m.t.Context(), claim, metav1.UpdateOptions{}))
		},
		"allocated elsewhere": func(m *testMachine, claim *resourceapi.ResourceClaim) {
			claim.Status.Allocation.Devices.Results[0].Pool = "node-b"
			must[*resourceapi.ResourceClaim](m.t)(m.client.ResourceV1().ResourceClaims(claim.Namespace).UpdateStatus(m.t.Context(), claim, metav1.UpdateOptions{}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, 2)
			claim := m.claim("a", gpu(0))
			m.ready().mustPrepare(claim)
			change(m, claim)

			p := m.ready()
			if !p.reconciler.isPrepared(claim.UID) {
				t.Fatal("unprepared at once: the kubelet may still be stopping the containers")
			}
			m.clock.Step(m.config().OrphanGrace)
			p.reconciler.reconcile(p.ctx)
			if p.reconciler.isPrepared(claim.UID) || m.specs.has(claim.UID) {
				t.Error("still prepared after the grace period")
			}
			p.mustPrepare(m.claim("next", gpu(0)))
		})
	}

	t.Run("an API server that does not answer unprepares nothing", func(t *testing.T) {
		m := newMachine(t, 1)
		claim := m.claim("a", gpu(0))
		m.ready().mustPrepare(claim)
		m.client.PrependReactor("get", "resourceclaims", func(k8stesting.Action) (bool, runtime.Object, error) { return true, nil, errTest })
		p := m.ready()
		m.clock.Step(time.Hour)
		if wait := p.reconciler.reconcile(p.ctx); wait >= m.config().ReconcileInterval {
			t.Errorf("tries again after %v, want sooner than the interval", wait)
		}
		if !p.reconciler.isPrepared(claim.UID) {
			t.Error("a claim was unprepared although nobody knows that it is gone")
		}
	})

	t.Run("a claim that turns up again was not gone", func(t *testing.T) {
		m := newMachine(t, 1)
		claim := m.claim("a", gpu(0))
		m.ready().mustPrepare(claim)
		m.deleteClaim(claim)
		p := m.ready()
		must[*resourceapi.ResourceClaim](t)(m.client.ResourceV1().ResourceClaims(claim.Namespace).Create(t.Context(), claim, metav1.CreateOptions{}))
		m.clock.Step(time.Hour)
		p.reconciler.reconcile(p.ctx)
		if !p.reconciler.isPrepared(claim.UID) {
			t.Error("unprepared")
		}
	})
}

func TestOrphanIsKeptWhenItIsHeldAgain(t *testing.T) {
	// lose makes the claim look deleted to the next n reads.
	lose := func(m *testMachine, n *int) {
		m.client.PrependReactor("get", "resourceclaims", func(action k8stesting.Action) (bool, runtime.Object, error) {
			if *n == 0 {
				return false, nil, nil
			}
			*n--
			return true, nil, apierrors.NewNotFound(action.GetResource().GroupResource(), "a")
		})
	}

	t.Run("another pod gets the claim between the question and the taking back", func(t *testing.T) {
		m := newMachine(t, 1)
		claim := m.claim("a", gpu(0))
		p := m.ready()
		p.mustPrepare(claim)
		gone := 2 // the first look, and the first question of the second
		lose(m, &gone)
		p.reconciler.round = 0
		p.reconciler.reconcile(p.ctx)
		m.clock.Step(m.config().OrphanGrace)
		p.reconciler.reconcile(p.ctx)
		if gone != 0 {
			t.Fatalf("%d questions less than expected", gone)
		}
		if !p.reconciler.isPrepared(claim.UID) || !m.specs.has(claim.UID) {
			t.Error("a claim that a pod holds was unprepared")
		}
	})

	t.Run("the grace period starts anew, also when another claim cannot be asked about", func(t *testing.T) {
		m := newMachine(t, 2)
		claim, other := m.claim("a", gpu(0)), m.claim("b", gpu(1))
		p := m.ready()
		p.mustPrepare(claim)
		p.mustPrepare(other)
		var aGone, bFails bool
		m.client.PrependReactor("get", "resourceclaims", func(action k8stesting.Action) (bool, runtime.Object, error) {
			switch name := action.(k8stesting.GetAction).GetName(); {
			case name == "a" && aGone:
				return true, nil, apierrors.NewNotFound(action.GetResource().GroupResource(), name)
			case name == "b" && bFails:
				return true, nil, errTest
			}
			return false, nil, nil
		})
		aGone = true
		p.reconciler.round = 0
		p.reconciler.reconcile(p.ctx)
		aGone, bFails = false, true
		p.reconciler.reconcile(p.ctx)
		m.clock.Step(m.config().OrphanGrace)
		aGone, bFails = true, false
		p.reconciler.reconcile(p.ctx)
		if !p.reconciler.isPrepared(claim.UID) {
			t.Error("unprepared at once: the grace period was counted from when the claim was gone before")
		}
	})
}

func TestSpecStaysWhenItsRecordIsFoundDamaged(t *testing.T) {
	m := newMachine(t, 1)
	claim := m.claim("running", gpu(0))
	m.pod("running", true)
	p := m.ready()
	p.mustPrepare(claim)
	path := filepath.Join(m.config().PluginDir, checkpointDirName, string(claim.UID)+".json")
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := p.reconciler.removeStray(p.ctx); err != nil {
		t.Fatal(err)
	}
	m.expectEvent("CheckpointCorrupt", string(claim.UID))
	if !m.specs.has(claim.UID) {
		t.Error("the CDI spec of the running pod is gone before its record is rebuilt")
	}
	p.reconciler.reconcile(p.ctx)
	if !p.reconciler.isPrepared(claim.UID) {
		t.Error("the record is not rebuilt")
	}
}

func TestSweepSparesWhatAnotherProcessPrepared(t *testing.T) {
	m := newMachine(t, 1)
	old, successor := m.ready(), m.ready()
	claim := m.claim("a", gpu(0))
	old.mustPrepare(claim)
	directory := filepath.Join(m.config().PluginDir, metadataDirName, "default_a")
	if err := os.MkdirAll(directory, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := successor.reconciler.removeStray(successor.ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(directory); err != nil {
		t.Errorf("the device metadata of a claim that the old plugin prepared: %v", err)
	}
	old.mustUnprepare(claim)
	if err := successor.reconciler.removeStray(successor.ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(directory); !os.IsNotExist(err) {
		t.Errorf("the device metadata of a claim that the old plugin unprepared is still there: %v", err)
	}
}

func TestFieldCase05_CorruptRecordIsRebuiltFromTheAPI(t *testing.T) {
	m := newMachine(t, 3)
	running, gone := m.claim("running", gpu(0)), m.claim("gone", gpu(1))
	m.pod("running", true)
	p := m.ready()
	p.mustPrepare(running)
	p.mustPrepare(gone)
	m.deleteClaim(gone)
	for _, claim := range []*resourceapi.ResourceClaim{running, gone} {
		path := filepath.Join(m.config().PluginDir, checkpointDirName, string(claim.UID)+".json")
		if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	p = m.start()
	m.expectEvent("CheckpointCorrupt", string(gone.UID))
	m.expectEvent("CheckpointCorrupt", string(running.UID))
	p.discovery.look(p.ctx)

	apiDown := true
	m.client.PrependReactor("list", "pods", func(k8stesting.Action) (bool, runtime.Object, error) { return apiDown, nil, errTest })
	p.reconciler.reconcile(p.ctx)
	select {
	case <-p.rebuilt:
		t.Fatal("claims may be prepared before the damaged records are rebuilt")
	default:
	}
	if !m.specs.has(running.UID) {
		t.Error("the CDI spec of the running pod is gone before its record is rebuilt")
	}
	apiDown = false
	p.reconciler.reconcile(p.ctx)
	m.expectEvent("ClaimAdopted", "default/running")
	p.mustRefuse(m.claim("b", gpu(0)), "default/running")
	p.mustPrepare(m.claim("c", gpu(1)))
	p.mustPrepare(running)
	p.mustUnprepare(running)
}

func TestDamagedRecordIsRebuiltBesideThatOfAFormerClaimOfItsName(t *testing.T) {
	m := newMachine(t, 2)
	p := m.ready()
	former := m.claim("a", gpu(0))
	p.mustPrepare(former)
	m.deleteClaim(former) // and Unprepare never came
	claim := m.claim("a", gpu(1))
	m.deleteClaim(claim)
	claim.UID = "a-uid-2"
	must[*resourceapi.ResourceClaim](t)(m.client.ResourceV1().ResourceClaims(claim.Namespace).Create(t.Context(), claim, metav1.CreateOptions{}))
	m.pod("a", true)
	p.mustPrepare(claim)
	path := filepath.Join(m.config().PluginDir, checkpointDirName, string(claim.UID)+".json")
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}

	p = m.ready()
	if !p.reconciler.isPrepared(claim.UID) {
		t.Error("the record of the running pod's claim is not rebuilt")
	}
	p.mustRefuse(m.claim("b", gpu(1)), "default/a")
}

func TestAdoptAClaimThatAnyOfItsPodsHolds(t *testing.T) {
	m := newMachine(t, 1)
	claim := m.claim("shared", gpu(0))
	for _, name := range []string{"another", "shared"} { // the claim is reserved for the latter
		m.pod(name, true)
		pod := must[*corev1.Pod](t)(m.client.CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{}))
		pod.Spec.ResourceClaims[0].ResourceClaimName = &claim.Name
		must[*corev1.Pod](t)(m.client.CoreV1().Pods("default").Update(t.Context(), pod, metav1.UpdateOptions{}))
	}
	if p := m.ready(); !p.reconciler.isPrepared(claim.UID) {
		t.Error("not adopted: another pod was looked at first")
	}
}

func TestAdoptOnlyWhatRuns(t *testing.T) {
	m := newMachine(t, 2)
	m.claim("pending", gpu(0))
	m.pod("pending", false)
	m.claim("running", gpu(1))
	m.pod("running", true)
	p := m.ready()
	records := p.store.List()
	if len(records) != 1 || records[0].Name != "running" {
		t.Errorf("records %v, want that of the running pod only", records)
	}
}

func TestAdoptTellsOfTwoRunningClaimsWithOneDevice(t *testing.T) {
	m := newMachine(t, 1)
	for _, name := range []string{"a", "b"} {
		m.claim(name, gpu(0))
		m.pod(name, true)
	}
	p := m.ready()
	if got := len(p.store.List()); got != 1 {
		t.Errorf("%d claims have the device, want 1", got)
	}
	m.expectEvent("ClaimConflict", "default/a", "default/b")
}

func TestFieldCase07_UnprepareWithoutNVML(t *testing.T) {
	m := newMachine(t, 2)
	claim := m.claim("a", gpu(0))
	m.ready().mustPrepare(claim)

	t.Run("after a restart on the same boot the GPUs stay listed, as not usable", func(t *testing.T) {
		m.platform.set(device.Inventory{}, errTest)
		p := m.start()
		p.discovery.look(p.ctx)
		if p.desired != nil {
			t.Errorf("published after one failure: %v", p.desired)
		}
		p.discovery.look(p.ctx)
		devices := p.desired.Pools[testNode].Slices[0].Devices
		if len(devices) != 2 {
			t.Fatalf("%d devices are published, want 2", len(devices))
		}
		for _, d := range devices {
			if len(d.Taints) != 1 || d.Taints[0].Value != device.ReasonNVMLUnavailable {
				t.Errorf("taints of %s = %v, want NVMLUnavailable", d.Name, d.Taints)
			}
		}
		if err := p.Ready(t.Context()); err == nil || !containsAll(err.Error(), []string{"discovery", errTest.Error()}) {
			t.Errorf("Ready = %v, want it to say why", err)
		}
		if err := p.Ready(t.Context(), "discovery"); err != nil && containsAll(err.Error(), []string{"discovery"}) {
			t.Errorf("Ready without discovery = %v", err)
		}
		m.expectEvent("NVMLUnavailable", errTest.Error())
		p.reconciler.finishRebuild()
		p.mustRefuse(m.claim("b", gpu(1)), gpu(1), "NVMLUnavailable", errTest.Error())
		p.mustUnprepare(claim)
	})

	t.Run("after a reboot no devices are published, and it recovers", func(t *testing.T) {
		m.reboot()
		p := m.start()
		p.reconciler.finishRebuild()
		p.discovery.look(p.ctx)
		if pool, ok := p.desired.Pools[testNode]; !ok || len(pool.Slices) != 0 {
			t.Errorf("published %v, want a pool without slices", p.desired)
		}
		p.mustRefuse(m.claim("c", gpu(0)), "unknown", errTest.Error())
		m.platform.set(gpus(2), nil)
		p.discovery.look(p.ctx)
		m.expectEvent("NVMLRecovered")
		if got := len(p.desired.Pools[testNode].Slices[0].Devices); got != 2 {
			t.Errorf("%d devices are published, want 2", got)
		}
		p.mustPrepare(m.claim("d", gpu(0)))
	})
}

func TestFieldCase13b_SpecDeletedUnderARunningPod(t *testing.T) {
	m := newMachine(t, 1)
	claim := m.claim("a", gpu(0))
	p := m.ready()
	p.mustPrepare(claim)
	m.specs.clear()
	p.mustPrepare(claim)
	if !m.specs.has(claim.UID) {
		t.Error("preparing again did not write the spec")
	}
	m.specs.clear()
	p.reconciler.reconcile(p.ctx)
	if !m.specs.has(claim.UID) {
		t.Error("reconciling did not write the spec")
	}
}

func TestSpecOfAFailedGPUIsAcceptedAsItIs(t *testing.T) {
	m := newMachine(t, 2)
	claim := m.claim("a", gpu(0))
	m.ready().mustPrepare(claim)
	m.platform.set(without(gpus(2), 0), nil)
	m.specs.writeErr = errTest // nobody knows what containers need for a GPU that is lost

	p := m.ready()
	askedAgain := 0
	p.reconciler.prepareAgain = func(context.Context, *drapb.Claim) error { askedAgain++; return errTest }
	if err := p.reconciler.ensureSpecs(p.ctx); err != nil {
		t.Errorf("ensuring the specs: %v, want that what is there is accepted", err)
	}
	if askedAgain > 0 {
		t.Error("the claim was prepared again, which can only be refused")
	}
	if !m.specs.has(claim.UID) {
		t.Error("the spec of the running pod is gone")
	}
	m.specs.checkErr = fmt.Errorf("device: %w", cdi.ErrNodeTaken)
	if err := p.reconciler.ensureSpecs(p.ctx); err != nil || m.specs.has(claim.UID) {
		t.Errorf("ensuring a spec whose device node is another GPU's: %v; its containers would get that GPU", err)
	}
	m.specs.checkErr = nil

	m.specs.clear()
	if err := p.reconciler.ensureSpecs(p.ctx); !errors.Is(err, errTest) {
		t.Errorf("ensuring a spec that is missing: %v, want %v", err, errTest)
	}
	m.specs.writeErr = nil
	if err := p.reconciler.ensureSpecs(p.ctx); err != nil || !m.specs.has(claim.UID) {
		t.Errorf("ensuring a spec that can be written: %v", err)
	}

	m.platform.set(gpus(2), nil)
	m.specs.writeErr = errTest
	p.discovery.look(p.ctx)
	if err := p.reconciler.ensureSpecs(p.ctx); !errors.Is(err, errTest) {
		t.Errorf("ensuring the spec of a GPU that works: %v, want %v", err, errTest)
	}
}

func TestStraySpecsAreRemoved(t *testing.T) {
	m := newMachine(t, 1)
	if _, err := m.specs.WriteClaim("nobody", nil); err != nil {
		t.Fatal(err)
	}
	m.ready()
	if m.specs.has("nobody") {
		t.Error("a spec without a record is still there")
	}
}
