// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package model

import (
	"container/heap"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// options say what happens in a run.
type options struct {
	seed uint64
	// steps is how many events happen before users stop.
	steps int
	// fault is put into the run; "" for none.
	fault fault
	// trace gets a line for each event; nil for none.
	trace io.Writer
	// often says which operations of users are how many times as frequent.
	often map[string]int
	// pace is the mean time between two operations of users; 0 for a random one.
	pace time.Duration
	// moves has gangs ask for room to be made, and users protect their pods from that.
	moves bool
	// partitions has GPUs that may be had in parts, and users who want some.
	partitions bool
	// lag is how often a watch is slow; 0 for a random rate.
	lag float64
}

// world is one run: a cluster, everything that works on it, and the clock.
type world struct {
	options

	rand  *rand.Rand
	now   time.Time
	queue events
	serie int
	done  int
	// err ends the run.
	err error
	// quiet says that users have stopped, and that nothing fails any more.
	quiet bool

	api         *apiServer
	scheduler   *scheduler
	claimer     *claimController
	kubelet     *kubelet
	workloads   *workloads
	users       *users
	leader      *controller
	checker     *checker
	controllers int
}

// start is when every run begins.
var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func newWorld(o options) *world {
	w := &world{options: o, rand: rand.New(rand.NewPCG(o.seed, 0x5177c4a7d)), now: start}
	if w.lag == 0 {
		w.lag = []float64{0.02, 0.02, 0.02, 0.25}[w.rand.IntN(4)]
	}
	w.api = &apiServer{objects: newObjects(), now: func() time.Time { return w.now }}
	w.checker = newChecker(w)
	w.api.watchers = append(w.api.watchers, w.checker.seen)
	w.setUpHardware()
	w.scheduler = newScheduler(w)
	w.claimer = newClaimController(w)
	w.kubelet = newKubelet(w)
	w.workloads = newWorkloads(w)
	if w.moves {
		w.newDisruptionController()
	}
	w.users = &users{w: w}
	w.leader = newController(w)
	return w
}

// at has something happen, in the order of time and then of calls.
func (w *world) at(when time.Time, do func()) {
	w.serie++
	heap.Push(&w.queue, &event{at: when, serie: w.serie, do: do})
}

func (w *world) after(d time.Duration, do func()) { w.at(w.now.Add(d), do) }

// next lets one thing happen, and checks what must hold. It says whether anything was left to happen
// before limit.
func (w *world) next(limit time.Time) bool {
	if len(w.queue) == 0 || w.queue[0].at.After(limit) {
		return false
	}
	e := heap.Pop(&w.queue).(*event)
	if e.at.After(w.now) {
		w.now = e.at
	}
	e.do()
	w.done++
	w.checker.check()
	return true
}

// run lets things happen for a while, or until something was violated.
func (w *world) run(d time.Duration) {
	end := w.now.Add(d)
	for w.err == nil && w.next(end) {
	}
	if w.now.Before(end) {
		w.now = end
	}
}

// fail ends the run.
func (w *world) fail(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf("step %d, %s: %w", w.done, w.clock(), fmt.Errorf(format, args...))
		w.logf("VIOLATED: %v", w.err)
	}
}

func (w *world) clock() string { return fmt.Sprintf("%.3fs", w.now.Sub(start).Seconds()) }

func (w *world) logf(format string, args ...any) {
	if w.trace != nil {
		fmt.Fprintf(w.trace, "%6d %9s  %s\n", w.done, w.clock(), fmt.Sprintf(format, args...))
	}
}

// chance says yes with a probability, and never once the run is quiet: it is for what goes wrong.
func (w *world) chance(p float64) bool { return !w.quiet && w.rand.Float64() < p }

// between is a random duration.
func (w *world) between(least, most time.Duration) time.Duration {
	return least + time.Duration(w.rand.Int64N(int64(most-least)+1))
}

// watchLag is how long a watch takes.
func (w *world) watchLag() time.Duration {
	if w.chance(w.lag) {
		return w.between(20*time.Millisecond, 800*time.Millisecond)
	}
	return w.between(time.Millisecond, 15*time.Millisecond)
}

// writeTime is how long a write takes.
func (w *world) writeTime() time.Duration {
	if w.chance(0.03) {
		return w.between(10*time.Millisecond, 300*time.Millisecond)
	}
	return w.between(time.Millisecond, 8*time.Millisecond)
}

// pick returns a random element, or false when there is none.
func pick[T any](w *world, of []T) (T, bool) {
	var none T
	if len(of) == 0 {
		return none, false
	}
	return of[w.rand.IntN(len(of))], true
}

// event is something that happens.
type event struct {
	at    time.Time
	serie int
	do    func()
}

type events []*event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	if e[i].at.Equal(e[j].at) {
		return e[i].serie < e[j].serie
	}
	return e[i].at.Before(e[j].at)
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(*event)) }
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

// sorted returns the objects of a map by namespace and name.
func sorted(m map[key]object) []object {
	out := make([]object, 0, len(m))
	for _, k := range sortedKeys(m) {
		out = append(out, m[k])
	}
	return out
}

func sortedKeys[V any](m map[key]V) []key {
	return slices.SortedFunc(maps.Keys(m), func(a, b key) int {
		if a.Namespace != b.Namespace {
			if a.Namespace < b.Namespace {
				return -1
			}
			return 1
		}
		if a.Name < b.Name {
			return -1
		}
		if a.Name > b.Name {
			return 1
		}
		return 0
	})
}

func over(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// isReady says whether the start gate is open for a claim with these labels and annotations.
func isReady(labels, annotations map[string]string) bool {
	return annotations[v1alpha1.ReadyAnnotation] == labels[v1alpha1.PlanLabel]
}

// worldClock is the time of the world.
type worldClock struct{ w *world }

func (c worldClock) Now() time.Time                  { return c.w.now }
func (c worldClock) Since(t time.Time) time.Duration { return c.w.now.Sub(t) }
