// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

func TestPrepare(t *testing.T) {
	t.Run("every device of a request gets its CDI name and metadata", func(t *testing.T) {
		m := newMachine(t, 4)
		p := m.ready()
		claim := m.claim("train", gpu(0), gpu(2))
		devices := p.mustPrepare(claim)
		if len(devices) != 2 {
			t.Fatalf("got %d devices, want 2", len(devices))
		}
		for i, want := range []string{gpu(0), gpu(2)} {
			got := devices[i]
			if got.DeviceName != want || got.PoolName != testNode || len(got.Requests) != 1 || got.Requests[0] != "gpus" {
				t.Errorf("device %d = %+v, want device %s of pool %s for request gpus", i, got, want, testNode)
			}
			if wantID := fmt.Sprintf("gpu.switchyard.dev/claim=train-uid-%s", want); len(got.CDIDeviceIDs) != 1 || got.CDIDeviceIDs[0] != wantID {
				t.Errorf("CDI names of device %d = %q, want %s", i, got.CDIDeviceIDs, wantID)
			}
			if uuid := got.Metadata.Attributes["uuid"].StringValue; ptr.Deref(uuid, "") == "" {
				t.Errorf("the metadata of device %d has no uuid: %v", i, got.Metadata.Attributes)
			}
		}
	})

	t.Run("preparing again changes nothing and answers the same", func(t *testing.T) {
		m := newMachine(t, 1)
		p := m.ready()
		claim := m.claim("a", gpu(0))
		first := p.mustPrepare(claim)
		second := p.mustPrepare(claim)
		if first[0].CDIDeviceIDs[0] != second[0].CDIDeviceIDs[0] {
			t.Errorf("CDI names differ: %v, then %v", first, second)
		}
	})

	t.Run("an allocation that changed under the same claim frees the old devices", func(t *testing.T) {
		m := newMachine(t, 2)
		p := m.ready()
		claim := m.claim("a", gpu(0))
		p.mustPrepare(claim)
		claim.Status.Allocation.Devices.Results[0].Device = gpu(1)
		p.mustPrepare(claim)
		p.mustPrepare(m.claim("b", gpu(0)))
		p.mustRefuse(m.claim("c", gpu(1)), "default/a")
	})

	t.Run("several claims of one call fail one by one", func(t *testing.T) {
		m := newMachine(t, 2)
		p := m.ready()
		good, bad := m.claim("good", gpu(0)), m.claim("bad", "gpu-that-is-not-there")
		results := must[map[types.UID]kubeletplugin.PrepareResult](t)(p.PrepareResourceClaims(p.ctx, []*resourceapi.ResourceClaim{good, bad}))
		if results[good.UID].Err != nil {
			t.Errorf("the good claim failed: %v", results[good.UID].Err)
		}
		if results[bad.UID].Err == nil {
			t.Error("the bad claim was prepared")
		}
	})

	t.Run("adminAccess neither takes a device nor minds that it is taken", func(t *testing.T) {
		m := newMachine(t, 1)
		p := m.ready()
		monitor := func(name string) *resourceapi.ResourceClaim {
			r := result("monitor", testNode, gpu(0))
			r.AdminAccess = ptr.To(true)
			return m.store(name, allocated([]resourceapi.DeviceRequestAllocationResult{r}))
		}
		p.mustPrepare(monitor("before"))
		p.mustPrepare(m.claim("user", gpu(0)))
		p.mustPrepare(monitor("after"))
	})

	t.Run("what cannot be used is refused, with nothing left behind", func(t *testing.T) {
		for name, test := range map[string]struct {
			change func(m *testMachine, claim *resourceapi.ResourceClaim)
			words  []string
		}{
			"a device that never was": {
				change: func(_ *testMachine, claim *resourceapi.ResourceClaim) {
					claim.Status.Allocation.Devices.Results[0].Device = "gpu-x"
				},
				words: []string{"device gpu-x does not exist on this node"},
			},
			"a GPU in MIG mode": {
				change: func(m *testMachine, _ *resourceapi.ResourceClaim) { m.platform.inv.GPUs[0].MIGEnabled = true },
				words:  []string{gpu(0), "MIG mode", "-mig 0"},
			},
			"a configuration with an unknown field": {
				change: func(_ *testMachine, claim *resourceapi.ResourceClaim) {
					claim.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{opaque(resourceapi.AllocationConfigSourceClaim,
						v1alpha1.DriverName, `{"apiVersion":"switchyard.dev/v1alpha1","kind":"GPUConfig","shering":{}}`)}
				},
				words: []string{"shering"},
			},
			"a device whose CDI spec cannot be written": {
				change: func(m *testMachine, _ *resourceapi.ResourceClaim) { m.specs.writeErr = errTest },
				words:  []string{errTest.Error()},
			},
			"a device whose device node is missing": {
				change: func(m *testMachine, _ *resourceapi.ResourceClaim) { m.specs.checkErr = errTest },
				words:  []string{errTest.Error()},
			},
		} {
			t.Run(name, func(t *testing.T) {
				m := newMachine(t, 2)
				claim := m.claim("a", gpu(0))
				test.change(m, claim)
				p := m.ready()
				p.mustRefuse(claim, test.words...)
				m.specs.writeErr, m.specs.checkErr = nil, nil
				p.mustPrepare(m.claim("next", gpu(1)))
				if records := p.store.List(); len(records) != 1 {
					t.Errorf("there are records %v, want that of the second claim only", records)
				}
			})
		}
	})
}

