// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build integration

package integration

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/switchyard-dev/switchyard/test/harness/claim"
	"github.com/switchyard-dev/switchyard/test/harness/plugin"
)

var randomSeed = flag.Uint64("random.seed", 1, "the seed of TestRandomOperations")

const (
	randomOperations = 200
	// partitioned is how many GPUs of the node are in MIG mode.
	partitioned = 2
)

// TestRandomOperations has pods with random claims come and go: partitions and whole GPUs, which kube-scheduler gives them,
// one by one and several at once. In between it writes claims that overlap others, and kills the plugin, idle and at a step.
// After each operation it compares what NVML has, what is published and what allocations leave of it, the checkpoint, the
// ledger of partitions, and the CDI specs.
func TestRandomOperations(t *testing.T) {
	t.Parallel()
	w := newRandomWorld(t, *randomSeed)
	for w.operation = range randomOperations {
		switch w.random.IntN(20) {
		case 0, 1, 2, 3, 4, 5:
			w.begin(w.prepareOne)
		case 6, 7, 8, 9, 10:
			w.begin(w.endOne)
		case 11, 12, 13:
			w.begin(w.overlapOne)
		case 14, 15, 16:
			w.begin(func() { w.severalAtOnce("") })
		case 17:
			w.begin(w.raceForOnePlace)
		case 18:
			w.begin(w.repeatCalls)
		case 19:
			w.begin(w.killPlugin)
		}
		w.compare()
	}
	w.begin(w.endAll)
	w.compare()
	w.wantUnpartitioned(t)
	for what, least := range map[string]int{"prepared": 50, "refused": 10, "no room": 20, "at once": 10, "raced": 3, "killed": 3, "killed at a step": 1} {
		if w.done[what] < least {
			t.Errorf("%s: %d times, want at least %d: the operations show little", what, w.done[what], least)
		}
	}
	t.Logf("seed %d: %v", *randomSeed, w.done)
}

// randomWorld is a node, the pods and claims on it, and what should be true of them.
type randomWorld struct {
	*node
	t         *testing.T
	random    *rand.Rand
	plugin    *plugin.Plugin
	operation int
	trace     []string
	done      map[string]int

	// published are the devices, in order, and total what there is of each counter, by "<set>/<counter>".
	published []resourceapi.Device
	total     map[string]int64
	versions  map[string]string
	// holders have their claim allocated, and between operations prepared, in the order of their allocation.
	holders []*holder
}

// holder is a pod with a claim, or a claim that was written by hand.
type holder struct {
	claim *resourceapi.ResourceClaim
	pod   string // empty for a claim that was written by hand
	// ids are the CDI device IDs that the kubelet got.
	ids []string
}

func (h *holder) devices() []string {
	var names []string
	for _, result := range h.claim.Status.Allocation.Devices.Results {
		names = append(names, result.Device)
	}
	return names
}

// schedulerOfRandom serves the pods of this test, and no others.
const schedulerOfRandom = "random"

func newRandomWorld(t *testing.T, seed uint64) *randomWorld {
	t.Helper()
	w := &randomWorld{node: newNode(t, "hgx-h100"), t: t, random: rand.New(rand.NewPCG(seed, 0)), done: map[string]int{}, total: map[string]int64{}}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the last operations:\n%s\nrepeat it, but for what timing decides, with: go test -tags integration ./test/integration -run '^%s$' -random.seed=%d",
				strings.Join(w.trace[max(0, len(w.trace)-15):], "\n"), t.Name(), seed)
		}
	})
	for gpu := range partitioned {
		if err := w.GPUs.SetMIGMode(gpu, true); err != nil {
			t.Fatal(err)
		}
	}
	w.serviceAccount(t, "default")
	scheduler, err := cluster.StartSecondScheduler(binaries, schedulerOfRandom)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(scheduler.Kill)
	w.startPlugin()
	var published []resourceapi.ResourceSlice
	eventually(t, "all slices are published", func() error {
		published = w.slices(t)
		if len(published) == 0 || int64(len(published)) != published[0].Spec.Pool.ResourceSliceCount {
			return fmt.Errorf("there are %d", len(published))
		}
		return nil
	})
	for _, slice := range published {
		w.published = append(w.published, slice.Spec.Devices...)
		for _, set := range slice.Spec.SharedCounters {
			for name, counter := range set.Counters {
				w.total[set.Name+"/"+name] = counter.Value.Value()
			}
		}
	}
	w.versions = w.node.versions(t)
	if partitions := len(w.published) - len(w.devices); partitions != partitioned*25 {
		t.Fatalf("%d partitions are published", partitions)
	}
	return w
}

