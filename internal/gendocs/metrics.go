// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/switchyard-dev/switchyard/pkg/kubeletplugin"
)

func metrics(page *bytes.Buffer) error {
	page.WriteString(`# Metrics of switchyard-kubelet-plugin

Served at ` + "`/metrics`" + ` of ` + "`--metrics-address`" + `, beside those of the Go runtime and of the process.

| metric | type | labels | meaning |
|---|---|---|---|
`)
	registry := &describer{}
	kubeletplugin.RegisterMetrics(registry)
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
	case *prometheus.HistogramVec, prometheus.Histogram:
		return "histogram"
	default: // gauges, and collectors that count when they are asked
		return "gauge"
	}
}
