// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"math/bits"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/defrag"
	"github.com/switchyard-dev/switchyard/pkg/demand"
	"github.com/switchyard-dev/switchyard/pkg/fragmentation"
	"github.com/switchyard-dev/switchyard/pkg/gang"
)

// Consolidation says how to look for pods that are worth moving while no gang waits.
type Consolidation struct {
	// Interval is the time between two searches.
	Interval time.Duration
	// Moves is how many pods a domain may have, at most, to be made whole.
	Moves int
	// HalfLife is after how long what was asked for counts half.
	HalfLife time.Duration
}

// consolidator looks for pods that are worth moving while no gang waits or starts, and tells of them.
type consolidator struct {
	Consolidation

	reader  client.Reader // of the cache
	search  func(ctx context.Context, most int) *defrag.Consolidation
	waits   func() bool
	synced  func() bool
	events  *eventSender
	metrics *metrics
	clock   clock.Clock

	// told is what was told last.
	told string
}

// Run searches until ctx ends. At first gangs that wait may not have been looked at yet.
func (c *consolidator) Run(ctx context.Context) {
	pause := min(c.Interval, roomAgainAfter)
	for {
		timer := c.clock.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C():
		}
		again, err := c.round(ctx)
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Cannot look for pods that are worth moving")
		}
		if pause = c.Interval; again {
			pause = min(c.Interval, roomAgainAfter)
		}
	}
}

// round searches once, and says whether the search is to be made again soon.
func (c *consolidator) round(ctx context.Context) (again bool, err error) {
	if !c.synced() {
		return true, nil
	}
	busy, err := c.busy(ctx)
	if err != nil {
		return false, err
	}
	if busy {
		c.metrics.observeConsolidation(resultGangsWait, nil)
		return false, nil
	}
	start := c.clock.Now()
	found := c.search(ctx, c.Moves)
	c.metrics.consolidationSearch.Observe(c.clock.Since(start).Seconds())
	// A gang that came meanwhile comes first.
	if busy, err = c.busy(ctx); err != nil || ctx.Err() != nil {
		return false, err
	}
	if busy {
		c.metrics.observeConsolidation(resultGangsWait, nil)
		return false, nil
	}
	c.metrics.observeConsolidation(found.Reason, found)
	return found.Reason == defrag.ReasonPlanning, c.tell(ctx, found)
}

// busy says whether a gang waits or starts.
func (c *consolidator) busy(ctx context.Context) (bool, error) {
	if c.waits() {
		return true, nil
	}
	var gangs v1alpha1.GangClaimList
	if err := c.reader.List(ctx, &gangs); err != nil {
		return false, fmt.Errorf("list GangClaims: %w", err)
	}
	for i := range gangs.Items {
		if gang.Starting(&gangs.Items[i]) {
			return true, nil
		}
	}
	return false, nil
}

// tell sends Events about what was found, if it is news.
func (c *consolidator) tell(ctx context.Context, found *defrag.Consolidation) error {
	news := ""
	for _, m := range found.Moves {
		news += string(m.PodUID) + " "
	}
	if news == c.told || found.Reason == defrag.ReasonPlanning {
		return nil
	}
	c.told = news
	klog.FromContext(ctx).Info("Looked for pods that are worth moving", "reason", found.Reason, "message", found.Message)
	for _, m := range found.Moves {
		pod := &corev1.Pod{}
		if err := c.reader.Get(ctx, types.NamespacedName{Namespace: m.Namespace, Name: m.Pod}, pod); err != nil {
			if err = ignore(apierrors.IsNotFound, err); err != nil {
				return fmt.Errorf("read pod %s/%s, which is worth moving: %w", m.Namespace, m.Pod, err)
			}
			continue
		}
		if pod.UID == m.PodUID {
			c.events.worthMoving(pod, found.Message)
		}
	}
	return nil
}

// resultGangsWait is the result of a round in which nothing was looked for, or what was found is not told.
const resultGangsWait = "GangsWait"

// addConsolidation adds the metrics of what is worth moving.
func (m *metrics) addConsolidation(registry prometheus.Registerer) {
	const subsystem = "consolidation"
	m.consolidations = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: metricNamespace, Subsystem: subsystem, Name: "rounds_total",
		Help: "Searches for pods that are worth moving while no gang waits, by result: MovesFound, NoMoves, GivenUp (16 domains were tried), Planning (the cluster changed meanwhile), or GangsWait (nothing was looked for, as a gang waits or starts).",
	}, []string{"result"})
	m.consolidationSearch = prometheus.NewHistogram(prometheus.HistogramOpts{
		Namespace: metricNamespace, Subsystem: subsystem, Name: "search_duration_seconds",
		Help:    "Duration of one search for pods that are worth moving while no gang waits, in seconds.",
		Buckets: searchBuckets(),
	})
	m.suggestedMoves = prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: metricNamespace, Subsystem: subsystem, Name: "suggested_evictions",
		Help: "Pods whose move would make a domain whole, by the last search; 0 when nothing is worth moving, or gangs wait.",
	})
	m.suggestedGain = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: metricNamespace, Subsystem: subsystem, Name: "suggested_runnable_gangs",
		Help: "How many gangs more, that need so many devices in one NVSwitch domain, would find them after the suggested evictions, by size: 2, 4 and 8. The log and Events tell of others that are asked for.",
	}, []string{"size"})
	m.askedFor = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: metricNamespace, Subsystem: subsystem, Name: "asked_for_requests",
		Help: "Requests for so many devices together that were made of late, as the last search counted them: older ones count for less. By size: 1, 2, 4 (3 and 4), 8 (5 to 8), 16 (9 to 16) or more.",
	}, []string{"size"})
	m.askedForHistory = prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: metricNamespace, Subsystem: subsystem, Name: "asked_for_weight_ratio",
		Help: "The part, 0 to 1, that these requests had in what gangs of each size were worth to the last search; the rest is that those of 2, 4 and 8 are worth the same.",
	})
	registry.MustRegister(m.consolidations, m.consolidationSearch, m.suggestedMoves, m.suggestedGain, m.askedFor, m.askedForHistory)
}

// sizeLabels are the sizes that metrics tell apart.
var sizeLabels = []string{"1", "2", "4", "8", "16", "more"}

// sizeLabel is the smallest power of two that is not less than the size.
func sizeLabel(size int) string {
	return sizeLabels[min(bits.Len(uint(size-1)), len(sizeLabels)-1)]
}

// observeMix tells by what a search has weighed.
func (m *metrics) observeMix(mix demand.Mix) {
	requests := map[string]float64{}
	for _, s := range mix.Shares() {
		requests[sizeLabel(s.Size)] += s.Requests
	}
	for _, label := range sizeLabels {
		m.askedFor.WithLabelValues(label).Set(requests[label])
	}
	m.askedForHistory.Set(mix.History())
}

// observeConsolidation counts a round; found is nil when nothing is suggested.
func (m *metrics) observeConsolidation(result string, found *defrag.Consolidation) {
	m.consolidations.WithLabelValues(result).Inc()
	if found == nil {
		found = &defrag.Consolidation{}
	} else {
		m.observeMix(found.Mix)
	}
	gain := map[int]int{}
	for _, g := range found.Gain {
		gain[g.Size] = g.After - g.Before
	}
	for _, size := range fragmentation.Sizes() {
		m.suggestedGain.WithLabelValues(strconv.Itoa(size)).Set(float64(gain[size]))
	}
	m.suggestedMoves.Set(float64(len(found.Moves)))
}
