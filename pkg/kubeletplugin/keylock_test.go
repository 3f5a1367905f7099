// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestKeyedLock(t *testing.T) {
	t.Run("one holder for a key at a time", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var lock keyedLock[string]
			unlock, err := lock.Lock(t.Context(), "a")
			if err != nil {
				t.Fatal(err)
			}
			got := make(chan struct{})
			go func() {
				second, err := lock.Lock(t.Context(), "a")
				if err != nil {
					t.Error(err)
					return
				}
				close(got)
				second()
			}()
			synctest.Wait()
			select {
			case <-got:
				t.Fatal("the key was handed out twice")
			default:
			}
			unlock()
			synctest.Wait()
			<-got
		})
	})
	t.Run("keys do not wait for each other", func(t *testing.T) {
		var lock keyedLock[string]
		for _, key := range []string{"a", "b"} {
			unlock, err := lock.Lock(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			defer unlock()
		}
	})
	t.Run("waiting ends with the context and leaves nothing behind", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var lock keyedLock[string]
			unlock, err := lock.Lock(t.Context(), "a")
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if _, err := lock.Lock(ctx, "a"); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("waiting for a held lock = %v, want the context's error", err)
			}
			unlock()
			if len(lock.locks) != 0 {
				t.Errorf("%d entries are left, want none", len(lock.locks))
			}
		})
	})
}
