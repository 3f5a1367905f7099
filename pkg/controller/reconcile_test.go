// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/gang"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// reconcilerTest is a reconciler on a fake API server, with a GPU on a node.
type reconcilerTest struct {
	*reconciler
	api      client.WithWatch
	clock    *clocktesting.FakePassiveClock
	recorder *fakeRecorder
}

func newReconciler(t *testing.T, funcs interceptor.Funcs, objects ...client.Object) *reconcilerTest {
	t.Helper()
	class := &resourceapi.DeviceClass{}
	class.Name = v1alpha1.DriverName
	api := fakeAPI(t, funcs, append(objects, readyNode(), class)...)
	cluster := placement.NewCluster()
	cluster.SetSlice(gpu())
	cluster.SetClass(class)
	cluster.SetNode(readyNode())
	r := &reconcilerTest{api: api, clock: clocktesting.NewFakePassiveClock(start), recorder: &fakeRecorder{}}
	r.reconciler = &reconciler{
		client:   api,
		live:     api,
		observer: &observer{cached: api, live: api, cluster: cluster, clock: r.clock},
		planner:  newPlanner(cluster, clocktesting.NewFakeClock(start), func(types.NamespacedName) {}, func(time.Duration, int) {}),
		applier:  &applier{client: api, live: api, clock: r.clock, wrote: func(string) error { return nil }},
		events:   newEventSender(r.recorder, r.clock),
		metrics:  newMetrics(prometheus.NewRegistry(), ""),
		watched:  newWatched(clocktesting.NewFakeClock(start), func(types.NamespacedName) {}),
		backoff:  newBackoff(),
	}
	return r
}

func (r *reconcilerTest) look(t *testing.T) time.Duration {
	t.Helper()
	result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "ml", Name: "gang"}})
	if err != nil {
		t.Fatal(err)
	}
	return result.RequeueAfter
}

// member is a pod that names the gang's template.
func member(name string) *corev1.Pod {
	pod := gpuPod(name, start)
	template := "gang"
	pod.Spec.ResourceClaims[0] = corev1.PodResourceClaim{Name: "gpu", ResourceClaimTemplateName: &template}
	return pod
}

func TestARefusalOfTheAPIServerReachesTheUserAndDeadlinesAreKept(t *testing.T) {
	refused := apierrors.NewForbidden(schema.GroupResource{Resource: "resourceclaimtemplates"}, "gang", errors.New("exceeded quota: templates"))
	claim := plannedGang(v1alpha1.StepReleasing)
	claim.Finalizers = []string{gang.Finalizer}
	r := newReconciler(t, interceptor.Funcs{Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
		if _, template := o.(*resourceapi.ResourceClaimTemplate); template {
			return refused
		}
		return c.Create(ctx, o, options...)
	}}, claim, member("gang-0"))
	for range 20 { // the backoff has grown to its maximum by then
		if pause := r.look(t); pause <= 0 || pause > maxBackoff {
			t.Fatalf("tried again after %v", pause)
		}
	}
	if said := strings.Join(r.recorder.shown, "\n"); !strings.Contains(said, "ActionFailed: CreateTemplate ml/gang: ") || !strings.Contains(said, "exceeded quota: templates") {
		t.Errorf("the Events are\n%s", said)
	}
	deadline := gang.VerifyDeadline(claim.Status.Plan)
	r.clock.SetTime(start.Add(deadline - 3*time.Second))
	if pause := r.look(t); pause > 3*time.Second {
		t.Errorf("looked at after %v, want at the deadline in 3s", pause)
	}
	r.clock.SetTime(start.Add(deadline - time.Millisecond))
	if pause := r.look(t); pause > retryFloor {
		t.Errorf("looked at after %v, want no more than %v after the deadline", pause, retryFloor)
	}
}

