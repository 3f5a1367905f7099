// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc/metadata"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/checkpoint"
	"github.com/switchyard-dev/switchyard/pkg/sharing"
)

// fakeSharing is a supervisor, and the settings of GPUs. It outlives plugins.
type fakeSharing struct {
	mu      sync.Mutex
	daemons map[string]sharing.Spec
	modes   map[string]string // by device; those that are not there are Default
	slices  map[string]int    // by UUID
	// ensureErr, removeErr, statusErr, modeErr and sliceErr are what calls fail with.
	ensureErr, removeErr, statusErr, modeErr, sliceErr error
	// onEnsure and onSlice are called without the lock held.
	onEnsure func(sharing.Spec)
	onSlice  func()
	sliced   int
	restarts int
}

func newFakeSharing() *fakeSharing {
	return &fakeSharing{daemons: map[string]sharing.Spec{}, modes: map[string]string{}, slices: map[string]int{}}
}

func (f *fakeSharing) Ensure(_ context.Context, spec sharing.Spec) (sharing.Endpoint, error) {
	if f.onEnsure != nil {
		f.onEnsure(spec)
	}
	endpoint, err := f.Ask(spec)
	f.mu.Lock()
	defer f.mu.Unlock()
	return endpoint, errors.Join(err, f.ensureErr)
}

func (f *fakeSharing) Ask(spec sharing.Spec) (sharing.Endpoint, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.daemons[spec.ID] = spec
	return sharing.Endpoint{PipeDir: "/mps/" + spec.ID + "/pipe", SharedMemoryDir: "/shm/" + spec.ID}, nil
}

func (f *fakeSharing) Remove(_ context.Context, id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.removeErr != nil {
		return f.removeErr
	}
	delete(f.daemons, id)
	return nil
}

func (f *fakeSharing) List() ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Sorted(maps.Keys(f.daemons)), nil
}

func (f *fakeSharing) Status(id string) (sharing.Status, error) {
	return sharing.Status{ID: id, State: sharing.Ready, Restarts: f.restarts, Message: "it was killed"}, f.statusErr
}

func (f *fakeSharing) ComputeMode(_ context.Context, gpu string) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if mode := f.modes[gpu]; mode != "" {
		return mode, f.modeErr
	}
	return "Default", f.modeErr
}

func (f *fakeSharing) SetComputeMode(_ context.Context, gpu, mode string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.modeErr == nil {
		f.modes[gpu] = mode
	}
	return f.modeErr
}

func (f *fakeSharing) SetTimeSlice(_ context.Context, uuid string, slice int) error {
	if f.onSlice != nil {
		f.onSlice()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sliced++
	if f.sliceErr == nil {
		f.slices[uuid] = slice
	}
	return f.sliceErr
}

// sharingMachine is a node whose GPUs can be shared.
func sharingMachine(t *testing.T, gpuCount int) (*testMachine, *fakeSharing) {
	t.Helper()
	m, f := newMachine(t, gpuCount), newFakeSharing()
	m.sharing = f
	return m, f
}

const (
	gpuConfigHead = `{"apiVersion":"switchyard.dev/v1alpha1","kind":"GPUConfig"`
	mpsConfig     = gpuConfigHead + `,"sharing":{"strategy":"MPS"}}`
)

// sharedClaim stores a claim with a request for each device and a configuration of all of them.
func (m *testMachine) sharedClaim(name, config string, devices ...string) *resourceapi.ResourceClaim {
	m.t.Helper()
	var results []resourceapi.DeviceRequestAllocationResult
	for i, device := range devices {
		results = append(results, result(fmt.Sprintf("r%d", i), testNode, device))
	}
	return m.store(name, allocated(results, opaque(resourceapi.AllocationConfigSourceClaim, v1alpha1.DriverName, config)))
}

// podUsing stores a pod with one container that uses claims.
func (m *testMachine) podUsing(name string, claims ...string) {
	m.t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: "pod-uid"},
		Spec:       corev1.PodSpec{NodeName: testNode, Containers: []corev1.Container{{Name: "work"}}},
	}
	for _, claim := range claims {
		pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, corev1.PodResourceClaim{Name: "as-" + claim, ResourceClaimName: &claim})
		pod.Spec.Containers[0].Resources.Claims = append(pod.Spec.Containers[0].Resources.Claims, corev1.ResourceClaim{Name: "as-" + claim})
	}
	must[*corev1.Pod](m.t)(m.client.CoreV1().Pods("default").Create(m.t.Context(), pod, metav1.CreateOptions{}))
}

