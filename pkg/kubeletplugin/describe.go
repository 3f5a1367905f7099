// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import "github.com/prometheus/client_golang/prometheus"

// RegisterMetrics registers the plugin's metrics for documentation that is made of their descriptions. They
// may be described and not collected.
func RegisterMetrics(registry prometheus.Registerer) {
	newMetrics(registry, "")
	registry.MustRegister(newPreparedCollector(nil), newHealthCollector(nil), newMPSCollector(nil))
}
