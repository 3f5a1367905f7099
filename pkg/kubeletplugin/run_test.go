// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2/ktesting"
	drahealthpb "k8s.io/kubelet/pkg/apis/dra-health/v1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	registerpb "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"k8s.io/utils/clock"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/device"
)

// runningPlugin is a plugin with its sockets and loops, as the kubelet sees it.
type runningPlugin struct {
	*Driver
	t    *testing.T
	stop func()
	// kubelet is a connection to the service socket.
	kubelet *grpc.ClientConn
}

// run starts a whole plugin on the machine and registers it. Loops run on the real clock.
func (m *testMachine) run(podUID types.UID, change ...func(*Config)) *runningPlugin {
	m.t.Helper()
	config := m.config()
	for _, c := range change {
		c(&config)
	}
	config.PodUID = podUID
	config.Clock = clock.RealClock{}
	config.DiscoveryInterval = 100 * time.Millisecond
	_, ctx := ktesting.NewTestContext(m.t)
	d := must[*Driver](m.t)(New(ctx, config))
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	stopped := false
	p := &runningPlugin{Driver: d, t: m.t, stop: func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			m.t.Errorf("Run = %v", err)
		}
	}}
	m.t.Cleanup(p.stop)
	m.eventually("the plugin serves", func(ctx context.Context) bool { return d.Live(ctx) == nil })
	p.register()
	p.kubelet = must[*grpc.ClientConn](m.t)(dial(serviceSocket(config)))
	m.t.Cleanup(func() { _ = p.kubelet.Close() })
	return p
}

// register does what the kubelet does when it finds the registration socket.
func (p *runningPlugin) register() {
	p.t.Helper()
	conn := must[*grpc.ClientConn](p.t)(dial(registrationSocket(p.config)))
	defer conn.Close()
	client := registerpb.NewRegistrationClient(conn)
	info := must[*registerpb.PluginInfo](p.t)(client.GetInfo(p.t.Context(), &registerpb.InfoRequest{}))
	if info.GetName() != v1alpha1.DriverName || info.GetEndpoint() != serviceSocket(p.config) {
		p.t.Errorf("registered as %v", info)
	}
	must[*registerpb.RegistrationStatusResponse](p.t)(client.NotifyRegistrationStatus(p.t.Context(), &registerpb.RegistrationStatus{PluginRegistered: true}))
}

func (p *runningPlugin) nodePrepare(claims ...*resourceapi.ResourceClaim) map[string]*drapb.NodePrepareResourceResponse {
	p.t.Helper()
	req := &drapb.NodePrepareResourcesRequest{}
	for _, claim := range claims {
		req.Claims = append(req.Claims, &drapb.Claim{Namespace: claim.Namespace, Name: claim.Name, Uid: string(claim.UID)})
	}
	return must[*drapb.NodePrepareResourcesResponse](p.t)(drapb.NewDRAPluginClient(p.kubelet).NodePrepareResources(p.t.Context(), req)).GetClaims()
}

func (p *runningPlugin) nodeUnprepare(claim *resourceapi.ResourceClaim) {
	p.t.Helper()
	req := &drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{{Namespace: claim.Namespace, Name: claim.Name, Uid: string(claim.UID)}}}
	resp := must[*drapb.NodeUnprepareResourcesResponse](p.t)(drapb.NewDRAPluginClient(p.kubelet).NodeUnprepareResources(p.t.Context(), req))
	if message := resp.GetClaims()[string(claim.UID)].GetError(); message != "" {
		p.t.Fatalf("unprepare: %s", message)
	}
}

// eventually waits until the condition holds.
func (m *testMachine) eventually(what string, condition func(context.Context) bool) {
	m.t.Helper()
	err := wait.PollUntilContextTimeout(m.t.Context(), 5*time.Millisecond, 30*time.Second, true,
		func(ctx context.Context) (bool, error) { return condition(ctx), nil })
	if err != nil {
		m.t.Fatalf("%s: %v", what, err)
	}
}

func (m *testMachine) slices() []resourceapi.ResourceSlice {
	m.t.Helper()
	return must[*resourceapi.ResourceSliceList](m.t)(m.client.ResourceV1().ResourceSlices().List(m.t.Context(), metav1.ListOptions{})).Items
}

