// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-base/version"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/switchyard-dev/switchyard/internal/frugal"
	"github.com/switchyard-dev/switchyard/pkg/health"
	"github.com/switchyard-dev/switchyard/pkg/kubeletplugin"
	"github.com/switchyard-dev/switchyard/pkg/nvml"
	"github.com/switchyard-dev/switchyard/pkg/sharing"
)

// serverShutdownTimeout bounds how long the metrics server waits for its last requests.
const serverShutdownTimeout = time.Second

// Platform is what the node's hardware is. *nvml.Library implements it.
type Platform interface {
	kubeletplugin.Platform
	kubeletplugin.Partitioner
	kubeletplugin.ComputeModes
	// Interface returns the NVML that CDI edits are computed with.
	Interface() nvml.Interface
	// Close gives the hardware back.
	Close() error
}

// run runs the plugin until ctx ends, on the hardware that open returns.
func run(ctx context.Context, name string, o Options, open func(Options) (Platform, error)) (finalErr error) {
	frugal.Start()
	logger := klog.LoggerWithValues(klog.FromContext(ctx), "node", o.NodeName)
	ctx = klog.NewContext(ctx, logger)
	logger.Info("Starting", "command", name, "version", version.Get().GitVersion, "pod", klog.KRef(o.PodNamespace, o.PodName), "config", o.configFile)

	platform, client, err := connect(o, open)
	if err != nil {
		return err
	}
	defer func() { finalErr = errors.Join(finalErr, platform.Close()) }()
	recorder, stopEvents := newRecorder(ctx, client, name, o)
	defer stopEvents()
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	specs, err := newSpecs(ctx, o, platform)
	if err != nil {
		return err
	}

	policy, err := health.ParsePolicy(o.HealthEffect, o.HealthXIDs)
	if err != nil {
		return fmt.Errorf("health policy: %w", err)
	}
	daemons, err := sharing.NewDaemons(filepath.Join(o.PluginDir, sharing.DirName), o.MPSSharedMemoryDir)
	if err != nil {
		return err
	}
	shares, err := o.nodeShares()
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	driver, err := kubeletplugin.New(ctx, kubeletplugin.Config{
		NodeName:          o.NodeName,
		PodUID:            types.UID(o.PodUID),
		PluginDir:         o.PluginDir,
		RegistryDir:       o.RegistryDir,
		CDIDir:            o.CDIDir,
		BootIDFile:        o.BootIDFile,
		ModuleDir:         filepath.Join(o.SysfsRoot, "module/nvidia"),
		DiscoveryInterval: o.DiscoveryInterval,
		ReconcileInterval: o.ReconcileInterval,
		OrphanGrace:       o.OrphanGrace,
		Shares:            shares,
		DefaultTimeSlice:  o.DefaultTimeSlice,
		DeviceWait:        o.DeviceWait,
		SteeringInterval:  o.SteeringInterval,
		HealthPolicy:      policy,
		KubeClient:        client,
		Platform:          platform,
		Specs:             specs,
		Partitions:        platform,
		MPS:               daemons,
		ComputeModes:      platform,
		TimeSlicer:        sharing.SMI{DriverRoot: cmp.Or(o.DriverRootMount, o.DriverRoot), LibraryDir: filepath.Join(o.PluginDir, "driver-libraries")},
		Recorder:          recorder,
		Registry:          registry,
		Clock:             clock.RealClock{},
		Version:           version.Get().GitVersion,
	})
	if err != nil {
		return err
	}

	// The servers end with the driver, not before it: they tell that it is shutting down.
	serveCtx, stopServers := context.WithCancel(context.WithoutCancel(ctx))
	defer stopServers()
	group, groupCtx := errgroup.WithContext(serveCtx)
	if err := serveHTTP(groupCtx, group, o.MetricsAddress, kubeletplugin.NewHTTPHandler(driver, registry)); err != nil {
		return fmt.Errorf("--metrics-address: %w", err)
	}
	if err := serveHealth(groupCtx, group, o.GRPCHealthAddress, driver); err != nil {
		return fmt.Errorf("--grpc-health-address: %w", err)
	}
	driverCtx, stopDriver := context.WithCancelCause(ctx)
	defer stopDriver(nil)
	context.AfterFunc(groupCtx, func() { stopDriver(nil) }) // a server that fails ends the driver
	group.Go(func() error {
		defer stopServers()
		return driver.Run(driverCtx)
	})
	return group.Wait()
}

// connect opens the hardware and sets up the client of the API server, at the same time: each takes
// milliseconds of the start.
func connect(o Options, open func(Options) (Platform, error)) (Platform, kubernetes.Interface, error) {
	var client kubernetes.Interface
	var setUp errgroup.Group
	setUp.Go(func() (err error) {
		client, err = newClient(o)
		return err
	})
	platform, err := open(o)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("open the hardware: %w", err), setUp.Wait())
	}
	if err := setUp.Wait(); err != nil {
		return nil, nil, errors.Join(err, platform.Close())
	}
	return platform, client, nil
}

// newRecorder returns a recorder of Events and the function that stops it after what was recorded
// last is on its way.
func newRecorder(ctx context.Context, client kubernetes.Interface, name string, o Options) (record.EventRecorder, func()) {
	broadcaster := record.NewBroadcaster(record.WithContext(context.WithoutCancel(ctx)))
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	return broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: name, Host: o.NodeName}), broadcaster.Shutdown
}

// serveHTTP serves handler at address, in group, until ctx ends.
func serveHTTP(ctx context.Context, group *errgroup.Group, address string, handler http.Handler) error {
	if address == addressOff {
		return nil
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	server := kubeletplugin.NewHTTPServer(handler)
	group.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve metrics: %w", err)
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), serverShutdownTimeout)
		defer cancel()
		if err := server.Shutdown(stopping); err != nil {
			return server.Close()
		}
		return nil
	})
	return nil
}

// serveHealth serves the gRPC health service at address, in group, until ctx ends.
func serveHealth(ctx context.Context, group *errgroup.Group, address string, driver *kubeletplugin.Driver) error {
	if address == addressOff {
		return nil
	}
	network := "tcp"
	if path, ok := strings.CutPrefix(address, unixScheme); ok {
		network, address = "unix", path
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove the old socket: %w", err)
		}
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, network, address)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	kubeletplugin.RegisterHealthService(server, driver)
	group.Go(func() error {
		if err := server.Serve(listener); err != nil {
			return fmt.Errorf("serve gRPC health: %w", err)
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		server.Stop()
		return nil
	})
	return nil
}
