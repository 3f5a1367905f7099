// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/switchyard-dev/switchyard/pkg/nvml"
)

// breakingPlatform is hardware of which each watch breaks: NVML registers for events, and each wait for one fails
// (NVML_ERROR_GPU_IS_LOST, as long as one is).
type breakingPlatform struct {
	*sickPlatform
	watches atomic.Int64
	// lasts is called in each watch.
	lasts func()
}

func (p *breakingPlatform) WatchHealth(_ context.Context, started func(monitored, gpus int), _ func(nvml.HealthEvent)) error {
	p.watches.Add(1)
	started(1, 1)
	p.lasts()
	return errTest
}

func TestAWatchThatBreaksAtOnceIsNotBegunAllTheTime(t *testing.T) {
	for name, test := range map[string]struct {
		lasts time.Duration
		want  int64 // watches in a second
	}{
		"at once":      {0, 4}, // after 100, 200 and 400 ms
		"after a time": {steadyWatch, 11},
	} {
		t.Run(name, func(t *testing.T) {
			m := newSickMachine(t, 1)
			p := m.process()
			platform := &breakingPlatform{sickPlatform: m.sick, lasts: func() { m.clock.Step(test.lasts) }}
			p.config.Platform = platform
			ctx, cancel := context.WithCancel(p.ctx)
			var running sync.WaitGroup
			running.Go(func() { p.watchHealth(ctx) })
			for range 10 {
				m.eventually("it waits", func(context.Context) bool { return m.clock.HasWaiters() })
				m.clock.Step(watchPause)
			}
			m.eventually("it waits", func(context.Context) bool { return m.clock.HasWaiters() })
			if got := platform.watches.Load(); got != test.want {
				t.Errorf("%d watches in a second, want %d", got, test.want)
			}
			cancel()
			running.Wait()
		})
	}
}