func TestRun(t *testing.T) {
	m := newMachine(t, 2)
	p := m.run("")
	m.eventually("the plugin is ready", func(ctx context.Context) bool { return p.Ready(ctx) == nil })
	m.eventually("the GPUs are published", func(context.Context) bool { return len(m.slices()) == 1 })
	slice := m.slices()[0]
	if slice.Spec.Pool.Name != testNode || len(slice.Spec.Devices) != 2 {
		t.Errorf("published %v", slice.Spec)
	}

	t.Run("claims of one call are prepared, with their metadata", func(t *testing.T) {
		a, b := m.claim("a", gpu(0)), m.claim("b", gpu(1))
		for uid, got := range p.nodePrepare(a, b) {
			if got.GetError() != "" || len(got.GetDevices()) != 1 {
				t.Fatalf("claim %s: %v", uid, got)
			}
			if ids := got.GetDevices()[0].GetCdiDeviceIds(); len(ids) != 2 {
				t.Errorf("CDI names of claim %s = %q, want the GPU and its metadata", uid, ids)
			}
		}
		file := filepath.Join(p.config.PluginDir, metadataDirName, "default_a", "gpus", "metadata.json")
		data := must[[]byte](t)(os.ReadFile(file))
		if !strings.Contains(string(data), gpus(1).GPUs[0].UUID) {
			t.Errorf("the metadata %s does not name the GPU", data)
		}

		t.Run("metadata that somebody removes is written again", func(t *testing.T) {
			if err := os.Remove(filepath.Join(p.config.CDIDir, metadataSpecPrefix+"a-uid_gpus.json")); err != nil {
				t.Fatal(err)
			}
			p.requestReconcile(false)
			m.eventually("the metadata's CDI spec is back", func(context.Context) bool {
				_, err := os.Stat(filepath.Join(p.config.CDIDir, metadataSpecPrefix+"a-uid_gpus.json"))
				return err == nil
			})
		})

		p.nodeUnprepare(a)
		p.nodeUnprepare(b)
		for _, dir := range []string{filepath.Join(p.config.PluginDir, metadataDirName), p.config.CDIDir} {
			if left := must[[]os.DirEntry](t)(os.ReadDir(dir)); len(left) > 0 {
				t.Errorf("%s still has %v", dir, left)
			}
		}
	})

	t.Run("checks and metrics are served over HTTP", func(t *testing.T) {
		server := httptest.NewServer(NewHTTPHandler(p.Driver, p.config.Registry.(prometheus.Gatherer)))
		defer server.Close()
		for path, want := range map[string]string{"/healthz": "ok", "/readyz": "ok", "/metrics": "switchyard_kubelet_plugin_prepared_claims 0"} {
			resp := must[*http.Response](t)(http.Get(server.URL + path))
			body := new(strings.Builder)
			_ = resp.Write(body)
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusOK || !strings.Contains(body.String(), want) {
				t.Errorf("GET %s = %s, want %q in it", path, body, want)
			}
		}
	})

	t.Run("stopping removes the sockets and keeps the slices", func(t *testing.T) {
		p.stop()
		for _, socket := range []string{serviceSocket(p.config), registrationSocket(p.config)} {
			if _, err := os.Stat(socket); !os.IsNotExist(err) {
				t.Errorf("%s is still there", socket)
			}
		}
		if len(m.slices()) != 1 {
			t.Error("the slices are gone")
		}
	})
}

