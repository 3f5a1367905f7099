// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

const (
	metricNamespace = "switchyard"
	metricSubsystem = "controller"
)

// metrics are the controller's Prometheus metrics, registered with an injected registry.
type metrics struct {
	planDuration prometheus.Histogram
	planGangs    prometheus.Histogram
	actions      *prometheus.CounterVec
	conflicts    prometheus.Counter
	errors       prometheus.Counter
	swept        *prometheus.CounterVec
	stepSeconds  *prometheus.HistogramVec
	starts       prometheus.Counter
	takenBack    *prometheus.CounterVec
	idleSeconds  prometheus.Counter
	offenders    prometheus.Gauge

	evictions *prometheus.CounterVec
	unblocked prometheus.Counter
	search    prometheus.Histogram

	consolidations      *prometheus.CounterVec
	consolidationSearch prometheus.Histogram
	suggestedMoves      prometheus.Gauge
	suggestedGain       *prometheus.GaugeVec
	askedFor            *prometheus.GaugeVec
	askedForHistory     prometheus.Gauge
}

func newMetrics(registry prometheus.Registerer, version string) *metrics {
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: metricNamespace, Subsystem: metricSubsystem, Name: name, Help: help}
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts(opts(name, help)))
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts(opts(name, help)), labels)
	}
	m := &metrics{
		planDuration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: metricNamespace, Subsystem: metricSubsystem, Name: "plan_duration_seconds",
			Help:    "Duration of one run of the planner over all gangs that wait, in seconds.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5},
		}),
		planGangs: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: metricNamespace, Subsystem: metricSubsystem, Name: "plan_gangs",
			Help: "Gangs in one run of the planner.", Buckets: []float64{1, 2, 5, 10, 20, 50, 100},
		}),
		actions:   counters("actions_total", "Actions of the protocol, by action and result (ok or error).", "action", "result"),
		conflicts: counter("conflicts_total", "Writes that were refused because the object had changed, and decided anew."),
		errors:    counter("errors_total", "Decisions that ended in an error other than a conflict, and were tried again after a pause."),
		swept:     counters("swept_total", "Actions on objects of gangs that do not exist any more, by action.", "action"),
		stepSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: metricNamespace, Subsystem: metricSubsystem, Name: "step_duration_seconds",
			Help:    "How long gangs stay in a step of the protocol, in seconds, by step.",
			Buckets: []float64{.05, .1, .25, .5, 1, 2.5, 5, 10, 20, 60, 300},
		}, []string{"step"}),
		starts:      counter("gangs_started_total", "Gangs whose members' claims were all seen allocated on the plan."),
		takenBack:   counters("plans_taken_back_total", "Plans that were given up after their fence was made, by reason.", "reason"),
		idleSeconds: counter("unstarted_device_seconds_total", "Device-seconds that claims of gangs were allocated while their gang had not been started: 0 is the aim."),
		offenders:   prometheus.NewGauge(prometheus.GaugeOpts(opts("fence_tolerating_objects", "ResourceClaims and ResourceClaimTemplates of others, found at start, that tolerate every gang's fence."))),
	}
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts(opts("build_info", "Always 1; the label is the version of the binary.")), []string{"version"})
	build.WithLabelValues(version).Set(1)
	registry.MustRegister(m.planDuration, m.planGangs, m.actions, m.conflicts, m.errors, m.swept, m.stepSeconds,
		m.starts, m.takenBack, m.idleSeconds, m.offenders, build)
	m.addDefrag(registry)
	m.addConsolidation(registry)
	return m
}

// RegisterMetrics registers all metrics of the controller, without values: for the reference documentation.
func RegisterMetrics(registry prometheus.Registerer) {
	newMetrics(registry, "")
	registry.MustRegister(newCollector(nil, nil, func() bool { return false }))
}

func (m *metrics) observePlan(took time.Duration, gangs int) {
	m.planDuration.Observe(took.Seconds())
	m.planGangs.Observe(float64(gangs))
}

// observeStatus measures what a written status says that the one before did not.
func (m *metrics) observeStatus(before, after *v1alpha1.GangClaim) {
	m.observeEvictions(before, after)
	was, is := before.Status.Plan, after.Status.Plan
	if was == nil || is != nil && was.Hash == is.Hash && was.Step == is.Step {
		return
	}
	if is != nil {
		m.stepSeconds.WithLabelValues(string(was.Step)).Observe(is.StepSince.Sub(was.StepSince.Time).Seconds())
		switch is.Step {
		case v1alpha1.StepStarting:
			m.starts.Inc()
		case v1alpha1.StepTakingBack:
			reason, _, _ := strings.Cut(is.Reason, ":") // the rest is for people
			m.takenBack.WithLabelValues(reason).Inc()
		}
	}
}

func result(err error) string {
	if err != nil {
		return "error"
	}
	return "ok"
}