func TestAClaimWithMPSHasADaemonBeforeTheKubeletIsAnswered(t *testing.T) {
	m, f := sharingMachine(t, 3)
	p := m.ready()
	c := m.sharedClaim("shared", gpuConfigHead+`,"sharing":{"strategy":"MPS","mps":{"activeThreadPercentage":30,
		"pinnedDeviceMemoryLimit":"8Gi","perDevicePinnedMemoryLimit":{"1":"4Gi"}}}}`, gpu(2), gpu(0))
	f.onEnsure = func(sharing.Spec) {
		if record, ok := p.store.Get(c.UID); !ok || record.State != checkpoint.Preparing {
			t.Errorf("the record is %+v when the daemon is started", record)
		}
		if f.modes[gpu(0)] != exclusiveProcess || f.modes[gpu(2)] != exclusiveProcess {
			t.Errorf("the compute modes are %v when the daemon is started", f.modes)
		}
		if m.specs.has(c.UID) {
			t.Error("there is a CDI spec before there is a daemon")
		}
	}
	p.mustPrepare(c)
	want := sharing.Spec{ID: string(c.UID), BootID: p.bootID, ActiveThreadPercentage: 30, Devices: []sharing.Device{
		{UUID: gpus(3).GPUs[2].UUID, PinnedMemoryMiB: 8192}, {UUID: gpus(1).GPUs[0].UUID, PinnedMemoryMiB: 4096},
	}}
	if got := f.daemons[string(c.UID)]; got.ActiveThreadPercentage != 30 || got.BootID != want.BootID || !slices.Equal(got.Devices, want.Devices) {
		t.Errorf("the daemon is %+v, want %+v", got, want)
	}
	if record, _ := p.store.Get(c.UID); record.State != checkpoint.Prepared {
		t.Errorf("the record is %+v", record)
	}
	for _, device := range m.specs.specs[c.UID] {
		if device.Sharing == nil || device.Sharing.Env[0] != "CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps" ||
			device.Sharing.Mounts[0].HostPath != "/mps/shared-uid/pipe" || device.Sharing.Mounts[1].ContainerPath != "/dev/shm" {
			t.Errorf("containers get %+v of device %s", device.Sharing, device.Name)
		}
	}

	f.onEnsure = nil
	p.mustPrepare(c) // again
	f.onEnsure = nil
	p.mustPrepare(c) // again
	p.mustUnprepare(c)
	f.wantNothingLeft(t, p)
	if f.modes[gpu(0)] != "Default" || f.modes[gpu(2)] != "Default" {
		t.Errorf("the compute modes stay %v", f.modes)
	}
}

func (f *fakeSharing) wantNothingLeft(t *testing.T, p *testPlugin) {
	t.Helper()
	if len(f.daemons) > 0 {
		t.Errorf("the daemons %v are left", f.daemons)
	}
	if left := must[[]string](t)(p.settings.list()); len(left) > 0 {
		t.Errorf("settings of %v are noted", left)
	}
}

func TestTheComputeModeOfAnAdministratorComesBack(t *testing.T) {
	m, f := sharingMachine(t, 1)
	f.modes[gpu(0)] = "Prohibited"
	p := m.ready()
	c := m.sharedClaim("shared", mpsConfig, gpu(0))
	p.mustPrepare(c)
	p = m.ready() // a restart
	p.mustPrepare(c)
	p.mustUnprepare(c)
	if f.modes[gpu(0)] != "Prohibited" {
		t.Errorf("the compute mode is %s", f.modes[gpu(0)])
	}
}

func TestATimeSliceIsSetAndTakenBack(t *testing.T) {
	m, f := sharingMachine(t, 1)
	p := m.ready()
	c := m.sharedClaim("long", gpuConfigHead+`,"sharing":{"strategy":"TimeSlicing","timeSlicing":{"interval":"Long"}}}`, gpu(0))
	p.mustPrepare(c)
	uuid := gpus(1).GPUs[0].UUID
	if f.slices[uuid] != 3 {
		t.Errorf("the time slice is %d", f.slices[uuid])
	}
	before := f.sliced
	p.reconciler.reconcile(p.ctx)
	if f.sliced != before {
		t.Error("a round of the reconciler set it again")
	}
	p.mustUnprepare(c)
	if f.slices[uuid] != 0 || f.sliced == before {
		t.Errorf("the time slice stays %d", f.slices[uuid])
	}
	f.wantNothingLeft(t, p)
}

