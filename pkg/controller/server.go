// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
)

const (
	// readHeaderTimeout bounds how long a client may take to ask.
	readHeaderTimeout = 10 * time.Second
	// serverShutdownTimeout bounds how long the server waits for its last requests.
	serverShutdownTimeout = time.Second
)

var errNotSynced = errors.New("the caches are being filled")

// addServer serves metrics and probes, on every replica. One that is no leader is ready when its caches
// are: it could take over.
func addServer(m manager.Manager, config Config, synced func() bool) error {
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(prometheus.Gatherers{config.Registry, crmetrics.Registry}, promhttp.HandlerOpts{}))
	probe := func(path string, check healthz.Checker) {
		mux.Handle(path, http.StripPrefix(path, &healthz.Handler{Checks: map[string]healthz.Checker{"check": check}}))
	}
	probe("/healthz", healthz.Ping)
	probe("/readyz", func(*http.Request) error {
		if !synced() {
			return errNotSynced
		}
		return nil
	})
	return m.Add(&manager.Server{
		Name:            "metrics and probes",
		Server:          &http.Server{Handler: mux, ReadHeaderTimeout: readHeaderTimeout},
		Listener:        config.Listener,
		ShutdownTimeout: ptr.To(serverShutdownTimeout),
	})
}
