// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/internal/frugal"
	"github.com/switchyard-dev/switchyard/pkg/defrag"
	"github.com/switchyard-dev/switchyard/pkg/demand"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// Name is the controller as the writer of fields, as the source of Events and as the holder of the lease.
const Name = "switchyard-controller"

const (
	// minBackoff and maxBackoff are the times between two tries after errors, doubling.
	minBackoff, maxBackoff = 10 * time.Millisecond, 10 * time.Second
	// reconcileTimeout bounds one decision with all its writes: an API server that hangs must not keep
	// a worker for ever.
	reconcileTimeout = time.Minute
	// shutdownTimeout bounds how long the leader waits for writes under way before it gives the lease
	// back. Kubernetes kills the process 10 s after it was told to end.
	shutdownTimeout = 5 * time.Second
)

// Config says how to run the controller.
type Config struct {
	// Client is how to reach the API server.
	Client *rest.Config
	// Lease makes one of several processes the leader; nil for a process that is alone.
	Lease *Lease
	// Workers is how many gangs are moved on at the same time; at least 1.
	Workers int
	// Defrag bounds what is moved to make room for gangs.
	Defrag defrag.Limits
	// Consolidation says how to look for pods that are worth moving while no gang waits; nil: not at all.
	Consolidation *Consolidation
	// SweepInterval is the time between two searches for objects of gangs that are gone.
	SweepInterval time.Duration
	// Listener, where not nil, serves /metrics, /healthz and /readyz. Run closes it.
	Listener net.Listener
	// Registry takes the metrics, and is served with those of controller-runtime.
	Registry *prometheus.Registry
	Clock    clock.WithDelayedExecution
	Version  string
	// Wrote, where not nil, is called after each write, with the name of the action, or "Status" and
	// the step. An error ends the decision there, as a crash would: tests crash the controller with it.
	Wrote func(verb string) error
}

// Lease is how leaders are elected.
type Lease struct {
	// Namespace is where the lease called Name is.
	Namespace string
	// Duration is how long others wait before they take over, RenewDeadline how long the leader tries
	// to renew before it ends, RetryPeriod the time between two tries.
	Duration, RenewDeadline, RetryPeriod time.Duration
}

// Run runs the controller until ctx ends, or until the lease is lost, which is an error. Nothing that
// it started is running when it returns, save after a lost lease: the process has to end then.
func Run(ctx context.Context, config Config) error {
	scheme, err := newScheme()
	if err != nil {
		return err
	}
	logger := klog.FromContext(ctx)
	options := manager.Options{
		Scheme:  scheme,
		Logger:  logger,
		Cache:   cacheOptions(),
		Client:  client.Options{FieldOwner: Name, Cache: &client.CacheOptions{EnableReadYourWritesConsistency: ptr.To(true)}},
		Metrics: metricsserver.Options{BindAddress: "0"}, // served below, with the probes
		// Everything that is cancelled here has logs of its own.
		BaseContext: func() context.Context { return klog.NewContext(context.Background(), logger) },
	}
	options.GracefulShutdownTimeout = ptr.To(shutdownTimeout)
	options.Controller.SkipNameValidation = ptr.To(true) // several in one process, in tests
	if lease := config.Lease; lease != nil {
		options.LeaderElection = true
		options.LeaderElectionID = Name
		options.LeaderElectionNamespace = lease.Namespace
		options.LeaseDuration, options.RenewDeadline, options.RetryPeriod = &lease.Duration, &lease.RenewDeadline, &lease.RetryPeriod
		// Run returns when everything has stopped, and the process ends.
		options.LeaderElectionReleaseOnCancel = true
	}
	m, err := manager.New(config.Client, options)
	if err != nil {
		return fmt.Errorf("set up the manager: %w", err)
	}
	if err := add(ctx, m, config); err != nil {
		return err
	}
	if err := m.Start(ctx); err != nil {
		return fmt.Errorf("run: %w", err)
	}
	return nil
}

