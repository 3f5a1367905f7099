// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"net/http"
	"strings"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"github.com/switchyard-dev/switchyard/pkg/device"
	"github.com/switchyard-dev/switchyard/pkg/resourcemodel"
)

// staleHealthMessage starts the message of the one recoverable error of the helper that has nothing to
// do with publishing.
const staleHealthMessage = "device health reports are stale"

// publish hands the ResourceSlices of an inventory to the publisher, if they differ from what it has
// already. The publisher takes the newest when it gets to it.
//
// A node without devices publishes a pool without slices, not an empty slice: when its GPUs come up,
// new slices appear, and none gains devices on this boot (a stock scheduler can crash over a slice that does
// while a DeviceTaintRule changes).
func (d *Driver) publish(inv device.Inventory) {
	resources := d.steering.steer(resourcemodel.DriverResources(d.config.NodeName, inv))
	if d.desired != nil && apiequality.Semantic.DeepEqual(*d.desired, resources) {
		return
	}
	d.desired = &resources
	d.metrics.publishedDevices.Set(float64(len(inv.GPUs)))
	select {
	case <-d.toPublish: // an older one that nobody took
	default:
	}
	d.toPublish <- resources
}

// publishKnown starts publishing before the first look at the hardware, with what the process before
// this one published: the helper needs a second to list the node's slices, and discovery need not
// wait for that. On a boot on which no GPUs are known yet nothing is said about the node's pool;
// slices of an earlier boot go when that stays so for half a minute.
func (d *discovery) publishKnown() {
	if len(d.known.GPUs) == 0 {
		d.toPublish <- resourceslice.DriverResources{}
		return
	}
	d.publish(d.judged)
}

// runPublisher passes ResourceSlices on to the helper until ctx ends. It has a goroutine of its own
// because the helper blocks the first time until it has listed the node's slices, for as long as the
// API server is away.
func (d *Driver) runPublisher(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case resources := <-d.toPublish:
			// What was wrong with the last slices need not be wrong with these.
			d.conditions.clear(conditionPublishing)
			if err := d.helper.PublishResources(ctx, resources); err != nil {
				if ctx.Err() == nil {
					d.HandleError(ctx, err, "publishing ResourceSlices")
				}
				continue
			}
			klog.FromContext(ctx).V(2).Info("Handed the node's GPUs to publishing", "pool", d.config.NodeName, "slices", len(resources.Pools[d.config.NodeName].Slices))
		}
	}
}

// sliceWritten notes that the API server took a ResourceSlice: publishing works.
func (d *Driver) sliceWritten(verb string) {
	d.metrics.sliceWrites.WithLabelValues(verb).Inc()
	d.conditions.clear(conditionPublishing)
}

// refused reports whether the API server took nothing of a write, and said so. A write whose answer was lost may have been
// stored: the helper then finds nothing to write, and no success would end the condition.
func refused(err error) bool {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok || apierrors.IsConflict(err) || apierrors.IsTooManyRequests(err) {
		return false
	}
	code := status.ErrStatus.Code
	return code >= 400 && code < 500 && code != http.StatusRequestTimeout
}

// HandleError implements [kubeletplugin.DRAPlugin]. Nothing that the API server says about
// ResourceSlices ends the process: restarting would not change it. Only a gRPC server that
// cannot serve does.
func (d *Driver) HandleError(ctx context.Context, err error, msg string) {
	logger := klog.FromContext(ctx)
	var dropped *resourceslice.DroppedFieldsError
	switch {
	case errors.As(err, &dropped):
		d.metrics.publishErrors.WithLabelValues("dropped_fields").Inc()
		logger.Error(err, "The API server dropped fields of a ResourceSlice", "context", msg)
		d.events.warn(reasonPublishDroppedFields, "Part of what this node says about its GPUs was dropped: %v", err)
		d.conditions.set(conditionPublishing, err.Error())
	case apierrors.IsInvalid(err):
		d.metrics.publishErrors.WithLabelValues("invalid").Inc()
		logger.Error(err, "The API server refused a ResourceSlice", "context", msg)
		d.events.warn(reasonPublishInvalid, "The GPUs of this node are not published: %v", err)
		d.conditions.set(conditionPublishing, err.Error())
	case strings.HasPrefix(msg, staleHealthMessage):
		d.metrics.errors.WithLabelValues("stale_health").Inc()
		logger.Error(err, "Looking at the hardware takes too long: NVML hangs", "context", msg)
	case errors.Is(err, kubeletplugin.ErrRecoverable):
		d.metrics.publishErrors.WithLabelValues("other").Inc()
		logger.Error(err, "Background work of the kubelet plugin failed, it will be tried again", "context", msg)
		if refused(err) {
			d.conditions.set(conditionPublishing, err.Error())
		}
	default:
		logger.Error(err, "The kubelet plugin cannot go on", "context", msg)
		d.fail(err)
	}
}
