// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"strconv"
	"time"

	"k8s.io/klog/v2"

	"github.com/switchyard-dev/switchyard/pkg/health"
	"github.com/switchyard-dev/switchyard/pkg/nvml"
)

// HealthPlatform is a Platform that tells more of its GPUs' health than whether they answer. *nvml.Library
// implements it.
type HealthPlatform interface {
	Platform
	// ReadHealth returns what each GPU says of its health, by UUID. It is called like Discover, after it.
	ReadHealth(ctx context.Context) (map[string]health.Readings, error)
	// WatchHealth tells what the GPUs report by themselves until ctx ends, or with an error until there are
	// no events any more; it is called again then. started is called when events are on their way, with how
	// many GPUs report any and how many there are.
	WatchHealth(ctx context.Context, started func(monitored, gpus int), tell func(nvml.HealthEvent)) error
}

const (
	// healthEventQueue is how many events wait while discovery is busy with one. Those who tell more wait.
	healthEventQueue = 64
	// watchPause is the first wait before events are asked for again. It grows while that fails, also when it does
	// so only after events were on their way: with a GPU that is lost every wait for events may fail. After
	// steadyWatch it begins anew.
	watchPause  = 100 * time.Millisecond
	steadyWatch = 10 * time.Second
)

// watchHealth passes the GPUs' events on to discovery until ctx ends.
func (d *Driver) watchHealth(ctx context.Context) {
	platform, ok := d.config.Platform.(HealthPlatform)
	if !ok {
		return
	}
	logger := klog.FromContext(ctx)
	failures, told := 0, ""
	for {
		var began time.Time // when events were on their way; zero before
		err := platform.WatchHealth(ctx, func(monitored, gpus int) {
			if began.IsZero() {
				began = d.clock.Now()
			}
			d.metrics.monitoredDevices.Set(float64(monitored))
			logger.V(2).Info("Waiting for events of the GPUs", "monitored", monitored, "gpus", gpus)
		}, func(event nvml.HealthEvent) {
			select {
			case d.healthEvents <- event:
			case <-ctx.Done():
			}
		})
		if ctx.Err() != nil {
			return
		}
		d.metrics.monitoredDevices.Set(0)
		if !began.IsZero() && d.clock.Since(began) >= steadyWatch {
			failures, told = 0, ""
		}
		switch {
		case err == nil || told == err.Error():
		case errors.Is(err, nvml.ErrUnavailable):
			// Discovery says so.
		default:
			told = err.Error()
			logger.V(1).Info("No events of the GPUs for now: their health is found by looking", "err", err)
		}
		wait := min(d.config.DiscoveryInterval, watchPause<<min(failures, 20))
		failures++
		select {
		case <-ctx.Done():
			return
		case <-d.clock.After(wait):
		}
	}
}

// awaiting calls f, which looks at the hardware, and deals with events while that takes: a GPU that hangs
// may be just what they are about.
func (d *discovery) awaiting(ctx context.Context, f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	for {
		select {
		case <-done:
			return
		case event := <-d.healthEvents:
			d.lookAgain = d.noteEvent(ctx, event) || d.lookAgain
		}
	}
}

// pause waits for the next look: until the wait is over, somebody asks for one, or an event makes one
// necessary, but never shorter than fastDiscovery after the last because of events. It reports whether ctx
// goes on.
func (d *discovery) pause(ctx context.Context, wait time.Duration) bool {
	over := d.clock.After(wait)
	var soon <-chan time.Time
	for {
		if d.lookAgain && soon == nil {
			soon = d.clock.After(max(0, fastDiscovery-d.clock.Since(d.lastLook)))
		}
		select {
		case <-ctx.Done():
			return false
		case <-over:
			return true
		case <-soon:
			return true
		case <-d.lookNow:
			return true
		case <-d.steering.again():
			d.publishAgain()
		case <-d.steering.later():
			d.publishAgain()
		case event := <-d.healthEvents:
			d.lookAgain = d.noteEvent(ctx, event) || d.lookAgain
		}
	}
}

// noteEvent deals with what a GPU reported: a GPU that has become sick by it is published as that at once,
// without asking NVML, which may hang. It reports whether the hardware should be looked at.
func (d *discovery) noteEvent(ctx context.Context, event nvml.HealthEvent) bool {
	logger := klog.FromContext(ctx)
	name := ""
	for _, gpu := range d.known.GPUs {
		if gpu.UUID == event.UUID {
			name = gpu.Name()
		}
	}
	d.metrics.healthEvents.WithLabelValues(event.Type).Inc()
	if event.XID != 0 {
		d.metrics.xids.WithLabelValues(name, strconv.FormatUint(event.XID, 10)).Inc()
	}
	if name == "" || event.XID == 0 || event.XID == health.CodeRecoveryAction {
		logger.V(2).Info("NVML reported an event, looking at the GPUs", "device", name, "uuid", event.UUID, "type", event.Type, "xid", event.XID)
		return true
	}
	xid := health.Classify(event.XID)
	if !d.health.record(name).Raise(event.XID, d.health.policy, d.clock.Now()) {
		logger.V(2).Info("GPU reported an XID that changes nothing", "device", name, "xid", xid.Code, "class", xid.Class, "meaning", xid.Meaning)
		return false
	}
	logger.Info("GPU reported an XID", "device", name, "xid", xid.Code, "class", xid.Class, "meaning", xid.Meaning)
	d.spread(ctx)
	if d.desired != nil {
		d.publish(d.judged)
	}
	return true
}

// readHealth asks the GPUs of their health. What they say of it is not worth failing a look.
func (d *discovery) readHealth(ctx context.Context) map[string]health.Readings {
	platform, ok := d.config.Platform.(HealthPlatform)
	if !ok {
		return nil
	}
	readings, err := platform.ReadHealth(ctx)
	switch {
	case err == nil:
		d.readErr = ""
	case ctx.Err() == nil:
		d.metrics.errors.WithLabelValues("read_health").Inc()
		if d.readErr != err.Error() {
			d.readErr = err.Error()
			klog.FromContext(ctx).Error(err, "Cannot read the health of the GPUs, trying again")
		}
	}
	return readings
}
