// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/klog/v2"

	"github.com/switchyard-dev/switchyard/pkg/device"
	"github.com/switchyard-dev/switchyard/pkg/health"
	"github.com/switchyard-dev/switchyard/pkg/nvml"
)

const (
	// fastDiscovery is the wait before the next look while something is about to change: a fabric
	// is forming, or NVML has just failed.
	fastDiscovery = time.Second
	// patience is how much longer than the next wait something has been about to change: for a minute
	// the node is looked at every second, after ten minutes every ten. A fabric whose manager does not
	// run never forms.
	patience = 60
	// failuresUntilAway is how many looks in a row must fail before no GPU can be used. One failure is
	// nothing: a driver that is being reloaded answers again a second later, and each change of a
	// ResourceSlice wakes every pod that waits for a device.
	failuresUntilAway = 2
)

// discovery is the loop that looks at the hardware. Its fields belong to its goroutine.
type discovery struct {
	*Driver
	// known is the merged inventory as discovery found it, which is what is saved.
	known device.Inventory
	// health is what else is known against the GPUs, and judged is known with the health that follows, which
	// is what is published.
	health *deviceHealth
	judged device.Inventory
	// lookErr is why the last look failed, lastLook when it began, and lookAgain says that an event since
	// then asks for another.
	lookErr   error
	readErr   string // what was last told of readings that failed
	lastLook  time.Time
	lastSeen  time.Time // when the last look that did not fail ended
	lookAgain bool
	// failures counts the looks that failed since the last that did not.
	failures int
	// unsettled is since when something is about to change; zero while nothing is.
	unsettled time.Time
	// specsFor is the inventory that the CDI edits were last computed for; nil when they never were.
	specsFor *device.Inventory
	// forms are in which form GPUs are published, and notShared what was last told of those that cannot be shared.
	forms     *shareForms
	notShared []string
	// unidentified is what was last told about GPUs that cannot be listed.
	unidentified []string
}

// newDiscovery continues with what the process before this one knew on this boot.
func newDiscovery(ctx context.Context, driver *Driver) *discovery {
	d := &discovery{Driver: driver, known: driver.savedInventory(ctx)}
	var err error
	if d.health, err = openDeviceHealth(d.config.PluginDir, d.bootID, d.config.HealthPolicy, d.clock.Now()); err != nil {
		// What is lost is found again by looking, but for XIDs.
		klog.FromContext(ctx).Error(err, "Cannot use all of the saved health of the GPUs")
		d.metrics.errors.WithLabelValues("health_file").Inc()
	}
	if d.forms, err = openShareForms(d.config.PluginDir, d.config.Shares); err != nil {
		// What is lost is asked of the API server anew, before anything changes.
		klog.FromContext(ctx).Error(err, "Cannot use the file that says which GPUs are shared")
		d.metrics.errors.WithLabelValues("share_file").Inc()
	}
	d.judge()
	return d
}

// judge sets what is published: what is known, with the health and the form of each GPU.
func (d *discovery) judge() {
	d.judged = d.forms.apply(d.health.judge(d.known), d.clock.Now())
}

// run looks at the hardware until ctx ends.
func (d *discovery) run(ctx context.Context) {
	d.publishKnown()
	for d.pause(ctx, d.look(ctx)) {
	}
}

