// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/resourcemodel"
	"github.com/switchyard-dev/switchyard/pkg/sharing"
)

// byMPS is a change of the configuration: the GPUs are shared by MPS.
func byMPS(t *testing.T, gpus string) func(*Config) {
	return func(c *Config) {
		sharedBy(t, gpus, 4)(c)
		c.Shares[0].Shares.Strategy = string(v1alpha1.MPSStrategy)
	}
}

// mpsNode is a machine whose GPUs, with 132 multiprocessors each, are shared by MPS, but for the last, with a plugin
// that is ready.
func mpsNode(t *testing.T, gpuCount int) (*testMachine, *testPlugin, *fakeSharing) {
	t.Helper()
	m, f := newSharingMachine(t, gpuCount), newFakeSharing()
	m.sharing = f
	return m, m.mpsPlugin(gpuCount), f
}

func (m *testMachine) mpsPlugin(gpuCount int) *testPlugin {
	m.t.Helper()
	var shared []string
	for i := range gpuCount - 1 {
		shared = append(shared, fmt.Sprint(i))
	}
	p := m.start(byMPS(m.t, strings.Join(shared, ",")))
	m.look(p)
	p.reconciler.reconcile(p.ctx)
	return p
}

// consuming is a result that is a share of the i-th GPU.
func consuming(request, share string, i int, memory, multiprocessors string) resourceapi.DeviceRequestAllocationResult {
	r := result(request, testNode, gpu(i))
	r.ShareID = ptr.To(types.UID(share))
	r.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{
		resourcemodel.CapacityMemory: resource.MustParse(memory), resourcemodel.CapacityMultiprocessors: resource.MustParse(multiprocessors),
	}
	return r
}

// mpsShare stores a claim with one share of the i-th GPU.
func (m *testMachine) mpsShare(name string, i int, memory, multiprocessors string) *resourceapi.ResourceClaim {
	return m.store(name, allocated([]resourceapi.DeviceRequestAllocationResult{consuming("share", name+"-share", i, memory, multiprocessors)}))
}

// limits are the variables that containers get of each device of a claim.
func (m *testMachine) limits(c *resourceapi.ResourceClaim) []string {
	m.t.Helper()
	var limits []string
	for _, device := range m.specs.specs[c.UID] {
		if device.Sharing == nil {
			m.t.Fatalf("containers get nothing of share %s", device.ShareID)
		}
		if device.Sharing.Env[0] != "CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps" || device.Sharing.Mounts[0].HostPath != "/mps/"+device.Name+"/pipe" {
			m.t.Errorf("containers get %+v of share %s", device.Sharing, device.ShareID)
		}
		limits = append(limits, strings.Join(device.Sharing.Env[1:], " "))
	}
	return limits
}

func limitsOf(percentage, mebibytes int) string {
	return fmt.Sprintf("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=%d CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=%dM", percentage, mebibytes)
}

func TestSharesOfAGPUHaveOneMPSDaemonAndLimitsOfTheirOwn(t *testing.T) {
	m, p, f := mpsNode(t, 2)
	claims := map[string]*resourceapi.ResourceClaim{
		limitsOf(25, 10240): m.mpsShare("quarter", 0, "10Gi", "33"),
		limitsOf(33, 20480): m.mpsShare("third", 0, "20Gi", "44"),
		limitsOf(1, 1024):   m.mpsShare("least", 0, "1Gi", "2"),
	}
	daemon := sharing.Spec{ID: gpu(0), BootID: p.bootID, Devices: []sharing.Device{{UUID: gpus(1).GPUs[0].UUID}}}
	wantDaemon := func(when string) {
		t.Helper()
		got := f.daemons[gpu(0)]
		if len(f.daemons) != 1 || got.ID != daemon.ID || got.BootID != daemon.BootID || got.ActiveThreadPercentage != 0 || !slices.Equal(got.Devices, daemon.Devices) {
			t.Errorf("%s the daemons are %+v, want %+v", when, f.daemons, daemon)
		}
		if f.modes[gpu(0)] != exclusiveProcess {
			t.Errorf("%s the compute mode is %q", when, f.modes[gpu(0)])
		}
	}
	for want, c := range claims {
		p.mustPrepare(c)
		p.mustPrepare(c) // again, as after a restart of the kubelet
		if got := m.limits(c); got[0] != want {
			t.Errorf("claim %s has %q, want %q", c.Name, got, want)
		}
		wantDaemon("with claim " + c.Name)
	}
	p = m.mpsPlugin(2) // a restart
	p.reconciler.reconcile(p.ctx)
	for want, c := range claims {
		wantDaemon("before claim " + c.Name + " ends")
		if got := m.limits(c); got[0] != want {
			t.Errorf("after a restart claim %s has %q, want %q", c.Name, got, want)
		}
		p.mustUnprepare(c)
	}
	f.wantNothingLeft(t, p)
	if f.modes[gpu(0)] != "Default" {
		t.Errorf("the compute mode stays %s", f.modes[gpu(0)])
	}
}

