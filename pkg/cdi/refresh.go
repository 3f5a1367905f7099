// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"github.com/switchyard-dev/switchyard/pkg/device"
)

const (
	// DefaultTimeout is after how long nvcdi counts as hanging. It takes some milliseconds per GPU, and
	// looks for files.
	DefaultTimeout = 30 * time.Second
	// claimTimeout is how long a claim waits for nvcdi. The kubelet gives up on a call after 45 s.
	claimTimeout = 15 * time.Second
)

// look is nvcdi being asked. It calls NVML and looks for files: nothing of it can be interrupted.
type look struct {
	// step is what it does.
	step atomic.Pointer[string]
	// done is closed once nvcdi has answered and the answer is kept; err is set by then.
	done chan struct{}
	err  error
	// late ends when nvcdi should have answered long ago.
	late context.Context
}

// hangs returns nil unless nvcdi should have answered by now.
func (l *look) hangs(timeout time.Duration) error {
	select {
	case <-l.done:
		return nil
	default:
	}
	if l.late.Err() == nil {
		return nil
	}
	return fmt.Errorf("compute CDI edits: %w for more than %v, the last it was to do is to %s: a GPU, the driver or a file system hangs, see the kernel log of the node",
		ErrNotResponding, timeout, *l.step.Load())
}

func (l *look) progress(format string, args ...any) {
	step := fmt.Sprintf(format, args...)
	l.step.Store(&step)
}

// Refresh finds out what containers need for the GPUs of an inventory. It takes some milliseconds per
// GPU and calls NVML. A GPU that cannot be asked is logged, and claims of it get the edits that it had,
// or fail; Refresh fails only when no GPU can be used, and then keeps what it knew.
//
// A look that hangs is left behind after Options.Timeout, with ErrNotResponding. Until it comes back no
// other is begun, and everybody who needs one gets that error at once. What it says in the end counts.
func (w *Writer) Refresh(ctx context.Context, inv device.Inventory) error {
	return w.refresh(ctx, inv, nil)
}

// refreshOnce asks nvcdi again unless somebody else has since seen was looked at.
func (w *Writer) refreshOnce(seen *kept) error {
	ctx, cancel := context.WithTimeoutCause(context.Background(), claimTimeout, fmt.Errorf("%w within %v", ErrNotResponding, claimTimeout))
	defer cancel()
	return w.refresh(klog.NewContext(ctx, w.logger), seen.inventory, seen)
}

// refresh begins a look, as soon as there is none in flight, and waits for it. With seen it is content
// with any look since.
func (w *Writer) refresh(ctx context.Context, inv device.Inventory, seen *kept) error {
	for ctx.Err() == nil {
		l, ours := w.begin(ctx, inv, seen)
		if l == nil {
			return nil
		}
		select {
		case <-l.done:
			if ours {
				return l.err
			}
		case <-l.late.Done():
			if err := l.hangs(w.options.Timeout); err != nil {
				return err
			}
			if ours {
				return l.err
			}
		case <-ctx.Done():
		}
	}
	return fmt.Errorf("compute CDI edits: %w", context.Cause(ctx))
}

// begin returns the look in flight, and whether it was begun by this call; nil when seen is not the
// newest answer any more.
func (w *Writer) begin(ctx context.Context, inv device.Inventory, seen *kept) (l *look, ours bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if seen != nil && w.kept != seen {
		return nil, false
	}
	if w.looking != nil {
		return w.looking, false
	}
	// It outlives a caller who does not wait for it, as one that shuts down.
	ctx = context.WithoutCancel(ctx)
	late, answered := context.WithTimeout(ctx, w.options.Timeout)
	l = &look{done: make(chan struct{}), late: late}
	l.progress("begin")
	w.looking = l
	go func(before *kept) {
		defer answered()
		now, err := w.generate(ctx, inv, before, l.progress)
		if err != nil {
			err = fmt.Errorf("compute CDI edits: %w", err)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if err == nil {
			w.kept = now
		}
		l.err, w.failure, w.looking = err, err, nil
		close(l.done)
	}(w.kept)
	return l, true
}

// current returns what is known and why there is nothing newer.
func (w *Writer) current() (*kept, error) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	if w.looking != nil {
		if err := w.looking.hangs(w.options.Timeout); err != nil {
			return w.kept, err
		}
	}
	return w.kept, w.failure
}
