// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"fmt"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/resourcemodel"
)

const (
	// holdersTimeout bounds the questions about who has the GPUs.
	holdersTimeout = 10 * time.Second
	// holdersPage is how many objects one answer has.
	holdersPage = 500
)

// reconfigure gives GPUs another form when nobody has them any more, and reports whether it did.
func (d *discovery) reconfigure(ctx context.Context) bool {
	d.reportShares(ctx)
	now := d.clock.Now()
	if !d.forms.due(now) {
		return false
	}
	known := holders{held: d.devicesInUse()}
	if d.damaged.pending() || !d.anyWaitingFree(known.held) {
		d.forms.postpone(now)
		return false
	}
	var err error
	d.awaiting(ctx, func() {
		ctx, cancel := context.WithTimeout(ctx, holdersTimeout)
		defer cancel()
		err = d.askHolders(ctx, &known)
	})
	var changed bool
	if err == nil {
		changed, err = d.forms.settle(d.judged, known, d.clock.Now())
	}
	if err != nil && ctx.Err() == nil {
		d.metrics.errors.WithLabelValues("reconfigure").Inc()
		klog.FromContext(ctx).Error(err, "Cannot find out who has the GPUs that are to be shared in another way, trying again")
	}
	return changed
}

// anyWaitingFree reports whether a GPU that waits is not held on this node.
func (d *discovery) anyWaitingFree(held map[string]bool) bool {
	for name := range d.forms.waiting {
		if !held[name] {
			return true
		}
	}
	return false
}

// askHolders asks the API server which devices of this node are published and allocated, in this order: what is
// allocated after it was published with the taint is seen.
func (d *Driver) askHolders(ctx context.Context, known *holders) error {
	known.published = map[string]bool{}
	ofNode := fields.AndSelectors(
		fields.OneTermEqualSelector(resourceapi.ResourceSliceSelectorNodeName, d.config.NodeName),
		fields.OneTermEqualSelector(resourceapi.ResourceSliceSelectorDriver, v1alpha1.DriverName),
	).String()
	slicesOfNode, err := d.config.KubeClient.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: ofNode})
	if err != nil {
		return fmt.Errorf("list the node's ResourceSlices: %w", err)
	}
	for _, slice := range slicesOfNode.Items {
		for _, device := range slice.Spec.Devices {
			known.published[device.Name] = slices.ContainsFunc(device.Taints, func(t resourceapi.DeviceTaint) bool { return t.Key == resourcemodel.TaintReconfiguring })
		}
	}
	options := metav1.ListOptions{Limit: holdersPage}
	for {
		claims, err := d.config.KubeClient.ResourceV1().ResourceClaims("").List(ctx, options)
		if err != nil {
			return fmt.Errorf("list ResourceClaims: %w", err)
		}
		for i := range claims.Items {
			noteHeld(&claims.Items[i], d.config.NodeName, known.held)
		}
		if options.Continue = claims.Continue; options.Continue == "" {
			return nil
		}
	}
}

// noteHeld adds the devices of the pool that a claim holds.
func noteHeld(claim *resourceapi.ResourceClaim, pool string, held map[string]bool) {
	if claim.Status.Allocation == nil {
		return
	}
	for _, result := range claim.Status.Allocation.Devices.Results {
		if result.Driver == v1alpha1.DriverName && result.Pool == pool && !ptr.Deref(result.AdminAccess, false) {
			held[result.Device] = true
		}
	}
}

// reportShares tells of GPUs that cannot be shared as the node configuration says.
func (d *discovery) reportShares(ctx context.Context) {
	if slices.Equal(d.notShared, d.forms.problems) {
		return
	}
	d.notShared = slices.Clone(d.forms.problems)
	for _, why := range d.notShared {
		klog.FromContext(ctx).Info("A GPU is not shared", "why", why)
		d.events.warn(reasonGPUNotShared, "%s", why)
	}
}
