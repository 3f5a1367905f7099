// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"k8s.io/utils/clock"
)

const (
	metricNamespace = "switchyard"
	metricSubsystem = "kubelet_plugin"
)

// metrics are the plugin's Prometheus metrics. They are registered with an injected registry, so
// that several plugins can run in one process.
type metrics struct {
	requests        *prometheus.CounterVec
	requestDuration *prometheus.HistogramVec
	inFlight        *prometheus.GaugeVec
	claims          *prometheus.CounterVec
	errors          *prometheus.CounterVec

	gangClaimsWaiting prometheus.Gauge

	reconciled *prometheus.CounterVec

	publishedDevices prometheus.Gauge
	unhealthyDevices prometheus.Gauge
	monitoredDevices prometheus.Gauge
	healthEvents     *prometheus.CounterVec
	xids             *prometheus.CounterVec
	sliceWrites      *prometheus.CounterVec
	publishErrors    *prometheus.CounterVec

	discoveries       *prometheus.CounterVec
	discoveryDuration prometheus.Histogram
	preflight         *prometheus.GaugeVec
}

func newMetrics(registry prometheus.Registerer, version string) *metrics {
	name := func(opts prometheus.Opts) prometheus.Opts {
		opts.Namespace, opts.Subsystem = metricNamespace, metricSubsystem
		return opts
	}
	counter := func(n, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts(name(prometheus.Opts{Name: n, Help: help})), labels)
	}
	gauge := func(n, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts(name(prometheus.Opts{Name: n, Help: help})))
	}
	gaugeVec := func(n, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts(name(prometheus.Opts{Name: n, Help: help})), labels)
	}
	m := &metrics{
		requests: counter("requests_total", "Finished gRPC calls of the kubelet, by method and gRPC status (ok or error).", "method", "result"),
		requestDuration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: metricNamespace, Subsystem: metricSubsystem, Name: "request_duration_seconds",
			Help:    "Duration of gRPC calls of the kubelet in seconds, reading the claims from the API server included.",
			Buckets: []float64{.0005, .001, .002, .003, .005, .0075, .01, .02, .05, .1, .25, 1, 5, 30},
		}, []string{"method"}),
		inFlight: gaugeVec("requests_in_flight", "gRPC calls of the kubelet that are being served.", "method"),
		claims:   counter("claims_total", "Claims handled in the kubelet's calls, by operation (prepare or unprepare) and result (ok or error).", "operation", "result"),
		errors:   counter("errors_total", "Errors by kind.", "kind"),

		gangClaimsWaiting: gauge("gang_claims_waiting", "Claims of gangs whose preparation waits until all members of the gang have their devices."),

		reconciled: counter("reconciled_total", "Repairs by the reconciler, by action.", "action"),

		publishedDevices: gauge("published_devices", "Devices in the ResourceSlices as last handed to publishing."),
		unhealthyDevices: gauge("unhealthy_devices", "Published devices that carry the unhealthy taint."),
		monitoredDevices: gauge("monitored_devices", "GPUs that report errors by themselves (NVML events). The health of all is also found by looking."),
		healthEvents:     counter("health_events_total", "Events that NVML reported, by type.", "type"),
		xids: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: metricNamespace, Name: "device_xids_total",
			Help: "XID errors that NVML reported, by GPU and number, whatever they mean. device is empty where NVML does not say which GPU it was.",
		}, []string{"device", "xid"}),
		sliceWrites:   counter("resourceslice_writes_total", "Writes of ResourceSlices that the API server accepted, by verb.", "verb"),
		publishErrors: counter("publish_errors_total", "Errors while publishing ResourceSlices, by kind (dropped_fields, invalid or other).", "kind"),

		discoveries: counter("discoveries_total", "Looks at the hardware through NVML, by result (ok or error).", "result"),
		discoveryDuration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: metricNamespace, Subsystem: metricSubsystem, Name: "discovery_duration_seconds",
			Help:    "Duration of a look at the hardware through NVML in seconds.",
			Buckets: []float64{.001, .005, .01, .05, .1, .5, 1, 5, 15, 60},
		}),
		preflight: gaugeVec("preflight_ok", "1 when the node passed the check, 0 when it did not, absent when it could not be made.", "check"),
	}
	buildInfo := gaugeVec("build_info", "Always 1; the label is the version of the binary.", "version")
	buildInfo.WithLabelValues(version).Set(1)
	registry.MustRegister(m.requests, m.requestDuration, m.inFlight, m.claims, m.errors, m.gangClaimsWaiting,
		m.reconciled, m.publishedDevices, m.unhealthyDevices, m.monitoredDevices, m.healthEvents, m.xids, m.sliceWrites, m.publishErrors,
		m.discoveries, m.discoveryDuration, m.preflight, buildInfo)
	return m
}

// observe serves a unary call of the kubelet and measures it.
func (m *metrics) observe(ctx context.Context, clk clock.PassiveClock, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	method := methodName(info.FullMethod)
	inFlight := m.inFlight.WithLabelValues(method)
	inFlight.Inc()
	defer inFlight.Dec()
	start := clk.Now()
	resp, err := handler(ctx, req)
	m.requestDuration.WithLabelValues(method).Observe(clk.Since(start).Seconds())
	m.requests.WithLabelValues(method, resultLabel(err)).Inc()
	return resp, err
}

// observeDiscovery counts one look at the hardware.
func (m *metrics) observeDiscovery(took time.Duration, err error) {
	m.discoveryDuration.Observe(took.Seconds())
	m.discoveries.WithLabelValues(resultLabel(err)).Inc()
}

func methodName(fullMethod string) string {
	return fullMethod[strings.LastIndex(fullMethod, "/")+1:]
}

func resultLabel(err error) string {
	if err != nil {
		return "error"
	}
	return "ok"
}
