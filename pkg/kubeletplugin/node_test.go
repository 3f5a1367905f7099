// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2/ktesting"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	clocktesting "k8s.io/utils/clock/testing"
)

// testMachine is a node that outlives the plugin processes on it.
type testMachine struct {
	t        *testing.T
	dir      string
	client   *fake.Clientset
	platform *fakePlatform
	specs    *fakeSpecs
	clock    *clocktesting.FakeClock
	events   *record.FakeRecorder
	seen     []string
	sharing  *fakeSharing // none unless a test sets it
}

func newMachine(t *testing.T, gpuCount int) *testMachine {
	t.Helper()
	m := &testMachine{
		t:        t,
		dir:      shortTempDir(t),
		client:   fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: testNode, UID: "node-uid"}}),
		platform: &fakePlatform{inv: gpus(gpuCount)},
		specs:    &fakeSpecs{},
		clock:    clocktesting.NewFakeClock(time.Now()),
		events:   record.NewFakeRecorder(100),
	}
	// What the API server does to a ResourceSlice, and the fake does not.
	var writes atomic.Int64
	m.client.PrependReactor("*", "resourceslices", func(action k8stesting.Action) (bool, runtime.Object, error) {
		written, ok := action.(k8stesting.CreateAction) // or an update, which has the same methods
		if !ok {
			return false, nil, nil
		}
		slice := written.GetObject().(*resourceapi.ResourceSlice)
		slice.ResourceVersion = strconv.FormatInt(1000+writes.Add(1), 10)
		if slice.Name == "" {
			slice.Name, slice.UID = slice.GenerateName+slice.ResourceVersion, types.UID("slice-"+slice.ResourceVersion)
		}
		return false, nil, nil
	})
	if err := os.Mkdir(filepath.Join(m.dir, "r"), 0o755); err != nil {
		t.Fatal(err)
	}
	m.reboot()
	return m
}

// reboot gives the machine a new boot ID and empties the directory of CDI specs.
func (m *testMachine) reboot() {
	m.t.Helper()
	boot := fmt.Sprintf("boot-%d\n", time.Now().UnixNano())
	if err := os.WriteFile(filepath.Join(m.dir, "boot_id"), []byte(boot), 0o600); err != nil {
		m.t.Fatal(err)
	}
	m.specs.clear()
}

func (m *testMachine) config() Config {
	config := Config{
		NodeName:          testNode,
		PluginDir:         filepath.Join(m.dir, "p"),
		RegistryDir:       filepath.Join(m.dir, "r"),
		CDIDir:            filepath.Join(m.dir, "cdi"),
		BootIDFile:        filepath.Join(m.dir, "boot_id"),
		DiscoveryInterval: 10 * time.Second,
		ReconcileInterval: time.Minute,
		OrphanGrace:       30 * time.Second,
		KubeClient:        m.client,
		Platform:          m.platform,
		Specs:             m.specs,
		Recorder:          m.events,
		Registry:          prometheus.NewRegistry(),
		Clock:             m.clock,
		Version:           "test",
	}
	if m.sharing != nil {
		config.MPS, config.ComputeModes, config.TimeSlicer = m.sharing, m.sharing, m.sharing
	}
	return config
}

// testPlugin is one plugin process, without its servers and loops: the test takes their steps.
type testPlugin struct {
	*Driver
	t          *testing.T
	ctx        context.Context
	discovery  *discovery
	reconciler *reconciler
}

// start does what Run does before it serves.
func (m *testMachine) start(change ...func(*Config)) *testPlugin {
	m.t.Helper()
	_, ctx := ktesting.NewTestContext(m.t)
	config := m.config()
	for _, c := range change {
		c(&config)
	}
	d := must[*Driver](m.t)(New(ctx, config))
	r := newReconciler(d)
	// The helper, which writes device metadata, does not run here.
	r.prepareAgain = func(context.Context, *drapb.Claim) error { return nil }
	return &testPlugin{Driver: d, t: m.t, ctx: ctx, discovery: newDiscovery(ctx, d), reconciler: r}
}

// ready starts a plugin that has looked at the hardware and reconciled once.
func (m *testMachine) ready() *testPlugin {
	m.t.Helper()
	p := m.start()
	p.discovery.look(p.ctx)
	p.reconciler.reconcile(p.ctx)
	return p
}

