// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/switchyard-dev/switchyard/pkg/checkpoint"
	"github.com/switchyard-dev/switchyard/pkg/device"
)

const (
	// holderNewsQueue is how much news waits for the API server. What is more is not told to pods.
	holderNewsQueue = 64
	// holderTimeout bounds finding out who holds a device.
	holderTimeout = 10 * time.Second
	// holderAttempts is how often that is tried, with waits from a second on that double.
	holderAttempts = 6
)

// holderNews is something that the pods which hold a device should know.
type holderNews struct {
	device                     string
	eventType, reason, message string
}

// concerns reports whether a claim's record has the device, which is a GPU, or a partition of it.
func (n holderNews) concerns(record checkpoint.Record) bool {
	return slices.ContainsFunc(record.Devices, func(d checkpoint.Device) bool {
		partition, ok := device.ParsePartitionName(d.Name)
		return d.Name == n.device || ok && partition.GPU == n.device
	})
}

// tellHolders writes an Event on each pod that holds a device, soon.
func (d *Driver) tellHolders(ctx context.Context, news holderNews) {
	select {
	case d.holderNews <- news:
	default:
		klog.FromContext(ctx).Info("Not telling the pods that hold a GPU: too much news waits", "device", news.device, "reason", news.reason)
	}
}

// runHolderNews tells pods about their devices until ctx ends. It has a goroutine of its own because it asks
// the API server.
func (d *Driver) runHolderNews(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case news := <-d.holderNews:
			for attempt := range holderAttempts {
				err := d.eventOnHolders(ctx, news)
				if err == nil || ctx.Err() != nil {
					break
				}
				d.metrics.errors.WithLabelValues("health_events").Inc()
				klog.FromContext(ctx).Error(err, "Cannot tell the pods that hold a GPU of its health", "device", news.device, "reason", news.reason, "attempt", attempt+1)
				select {
				case <-ctx.Done():
				case <-d.clock.After(time.Second << attempt):
				}
			}
		}
	}
}

// eventOnHolders writes an Event on each pod for which a claim is reserved that has the device. Which claims
// these are is in the checkpoint, which pods only the API server knows.
func (d *Driver) eventOnHolders(ctx context.Context, news holderNews) error {
	ctx, cancel := context.WithTimeout(ctx, holderTimeout)
	defer cancel()
	for _, record := range d.records() {
		if !news.concerns(record) {
			continue
		}
		claim, err := d.config.KubeClient.ResourceV1().ResourceClaims(record.Namespace).Get(ctx, record.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && claim.UID != record.ClaimUID {
			continue
		}
		if err != nil {
			return fmt.Errorf("read claim %s/%s: %w", record.Namespace, record.Name, err)
		}
		for _, pod := range podsOf(claim) {
			d.config.Recorder.Eventf(pod, news.eventType, news.reason, "%s (claim %s)", news.message, record.Name)
		}
	}
	return nil
}

// podsOf returns the pods that a claim is reserved for.
func podsOf(claim *resourceapi.ResourceClaim) []*corev1.ObjectReference {
	var pods []*corev1.ObjectReference
	for _, consumer := range claim.Status.ReservedFor {
		if consumer.APIGroup == "" && consumer.Resource == "pods" {
			pods = append(pods, &corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: claim.Namespace, Name: consumer.Name, UID: consumer.UID})
		}
	}
	return pods
}