func TestFieldCase13d_NoWriteWhenNothingChanged(t *testing.T) {
	m := newMachine(t, 8)
	first := m.run("")
	m.eventually("the GPUs are published", func(context.Context) bool { return len(m.slices()) == 1 })
	first.stop()
	before := m.slices()[0]
	m.client.ClearActions()

	// NVML need not list the GPUs in the same order.
	inv := gpus(8)
	inv.GPUs[0], inv.GPUs[7] = inv.GPUs[7], inv.GPUs[0]
	m.platform.set(inv, nil)
	second := m.run("")
	m.eventually("the plugin is ready", func(ctx context.Context) bool { return second.Ready(ctx) == nil })

	// A change that has to be written shows that everything before it was looked at.
	m.platform.set(without(gpus(8), 3), nil)
	m.eventually("a lost GPU is tainted", func(context.Context) bool {
		for _, d := range m.slices()[0].Spec.Devices {
			if len(d.Taints) > 0 {
				return true
			}
		}
		return false
	})
	writes := 0
	for _, action := range m.client.Actions() {
		if action.GetResource().Resource == "resourceslices" && action.GetVerb() != "list" && action.GetVerb() != "watch" {
			writes++
		}
	}
	if writes != 1 {
		t.Errorf("%d writes of ResourceSlices, want 1: that of the taint", writes)
	}
	after := m.slices()[0]
	if after.Name != before.Name || len(after.Spec.Devices) != len(before.Spec.Devices) {
		t.Errorf("slice %s with %d devices became %s with %d", before.Name, len(before.Spec.Devices), after.Name, len(after.Spec.Devices))
	}
}