// claim returns an allocated claim for the devices, and stores it with the API server.
func (m *testMachine) claim(name string, devices ...string) *resourceapi.ResourceClaim {
	m.t.Helper()
	results := make([]resourceapi.DeviceRequestAllocationResult, len(devices))
	for i, device := range devices {
		results[i] = result("gpus", testNode, device)
	}
	return m.store(name, allocated(results))
}

// store gives the claim a name and stores it, reserved for a pod of that name.
func (m *testMachine) store(name string, claim *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
	m.t.Helper()
	claim.Name, claim.UID = name, types.UID(name+"-uid")
	claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: name, UID: types.UID(name + "-pod-uid")}}
	return must[*resourceapi.ResourceClaim](m.t)(m.client.ResourceV1().ResourceClaims(claim.Namespace).Create(m.t.Context(), claim, metav1.CreateOptions{}))
}

// pod stores a pod on the machine that uses the claim of its name, running or not.
func (m *testMachine) pod(name string, running bool) {
	m.t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name + "-pod-uid")},
		Spec: corev1.PodSpec{
			NodeName:       testNode,
			ResourceClaims: []corev1.PodResourceClaim{{Name: "gpus", ResourceClaimName: &name}},
		},
	}
	if running {
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	}
	must[*corev1.Pod](m.t)(m.client.CoreV1().Pods("default").Create(m.t.Context(), pod, metav1.CreateOptions{}))
}

func (m *testMachine) deleteClaim(claim *resourceapi.ResourceClaim) {
	m.t.Helper()
	if err := m.client.ResourceV1().ResourceClaims(claim.Namespace).Delete(m.t.Context(), claim.Name, metav1.DeleteOptions{}); err != nil {
		m.t.Fatal(err)
	}
}

// expectEvent fails unless an Event with all the words was recorded since the last one that was
// expected like this.
func (m *testMachine) expectEvent(words ...string) {
	m.t.Helper()
	for len(m.events.Events) > 0 {
		m.seen = append(m.seen, <-m.events.Events)
	}
	for i, event := range m.seen {
		if containsAll(event, words) {
			m.seen = slices.Delete(m.seen, i, i+1)
			return
		}
	}
	m.t.Fatalf("no Event says %q; there were %q", words, m.seen)
}

func containsAll(s string, words []string) bool {
	for _, word := range words {
		if !strings.Contains(s, word) {
			return false
		}
	}
	return true
}

// prepare prepares a claim and returns what the kubelet would get.
func (p *testPlugin) prepare(claim *resourceapi.ResourceClaim) ([]kubeletplugin.Device, error) {
	p.t.Helper()
	results, err := p.PrepareResourceClaims(p.ctx, []*resourceapi.ResourceClaim{claim})
	if err != nil {
		p.t.Fatalf("the whole call failed: %v", err)
	}
	got, ok := results[claim.UID]
	if !ok {
		p.t.Fatalf("the claim has no result: %v", results)
	}
	return got.Devices, got.Err
}

func (p *testPlugin) mustPrepare(claim *resourceapi.ResourceClaim) []kubeletplugin.Device {
	p.t.Helper()
	return must[[]kubeletplugin.Device](p.t)(p.prepare(claim))
}

// mustRefuse prepares a claim that has to be refused with the words, and shows that nothing is left
// behind.
func (p *testPlugin) mustRefuse(claim *resourceapi.ResourceClaim, words ...string) {
	p.t.Helper()
	devices, err := p.prepare(claim)
	if err == nil {
		p.t.Fatalf("claim %s was prepared with %v, want an error with %q", claim.Name, devices, words)
	}
	if !containsAll(err.Error(), words) {
		p.t.Errorf("the error %q does not say %q", err, words)
	}
	if _, ok := p.store.Get(claim.UID); ok {
		p.t.Errorf("the refused claim %s has a checkpoint record", claim.Name)
	}
	if uids := must[[]types.UID](p.t)(p.config.Specs.Claims()); slices.Contains(uids, claim.UID) {
		p.t.Errorf("the refused claim %s has a CDI spec", claim.Name)
	}
}

func (p *testPlugin) mustUnprepare(claim *resourceapi.ResourceClaim) {
	p.t.Helper()
	object := kubeletplugin.NamespacedObject{UID: claim.UID, NamespacedName: types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}}
	results, err := p.UnprepareResourceClaims(p.ctx, []kubeletplugin.NamespacedObject{object})
	if err != nil {
		p.t.Fatalf("the whole call failed: %v", err)
	}
	err, ok := results[claim.UID]
	if !ok || err != nil {
		p.t.Fatalf("unprepare claim %s = %v (has a result: %v)", claim.Name, err, ok)
	}
}