// A container that uses several has the variables of the last.
func TestAnAdoptedShareByMPSKeepsItsDaemon(t *testing.T) {
	m, p, f := mpsNode(t, 2)
	c := m.mpsShare("share", 0, "10Gi", "33")
	m.pod("share", true)
	p.mustPrepare(c)
	want, _ := p.store.Get(c.UID)
	if err := os.WriteFile(filepath.Join(p.config.PluginDir, checkpointDirName, string(c.UID)+".json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}

	p = m.start(byMPS(t, "0"))
	p.reconciler.reconcile(p.ctx) // No GPU is known yet, and so not how it is shared.
	if len(f.daemons) != 1 || f.modes[gpu(0)] != exclusiveProcess {
		t.Errorf("before the GPUs are known the daemons are %v, and the compute mode is %q", f.daemons, f.modes[gpu(0)])
	}
	m.look(p)
	p.reconciler.reconcile(p.ctx)
	if got, ok := p.store.Get(c.UID); !ok || !reflect.DeepEqual(got, want) {
		t.Errorf("the record was rebuilt as %+v, want %+v", got, want)
	}
	if len(f.daemons) != 1 || f.modes[gpu(0)] != exclusiveProcess {
		t.Errorf("the daemons are %v, and the compute mode is %q", f.daemons, f.modes[gpu(0)])
	}
}

func TestTheSharesThatAClaimHasOfOneGPUByMPSAreOne(t *testing.T) {
	m, p, f := mpsNode(t, 2)
	c := m.store("both", allocated([]resourceapi.DeviceRequestAllocationResult{
		consuming("one", "share-1", 0, "10Gi", "33"), consuming("two", "share-2", 0, "20Gi", "34"),
	}))
	p.mustPrepare(c)
	if got, want := m.limits(c), limitsOf(50, 30720); !slices.Equal(got, []string{want, want}) {
		t.Errorf("containers get %q, want %q of each", got, want)
	}
	p.mustUnprepare(c)
	f.wantNothingLeft(t, p)
}

func TestWhatDoesNotGoWithAShareByMPSIsRefusedAndLeavesNothing(t *testing.T) {
	without := func(capacity resourceapi.QualifiedName) resourceapi.DeviceRequestAllocationResult {
		r := consuming("share", "share-1", 0, "10Gi", "33")
		delete(r.ConsumedCapacity, capacity)
		return r
	}
	for name, test := range map[string]struct {
		results []resourceapi.DeviceRequestAllocationResult
		configs []resourceapi.DeviceAllocationConfiguration
		want    []string
	}{
		"a share of another GPU": {
			[]resourceapi.DeviceRequestAllocationResult{consuming("one", "share-1", 0, "10Gi", "33"), consuming("two", "share-2", 1, "10Gi", "33")},
			nil,
			[]string{"request two", gpu(1), gpu(0), "request one", "a claim for each"},
		},
		"a whole GPU": {
			[]resourceapi.DeviceRequestAllocationResult{consuming("one", "share-1", 0, "10Gi", "33"), result("two", testNode, gpu(2))},
			nil,
			[]string{"request one", gpu(2), "request two", "a claim for each"},
		},
		"a whole GPU with MPS": {
			[]resourceapi.DeviceRequestAllocationResult{consuming("one", "share-1", 0, "10Gi", "33"), result("two", testNode, gpu(2))},
			[]resourceapi.DeviceAllocationConfiguration{opaque(resourceapi.AllocationConfigSourceClaim, v1alpha1.DriverName, mpsConfig, "two")},
			[]string{"requests two and one", "one MPS daemon", "a claim each"},
		},
		"no word of memory": {
			[]resourceapi.DeviceRequestAllocationResult{without(resourcemodel.CapacityMemory)}, nil, []string{"request share", "how much memory", gpu(0)},
		},
		"no word of multiprocessors": {
			[]resourceapi.DeviceRequestAllocationResult{without(resourcemodel.CapacityMultiprocessors)}, nil, []string{"request share", "how much multiprocessors", gpu(0)},
		},
		"less than one percent": {
			[]resourceapi.DeviceRequestAllocationResult{consuming("share", "share-1", 0, "10Gi", "1")}, nil, []string{"request share", "1 multiprocessors", "one percent"},
		},
		"less than a mebibyte": {
			[]resourceapi.DeviceRequestAllocationResult{consuming("share", "share-1", 0, "1Ki", "33")}, nil, []string{"request share", "1024 bytes", "a mebibyte"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			m, p, f := mpsNode(t, 3)
			p.mustRefuse(m.store("refused", allocated(test.results, test.configs...)), test.want...)
			if _, found := p.store.Get("refused-uid"); found {
				t.Error("there is a record")
			}
			if f.modes[gpu(0)] != "" {
				t.Errorf("the compute mode was set to %s", f.modes[gpu(0)])
			}
			f.wantNothingLeft(t, p)
		})
	}
}

func TestAShareByMPSOnANodeWithoutASupervisorSaysWhatToInstall(t *testing.T) {
	m, p, f := mpsNode(t, 2)
	first := m.mpsShare("first", 0, "10Gi", "33")
	p.mustPrepare(first)
	f.ensureErr = sharing.ErrNoSupervisor
	p.mustRefuse(m.mpsShare("second", 0, "10Gi", "33"), "no MPS supervisor", "deployments/mps")
	f.ensureErr = nil
	if len(f.daemons) != 1 || f.modes[gpu(0)] != exclusiveProcess {
		t.Errorf("what is left of the first claim: daemons %v, compute mode %s", f.daemons, f.modes[gpu(0)])
	}
	p.mustUnprepare(first)
	f.wantNothingLeft(t, p)
}

func TestAContainerHasOneClaimWithMPS(t *testing.T) {
	for name, second := range map[string]func(m *testMachine) *resourceapi.ResourceClaim{
		"a share of the same GPU": func(m *testMachine) *resourceapi.ResourceClaim { return m.mpsShare("second", 0, "10Gi", "33") },
		"a share of another GPU":  func(m *testMachine) *resourceapi.ResourceClaim { return m.mpsShare("second", 1, "10Gi", "33") },
		"a whole GPU with MPS":    func(m *testMachine) *resourceapi.ResourceClaim { return m.sharedClaim("second", mpsConfig, gpu(2)) },
	} {
		t.Run(name, func(t *testing.T) {
			m, p, f := mpsNode(t, 3)
			m.podUsing("both", "first", "second")
			first, second := m.mpsShare("first", 0, "10Gi", "33"), second(m)
			for _, c := range []*resourceapi.ResourceClaim{first, second} {
				c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "both", UID: "pod-uid"}}
			}
			for range 2 { // whichever comes second
				p.mustPrepare(first)
				p.mustRefuse(second, "container work", "default/both", "both have MPS", "one claim")
				if len(f.daemons) != 1 {
					t.Errorf("the daemons are %v", f.daemons)
				}
				p.mustUnprepare(first)
				first, second = second, first
			}
			f.wantNothingLeft(t, p)
		})
	}
}