// look looks at the hardware once, spreads what it saw and returns how long to wait until the next
// look.
func (d *discovery) look(ctx context.Context) time.Duration {
	start := d.clock.Now()
	d.lastLook, d.lookAgain = start, false
	var seen device.Inventory
	var readings map[string]health.Readings
	var err error
	d.awaiting(ctx, func() {
		if seen, err = d.discover(ctx); err == nil {
			readings = d.readHealth(ctx)
		}
	})
	d.metrics.observeDiscovery(d.clock.Since(start), err)
	if ctx.Err() != nil {
		return 0
	}

	if err != nil {
		d.failures++
		d.unsettled = time.Time{} // a driver that comes back begins anew
		d.failed(ctx, err)
		return min(d.config.DiscoveryInterval, fastDiscovery<<min(d.failures-1, 10))
	}
	if d.failures > 0 {
		klog.FromContext(ctx).Info("NVML answers again", "gpus", len(seen.GPUs))
		d.events.normal(reasonNVMLRecovered, "NVML answers again and lists %d GPUs", len(seen.GPUs))
	}
	d.failures = 0

	d.reportUnidentified(ctx, seen.Unidentified)
	d.lastSeen = d.clock.Now()
	inv := device.Merge(d.known, seen)
	if seen.Unanswered > 0 {
		// The ones that are not listed may be those.
		inv = unproven(d.known, seen, inv, device.Health{
			Reason:  device.ReasonNotAnswering,
			Message: "NVML does not list the GPU and cannot identify all: " + strings.Join(seen.Unidentified, "; "),
		})
	}
	ready := d.refreshSpecs(ctx, inv)
	for _, name := range d.health.forget() {
		klog.FromContext(ctx).Info("Forgetting what was known against a GPU: its file was removed", "device", name)
	}
	d.health.look(inv, readings, start)
	d.accept(ctx, inv, nil)
	if d.reconfigure(ctx) {
		d.spread(ctx)
	}
	d.conditions.clear(conditionDiscovery) // not before claims are prepared by what was seen
	// Devices that could not be prepared would only draw pods to this node, so nothing is published
	// before there are CDI edits for the first time.
	if d.specsFor != nil {
		d.publish(d.judged)
	}
	return d.waitAfter(start, seen.Settling || !ready || d.forms.soon())
}

// waitAfter is the wait after a look that began at start and found that something is about to change, or
// not.
func (d *discovery) waitAfter(start time.Time, unsettled bool) time.Duration {
	if !unsettled {
		d.unsettled = time.Time{}
		return d.config.DiscoveryInterval
	}
	if d.unsettled.IsZero() {
		d.unsettled = start
	}
	return min(d.config.DiscoveryInterval, max(fastDiscovery, start.Sub(d.unsettled)/patience))
}

// failed deals with hardware that cannot be looked at.
//
// A node that never had an inventory on this boot publishes no devices. One that had keeps listing
// its GPUs, as not usable: devices must not leave a slice while they may be allocated. Pods that run are left
// alone whatever the policy, since nothing is known against any GPU: they may well go on, as when the driver's
// files are away or its library is being replaced.
//
// A library that was replaced while it was loaded is the one fault that only a new process overcomes.
func (d *discovery) failed(ctx context.Context, err error) {
	if errors.Is(err, nvml.ErrRestartRequired) {
		d.fail(err)
		return
	}
	if unavailable, ok := errors.AsType[*nvml.UnavailableError](err); ok && unavailable.Reason == nvml.ReasonDriverNotLoaded {
		d.health.driverUnloaded()
	}
	d.metrics.errors.WithLabelValues("discovery").Inc()
	if d.conditions.set(conditionDiscovery, err.Error()) {
		klog.FromContext(ctx).Error(err, "Cannot look at the GPUs, trying again")
		d.events.warn(reasonNVMLUnavailable, "The GPUs of this node cannot be used: %v", err)
	}
	inv := d.known
	if d.failures >= failuresUntilAway {
		gone := device.Inventory{NodeName: d.known.NodeName, DriverVersion: d.known.DriverVersion, CUDADriverVersion: d.known.CUDADriverVersion}
		inv = unproven(d.known, gone, device.Merge(d.known, gone), device.Health{Reason: device.ReasonNVMLUnavailable, Message: err.Error()})
	}
	d.accept(ctx, inv, err)
	if len(inv.GPUs) == 0 || d.failures >= failuresUntilAway {
		d.publish(d.judged)
	}
}

