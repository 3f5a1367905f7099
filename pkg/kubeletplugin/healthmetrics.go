// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"github.com/prometheus/client_golang/prometheus"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/switchyard-dev/switchyard/pkg/device"
)

// healthCollector tells the health of each GPU as last judged, when it is asked: no scrape sees half of a
// change.
type healthCollector struct {
	hardware *hardware
	desc     *prometheus.Desc
}

func newHealthCollector(hardware *hardware) prometheus.Collector {
	return &healthCollector{hardware: hardware, desc: prometheus.NewDesc(
		prometheus.BuildFQName(metricNamespace, "", "device_health"),
		"1 for a GPU that can be handed out, 0 for one that is unhealthy. reason and effect are those of its taint, empty for a GPU that is as it should be.",
		[]string{"device", "pci_bus_id", "reason", "effect"}, nil)}
}

// Describe implements [prometheus.Collector].
func (c *healthCollector) Describe(ch chan<- *prometheus.Desc) { ch <- c.desc }

// Collect implements [prometheus.Collector].
func (c *healthCollector) Collect(ch chan<- prometheus.Metric) {
	seen, _ := c.hardware.load()
	if seen == nil {
		return
	}
	for _, gpu := range seen.inventory.GPUs {
		value, reason, effect := healthValues(gpu.Health)
		ch <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, value, gpu.Name(), gpu.PCIBusID, reason, effect)
	}
}

func healthValues(health device.Health) (value float64, reason, effect string) {
	switch {
	case !health.Healthy() && health.Evict:
		return 0, health.Reason, string(resourceapi.DeviceTaintEffectNoExecute)
	case !health.Healthy():
		return 0, health.Reason, string(resourceapi.DeviceTaintEffectNoSchedule)
	case health.Degraded != "":
		return 1, health.Degraded, string(resourceapi.DeviceTaintEffectNone)
	default:
		return 1, "", ""
	}
}