// Claims that come and go at the same time: while one has the GPU its daemon runs, and it is gone with the last.
func TestClaimsWithSharesByMPSComeAndGoAtTheSameTime(t *testing.T) {
	m, p, f := mpsNode(t, 2)
	stays := m.mpsShare("stays", 0, "10Gi", "33")
	for round := range 20 {
		var claims []*resourceapi.ResourceClaim
		for i := range 3 {
			claims = append(claims, m.mpsShare(fmt.Sprintf("claim-%d-%d", round, i), 0, "10Gi", "33"))
		}
		var wait sync.WaitGroup
		for _, c := range claims {
			wait.Go(func() {
				if _, err := p.prepare(c); err != nil {
					t.Error(err)
				}
				if got := must[[]string](t)(f.List()); !slices.Equal(got, []string{gpu(0)}) {
					t.Errorf("the daemons are %q while claim %s is prepared", got, c.Name)
				}
				if err := p.unprepareClaim(p.ctx, c.UID); err != nil {
					t.Error(err)
				}
			})
		}
		wait.Wait()
		f.wantNothingLeft(t, p)
		if f.modes[gpu(0)] != "Default" {
			t.Fatalf("the compute mode stays %s", f.modes[gpu(0)])
		}
	}
	p.mustPrepare(stays)
	f.removeErr = errTest // one that does not end is still needed by whom it could not be taken from
	if err := p.unprepareClaim(p.ctx, stays.UID); err == nil {
		t.Fatal("the daemon does not end")
	}
	f.removeErr = nil
	another := m.mpsShare("another", 0, "10Gi", "33")
	p.mustPrepare(another)
	p.mustUnprepare(another)
	if len(f.daemons) != 1 {
		t.Error("the daemon has ended with a claim's record left")
	}
	p.mustUnprepare(stays)
	f.wantNothingLeft(t, p)
}