func TestOnlyConflicts(t *testing.T) {
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, "a", errors.New("changed"))
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "a", errors.New("no"))
	for name, test := range map[string]struct {
		err  error
		want bool
	}{
		"none":                           {errors.Join(), false},
		"a conflict":                     {conflict, true},
		"wrapped":                        {fmt.Errorf("patch: %w", conflict), true},
		"several":                        {errors.Join(fmt.Errorf("patch: %w", conflict), conflict), true},
		"a conflict beside a refusal":    {errors.Join(conflict, fmt.Errorf("patch: %w", forbidden)), false},
		"a refusal":                      {forbidden, false},
		"an error of another kind":       {errors.New("connection reset"), false},
		"joined errors that are wrapped": {fmt.Errorf("all: %w", errors.Join(conflict, conflict)), true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := onlyConflicts(test.err); got != test.want {
				t.Errorf("onlyConflicts = %t, want %t", got, test.want)
			}
		})
	}
}

// A status that was written and whose reply was lost is in the API server, and not in the cache yet: the
// devices must not be planned for another gang meanwhile, nor the plan be taken for lost.
func TestAPlanWhoseReplyWasLostStaysReserved(t *testing.T) {
	lost := errors.New("http2: client connection lost")
	for name, test := range map[string]struct {
		err    error
		stored bool
		kept   bool // until the API server was asked
	}{
		"stored, and the reply was lost":     {lost, true, true},
		"not stored, which nobody knows":     {lost, false, true},
		"a timeout of the API server":        {apierrors.NewTimeoutError("etcd", 1), true, true},
		"refused because of a change":        {apierrors.NewConflict(schema.GroupResource{Resource: "gangclaims"}, "gang", errors.New("changed")), false, false},
		"refused by validation or admission": {apierrors.NewForbidden(schema.GroupResource{Resource: "gangclaims"}, "gang", errors.New("no")), false, false},
	} {
		t.Run(name, func(t *testing.T) {
			claim := plannedGang(v1alpha1.StepFencing)
			claim.Status.Plan = nil
			claim.Finalizers = []string{gang.Finalizer}
			fails := true
			r := newReconciler(t, interceptor.Funcs{SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, options ...client.SubResourceUpdateOption) error {
				if plan := o.(*v1alpha1.GangClaim).Status.Plan; plan == nil || !fails {
					return c.SubResource(sub).Update(ctx, o, options...)
				}
				fails = false
				if test.stored {
					if err := c.SubResource(sub).Update(ctx, o.DeepCopyObject().(client.Object), options...); err != nil {
						t.Fatal(err)
					}
				}
				return test.err
			}}, claim, member("gang-0"))
			for range 5 {
				if r.look(t); !fails {
					break
				}
				r.planner.plan(t.Context())
			}
			if fails {
				now := &v1alpha1.GangClaim{}
				t.Fatalf("no plan was written: %v, %+v", r.api.Get(t.Context(), keyOf(claim), now), now.Status)
			}
			if kept := r.planner.Unsettled(claim.UID); kept != test.kept {
				t.Errorf("the plan is kept: %t, want %t", kept, test.kept)
			}
			r.look(t)
			if r.planner.Unsettled(claim.UID) {
				t.Error("the API server was not asked")
			}
			for range 3 {
				r.planner.plan(t.Context())
				r.look(t)
			}
			now := &v1alpha1.GangClaim{}
			if err := r.api.Get(t.Context(), keyOf(claim), now); err != nil || now.Status.Plan == nil || now.Status.Plan.Attempt != 1 {
				t.Errorf("the plan is %+v, %v; want the first", now.Status.Plan, err)
			}
		})
	}
}

func TestAGangThatIsGoneDoesNotWait(t *testing.T) {
	claim := plannedGang(v1alpha1.StepFencing)
	claim.Status.Plan = nil
	claim.Finalizers = []string{gang.Finalizer}
	r := newReconciler(t, interceptor.Funcs{}, claim, member("gang-0"))
	for range 3 {
		r.look(t)
	}
	if !r.planner.Waits() {
		t.Fatal("the gang does not wait for a plan")
	}
	// Somebody takes the finalizer off and deletes it, and the planner heard of that before it was asked.
	now := &v1alpha1.GangClaim{}
	if err := r.api.Get(t.Context(), keyOf(claim), now); err != nil {
		t.Fatal(err)
	}
	now.Finalizers = nil
	if err := errors.Join(r.api.Update(t.Context(), now), r.api.Delete(t.Context(), now)); err != nil {
		t.Fatal(err)
	}
	r.look(t)
	if r.planner.Waits() {
		t.Error("the planner keeps a gang that is gone")
	}
}