// Claims that do not ask for a setting, on GPUs that have none.
func TestFieldCase22_SettingsAreTouchedOnlyWhenTheyAreAskedFor(t *testing.T) {
	m, f := sharingMachine(t, 2)
	f.sliceErr, f.modeErr, f.ensureErr = errTest, errTest, errTest
	p := m.ready()
	p.mustPrepare(m.claim("plain", gpu(0)))
	p.mustPrepare(m.sharedClaim("sliced", gpuConfigHead+`,"sharing":{"strategy":"TimeSlicing"}}`, gpu(1)))
	if f.sliced > 0 || len(f.daemons) > 0 {
		t.Errorf("%d time slices were set, and there are the daemons %v", f.sliced, f.daemons)
	}
}

func TestWhatCannotBeSharedIsRefusedWithTheFieldAndLeavesNothing(t *testing.T) {
	for name, test := range map[string]struct {
		config  string
		devices []string
		change  func(*testMachine, *fakeSharing)
		admin   bool
		want    []string
	}{
		"an interval of a GPU that has none": {
			config: gpuConfigHead + `,"sharing":{"strategy":"TimeSlicing","timeSlicing":{"interval":"Short"}}}`, change: func(_ *testMachine, f *fakeSharing) { f.sliceErr = errTest },
			want: []string{"sharing.timeSlicing.interval", "Short", "remove the interval"},
		},
		"a daemon that does not start": {config: mpsConfig, change: func(_ *testMachine, f *fakeSharing) { f.ensureErr = errTest }, want: []string{"test error"}},
		"a compute mode that cannot be set": {
			config: mpsConfig, change: func(_ *testMachine, f *fakeSharing) { f.modeErr = errTest }, want: []string{"device " + gpu(0), "test error"},
		},
		"MPS on a GPU before Volta": {
			config: mpsConfig, change: func(m *testMachine, _ *fakeSharing) { m.platform.inv.GPUs[0].ComputeCapability = "6.1" },
			want: []string{"sharing.strategy", "compute capability 6.1", "TimeSlicing"},
		},
		"MPS with adminAccess": {config: mpsConfig, admin: true, want: []string{"request r0", "sharing", "adminAccess"}},
		"a place beyond the claim": {
			config: gpuConfigHead + `,"sharing":{"strategy":"MPS","mps":{"perDevicePinnedMemoryLimit":{"1":"1Gi"}}}}`,
			want:   []string{"perDevicePinnedMemoryLimit[1]", "1 device"},
		},
		"a place and a UUID of one device that differ": {
			config: gpuConfigHead + `,"sharing":{"strategy":"MPS","mps":{"perDevicePinnedMemoryLimit":{"0":"1Gi","` + gpus(1).GPUs[0].UUID + `":"2Gi"}}}}`,
			want:   []string{"perDevicePinnedMemoryLimit", "are one device", "1Gi", "2Gi"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			m, f := sharingMachine(t, 2)
			if test.change != nil {
				test.change(m, f)
			}
			p := m.ready()
			c := m.sharedClaim("refused", test.config, gpu(0))
			if test.admin {
				c.Status.Allocation.Devices.Results[0].AdminAccess = ptr.To(true)
			}
			p.mustRefuse(c, test.want...)
			f.sliceErr, f.ensureErr, f.modeErr = nil, nil, nil
			p.reconciler.reconcile(p.ctx)
			f.wantNothingLeft(t, p)
		})
	}
}

