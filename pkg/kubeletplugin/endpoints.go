// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// Services of the gRPC health service. The empty name is liveness, as Kubernetes asks for it when a
// probe names no service.
const (
	healthServiceLiveness  = "liveness"
	healthServiceReadiness = "readiness"
)

// NewHTTPHandler serves /metrics, /healthz and /readyz. A check that fails answers 503 and says why in
// the body. As with Kubernetes' own programs, /readyz?exclude=NAME leaves a check aside.
func NewHTTPHandler(d *Driver, gatherer prometheus.Gatherer) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(gatherer, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", checkHandler(func(r *http.Request) error { return d.Live(r.Context()) }))
	mux.HandleFunc("GET /readyz", checkHandler(func(r *http.Request) error { return d.Ready(r.Context(), r.URL.Query()["exclude"]...) }))
	return mux
}

func checkHandler(check func(*http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if err := check(r); err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = fmt.Fprintln(w, err) // a client that went away is no problem of ours
			return
		}
		_, _ = io.WriteString(w, "ok\n")
	}
}

// NewHTTPServer returns a server for h with the timeouts that keep slow clients from holding it.
func NewHTTPServer(h http.Handler) *http.Server {
	return &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute}
}

// RegisterHealthService adds grpc.health.v1.Health to server, for gRPC probes.
func RegisterHealthService(server grpc.ServiceRegistrar, d *Driver) {
	healthpb.RegisterHealthServer(server, healthService{driver: d})
}

// healthService makes its checks when it is asked; it does not stream changes.
type healthService struct {
	healthpb.UnimplementedHealthServer
	driver *Driver
}

// Check implements grpc.health.v1.Health.
func (s healthService) Check(ctx context.Context, req *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	var err error
	switch req.GetService() {
	case "", healthServiceLiveness:
		err = s.driver.Live(ctx)
	case healthServiceReadiness:
		err = s.driver.Ready(ctx)
	default:
		return nil, status.Errorf(codes.NotFound, "unknown service %q: ask for %q or %q", req.GetService(), healthServiceLiveness, healthServiceReadiness)
	}
	serving := healthpb.HealthCheckResponse_SERVING
	if err != nil {
		serving = healthpb.HealthCheckResponse_NOT_SERVING
	}
	return &healthpb.HealthCheckResponse{Status: serving}, nil
}