func (w *randomWorld) startPlugin() {
	w.t.Helper()
	w.plugin = w.start(w.t, plugin.Options{Args: []string{"--device-wait=0s"}})
	eventually(w.t, "the plugin is ready", func() error { return w.plugin.Ready(w.t.Context()) })
}

// begin does an operation, which notes what it is.
func (w *randomWorld) begin(operation func()) {
	w.t.Helper()
	w.trace = append(w.trace, fmt.Sprintf("%d:", w.operation))
	operation()
}

// note adds to what is known of the operation.
func (w *randomWorld) note(format string, args ...any) {
	w.trace[len(w.trace)-1] += " " + fmt.Sprintf(format, args...)
}

func (w *randomWorld) count(what string) {
	w.done[what]++
	w.note("(%s)", what)
}

// fatal ends the test in the middle of an operation.
func (w *randomWorld) fatal(format string, args ...any) {
	w.t.Helper()
	w.t.Fatalf("operation %s: %s", w.trace[len(w.trace)-1], fmt.Sprintf(format, args...))
}

// prepareOne schedules a pod with a random claim and prepares the claim.
func (w *randomWorld) prepareOne() {
	wish := w.randomWish()
	h := w.schedule(wish)
	if h == nil {
		return
	}
	if wish.refused == "" {
		w.prepareHolder(h)
		return
	}
	w.refused(w.t, h.claim, wish.refused)
	w.count("refused")
	w.forget(h)
}

func (w *randomWorld) prepareHolder(h *holder) {
	w.t.Helper()
	h.ids = w.prepare(w.t, h.claim)
	w.count("prepared")
}

func (w *randomWorld) endOne() {
	if len(w.holders) > 0 {
		w.end(w.holders[w.random.IntN(len(w.holders))])
	}
}

func (w *randomWorld) endAll() {
	for len(w.holders) > 0 {
		w.end(w.holders[0])
	}
}

// end ends a pod and its claim as kubelet and control plane do.
func (w *randomWorld) end(h *holder) {
	w.t.Helper()
	w.note("end %s", h.claim.Name)
	w.endPod(h)
	w.unprepare(w.t, h.claim)
	w.forget(h)
}

// overlapOne writes a claim for a device that overlaps one in use, with or without a free one beside it. All of it must be
// refused. It is never for the very device that is in use: the scheduler would take that for free once the claim is gone.
func (w *randomWorld) overlapOne() {
	left := w.left()
	var taken, free []string
	for _, d := range w.published {
		switch {
		case w.isFree(d, left):
			free = append(free, d.Name)
		case !w.isHeld(d):
			taken = append(taken, d.Name)
		}
	}
	if len(taken) == 0 {
		return
	}
	devices := []string{taken[w.random.IntN(len(taken))]}
	if len(free) > 0 && w.random.IntN(2) == 0 {
		devices = append([]string{free[w.random.IntN(len(free))]}, devices...)
	}
	w.note("overlap %s", devices)
	c := w.gpus(w.t, fmt.Sprintf("overlap-%d", w.operation), devices...)
	w.refused(w.t, c, devices[len(devices)-1])
	w.count("refused")
	w.unprepare(w.t, c) // as the kubelet does once the pod is deleted
	w.release(c)
}

