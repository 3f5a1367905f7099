// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/defrag"
	"github.com/switchyard-dev/switchyard/pkg/gang"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// roomAgainAfter is how often moves are looked for although nothing has changed: budgets of the hour, cooldowns and
// the time that a gang has waited pass by themselves.
const roomAgainAfter = 10 * time.Second

// rooms is the cluster as the planner sees it: gangs that have no place are given room.
type rooms struct {
	*placement.Cluster

	maker   *defrag.Maker
	clock   clock.WithDelayedExecution
	observe func(took time.Duration)
	// lookAgain has the planner run once more.
	lookAgain func()

	mu      sync.Mutex
	pending bool // lookAgain is due
}

// Plan implements cluster.
func (r *rooms) Plan(ctx context.Context, gangs []placement.Gang) []placement.Decision {
	decisions := r.PlanWithRoom(ctx, gangs, timed{r.maker, r})
	for _, d := range decisions {
		if d.Room != nil && d.Plan == nil {
			r.again()
			break
		}
	}
	return decisions
}

func (r *rooms) again() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pending {
		return
	}
	r.pending = true
	r.clock.AfterFunc(roomAgainAfter, func() {
		r.mu.Lock()
		r.pending = false
		r.mu.Unlock()
		r.lookAgain()
	})
}

// timed measures how long moves are looked for.
type timed struct {
	*defrag.Maker

	rooms *rooms
}

// MakeRoom implements placement.RoomMaker.
func (t timed) MakeRoom(ctx context.Context, room *placement.Room) (*v1alpha1.GangPlan, *v1alpha1.GangDefragmentation) {
	start := t.rooms.clock.Now()
	defer func() { t.rooms.observe(t.rooms.clock.Since(start)) }()
	return t.Maker.MakeRoom(ctx, room)
}

// moves reads the pods that a plan moves, and their claims.
func (o *observer) moves(ctx context.Context, observation *gang.Observation, plan *v1alpha1.GangPlan) error {
	observation.Moves = map[types.UID]gang.MovedPod{}
	for _, m := range plan.Moves {
		var moved gang.MovedPod
		pod, claim := &corev1.Pod{}, &resourceapi.ResourceClaim{}
		switch there, err := o.find(ctx, m.Namespace, m.Pod, m.PodUID, pod); {
		case err != nil:
			return fmt.Errorf("read pod %s/%s, which is moved: %w", m.Namespace, m.Pod, err)
		case there:
			moved.Pod = pod
		}
		switch there, err := o.find(ctx, m.Namespace, m.Claim, m.ClaimUID, claim); {
		case err != nil:
			return fmt.Errorf("read claim %s/%s of pod %s, which is moved: %w", m.Namespace, m.Claim, m.Pod, err)
		case there:
			moved.Claim = claim
		}
		observation.Moves[m.PodUID] = moved
	}
	return nil
}

// find reads an object, and says whether it is there and the same.
func (o *observer) find(ctx context.Context, namespace, name string, uid types.UID, object client.Object) (bool, error) {
	err := o.cached.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, object)
	return err == nil && object.GetUID() == uid, ignore(apierrors.IsNotFound, err)
}

// evictVictims asks whether all pods could be evicted before it evicts the first, and then evicts one after the other.
// The first refusal ends it, and so does an error that is not the API server's word; after that it is worth trying again.
func (a *applier) evictVictims(ctx context.Context, action gang.EvictVictims) (gang.EvictionReply, error) {
	var reply gang.EvictionReply
	for _, dryRun := range [][]string{{metav1.DryRunAll}, nil} {
		for _, ref := range action.Pods {
			switch err := a.evictVictim(ctx, ref, dryRun...); {
			case refuses(err):
				reply.Refused, reply.Message = ref.UID, err.Error()
				return reply, err
			case err != nil:
				return reply, err
			case dryRun != nil:
				continue
			}
			reply.Evicted = append(reply.Evicted, ref.UID)
			if err := a.wrote(action.Verb()); err != nil {
				return gang.EvictionReply{}, err
			}
		}
	}
	return reply, nil
}

// evictVictim does not wait for long: the client would try again, up to ten times, for as long as a disruption budget is
// being processed.
func (a *applier) evictVictim(ctx context.Context, ref gang.Ref, dryRun ...string) error {
	ctx, cancel := context.WithTimeout(ctx, evictionTimeout)
	defer cancel()
	if err := a.evictPod(ctx, ref, dryRun...); err != nil {
		what := "evict"
		if len(dryRun) > 0 {
			what = "try to evict"
		}
		return fmt.Errorf("%s pod %s: %w", what, name(ref), err)
	}
	return nil
}