// unproven returns merged, which [device.Merge] made of known and seen, with the given health for the GPUs that
// were not seen, in place of that they are lost. What was found of one of them before stays true.
func unproven(known, seen, merged device.Inventory, why device.Health) device.Inventory {
	merged.GPUs = slices.Clone(merged.GPUs)
	for i, gpu := range merged.GPUs {
		if _, ok := seen.ByName(gpu.Name()); ok {
			continue
		}
		merged.GPUs[i].Health = why
		if old, _ := known.ByName(gpu.Name()); old.Health.Reason == device.ReasonLost || old.Health.Reason == device.ReasonResetRequired {
			merged.GPUs[i].Health = old.Health
		}
	}
	return merged
}

// publishAgain publishes what is known, if anything was published on this boot: the free counts may have changed.
func (d *discovery) publishAgain() {
	if d.desired != nil {
		d.publish(d.judged)
	}
}

// refreshSpecs computes the CDI edits of an inventory that has none yet, or anew where the driver's files have changed, and
// reports whether there are edits to prepare devices with.
func (d *discovery) refreshSpecs(ctx context.Context, inv device.Inventory) bool {
	if d.specsFor != nil && apiequality.Semantic.DeepEqual(*d.specsFor, inv) && !d.config.Specs.Moved() {
		return true
	}
	var err error
	d.awaiting(ctx, func() { err = d.config.Specs.Refresh(ctx, inv) })
	if ctx.Err() != nil {
		return false // shutting down: what failed because of that is no news
	}
	if err != nil {
		d.metrics.errors.WithLabelValues("cdi_refresh").Inc()
		if d.conditions.set(conditionCDI, err.Error()) {
			klog.FromContext(ctx).Error(err, "Cannot compute how containers get the GPUs, trying again")
			d.events.warn(reasonCDIFailed, "The GPUs of this node cannot be given to containers: %v", err)
		}
		return false
	}
	d.specsFor = &inv
	d.conditions.clear(conditionCDI)
	d.specsReady.Store(true)
	d.requestReconcile(false) // specs on disk may have become wrong
	return true
}

// accept makes inv, with the health that follows from all that is known, what the plugin goes by. err is why
// the hardware could not be looked at.
func (d *discovery) accept(ctx context.Context, inv device.Inventory, err error) {
	if !apiequality.Semantic.DeepEqual(d.known, inv) {
		if saveErr := saveInventory(d.config.PluginDir, d.bootID, inv); saveErr != nil {
			// The file matters only for a GPU that is lost while the plugin restarts.
			klog.FromContext(ctx).Error(saveErr, "Cannot save the inventory")
			d.metrics.errors.WithLabelValues("inventory_file").Inc()
		}
	}
	d.known, d.lookErr = inv, err
	d.spread(ctx)
}

// spread judges the GPUs anew, keeps what the judgement is made of, and tells everybody but the API server.
func (d *discovery) spread(ctx context.Context) {
	if err := d.health.save(); err != nil {
		// The files matter only for a GPU that is sick while the plugin restarts.
		klog.FromContext(ctx).Error(err, "Cannot save the health of the GPUs")
		d.metrics.errors.WithLabelValues("health_file").Inc()
	}
	before := d.judged
	d.judge()
	d.reportHealth(ctx, before, d.judged)
	d.hardware.store(newSnapshot(d.judged, d.lastSeen, d.clock.Now(), d.lookErr))
}

// reportUnidentified tells of GPUs that are there but do not even tell their UUID, so that they cannot
// be listed.
func (d *discovery) reportUnidentified(ctx context.Context, unidentified []string) {
	if slices.Equal(d.unidentified, unidentified) {
		return
	}
	d.unidentified = slices.Clone(unidentified)
	for _, why := range unidentified {
		klog.FromContext(ctx).Info("A GPU cannot be identified and is not published", "why", why)
		d.events.warn(reasonGPUUnidentified, "A GPU of this node cannot be used: %s", why)
	}
}
