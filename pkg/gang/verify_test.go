// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package gang_test

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/gang"
	"github.com/switchyard-dev/switchyard/pkg/gang/gangtest"
)

// refused has kube-scheduler say that a pod fits nowhere.
func refused(pod string) func(*gangtest.World) {
	return func(w *gangtest.World) {
		w.UpdatePod(pod, func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
		})
	}
}

// Of the nodes of a plan that is given up those are told on which kube-scheduler did not put a member.
func TestUnplaced(t *testing.T) {
	const late = 11 * time.Second
	first := changes(allocate("p0", 0, 1, 2, 3), bind("p0", "a"))
	second := allocate("p1", 4, 5, 6, 7)
	for name, test := range map[string]struct {
		change func(*gangtest.World)
		later  time.Duration
		want   []string
	}{
		"none is placed":                   {changes(refused("p0"), refused("p1")), late, []string{"a", "b"}},
		"one is placed":                    {changes(first, refused("p1")), late, []string{"b"}},
		"the scheduler has said nothing":   {first, late, nil},
		"one has devices and waits longer": {changes(first, second), late, []string{"b"}},
		"all are placed":                   {changes(first, second, bind("p1", "b")), late, nil},
		"there is time left":               {first, time.Second, nil},
		"given up for another reason":      {changes(second, allocate("p0", 8, 9, 10, 11)), late, nil},
		"taken back already": {func(w *gangtest.World) {
			w.UpdateGang("g", func(g *v1alpha1.GangClaim) {
				g.Status.Plan.Step, g.Status.Plan.Reason = v1alpha1.StepTakingBack, gang.ReasonVerifyTimeout+": too late"
			})
		}, late, nil},
		"no plan":        {func(w *gangtest.World) { w.UpdateGang("g", func(g *v1alpha1.GangClaim) { g.Status.Plan = nil }) }, late, nil},
		"a deleted gang": {func(w *gangtest.World) { w.DeleteGang("g") }, late, nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := gangtest.NewWorld(slices.Concat(gangtest.Node("a", 1, 4), gangtest.Node("b", 1, 4), gangtest.Node("c", 1, 4))...)
			w.Schedule = func(*gangtest.World) {}
			w.AddGang("g", 2, 4)
			w.AddPod("p0", "g", "job")
			w.AddPod("p1", "g", "job")
			if ok, err := w.Run(10*time.Minute, func() bool { return step("g", v1alpha1.StepReleasing)(w) }); !ok || err != nil {
				t.Fatalf("the gang is not released: %v", err)
			}
			test.change(w)
			w.Now = w.Now.Add(test.later)
			o := w.Observe("g")
			if got := gang.Unplaced(o, gang.Decide(o)); !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
