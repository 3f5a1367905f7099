// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	metadatav1beta1 "k8s.io/dynamic-resource-allocation/api/metadata/v1beta1"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	registerpb "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"k8s.io/utils/clock"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/checkpoint"
	"github.com/switchyard-dev/switchyard/pkg/device"
	"github.com/switchyard-dev/switchyard/pkg/nvml"
)

const (
	checkpointDirName = "checkpoint"

	// drainTimeout bounds how long a shutdown waits for calls in flight. They take milliseconds, unless
	// the API server is slow.
	drainTimeout = 5 * time.Second
	// registrationHeadStart and connectHeadStart bound how long the work of a start waits for the kubelet
	// to register the plugin, and then to connect to it: some times what both take on an idle machine.
	registrationHeadStart = 30 * time.Millisecond
	connectHeadStart      = 4 * time.Millisecond
	// flushTimeout is how long the last answer has to get onto the wire: a call counts as done before.
	flushTimeout = 100 * time.Millisecond
)

// Driver is the kubelet plugin of one node. It implements [kubeletplugin.DRAPlugin].
type Driver struct {
	config     Config
	clock      clock.WithTicker
	bootID     string
	metrics    *metrics
	events     nodeEvents
	conditions conditions

	hardware *hardware
	// lookNow makes discovery look at once; a look that is already asked for is enough.
	lookNow chan struct{}
	// desired is what was last handed to publishing. It belongs to discovery.
	desired   *resourceslice.DriverResources
	toPublish chan resourceslice.DriverResources
	// steering is nil where it is off.
	steering *steering
	// healthEvents are what the GPUs reported, and holderNews what their pods should know of it.
	healthEvents chan nvml.HealthEvent
	holderNews   chan holderNews
	// specsReady says that there are CDI edits to write specs with.
	specsReady atomic.Bool
	// runtimeErr is why no claim can be prepared on this node's container runtime.
	runtimeErr atomic.Pointer[error]

	store *checkpoint.Store
	// partitions makes MIG partitions. staticPartitions is what was last told of those of others, by GPU; it
	// belongs to discovery.
	partitions       *partitions
	staticPartitions map[string]string
	// settings changes settings of GPUs; daemons orders what is done about one MPS daemon.
	settings *settings
	daemons  keyedLock[string]
	metadata metadataFiles
	claims   keyedLock[types.UID]
	// leaving are the UIDs of the claims that are being unprepared.
	leaving sync.Map
	gate    startGate
	names   claimNames
	// damaged counts the records that were found damaged, rebuilt is closed when what was damaged at the start
	// is made up for.
	damaged damageCount
	rebuilt chan struct{}
	// reconcileNow makes the reconciler start a round soon, askAPI that it asks about every claim then.
	reconcileNow chan struct{}
	askAPI       atomic.Bool

	// registered is closed when the kubelet has registered the plugin for the first time.
	registered   chan struct{}
	registerOnce sync.Once

	inFlight callCounter
	helper   *kubeletplugin.Helper
	// cancel ends Run with a cause.
	cancel context.CancelCauseFunc
}

var _ kubeletplugin.DRAPlugin = &Driver{}

