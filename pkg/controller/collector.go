// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/fragmentation"
)

// collectTimeout bounds the answer to one scrape; everything is read from memory.
const collectTimeout = 5 * time.Second

// gangSizes are the numbers of devices for which fragmentation is exported: those that jobs ask for.
var gangSizes = []int{2, 4, 8}

// domains is what is measured: placement.Cluster.
type domains interface{ Domains() []fragmentation.Domain }

// collector counts gangs and measures fragmentation when it is asked.
type collector struct {
	reader client.Reader
	domain domains
	synced func() bool

	gangs, devices, domainCount, largest, runnable, score *prometheus.Desc
}

func newCollector(reader client.Reader, d domains, synced func() bool) *collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName(metricNamespace, metricSubsystem, name), help, labels, nil)
	}
	return &collector{
		reader: reader, domain: d, synced: synced,
		gangs:       desc("gangs", "GangClaims by state: the reason of their condition Running.", "state"),
		devices:     desc("devices", "Devices by product and state: free for a new claim, in_use, or unusable because of a taint or a fence.", "product", "state"),
		domainCount: desc("nvswitch_domains", "NVSwitch domains by product and state: whole (no device in use), broken (some in use) or full.", "product", "state"),
		largest:     desc("largest_free_block_devices", "Largest number of free devices in one NVSwitch domain, by product.", "product"),
		runnable:    desc("runnable_gangs", "How many gangs that need so many devices in one NVSwitch domain would find a place, by product and size.", "product", "size"),
		score:       desc("fragmentation_ratio", "The part of the free devices, 0 to 1, that gangs of a size cannot use because they are spread over NVSwitch domains, by product and size.", "product", "size"),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.gangs, c.devices, c.domainCount, c.largest, c.runnable, c.score} {
		descs <- d
	}
}

// Collect implements prometheus.Collector. Before everything is known there is nothing to tell.
func (c *collector) Collect(metrics chan<- prometheus.Metric) {
	if !c.synced() {
		return
	}
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		metrics <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	ctx, cancel := context.WithTimeout(context.Background(), collectTimeout)
	defer cancel()
	var gangs v1alpha1.GangClaimList
	if err := c.reader.List(ctx, &gangs); err != nil {
		metrics <- prometheus.NewInvalidMetric(c.gangs, err)
		return
	}
	states := map[string]int{}
	for i := range gangs.Items {
		states[stateOf(&gangs.Items[i])]++
	}
	for state, n := range states {
		gauge(c.gangs, float64(n), state)
	}
	for product, m := range fragmentation.Measure(c.domain.Domains(), gangSizes).Products {
		for state, n := range map[string]int{"free": m.Free, "in_use": m.InUse, "unusable": m.Total - m.Free - m.InUse} {
			gauge(c.devices, float64(n), product, state)
		}
		for state, n := range map[string]int{"whole": m.Whole, "broken": m.Broken, "full": m.Full} {
			gauge(c.domainCount, float64(n), product, state)
		}
		gauge(c.largest, float64(m.LargestFreeBlock), product)
		for _, g := range m.Gangs {
			gauge(c.runnable, float64(g.Runnable), product, strconv.Itoa(g.Size))
			gauge(c.score, g.Fragmentation, product, strconv.Itoa(g.Size))
		}
	}
}

// stateOf is the state of a gang in one word.
func stateOf(claim *v1alpha1.GangClaim) string {
	if running := meta.FindStatusCondition(claim.Status.Conditions, v1alpha1.ConditionRunning); running != nil {
		return running.Reason
	}
	return "Unknown"
}
