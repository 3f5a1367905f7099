// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/switchyard-dev/switchyard/pkg/fragmentation"
)

type fixedDomains []fragmentation.Domain

func (d fixedDomains) Domains() []fragmentation.Domain { return d }

func TestFragmentationIsExportedByProductNodeAndCluster(t *testing.T) {
	c := newCollector(fakeAPI(t, interceptor.Funcs{}), fixedDomains{
		{Name: "a.0", Node: "a", Product: "P", Total: 4, Free: 3, InUse: 1},
		{Name: "b.0", Node: "b", Product: "Q", Total: 4, Free: 4},
	}, func() bool { return true })
	registry := prometheus.NewRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, family := range families {
		if _, err := expfmt.MetricFamilyToText(&text, family); err != nil {
			t.Fatal(err)
		}
	}
	for _, line := range []string{
		`switchyard_controller_cluster_fragmentation_ratio{size="2"} 0.14`,
		`switchyard_controller_cluster_fragmentation_ratio{size="8"} 1`,
		`switchyard_controller_cluster_devices{state="in_use"} 1`,
		`switchyard_controller_largest_free_block_devices{product="P"} 3`,
		`switchyard_controller_node_largest_free_block_devices{node="b"} 4`,
		`switchyard_controller_node_nvswitch_domains{node="a",state="broken"} 1`,
		`switchyard_controller_node_runnable_gangs{node="a",size="4"} 0`,
		`switchyard_controller_node_runnable_gangs{node="b",size="4"} 1`,
	} {
		if !strings.Contains(text.String(), line) {
			t.Errorf("%s is not in\n%s", line, text.String())
		}
	}
}
