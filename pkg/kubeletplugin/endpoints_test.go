// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	registerpb "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"sigs.k8s.io/yaml"

	"github.com/switchyard-dev/switchyard/pkg/device"
)

// A node whose driver is broken is alive and not ready.
func TestHealthService(t *testing.T) {
	m := newMachine(t, 1)
	m.platform.set(device.Inventory{}, errTest)
	p := m.run("")

	socket := filepath.Join(m.dir, "health")
	listener := must[net.Listener](t)((&net.ListenConfig{}).Listen(t.Context(), "unix", socket))
	server := grpc.NewServer()
	RegisterHealthService(server, p.Driver)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	conn := must[*grpc.ClientConn](t)(dial(socket))
	t.Cleanup(func() { _ = conn.Close() })
	client := healthpb.NewHealthClient(conn)
	check := func(ctx context.Context, service string) healthpb.HealthCheckResponse_ServingStatus {
		return must[*healthpb.HealthCheckResponse](t)(client.Check(ctx, &healthpb.HealthCheckRequest{Service: service})).GetStatus()
	}

	m.eventually("readiness knows of the driver", func(ctx context.Context) bool {
		err := p.Ready(ctx)
		return err != nil && strings.Contains(err.Error(), errTest.Error())
	})
	for service, want := range map[string]healthpb.HealthCheckResponse_ServingStatus{
		"":          healthpb.HealthCheckResponse_SERVING,
		"liveness":  healthpb.HealthCheckResponse_SERVING,
		"readiness": healthpb.HealthCheckResponse_NOT_SERVING,
	} {
		if got := check(t.Context(), service); got != want {
			t.Errorf("service %q is %v without a driver, want %v", service, got, want)
		}
	}
	m.platform.set(gpus(1), nil)
	m.eventually("the plugin is ready", func(ctx context.Context) bool {
		return check(ctx, "readiness") == healthpb.HealthCheckResponse_SERVING
	})
	_, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "rediness"})
	if status.Code(err) != codes.NotFound || !strings.Contains(err.Error(), "readiness") {
		t.Errorf("an unknown service: %v, want NotFound with the services there are", err)
	}
}

// TestTheReadinessOfThePodLeavesTheNodeAside: maxUnavailable is 0, so a pod that cannot become ready keeps its place in
// maxSurge, and the update of all other nodes waits for it.
func TestTheReadinessOfThePodLeavesTheNodeAside(t *testing.T) {
	var daemonSet appsv1.DaemonSet
	manifest := must[[]byte](t)(os.ReadFile("../../deployments/manifests/daemonset.yaml"))
	if err := yaml.UnmarshalStrict(manifest, &daemonSet); err != nil {
		t.Fatal(err)
	}
	path := daemonSet.Spec.Template.Spec.Containers[0].ReadinessProbe.HTTPGet.Path

	m := newMachine(t, 0)
	m.platform.set(device.Inventory{}, errTest)
	node := must[*corev1.Node](t)(m.client.CoreV1().Nodes().Get(t.Context(), testNode, metav1.GetOptions{}))
	node.Status.NodeInfo.ContainerRuntimeVersion = "containerd://1.6.36"
	must[*corev1.Node](t)(m.client.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{}))
	p := m.ready()
	p.checkRuntime(p.ctx)
	answer := func() *httptest.ResponseRecorder {
		got := httptest.NewRecorder()
		NewHTTPHandler(p.Driver, p.config.Registry.(prometheus.Gatherer)).ServeHTTP(got, httptest.NewRequest(http.MethodGet, path, nil))
		return got
	}
	if got := answer(); got.Code != http.StatusServiceUnavailable {
		t.Errorf("not registered with the kubelet: %d %s", got.Code, got.Body)
	}
	p.noteRegistration(&registerpb.RegistrationStatus{PluginRegistered: true})
	if got := answer(); got.Code != http.StatusOK {
		t.Errorf("a node without a driver and CDI: %d %s", got.Code, got.Body)
	}
}
