// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/switchyard-dev/switchyard/pkg/device"
)

// hangingGenerator is an nvcdi that answers for GPU-1 when it is let go.
type hangingGenerator struct {
	fakeGenerator
	letGo chan struct{}
}

func (g *hangingGenerator) device(uuid string) (specs.ContainerEdits, error) {
	if uuid == "GPU-1" {
		<-g.letGo
	}
	return g.fakeGenerator.device(uuid)
}

func TestNVCDIThatHangs(t *testing.T) {
	inv := device.Inventory{GPUs: []device.GPU{{UUID: "GPU-0"}, {UUID: "GPU-1"}}}
	one := device.Inventory{GPUs: inv.GPUs[:1]}
	// in runs a test with a Writer whose nvcdi hangs at GPU-1.
	in := func(name string, test func(t *testing.T, w *Writer, g *hangingGenerator)) {
		t.Run(name, func(t *testing.T) {
			w := fakeWriter(t, nil)
			synctest.Test(t, func(t *testing.T) {
				g := &hangingGenerator{fakeGenerator: fakeGenerator{edits: nullNode}, letGo: make(chan struct{})}
				w.newGenerator = func(context.Context, string) (generator, error) { return g, nil }
				test(t, w, g)
			})
		})
	}
	wantHang := func(t *testing.T, err error, took time.Duration, since time.Time) {
		t.Helper()
		if !errors.Is(err, ErrNotResponding) || !strings.Contains(err.Error(), "device gpu-1") {
			t.Errorf("error is %v, want that nvcdi does not answer for gpu-1", err)
		}
		if got := time.Since(since); got != took {
			t.Errorf("returned after %v, want %v", got, took)
		}
	}

	in("it is left behind after the timeout, and nobody waits for it again nor asks beside it", func(t *testing.T, w *Writer, g *hangingGenerator) {
		start := time.Now()
		wantHang(t, w.Refresh(t.Context(), inv), DefaultTimeout, start)
		start = time.Now()
		for range 3 {
			wantHang(t, w.Refresh(t.Context(), inv), 0, start)
			_, err := w.WriteClaim("a", []ClaimDevice{{Name: "gpu-0"}})
			wantHang(t, err, 0, start)
			if !errors.Is(err, ErrNotReady) {
				t.Errorf("error is %v, want ErrNotReady", err)
			}
		}
		if g.calls != 1 {
			t.Errorf("nvcdi was asked %d times, want once", g.calls)
		}

		close(g.letGo)
		synctest.Wait()
		write(t, w, "a", ClaimDevice{Name: "gpu-1"}) // The late answer counts.
		if err := w.Refresh(t.Context(), inv); err != nil || g.calls != 2 {
			t.Errorf("once nvcdi answers: %v, asked %d times", err, g.calls)
		}
	})
	in("claims go by what was known before", func(t *testing.T, w *Writer, g *hangingGenerator) {
		if err := w.Refresh(t.Context(), one); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		wantHang(t, w.Refresh(t.Context(), inv), DefaultTimeout, start)
		write(t, w, "a", ClaimDevice{Name: "gpu-0"})
		close(g.letGo)
	})
	in("a claim that needs nvcdi waits a shorter time", func(t *testing.T, w *Writer, g *hangingGenerator) {
		g.fail = map[string]error{"GPU-0": errors.New("not now")}
		begun := time.Now()
		var refresh sync.WaitGroup
		refresh.Go(func() { _ = w.Refresh(t.Context(), inv) })
		synctest.Wait()
		w.mu.Lock()
		w.kept = &kept{inventory: inv, devices: map[string]keptDevice{"gpu-0": {err: errors.New("not then")}}}
		w.mu.Unlock()
		if _, err := w.WriteClaim("a", []ClaimDevice{{Name: "gpu-0"}}); !errors.Is(err, ErrNotResponding) || time.Since(begun) != claimTimeout {
			t.Errorf("error after %v is %v, want that nvcdi does not answer after %v", time.Since(begun), err, claimTimeout)
		}
		close(g.letGo)
		refresh.Wait()
	})
	in("a caller that shuts down does not wait, and the answer is kept for others", func(t *testing.T, w *Writer, g *hangingGenerator) {
		start := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		var refresh sync.WaitGroup
		refresh.Go(func() {
			if err := w.Refresh(ctx, inv); !errors.Is(err, context.Canceled) || time.Since(start) != 0 {
				t.Errorf("error after %v is %v, want that of the context at once", time.Since(start), err)
			}
		})
		synctest.Wait()
		cancel()
		refresh.Wait()
		close(g.letGo)
		synctest.Wait()
		write(t, w, "a", ClaimDevice{Name: "gpu-1"})
	})
	in("those who come meanwhile look again when it has answered", func(t *testing.T, w *Writer, g *hangingGenerator) {
		var refresh sync.WaitGroup
		for range 3 {
			refresh.Go(func() {
				if err := w.Refresh(t.Context(), inv); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		close(g.letGo)
		refresh.Wait()
		if g.calls != 3 {
			t.Errorf("nvcdi was asked %d times, want 3, one after the other", g.calls)
		}
	})
}

func TestNotReadyTellsTheLastFailure(t *testing.T) {
	g := &fakeGenerator{edits: nullNode}
	w := fakeWriter(t, g)
	if err := w.Check([]ClaimDevice{{Name: "gpu-0"}}); err == nil || err.Error() != ErrNotReady.Error() {
		t.Errorf("before the first look: %v", err)
	}
	broken := errors.New("no libcuda.so.1")
	g.fail = map[string]error{"": broken}
	inv := device.Inventory{GPUs: []device.GPU{{UUID: "GPU-0"}}}
	if err := w.Refresh(t.Context(), inv); !errors.Is(err, broken) {
		t.Fatalf("error is %v", err)
	}
	if err := w.Check([]ClaimDevice{{Name: "gpu-0"}}); !errors.Is(err, ErrNotReady) || !errors.Is(err, broken) {
		t.Errorf("after a failed look: %v, want ErrNotReady and why", err)
	}
	g.fail = nil
	if err := w.Refresh(t.Context(), inv); err != nil {
		t.Fatal(err)
	}
	if err := w.Check([]ClaimDevice{{Name: "gpu-0"}}); err != nil {
		t.Errorf("after a look that did not fail: %v", err)
	}
}