// add puts the parts together.
func add(ctx context.Context, m manager.Manager, config Config) error {
	if err := addIndexes(ctx, m.GetFieldIndexer()); err != nil {
		return err
	}
	for _, object := range cached() {
		if _, err := m.GetCache().GetInformer(ctx, object, cache.BlockUntilSynced(false)); meta.IsNoMatchError(err) {
			return fmt.Errorf("watch %T: %w: install the CustomResourceDefinitions of %s first", object, err, v1alpha1.GroupName)
		} else if err != nil {
			return fmt.Errorf("watch %T: %w", object, err)
		}
	}
	wrote := config.Wrote
	if wrote == nil {
		wrote = func(string) error { return nil }
	}
	metrics := newMetrics(config.Registry, config.Version)
	// Closed never: it lives as long as the process, or the test.
	looks := make(chan event.TypedGenericEvent[types.NamespacedName])
	look := func(key types.NamespacedName) {
		select {
		case looks <- event.TypedGenericEvent[types.NamespacedName]{Object: key}:
		case <-ctx.Done():
		}
	}
	state := placement.NewCluster()
	maker := defrag.NewMaker(config.Defrag, config.Clock)
	rooms := &rooms{Cluster: state, maker: maker, clock: config.Clock, observe: metrics.observeSearch}
	planner := newPlanner(rooms, config.Clock, look, metrics.observePlan)
	rooms.lookAgain = planner.Changed
	watched := newWatched(config.Clock, look)
	applier := &applier{client: m.GetClient(), live: m.GetAPIReader(), clock: config.Clock, wrote: wrote}
	events := newEventSender(m.GetEventRecorder(Name), config.Clock)
	r := &reconciler{
		client:   m.GetClient(),
		live:     m.GetAPIReader(),
		observer: &observer{cached: m.GetClient(), live: m.GetAPIReader(), cluster: state, maker: maker, clock: config.Clock},
		planner:  planner,
		applier:  applier,
		events:   events,
		metrics:  metrics,
		watched:  watched,
		backoff:  newBackoff(),
	}
	sweeper := &sweeper{
		client: m.GetClient(), live: m.GetAPIReader(), applier: applier, events: events,
		metrics: metrics, clock: config.Clock, interval: config.SweepInterval, wake: make(chan struct{}, 1),
	}
	idle := &idleMeter{reader: m.GetClient(), watched: watched, clock: config.Clock, add: metrics.idleSeconds.Add}
	var asked *demand.Tracker
	if config.Consolidation != nil {
		asked = demand.NewTracker(config.Consolidation.HalfLife, config.Clock)
	}
	feed := &feed{
		cluster: state, maker: maker, planner: planner, demand: asked, deleted: sweeper.deleted,
		supply: watched.supplyChanged, usage: watched.usageChanged,
	}
	if err := feed.start(ctx, m.GetCache()); err != nil {
		return err
	}
	config.Registry.MustRegister(newCollector(m.GetCache(), state, feed.Synced))
	if err := addController(m, r, looks, config.Workers, feed.Synced); err != nil {
		return err
	}
	runs := []func(context.Context){planner.Run, watched.Run, sweeper.Run, idle.Run}
	if config.Consolidation != nil {
		runs = append(runs, (&consolidator{
			Consolidation: *config.Consolidation, reader: m.GetClient(), waits: planner.Waits, synced: feed.Synced, events: events, metrics: metrics, clock: config.Clock,
			search: func(ctx context.Context, most int) *defrag.Consolidation {
				return maker.Consolidate(ctx, state, most, asked.Mix(state.Products()))
			},
		}).Run)
	}
	for _, run := range runs {
		if err := m.Add(runnable{run: run, leader: true}); err != nil {
			return err
		}
	}
	if err := m.Add(runnable{run: func(ctx context.Context) {
		if toolscache.WaitForCacheSync(ctx.Done(), feed.Synced) {
			frugal.GiveBack() // Filling the caches takes more than twice what they keep.
		}
	}}); err != nil {
		return err
	}
	if config.Listener != nil {
		return addServer(m, config, feed.Synced)
	}
	return nil
}

