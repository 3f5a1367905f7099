// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// A write for a GangClaim may be under way when it is deleted by force.
func TestWhatComesAfterTheDeletionOfAGangIsSweptToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := fakeAPI(t, interceptor.Funcs{})
		sent := &fakeRecorder{}
		s := &sweeper{
			client: api, live: api, clock: clock.RealClock{}, interval: time.Hour, wake: make(chan struct{}, 1),
			applier: newApplier(api), events: newEventSender(sent, clock.RealClock{}), metrics: newMetrics(prometheus.NewRegistry(), ""),
		}
		s.applier.clock = clock.RealClock{}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { s.Run(ctx) })
		defer running.Wait()
		defer cancel()
		after := func(d time.Duration) {
			timer := time.NewTimer(d)
			<-timer.C
			synctest.Wait()
		}
		after(time.Minute)
		s.deleted()
		after(time.Second)
		late := &resourceapi.DeviceTaintRule{}
		late.Name, late.Labels = "late", map[string]string{v1alpha1.GangLabel: "gone"}
		if err := api.Create(ctx, late); err != nil {
			t.Fatal(err)
		}
		after(sweepLate + 5*time.Second)
		if err := api.Get(ctx, keyOf(late), late); err == nil {
			t.Errorf("the rule %+v is left until the next sweep in an hour", late)
		}
	})
}
