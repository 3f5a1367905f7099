// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/klog/v2"

	"github.com/switchyard-dev/switchyard/pkg/device"
	"github.com/switchyard-dev/switchyard/pkg/resourcemodel"
)

// reportHealth tells of GPUs whose health changed: in the log, on the node and on the pods that hold them.
func (d *discovery) reportHealth(ctx context.Context, before, after device.Inventory) {
	unhealthy := 0
	for _, gpu := range after.GPUs {
		if !gpu.Health.Healthy() {
			unhealthy++
		}
		old, known := before.ByName(gpu.Name())
		if known || !gpu.Health.Healthy() || gpu.Health.Degraded != "" {
			d.reportChange(ctx, old.Health, gpu)
		}
	}
	d.metrics.unhealthyDevices.Set(float64(unhealthy))
}

// reportChange tells what changed of one GPU's health.
func (d *discovery) reportChange(ctx context.Context, old device.Health, gpu device.GPU) {
	logger := klog.LoggerWithValues(klog.FromContext(ctx), "device", gpu.Name(), "pciBusID", gpu.PCIBusID)
	now := gpu.Health
	switch {
	case !now.Healthy() && (now.Reason != old.Reason || now.Evict != old.Evict):
		logger.Info("GPU became unhealthy", "reason", now.Reason, "evict", now.Evict, "message", now.Message)
		message := describeUnhealthy(gpu)
		d.events.warn(reasonGPUUnhealthy, "%s", message)
		if now.Evict {
			message += "; Kubernetes deletes the pods that hold it"
		} else {
			message += "; pods that hold it are left alone"
		}
		d.tellHolders(ctx, holderNews{gpu.Name(), corev1.EventTypeWarning, reasonGPUUnhealthy, message})
	case now.Healthy() && !old.Healthy():
		logger.Info("GPU is healthy again")
		message := fmt.Sprintf("GPU %s (PCI %s) is healthy again", gpu.Name(), gpu.PCIBusID)
		d.events.normal(reasonGPURecovered, "%s", message)
		d.tellHolders(ctx, holderNews{gpu.Name(), corev1.EventTypeNormal, reasonGPURecovered, message})
	}
	switch now.Degraded {
	case old.Degraded:
	case "":
		logger.Info("GPU is not degraded any more", "was", old.Degraded)
	default:
		logger.Info("GPU is degraded", "reason", now.Degraded, "message", now.Message)
		d.events.warn(reasonGPUDegraded, "%s", describeDegraded(gpu))
	}
}

func describeUnhealthy(gpu device.GPU) string {
	return describe(gpu, "is unhealthy", gpu.Health.Reason)
}

func describeDegraded(gpu device.GPU) string {
	return describe(gpu, "can be used and is not as it should be", gpu.Health.Degraded)
}

func describe(gpu device.GPU, how, reason string) string {
	text := fmt.Sprintf("GPU %s (PCI %s) %s: %s", gpu.Name(), gpu.PCIBusID, how, reason)
	if gpu.Health.Message != "" {
		text += ": " + gpu.Health.Message
	}
	return text
}

// toleratesHealth reports whether a claim tolerates that its GPU is sick, as one of a diagnosis does. Nothing
// can be done with a GPU that is lost, or without NVML.
func toleratesHealth(result resourceapi.DeviceRequestAllocationResult, health device.Health) bool {
	if health.Reason == device.ReasonLost || health.Reason == device.ReasonNVMLUnavailable {
		return false
	}
	for _, taint := range resourcemodel.HealthTaints(health) {
		if taint.Key != resourcemodel.TaintUnhealthy {
			continue
		}
		tolerated := false
		for _, toleration := range result.Tolerations {
			tolerated = tolerated || resourceclaim.ToleratesTaint(toleration, taint)
		}
		if !tolerated {
			return false
		}
	}
	return true
}