func TestDevicesOfAClaimWithMPSHaveOneDaemon(t *testing.T) {
	m, f := sharingMachine(t, 2)
	p := m.ready()
	claim := resourceapi.AllocationConfigSourceClaim
	for name, configs := range map[string][]resourceapi.DeviceAllocationConfiguration{
		"with-and-without": {opaque(claim, v1alpha1.DriverName, mpsConfig, "r0")},
		"other-limits": {
			opaque(claim, v1alpha1.DriverName, mpsConfig, "r0"),
			opaque(claim, v1alpha1.DriverName, gpuConfigHead+`,"sharing":{"strategy":"MPS","mps":{"activeThreadPercentage":10}}}`, "r1"),
		},
		"another-strategy": {
			opaque(claim, v1alpha1.DriverName, mpsConfig, "r0"),
			opaque(claim, v1alpha1.DriverName, gpuConfigHead+`,"sharing":{"strategy":"TimeSlicing","timeSlicing":{"interval":"Short"}}}`, "r1"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			results := []resourceapi.DeviceRequestAllocationResult{result("r0", testNode, gpu(0)), result("r1", testNode, gpu(1))}
			p.mustRefuse(m.store(name, allocated(results, configs...)), "requests r0 and r1", "sharing.mps", "a claim each")
			f.wantNothingLeft(t, p)
		})
	}
}

func TestTwoDaemonsDoNotMeetInOneContainer(t *testing.T) {
	m, f := sharingMachine(t, 3)
	p := m.ready()
	first, second, third := m.sharedClaim("first", mpsConfig, gpu(0)), m.sharedClaim("second", mpsConfig, gpu(1)), m.claim("third", gpu(2))
	m.podUsing("both", "first", "second", "third")
	for _, c := range []*resourceapi.ResourceClaim{first, second, third} {
		c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "both", UID: "pod-uid"}}
	}
	p.mustPrepare(first)
	p.mustPrepare(third) // has no daemon
	p.mustRefuse(second, "container work", "default/both", "first", "second", "MPS")
	if len(f.daemons) != 1 {
		t.Errorf("the daemons are %v", f.daemons)
	}
	p.mustUnprepare(first)
	p.mustPrepare(second)

	t.Run("a claim that comes at the same time is seen by one of them", func(t *testing.T) {
		p.mustUnprepare(second)
		var wait sync.WaitGroup
		errs := make([]error, 2)
		for i, c := range []*resourceapi.ResourceClaim{first, second} {
			wait.Go(func() { _, errs[i] = p.prepare(c) })
		}
		wait.Wait()
		if errs[0] == nil && errs[1] == nil {
			t.Error("both were prepared")
		}
	})
}

func TestAContainerUsesTheClaimOfItsExtendedResources(t *testing.T) {
	pod := &corev1.Pod{
		Spec: corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: ptr.To("named")}}},
		Status: corev1.PodStatus{ExtendedResourceClaimStatus: &corev1.PodExtendedResourceClaimStatus{
			ResourceClaimName: "extended", RequestMappings: []corev1.ContainerExtendedResourceRequest{{ContainerName: "both"}},
		}},
	}
	uses := corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}}
	for want, container := range map[string]corev1.Container{"[named extended]": {Name: "both", Resources: uses}, "[named]": {Name: "one", Resources: uses}, "[]": {Name: "none"}} {
		if got := fmt.Sprint(claimsOf(pod, container)); got != want {
			t.Errorf("container %s uses %s, want %s", container.Name, got, want)
		}
	}
}

func TestADaemonWithoutAClaimEndsAndThatOfAClaimIsAskedForAgain(t *testing.T) {
	m, f := sharingMachine(t, 2)
	p := m.ready()
	c := m.sharedClaim("kept", mpsConfig, gpu(0))
	p.mustPrepare(c)
	f.daemons["orphan"] = sharing.Spec{ID: "orphan"}
	delete(f.daemons, string(c.UID)) // somebody tidied up
	must[any](t)(nil, p.settings.write(gpu(1), changedSettings{ComputeMode: "Default"}))
	f.modes[gpu(1)] = exclusiveProcess
	p.reconciler.reconcile(p.ctx)
	if got := must[[]string](t)(f.List()); !slices.Equal(got, []string{string(c.UID)}) {
		t.Errorf("the daemons are %v", got)
	}
	if f.modes[gpu(1)] != "Default" || f.modes[gpu(0)] != exclusiveProcess {
		t.Errorf("the compute modes are %v", f.modes)
	}
}