// raceForOnePlace writes two claims of which each would do alone, and prepares them at once: one is.
func (w *randomWorld) raceForOnePlace() {
	left := w.left()
	var pairs [][2]resourceapi.Device
	for i, one := range w.published {
		if !w.isPartition(one) || !w.isFree(one, left) {
			continue
		}
		less := minus(left, one)
		for _, other := range w.published[i+1:] {
			if w.isPartition(other) && w.isFree(other, left) && !fitsCounters(less, other) {
				pairs = append(pairs, [2]resourceapi.Device{one, other})
			}
		}
	}
	if len(pairs) == 0 {
		return
	}
	pair := pairs[w.random.IntN(len(pairs))]
	w.note("race %s, %s", pair[0].Name, pair[1].Name)
	var racers []*holder
	for i, d := range pair {
		racers = append(racers, &holder{claim: w.gpus(w.t, fmt.Sprintf("race-%d-%d", w.operation, i), d.Name)})
	}
	errs := w.callAtOnce(racers, nil)
	if (errs[racers[0]] == nil) == (errs[racers[1]] == nil) {
		w.fatal("the errors of both are %v", errs)
	}
	for _, h := range racers {
		if errs[h] == nil {
			w.holders = append(w.holders, h)
		} else {
			w.unprepare(w.t, h.claim)
			w.release(h.claim)
		}
	}
	w.count("raced")
	w.compare()
	// No pod is scheduled while it is there: the scheduler may not know of it yet.
	w.end(w.holders[len(w.holders)-1])
}

// repeatCalls makes calls that the kubelet may make at any time, and that change nothing.
func (w *randomWorld) repeatCalls() {
	if len(w.holders) == 0 {
		return
	}
	h := w.holders[w.random.IntN(len(w.holders))]
	w.note("prepare %s again", h.claim.Name)
	if ids := w.prepare(w.t, h.claim); !slices.Equal(ids, h.ids) {
		w.fatal("its CDI devices were %q and are %q", h.ids, ids)
	}
	gone := h.claim.DeepCopy()
	gone.UID = types.UID("6b1c9a30-3f0e-4a3b-9d1e-" + fmt.Sprintf("%012d", w.operation))
	w.unprepare(w.t, gone)
}

// killPlugin kills the plugin with calls in flight or without, and repeats them.
func (w *randomWorld) killPlugin() {
	switch w.random.IntN(4) {
	case 0:
		w.note("kill idle")
		w.plugin.Kill()
		w.startPlugin()
		w.count("killed")
	case 1:
		w.severalAtOnce("now")
	default:
		w.severalAtOnce(crashSteps[w.random.IntN(len(crashSteps))])
	}
}

// crashSteps are steps of Prepare and Unprepare after which something is left to be finished, or undone.
var crashSteps = []string{
	"prepare:after-checkpoint", "partition:before-gpu-instance", "partition:after-gpu-instance", "partition:after-compute-instance",
	"prepare:after-cdi", "prepare:after-prepared",
	"unprepare:after-cdi-removal", "partition:before-removal", "partition:after-compute-instance-removal", "partition:after-gpu-instance-removal",
	"unprepare:after-record-removal",
}

// release deletes a claim. The claim controller, of which there is none, would take the scheduler's finalizer off.
func (w *randomWorld) release(c *resourceapi.ResourceClaim) {
	w.t.Helper()
	if _, err := cluster.Client().ResourceV1().ResourceClaims(w.namespace).Patch(w.t.Context(), c.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), patchOptions); err != nil {
		w.fatal("%v", err)
	}
	if err := claim.Delete(w.t.Context(), cluster.Client(), c); err != nil {
		w.fatal("%v", err)
	}
}

// forget ends what is left of a holder that is not prepared.
func (w *randomWorld) forget(h *holder) {
	w.t.Helper()
	w.endPod(h)
	w.release(h.claim)
	w.holders = slices.DeleteFunc(w.holders, func(other *holder) bool { return other == h })
}