// evictionTimeout is for one eviction.
const evictionTimeout = 5 * time.Second

// refuses tells an error that is the API server's word, for good or for longer than it is worth waiting for while devices
// are fenced, from one after which it is worth trying again.
func refuses(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsInternalError(err) ||
		apierrors.IsTooManyRequests(err) && apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause)
}

// evict has pods evicted and decides anew on what was observed, with the reply, before anything else: evictions that the
// status does not tell of are not counted. What follows is done in the next turn.
func (r *reconciler) evict(ctx context.Context, observation gang.Observation, action gang.EvictVictims, again time.Duration) (time.Duration, error) {
	reply, err := r.applier.evictVictims(ctx, action)
	r.metrics.actions.WithLabelValues(action.Verb(), result(err)).Inc()
	if len(reply.Evicted) > 0 || reply.Refused != "" {
		if err := r.decideOnReply(ctx, observation, reply); err != nil {
			return 0, err
		}
	}
	switch {
	case reply.Refused != "":
		klog.FromContext(ctx).V(2).Info("An eviction was refused, giving the plan up", "reply", reply.Message)
		return conflictDelay, nil
	case err != nil && !onlyConflicts(err) && ctx.Err() == nil:
		r.events.failed(observation.Claim, action.Verb(), err)
	}
	return again, err
}

// decideOnReply writes what follows from a reply into the status.
func (r *reconciler) decideOnReply(ctx context.Context, observation gang.Observation, reply gang.EvictionReply) error {
	observation.Evictions = &reply
	decision := gang.Decide(observation)
	written, err := r.writeStatus(ctx, observation.Claim, decision.Status)
	if err != nil {
		return err
	}
	r.watched.set(keyOf(written), written.Status.Plan)
	r.events.send(written, decision.Events)
	return nil
}

// searchBuckets are those of searches for moves, in seconds.
func searchBuckets() []float64 {
	return []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5}
}

// addDefrag adds the metrics of what is moved for gangs.
func (m *metrics) addDefrag(registry prometheus.Registerer) {
	const subsystem = "defrag"
	m.evictions = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: metricNamespace, Subsystem: subsystem, Name: "evictions_total",
		Help: "Pods that were to be evicted to make room for gangs, by outcome: Evicted counts each that was, and later either Succeeded (the gang was started) or Failed (in vain); Refused counts those that the API server refused to evict.",
	}, []string{"outcome"})
	m.unblocked = prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: metricNamespace, Subsystem: subsystem, Name: "gangs_unblocked_total",
		Help: "Gangs that were started on devices for which pods had been moved.",
	})
	m.search = prometheus.NewHistogram(prometheus.HistogramOpts{
		Namespace: metricNamespace, Subsystem: subsystem, Name: "search_duration_seconds",
		Help:    "Duration of one search for moves for one gang, in seconds.",
		Buckets: searchBuckets(),
	})
	for _, outcome := range []v1alpha1.EvictionOutcome{v1alpha1.EvictionMade, v1alpha1.EvictionSucceeded, v1alpha1.EvictionFailed, v1alpha1.EvictionRefused} {
		m.evictions.WithLabelValues(string(outcome))
	}
	registry.MustRegister(m.evictions, m.unblocked, m.search)
}

func (m *metrics) observeSearch(took time.Duration) { m.search.Observe(took.Seconds()) }

// observeEvictions counts what the status says of evictions that it did not say before.
func (m *metrics) observeEvictions(before, after *v1alpha1.GangClaim) {
	type eviction struct {
		pod string
		at  int64
	}
	known := map[eviction]v1alpha1.EvictionOutcome{}
	for _, e := range before.Status.Evictions {
		known[eviction{e.Namespace + "/" + e.Pod, e.Time.UnixMicro()}] = e.Outcome
	}
	succeeded := false
	for _, e := range after.Status.Evictions {
		was, is := known[eviction{e.Namespace + "/" + e.Pod, e.Time.UnixMicro()}]
		if is && was == e.Outcome {
			continue
		}
		if !is && e.Outcome != v1alpha1.EvictionRefused && e.Outcome != v1alpha1.EvictionMade {
			m.evictions.WithLabelValues(string(v1alpha1.EvictionMade)).Inc() // made and settled in one
		}
		m.evictions.WithLabelValues(string(e.Outcome)).Inc()
		succeeded = succeeded || e.Outcome == v1alpha1.EvictionSucceeded
	}
	if succeeded {
		m.unblocked.Inc()
	}
}
