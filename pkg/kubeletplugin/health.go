// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"time"

	"k8s.io/dynamic-resource-allocation/kubeletplugin"
)

// minHealthTimeout is the kubelet's own default for how long a health report is good for.
const minHealthTimeout = 30 * time.Second

// WatchHealthStatus implements [kubeletplugin.DRAPlugin]: it reports all devices after every look at
// the hardware, so at once when something changed. There is no timer of its own: when looking at the
// hardware hangs, the reports stop and the kubelet rightly calls the devices' health unknown.
func (d *Driver) WatchHealthStatus(ctx context.Context, reports chan<- kubeletplugin.DeviceHealthReport) error {
	var sent *snapshot
	for {
		current, next := d.hardware.load()
		if current != nil && current != sent {
			select {
			case reports <- d.healthReport(current):
				sent = current
			case <-ctx.Done():
				return nil
			}
			continue // something newer may have come while sending
		}
		select {
		case <-next:
		case <-ctx.Done():
			return nil
		}
	}
}

// healthReport is what the kubelet is told. That a GPU is healthy is as old as the last look that did not fail:
// neither a look that fails nor an event of another GPU renews it, and the kubelet calls it unknown in time.
func (d *Driver) healthReport(s *snapshot) kubeletplugin.DeviceHealthReport {
	report := kubeletplugin.DeviceHealthReport{Devices: make([]kubeletplugin.DeviceHealth, 0, len(s.inventory.GPUs))}
	for _, gpu := range s.inventory.GPUs {
		// A partition is as well as its GPU.
		names := []string{gpu.Name()}
		for _, partition := range gpu.Partitions() {
			names = append(names, partition.Name())
		}
		health := kubeletplugin.DeviceHealth{
			PoolName:           d.config.NodeName,
			Health:             kubeletplugin.HealthStatusHealthy,
			LastUpdated:        s.observed,
			HealthCheckTimeout: max(minHealthTimeout, 3*d.config.DiscoveryInterval),
		}
		switch {
		case !gpu.Health.Healthy():
			health.Health, health.LastUpdated = kubeletplugin.HealthStatusUnhealthy, s.judged
			health.Message = describeUnhealthy(gpu)
		case s.observed.IsZero():
			health.Health, health.LastUpdated = kubeletplugin.HealthStatusUnknown, s.judged
		case gpu.Health.Degraded != "":
			health.Message = describeDegraded(gpu)
		}
		for _, name := range names {
			health.DeviceName = name
			report.Devices = append(report.Devices, health)
		}
	}
	return report
}
