// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

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
