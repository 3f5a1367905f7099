// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/switchyard-dev/switchyard/pkg/checkpoint"
)

// reportDaemons tells of MPS daemons that ended and were started again since the last round: the CUDA programs that
// used them have failed.
func (r *reconciler) reportDaemons() error {
	if r.config.MPS == nil {
		return nil
	}
	var errs []error
	seen := make(map[string]int, len(r.daemonRestarts))
	for _, record := range r.others(checkpoint.Record{}) {
		for _, id := range daemonsOf(record) {
			status, err := r.config.MPS.Status(id)
			if err != nil {
				errs = append(errs, err)
				seen[id] = r.daemonRestarts[id] // what was told stays told
				continue
			}
			seen[id] = status.Restarts
			// One that the process before this one told of is told of again.
			if status.Restarts > r.daemonRestarts[id] {
				r.events.warn(reasonMPSDaemonEnded, "The MPS daemon of claim %s/%s ended and is started again (for the %d. time): CUDA programs that used it have failed. %s",
					record.Namespace, record.Name, status.Restarts, status.Message)
			}
		}
	}
	r.daemonRestarts = seen
	return errors.Join(errs...)
}

// mpsCollector counts the MPS daemons by their state, when it is asked.
type mpsCollector struct {
	daemons MPSDaemons
	desc    *prometheus.Desc
}

func newMPSCollector(daemons MPSDaemons) prometheus.Collector {
	return &mpsCollector{daemons: daemons, desc: prometheus.NewDesc(
		prometheus.BuildFQName(metricNamespace, metricSubsystem, "mps_daemons"),
		"MPS daemons that claims have, by state: Starting, Ready, Failed, Refused, or Unknown if their supervisor's word cannot be read.",
		[]string{"state"}, nil)}
}

// Describe implements [prometheus.Collector].
func (c *mpsCollector) Describe(ch chan<- *prometheus.Desc) { ch <- c.desc }

// Collect implements [prometheus.Collector].
func (c *mpsCollector) Collect(ch chan<- prometheus.Metric) {
	ids, err := c.daemons.List()
	if err != nil {
		ch <- prometheus.NewInvalidMetric(c.desc, err)
		return
	}
	counts := map[string]int{}
	for _, id := range ids {
		state := "Unknown"
		if status, err := c.daemons.Status(id); err == nil {
			state = string(status.State)
		}
		counts[state]++
	}
	for state, count := range counts {
		ch <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, float64(count), state)
	}
}