// addController adds the controller with what brings a gang up.
func addController(m manager.Manager, r *reconciler, looks <-chan event.TypedGenericEvent[types.NamespacedName], workers int, synced func() bool) error {
	c, err := controller.New("gang", m, controller.Options{
		MaxConcurrentReconciles: max(workers, 1),
		ReconciliationTimeout:   reconcileTimeout,
		Reconciler:              gate{r, synced},
		LogConstructor: func(request *reconcile.Request) klog.Logger {
			if request == nil {
				return m.GetLogger()
			}
			return klog.LoggerWithValues(m.GetLogger(), "gangClaim", klog.KRef(request.Namespace, request.Name))
		},
	})
	if err != nil {
		return fmt.Errorf("set up the controller: %w", err)
	}
	cached := m.GetCache()
	return errors.Join(
		c.Watch(source.Kind(cached, &v1alpha1.GangClaim{}, &handler.TypedEnqueueRequestForObject[*v1alpha1.GangClaim]{})),
		c.Watch(source.Kind(cached, &corev1.Pod{}, handler.TypedEnqueueRequestsFromMapFunc(func(_ context.Context, pod *corev1.Pod) []reconcile.Request {
			var requests []reconcile.Request
			for _, name := range templatesOf(pod) {
				requests = append(requests, reconcile.Request{NamespacedName: types.NamespacedName{Namespace: pod.Namespace, Name: name}})
			}
			return requests
		}))),
		c.Watch(source.Kind(cached, &resourceapi.ResourceClaimTemplate{}, handler.TypedEnqueueRequestsFromMapFunc(func(_ context.Context, template *resourceapi.ResourceClaimTemplate) []reconcile.Request {
			return []reconcile.Request{{NamespacedName: keyOf(template)}}
		}))),
		c.Watch(source.Kind(cached, &resourceapi.ResourceClaim{}, handler.TypedEnqueueRequestsFromMapFunc(func(ctx context.Context, claim *resourceapi.ResourceClaim) []reconcile.Request {
			return gangWithUID(ctx, r.client, claim)
		}))),
		c.Watch(source.Kind(cached, &resourceapi.DeviceTaintRule{}, handler.TypedEnqueueRequestsFromMapFunc(func(ctx context.Context, rule *resourceapi.DeviceTaintRule) []reconcile.Request {
			return gangWithUID(ctx, r.client, rule)
		}))),
		c.Watch(source.TypedChannel(looks, handler.TypedEnqueueRequestsFromMapFunc(func(_ context.Context, key types.NamespacedName) []reconcile.Request {
			return []reconcile.Request{{NamespacedName: key}}
		}))),
	)
}

// gangWithUID is the gang whose UID an object carries in its label.
func gangWithUID(ctx context.Context, reader client.Reader, object client.Object) []reconcile.Request {
	uid := object.GetLabels()[v1alpha1.GangLabel]
	if uid == "" {
		return nil
	}
	var gangs v1alpha1.GangClaimList
	// Without waiting for our own writes: this is called for events, in their order.
	if err := reader.List(ctx, &gangs, client.MatchingFields{gangsByUID: uid}, client.DisableReadYourWritesConsistency); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot find the gang of an object", "object", klog.KObj(object), "gang", uid)
		return nil
	}
	var requests []reconcile.Request
	for i := range gangs.Items {
		requests = append(requests, reconcile.Request{NamespacedName: keyOf(&gangs.Items[i])})
	}
	return requests
}

// gate puts off decisions until everything is known: what is not known yet looks free.
type gate struct {
	reconcile.Reconciler
	open func() bool
}

// Reconcile implements reconcile.Reconciler.
func (g gate) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	if !g.open() {
		return reconcile.Result{RequeueAfter: settleTime}, nil
	}
	return g.Reconciler.Reconcile(ctx, request)
}

// runnable runs on every replica, or on the leader only.
type runnable struct {
	run    func(context.Context)
	leader bool
}

// Start implements manager.Runnable.
func (r runnable) Start(ctx context.Context) error {
	r.run(ctx)
	return nil
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (r runnable) NeedLeaderElection() bool { return r.leader }