// New prepares a driver to run: it reads the checkpoint and the boot ID, and cleans up what a killed
// process left. It neither serves nor looks at the hardware yet.
func New(ctx context.Context, config Config) (*Driver, error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	bootID, err := readBootID(config.BootIDFile)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(config.PluginDir, 0o750); err != nil {
		return nil, fmt.Errorf("create the plugin directory: %w", err)
	}
	d := &Driver{
		config:       config,
		clock:        config.Clock,
		bootID:       bootID,
		metrics:      newMetrics(config.Registry, config.Version),
		events:       newNodeEvents(config.Recorder, config.NodeName),
		hardware:     newHardware(),
		gate:         newStartGate(),
		lookNow:      make(chan struct{}, 1),
		toPublish:    make(chan resourceslice.DriverResources, 1),
		healthEvents: make(chan nvml.HealthEvent, healthEventQueue),
		holderNews:   make(chan holderNews, holderNewsQueue),
		rebuilt:      make(chan struct{}),
		registered:   make(chan struct{}),
		reconcileNow: make(chan struct{}, 1),
		cancel:       func(error) {},
	}
	d.store, err = checkpoint.Open(ctx, filepath.Join(config.PluginDir, checkpointDirName),
		checkpoint.WithClock(config.Clock), checkpoint.WithQuarantineHandler(d.recordDamaged))
	if err != nil {
		return nil, fmt.Errorf("open the checkpoint: %w", err)
	}
	config.Registry.MustRegister(newPreparedCollector(d.store), newHealthCollector(d.hardware))
	if config.MPS != nil {
		config.Registry.MustRegister(newMPSCollector(config.MPS))
	}
	ledger, err := openPartitionLedger(config.PluginDir, bootID, config.ModuleDir)
	if err != nil {
		return nil, errors.Join(err, d.store.Close())
	}
	d.partitions = &partitions{platform: config.Partitions, ledger: ledger, holder: d.partitionHolder, inDoubt: d.damaged.pending}
	if d.settings, err = openSettings(config, bootID); err != nil {
		return nil, errors.Join(err, d.store.Close())
	}
	d.steering = newSteering(config.SteeringInterval, config.Clock, d.devicesInUse)
	for _, record := range d.store.List() {
		d.names.add(record)
	}
	d.metadata = metadataFiles{pluginDir: config.PluginDir, cdiDir: config.CDIDir, inUse: d.names.has, written: &metadataSpecs{}}
	d.conditions.set(conditionRegistration, "the kubelet has not registered the plugin yet")
	d.conditions.set(conditionDiscovery, "the hardware has not been looked at yet")
	if err := removeStaleSockets(ctx, v1alpha1.DriverName, config.PluginDir, config.RegistryDir); err != nil {
		// They cost the kubelet some vain dialling, no more.
		klog.FromContext(ctx).Error(err, "Cannot remove stale sockets")
	}
	return d, nil
}

// savedInventory is the inventory that the process before this one knew on this boot.
func (d *Driver) savedInventory(ctx context.Context) device.Inventory {
	inv, err := loadInventory(d.config.PluginDir, d.bootID)
	if err != nil {
		// It matters only for a GPU that was lost before the restart.
		klog.FromContext(ctx).Error(err, "Cannot use the saved inventory, starting without")
		d.metrics.errors.WithLabelValues("inventory_file").Inc()
	}
	return inv
}

// Run serves the kubelet until ctx ends and then shuts down: calls in flight are finished, the
// sockets are removed, the ResourceSlices stay, since the next process continues with them. The
// error is what ended it, if that was not ctx.
func (d *Driver) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	d.cancel = cancel

	// The helper stops at once when its context ends; it is stopped below, after the calls in flight.
	helper, err := kubeletplugin.Start(context.WithoutCancel(ctx), d, d.helperOptions()...)
	if err != nil {
		return fmt.Errorf("start serving the kubelet: %w", err)
	}
	d.helper = helper
	klog.FromContext(ctx).Info("Serving the kubelet", "node", d.config.NodeName, "socket", serviceSocket(d.config), "registration", registrationSocket(d.config))

	d.awaitRegistration(ctx)
	loops := []func(context.Context){
		newDiscovery(ctx, d).run,
		d.watchHealth,
		d.watchFences,
		d.runHolderNews,
		d.runPublisher,
		newReconciler(d).run,
		d.preflight,
	}
	var running sync.WaitGroup
	for _, loop := range loops {
		running.Go(func() { loop(ctx) })
	}

	<-ctx.Done()
	d.conditions.set(conditionShutdown, "the plugin is shutting down")
	klog.FromContext(ctx).Info("Shutting down", "cause", context.Cause(ctx))
	d.gate.close()
	d.drain(ctx)
	helper.Stop()
	running.Wait()
	err = d.store.Close()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		err = errors.Join(cause, err)
	}
	return err
}