// From TimeSlicing to MPS and back is a change of form: it waits until the last share is gone.
func TestTheStrategyOfAGPUChangesWhenItsLastShareIsGone(t *testing.T) {
	m, p := sharingNode(t, 1)
	f := newFakeSharing()
	m.sharing = f
	sliced := m.share("sliced", 0)
	p.mustPrepare(sliced)

	p = m.start(byMPS(t, "all"))
	m.look(p)
	p.reconciler.reconcile(p.ctx)
	m.expectForms(p, "share 4 waits")
	m.expectStrategy(p, "TimeSlicing")
	p.mustPrepare(sliced)
	if len(f.daemons) > 0 || m.specs.specs[sliced.UID][0].Sharing != nil {
		t.Errorf("a claim of before the change has %+v, and there are the daemons %v", m.specs.specs[sliced.UID][0].Sharing, f.daemons)
	}
	p.mustUnprepare(sliced)
	m.deleteClaim(sliced)
	m.lookFor(p, 10*time.Minute)
	m.expectForms(p, "share 4")
	m.expectStrategy(p, "MPS")

	byDaemon := m.mpsShare("by-daemon", 0, "10Gi", "33")
	p.mustPrepare(byDaemon)
	p = m.start(sharedBy(t, "all", 4))
	m.look(p)
	p.reconciler.reconcile(p.ctx)
	m.expectForms(p, "share 4 waits")
	m.expectStrategy(p, "MPS")
	p.mustPrepare(byDaemon)
	if got := m.limits(byDaemon); got[0] != limitsOf(25, 10240) {
		t.Errorf("the limits are %q", got)
	}
	p.mustUnprepare(byDaemon)
	m.deleteClaim(byDaemon)
	m.lookFor(p, 10*time.Minute)
	m.expectStrategy(p, "TimeSlicing")
	f.wantNothingLeft(t, p)
}

// expectStrategy checks how the first GPU is published as shared.
func (m *testMachine) expectStrategy(p *testPlugin, want string) {
	m.t.Helper()
	d := p.desired.Pools[testNode].Slices[0].Devices[0]
	if got := *d.Attributes[resourcemodel.AttributeSharing].StringValue; got != want {
		m.t.Fatalf("the GPU is shared by %s, want %s", got, want)
	}
}