func TestFieldCase01_MPSAfterAReboot(t *testing.T) {
	m, f := sharingMachine(t, 1)
	p := m.ready()
	c := m.sharedClaim("shared", mpsConfig, gpu(0))
	p.mustPrepare(c)
	old := f.daemons[string(c.UID)].BootID
	m.reboot()
	f.modes = map[string]string{}
	p = m.ready()
	if len(f.daemons) > 0 {
		t.Errorf("the daemons of before the reboot are %v", f.daemons)
	}
	p.mustPrepare(c)
	if got := f.daemons[string(c.UID)]; got.BootID == old || f.modes[gpu(0)] != exclusiveProcess {
		t.Errorf("after the reboot the daemon is %+v and the compute mode %s", got, f.modes[gpu(0)])
	}
	p.mustUnprepare(c)
	f.wantNothingLeft(t, p)
}

func TestUnprepareWaitsForTheDaemonAndNotForSettings(t *testing.T) {
	m, f := sharingMachine(t, 1)
	p := m.ready()
	c := m.sharedClaim("shared", mpsConfig, gpu(0))
	p.mustPrepare(c)
	f.removeErr = errTest
	if err := p.unprepareClaim(p.ctx, c.UID); !errors.Is(err, errTest) {
		t.Fatalf("the daemon does not end: %v", err)
	}
	if _, ok := p.store.Get(c.UID); !ok {
		t.Error("its GPU is free")
	}
	f.removeErr, f.modeErr = nil, errTest
	p.mustUnprepare(c)
	// The next claim gets the GPU only as it should be.
	p.mustRefuse(m.claim("next", gpu(0)), "device "+gpu(0), "test error")
	f.modeErr = nil
	p.mustPrepare(m.claim("later", gpu(0)))
	if f.modes[gpu(0)] != "Default" {
		t.Errorf("the compute mode is %s", f.modes[gpu(0)])
	}
}

func TestADamagedNoteOfSettingsIsTakenForWhatItMayHaveBeen(t *testing.T) {
	m, f := sharingMachine(t, 1)
	p := m.ready()
	f.modes[gpu(0)] = exclusiveProcess
	if err := os.WriteFile(filepath.Join(p.settings.dir, gpu(0)), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.mustPrepare(m.claim("plain", gpu(0)))
	if f.modes[gpu(0)] != "Default" || f.sliced != 1 {
		t.Errorf("the compute mode is %s, and %d time slices were set", f.modes[gpu(0)], f.sliced)
	}
	f.wantNothingLeft(t, p)
}

func TestAdoptedClaimsKeepTheirDaemon(t *testing.T) {
	m, f := sharingMachine(t, 1)
	p := m.ready()
	c := m.sharedClaim("shared", mpsConfig, gpu(0))
	m.pod("shared", true)
	p.mustPrepare(c)
	if err := os.WriteFile(filepath.Join(p.config.PluginDir, checkpointDirName, string(c.UID)+".json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	p = m.ready()
	if record, ok := p.store.Get(c.UID); !ok || record.Devices[0].MPSDaemon != string(c.UID) {
		t.Errorf("the record was rebuilt as %+v, %t", record, ok)
	}
	if len(f.daemons) != 1 {
		t.Errorf("the daemons are %v", f.daemons)
	}
}

func TestADaemonThatEndedIsTold(t *testing.T) {
	m, f := sharingMachine(t, 1)
	p := m.ready()
	p.mustPrepare(m.sharedClaim("shared", mpsConfig, gpu(0)))
	p.reconciler.reconcile(p.ctx)
	f.restarts = 2
	p.reconciler.reconcile(p.ctx)
	m.expectEvent("MPSDaemonEnded", "default/shared", "it was killed")
	for len(m.events.Events) > 0 {
		<-m.events.Events
	}
	for _, f.statusErr = range []error{nil, errTest, nil} {
		p.reconciler.reconcile(p.ctx)
		if len(m.events.Events) > 0 {
			t.Errorf("it is told again: %s", <-m.events.Events)
		}
	}
	f.restarts = 3
	p.reconciler.reconcile(p.ctx)
	m.expectEvent("MPSDaemonEnded", "for the 3. time")
}

// The plugin asks itself to prepare a claim anew, for its metadata; meanwhile the kubelet unprepares it.
func TestAClaimThatWasUnpreparedIsNotPreparedForItsMetadata(t *testing.T) {
	m := newMachine(t, 1)
	p := m.ready()
	c := m.claim("gone", gpu(0))
	p.ctx = metadata.NewIncomingContext(p.ctx, metadata.Pairs(askAgainKey, "true"))
	p.mustRefuse(c, "unprepared meanwhile")
}