func TestFieldCase07_RegistersWithoutNVML(t *testing.T) {
	m := newMachine(t, 1)
	m.platform.set(device.Inventory{}, errTest)
	p := m.run("")
	m.eventually("readiness says why", func(ctx context.Context) bool {
		err := p.Ready(ctx)
		return err != nil && strings.Contains(err.Error(), errTest.Error())
	})
	p.nodeUnprepare(&resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a", UID: "a-uid"}})
	m.platform.set(gpus(1), nil)
	m.eventually("it recovers without a restart", func(ctx context.Context) bool { return p.Ready(ctx) == nil && len(m.slices()) == 1 })
}

func TestFieldCase08_TwoInstancesInARollingUpdate(t *testing.T) {
	m := newMachine(t, 2)
	a, b, c := m.claim("a", gpu(0)), m.claim("b", gpu(0)), m.claim("c", gpu(1))
	prepared := func(p *runningPlugin, claim *resourceapi.ResourceClaim) string {
		return p.nodePrepare(claim)[string(claim.UID)].GetError()
	}
	older := m.run("old-pod")
	if message := prepared(older, a); message != "" {
		t.Fatal(message)
	}
	newer := m.run("new-pod")
	if message := prepared(newer, b); !strings.Contains(message, "default/a") {
		t.Errorf("the new instance gives away a device of the old one: %q", message)
	}
	if message := prepared(newer, c); message != "" {
		t.Fatal(message)
	}
	older.nodeUnprepare(c) // prepared by the other one
	newer.nodeUnprepare(a)
	if message := prepared(older, b); message != "" {
		t.Errorf("the old instance does not know that the new one gave the device back: %s", message)
	}
	older.stop()
	if err := newer.Live(t.Context()); err != nil {
		t.Errorf("stopping the old instance broke the new one: %v", err)
	}
	newer.nodeUnprepare(b)
}

func TestShutdownFinishesCallsInFlight(t *testing.T) {
	m := newMachine(t, 1)
	writing, finish := make(chan struct{}), make(chan struct{})
	m.specs.beforeWrite = func(types.UID) {
		close(writing)
		<-finish
	}
	p := m.run("")
	claim := m.claim("a", gpu(0))
	answer := make(chan string, 1)
	go func() { answer <- p.nodePrepare(claim)[string(claim.UID)].GetError() }()
	<-writing
	stopped := make(chan struct{})
	go func() {
		p.stop()
		close(stopped)
	}()
	m.eventually("the plugin says that it shuts down", func(ctx context.Context) bool {
		err := p.Ready(ctx)
		return err != nil && strings.Contains(err.Error(), string(conditionShutdown))
	})
	close(finish)
	if message := <-answer; message != "" {
		t.Errorf("the call in flight failed: %s", message)
	}
	<-stopped
}

func TestHealthReports(t *testing.T) {
	m := newMachine(t, 2)
	p := m.run("")
	stream := must[grpc.ServerStreamingClient[drahealthpb.NodeWatchResourcesResponse]](t)(
		drahealthpb.NewDRAResourceHealthClient(p.kubelet).NodeWatchResources(t.Context(), &drahealthpb.NodeWatchResourcesRequest{}))
	health := func() map[string]drahealthpb.HealthStatus {
		report := must[*drahealthpb.NodeWatchResourcesResponse](t)(stream.Recv())
		got := make(map[string]drahealthpb.HealthStatus)
		for _, d := range report.GetDevices() {
			if d.GetHealthCheckTimeoutSeconds() < 30 {
				t.Errorf("a report is good for %d s, want the kubelet's 30 s at least", d.GetHealthCheckTimeoutSeconds())
			}
			got[d.GetDevice().GetDeviceName()] = d.GetHealth()
		}
		if len(got) != 2 {
			t.Fatalf("the report covers %v, want both GPUs", got)
		}
		return got
	}
	if first := health(); first[gpu(0)] != drahealthpb.HealthStatus_HEALTHY || first[gpu(1)] != drahealthpb.HealthStatus_HEALTHY {
		t.Errorf("first report %v, want both healthy", first)
	}
	m.platform.set(without(gpus(2), 0), nil)
	for got := health(); got[gpu(0)] != drahealthpb.HealthStatus_UNHEALTHY; got = health() {
		if got[gpu(1)] != drahealthpb.HealthStatus_HEALTHY {
			t.Errorf("the other GPU is reported as %v", got[gpu(1)])
		}
	}
	m.platform.set(gpus(2), nil)
	for got := health(); got[gpu(0)] != drahealthpb.HealthStatus_HEALTHY; got = health() {
		continue // the stream ends with the test's context if this never comes
	}
}

func TestPublishErrorsAreTold(t *testing.T) {
	m := newMachine(t, 1)
	p := m.ready()
	p.conditions.clear(conditionRegistration)
	slice := &resourceapi.ResourceSlice{}
	for name, test := range map[string]struct {
		err   error
		event string
	}{
		"fields that the API server dropped":  {recoverable{&resourceslice.DroppedFieldsError{PoolName: testNode, DesiredSlice: slice, ActualSlice: slice}}, reasonPublishDroppedFields},
		"a slice that the API server refuses": {recoverable{apierrors.NewInvalid(resourceapi.SchemeGroupVersion.WithKind("ResourceSlice").GroupKind(), "x", nil)}, reasonPublishInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			p.HandleError(p.ctx, test.err, "update ResourceSlice")
			m.expectEvent(test.event)
			if err := p.Ready(t.Context()); err == nil || !strings.Contains(err.Error(), string(conditionPublishing)) {
				t.Errorf("Ready = %v, want that publishing fails", err)
			}
			p.sliceWritten("update")
			if err := p.Ready(t.Context()); err != nil {
				t.Errorf("Ready after a write = %v", err)
			}
		})
	}
	for name, test := range map[string]struct {
		err   error
		ready bool
	}{
		"a right that is missing":                           {apierrors.NewForbidden(resourceapi.Resource("resourceslices"), "x", errTest), false},
		"a write whose answer came too late may be stored":  {apierrors.NewTimeoutError("etcdserver: request timed out", 1), true},
		"a connection that was lost tells nothing":          {errTest, true},
		"another plugin's write may have been the same one": {apierrors.NewConflict(resourceapi.Resource("resourceslices"), "x", errTest), true},
	} {
		t.Run(name, func(t *testing.T) {
			p.HandleError(p.ctx, recoverable{test.err}, "update ResourceSlice")
			if err := p.Ready(t.Context()); (err == nil) != test.ready {
				t.Errorf("Ready = %v", err)
			}
			p.sliceWritten("update")
		})
	}
	t.Run("a server that cannot serve ends the process", func(t *testing.T) {
		var cause error
		p.cancel = func(err error) { cause = err }
		p.HandleError(p.ctx, errTest, "DRA gRPC server failed")
		if !errors.Is(cause, errTest) {
			t.Errorf("ended with %v", cause)
		}
	})
}

// recoverable is how the helper marks errors that need not end the process.
type recoverable struct{ error }

func (r recoverable) Is(target error) bool { return target == kubeletplugin.ErrRecoverable }
func (r recoverable) Unwrap() error        { return r.error }
