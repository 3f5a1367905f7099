// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/switchyard-dev/switchyard/pkg/controller"
	"github.com/switchyard-dev/switchyard/pkg/kubeletplugin"
)

func pluginMetrics(page *bytes.Buffer) error {
	return metrics(page, "switchyard-kubelet-plugin", "those of the Go runtime and of the process", kubeletplugin.RegisterMetrics)
}

func controllerMetrics(page *bytes.Buffer) error {
	return metrics(page, "switchyard-controller", "those of the Go runtime, of the process and of controller-runtime (work queue, requests, lease)", controller.RegisterMetrics)
}

func metrics(page *bytes.Buffer, program, others string, register func(prometheus.Registerer)) error {
	fmt.Fprintf(page, `# Metrics of %s

Served at `+"`/metrics`"+` of `+"`--metrics-address`"+`, beside %s.

| metric | type | labels | meaning |
|---|---|---|---|
`, program, others)
	registry := &describer{}
	register(registry)
	if len(registry.rows) == 0 {
		return fmt.Errorf("no metric was registered")
	}
	page.WriteString(strings.Join(registry.rows, ""))
	return registry.err
}

// describer is a registry that writes down what is registered with it.
type describer struct {
	prometheus.Registerer
	rows []string
	err  error
}

// description is how client_golang prints a Desc, which has no other way to be read.
var description = regexp.MustCompile(`^Desc\{fqName: "([^"]*)", help: "(.*?)", (?:unit: ".*", )?constLabels: \{.*\}, variableLabels: \{(.*)\}\}$`)

func (d *describer) MustRegister(collectors ...prometheus.Collector) {
	for _, collector := range collectors {
		descs := make(chan *prometheus.Desc)
		go func() {
			defer close(descs)
			collector.Describe(descs)
		}()
		for desc := range descs {
			d.add(kind(collector), desc.String())
		}
	}
}

func (d *describer) add(kind, desc string) {
	match := description.FindStringSubmatch(desc)
	if match == nil {
		d.err = fmt.Errorf("cannot read %s", desc)
		return
	}
	labels := ""
	if match[3] != "" {
		labels = "`" + strings.ReplaceAll(match[3], ",", "`, `") + "`"
	}
	d.rows = append(d.rows, fmt.Sprintf("| `%s` | %s | %s | %s |\n", match[1], kind, labels, prose(match[2])))
}

func kind(collector prometheus.Collector) string {
	switch collector.(type) {
	case *prometheus.CounterVec:
		return "counter"
	case prometheus.Gauge: // has the methods of a counter, too
		return "gauge"
	case prometheus.Counter:
		return "counter"
	case *prometheus.HistogramVec, prometheus.Histogram:
		return "histogram"
	default: // gauges, and collectors that count when they are asked
		return "gauge"
	}
}