// fail ends Run with an error.
func (d *Driver) fail(err error) { d.cancel(err) }

func (d *Driver) helperOptions() []kubeletplugin.Option {
	return []kubeletplugin.Option{
		kubeletplugin.DriverName(v1alpha1.DriverName),
		kubeletplugin.NodeName(d.config.NodeName),
		kubeletplugin.KubeClient(helperClient{Interface: d.config.KubeClient, wrote: d.sliceWritten}),
		kubeletplugin.PluginDataDirectoryPath(d.config.PluginDir),
		kubeletplugin.RegistrarDirectoryPath(d.config.RegistryDir),
		kubeletplugin.RollingUpdate(d.config.PodUID),
		kubeletplugin.Serialize(false),
		kubeletplugin.EnableDeviceMetadata(true, []schema.GroupVersion{metadatav1beta1.SchemeGroupVersion}),
		kubeletplugin.CDIDirectory(d.config.CDIDir),
		kubeletplugin.MetadataFileOps(d.metadata.operations()),
		kubeletplugin.GRPCInterceptor(d.observeCall),
		kubeletplugin.GRPCInterceptor(prefetchClaims(d.config.KubeClient)),
	}
}

// observeCall counts the kubelet's calls, lets a shutdown wait for them and learns of the
// registration. The plugin's own probes, calls without claims, are not counted.
func (d *Driver) observeCall(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	switch r := req.(type) {
	case *registerpb.InfoRequest:
		return handler(ctx, req)
	case *registerpb.RegistrationStatus:
		d.noteRegistration(r)
		return handler(ctx, req)
	case *drapb.NodePrepareResourcesRequest:
		if len(r.GetClaims()) == 0 {
			return handler(ctx, req)
		}
	}
	defer d.inFlight.begin()()
	return d.metrics.observe(ctx, d.clock, req, info, handler)
}

// awaitRegistration gives the kubelet the processor until it has registered the plugin and connected to
// it, for a bounded time: a look at the hardware and the first requests to the API server would slow it down.
func (d *Driver) awaitRegistration(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, registrationHeadStart)
	defer cancel()
	select {
	case <-d.registered:
	case <-ctx.Done():
		return
	}
	ctx, cancel = context.WithTimeout(ctx, connectHeadStart)
	defer cancel()
	<-ctx.Done()
}

func (d *Driver) noteRegistration(status *registerpb.RegistrationStatus) {
	if status.GetPluginRegistered() {
		d.conditions.clear(conditionRegistration)
		d.registerOnce.Do(func() { close(d.registered) })
		return
	}
	d.conditions.set(conditionRegistration, "the kubelet refused the plugin: "+status.GetError())
}

// drain waits for the calls in flight, for a bounded time.
func (d *Driver) drain(ctx context.Context) {
	idle := d.inFlight.none()
	select {
	case <-idle:
		return
	default:
	}
	select {
	case <-idle:
		<-d.clock.After(flushTimeout)
	case <-d.clock.After(drainTimeout):
		klog.FromContext(ctx).Info("Shutting down although calls are in flight: the kubelet will repeat them", "waited", drainTimeout)
	}
}

// callCounter counts calls and tells when there are none.
type callCounter struct {
	mu    sync.Mutex
	calls int
	idle  chan struct{}
}

// begin counts a call; the function it returns ends it.
func (c *callCounter) begin() func() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.calls--
		if c.calls == 0 && c.idle != nil {
			close(c.idle)
			c.idle = nil
		}
	}
}

// none returns a channel that is closed once no call is in flight.
func (c *callCounter) none() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls > 0 && c.idle != nil {
		return c.idle
	}
	idle := make(chan struct{})
	if c.calls == 0 {
		close(idle)
	} else {
		c.idle = idle
	}
	return idle
}