func TestFieldCase09_SameDeviceInTwoClaims(t *testing.T) {
	t.Run("the second claim is refused and told who has the device", func(t *testing.T) {
		m := newMachine(t, 2)
		p := m.ready()
		first := m.claim("first", gpu(0))
		p.mustPrepare(first)
		second := m.claim("second", gpu(1), gpu(0))
		p.mustRefuse(second, gpu(0), "default/first", "first-uid")
		p.mustPrepare(m.claim("third", gpu(1))) // the refused claim kept nothing
		p.mustUnprepare(first)
		p.mustPrepare(m.claim("fourth", gpu(0)))
	})
	t.Run("a device whose claim is being unprepared is waited for, but not for ever", func(t *testing.T) {
		m := newMachine(t, 1)
		p := m.ready()
		p.config.DeviceWait = 10 * time.Second
		first, second := m.claim("first", gpu(0)), m.claim("second", gpu(0))
		p.mustPrepare(first)
		prepare := func() chan error {
			done := make(chan error, 1)
			go func() {
				_, err := p.prepare(second)
				done <- err
			}()
			m.eventually("the second claim waits", func(context.Context) bool { return m.clock.HasWaiters() })
			return done
		}

		refused := prepare()
		m.clock.Step(p.config.DeviceWait)
		if err := <-refused; kindOf(err) != kindDeviceInUse {
			t.Errorf("after the wait: %v, want %s", err, kindDeviceInUse)
		}
		prepared := prepare()
		p.mustUnprepare(first)
		m.clock.Step(deviceWaitPoll)
		if err := <-prepared; err != nil {
			t.Errorf("after the first claim was unprepared: %v", err)
		}
	})
	t.Run("of claims that come at once exactly one gets the device", func(t *testing.T) {
		m := newMachine(t, 1)
		p := m.ready()
		claims := make([]*resourceapi.ResourceClaim, 8)
		for i := range claims {
			claims[i] = m.claim(fmt.Sprintf("claim-%d", i), gpu(0))
		}
		var wg sync.WaitGroup
		errs := make([]error, len(claims))
		for i, claim := range claims {
			wg.Go(func() { _, errs[i] = p.prepare(claim) })
		}
		wg.Wait()
		prepared := 0
		for _, err := range errs {
			if err == nil {
				prepared++
			}
		}
		if prepared != 1 || len(p.store.List()) != 1 {
			t.Errorf("%d claims were prepared and %d are recorded, want 1: %v", prepared, len(p.store.List()), errs)
		}
	})
}

func TestFieldCase10_PreparesDoNotWaitForEachOther(t *testing.T) {
	m := newMachine(t, 2)
	p := m.ready()
	slow, quick := m.claim("slow", gpu(0)), m.claim("quick", gpu(1))
	writing, finish := make(chan struct{}), make(chan struct{})
	m.specs.beforeWrite = func(uid types.UID) {
		if uid == slow.UID {
			close(writing)
			<-finish
		}
	}
	done := make(chan error, 1)
	go func() {
		_, err := p.prepare(slow)
		done <- err
	}()
	<-writing
	p.mustPrepare(quick) // hangs if it waits for the other claim
	p.mustUnprepare(quick)
	close(finish)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestFieldCase21_OneLostGPUStopsOnlyItself(t *testing.T) {
	m := newMachine(t, 2)
	p := m.ready()
	m.platform.set(without(gpus(2), 0), nil)
	p.discovery.look(p.ctx)
	p.mustRefuse(m.claim("lost", gpu(0)), gpu(0), "Lost")
	p.mustPrepare(m.claim("fine", gpu(1)))
	m.expectEvent("GPUUnhealthy", gpu(0))
	tainted := 0
	for _, slice := range p.desired.Pools[testNode].Slices {
		for _, device := range slice.Devices {
			if len(device.Taints) > 0 {
				tainted++
			}
		}
	}
	if tainted != 1 {
		t.Errorf("%d devices are tainted, want 1", tainted)
	}
	m.platform.set(gpus(2), nil)
	p.discovery.look(p.ctx)
	m.expectEvent("GPURecovered", gpu(0))
	p.mustPrepare(m.claim("back", gpu(0)))
}

func TestFieldCase29_NoMinorNumber(t *testing.T) {
	m := newMachine(t, 2)
	for i := range m.platform.inv.GPUs {
		m.platform.inv.GPUs[i].Minor = nil // as on WSL
	}
	p := m.ready()
	claim := m.claim("a", gpu(0))
	p.mustPrepare(claim)
	p.mustUnprepare(claim)
}

func TestFieldCase24_NothingIsPreparedForARuntimeWithoutCDI(t *testing.T) {
	m := newMachine(t, 1)
	runtime := func(version string) {
		node := must[*corev1.Node](t)(m.client.CoreV1().Nodes().Get(t.Context(), testNode, metav1.GetOptions{}))
		node.Status.NodeInfo.ContainerRuntimeVersion = version
		must[*corev1.Node](t)(m.client.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{}))
	}
	runtime("containerd://1.6.36")
	p := m.ready()
	if p.checkRuntime(p.ctx) {
		t.Error("the check passed")
	}
	p.mustRefuse(m.claim("a", gpu(0)), "containerd://1.6.36", "CDI", "upgrade")
	m.expectEvent("PreflightFailed", "containerd")
	if err := p.Ready(t.Context()); err == nil || !strings.Contains(err.Error(), checkCDIRuntime) {
		t.Errorf("Ready = %v, want it to name the check", err)
	}

	runtime("containerd://2.1.4") // upgraded in place
	if !p.checkRuntime(p.ctx) {
		t.Error("the check failed again")
	}
	p.mustPrepare(m.claim("b", gpu(0)))
	if err := p.Ready(t.Context()); err != nil && strings.Contains(err.Error(), checkCDIRuntime) {
		t.Errorf("Ready = %v after the upgrade", err)
	}
}
