// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/fragmentation"
)

// collectTimeout bounds the answer to one scrape; everything is read from memory.
const collectTimeout = 5 * time.Second

// domains is what is measured: placement.Cluster.
type domains interface{ Domains() []fragmentation.Domain }

// collector counts gangs and measures fragmentation when it is asked.
type collector struct {
	reader client.Reader
	domain domains
	synced func() bool

	gangs                *prometheus.Desc
	product, node, whole levelDescs
}

// levelDescs are the metrics of a product, of a node or of the cluster.
type levelDescs struct{ devices, domains, largest, runnable, score *prometheus.Desc }

func (d levelDescs) all() []*prometheus.Desc {
	return []*prometheus.Desc{d.devices, d.domains, d.largest, d.runnable, d.score}
}

func newLevelDescs(prefix, of string, label ...string) levelDescs {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		by := strings.Join(append(slices.Clone(label), labels...), " and ")
		if by != "" {
			by = ", by " + by
		}
		return prometheus.NewDesc(prometheus.BuildFQName(metricNamespace, metricSubsystem, prefix+name),
			strings.Replace(help, "%s", of+by, 1), append(slices.Clone(label), labels...), nil)
	}
	return levelDescs{
		devices:  desc("devices", "Devices%s: free for a new claim, in_use, or unusable because of a taint or a fence.", "state"),
		domains:  desc("nvswitch_domains", "NVSwitch domains%s: whole (no device in use), broken (some in use) or full.", "state"),
		largest:  desc("largest_free_block_devices", "Largest number of free devices in one NVSwitch domain%s."),
		runnable: desc("runnable_gangs", "How many gangs that need so many devices in one NVSwitch domain find them%s.", "size"),
		score:    desc("fragmentation_ratio", "The part of the free devices, 0 to 1, that gangs of a size cannot use because they are spread over NVSwitch domains%s.", "size"),
	}
}

func newCollector(reader client.Reader, d domains, synced func() bool) *collector {
	return &collector{
		reader: reader, domain: d, synced: synced,
		gangs: prometheus.NewDesc(prometheus.BuildFQName(metricNamespace, metricSubsystem, "gangs"),
			"GangClaims by state: the reason of their condition Running.", []string{"state"}, nil),
		product: newLevelDescs("", "", "product"),
		node:    newLevelDescs("node_", " on a node", "node"),
		whole:   newLevelDescs("cluster_", " in the cluster"),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(descs chan<- *prometheus.Desc) {
	descs <- c.gangs
	for _, d := range slices.Concat(c.product.all(), c.node.all(), c.whole.all()) {
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
	report := fragmentation.Measure(c.domain.Domains(), fragmentation.Sizes())
	measures := func(d levelDescs, m fragmentation.Measures, level ...string) {
		for state, n := range map[string]int{"free": m.Free, "in_use": m.InUse, "unusable": m.Total - m.Free - m.InUse} {
			gauge(d.devices, float64(n), append(level, state)...)
		}
		for state, n := range map[string]int{"whole": m.Whole, "broken": m.Broken, "full": m.Full} {
			gauge(d.domains, float64(n), append(level, state)...)
		}
		gauge(d.largest, float64(m.LargestFreeBlock), level...)
		for _, g := range m.Gangs {
			gauge(d.runnable, float64(g.Runnable), append(level, strconv.Itoa(g.Size))...)
			gauge(d.score, g.Fragmentation, append(level, strconv.Itoa(g.Size))...)
		}
	}
	for product, m := range report.Products {
		measures(c.product, m, product)
	}
	for node, m := range report.Nodes {
		measures(c.node, m, node)
	}
	measures(c.whole, report.Cluster)
}

// stateOf is the state of a gang in one word.
func stateOf(claim *v1alpha1.GangClaim) string {
	if running := meta.FindStatusCondition(claim.Status.Conditions, v1alpha1.ConditionRunning); running != nil {
		return running.Reason
	}
	return "Unknown"
}
