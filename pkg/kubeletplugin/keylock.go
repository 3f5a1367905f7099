// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"sync"
)

// keyedLock is one lock per key. Unlike a mutex, waiting for it ends with the context: the kubelet
// may give up a call while another one for the same claim still runs.
type keyedLock[K comparable] struct {
	mu    sync.Mutex
	locks map[K]*keyedLockEntry
}

type keyedLockEntry struct {
	// held has room for one: whoever put the token in holds the lock.
	held chan struct{}
	// users counts holder and waiters; the entry goes when the last one does.
	users int
}

// Lock returns the function that gives the key's lock back, or the context's cause.
func (l *keyedLock[K]) Lock(ctx context.Context, key K) (func(), error) {
	l.mu.Lock()
	if l.locks == nil {
		l.locks = make(map[K]*keyedLockEntry)
	}
	entry := l.locks[key]
	if entry == nil {
		entry = &keyedLockEntry{held: make(chan struct{}, 1)}
		l.locks[key] = entry
	}
	entry.users++
	l.mu.Unlock()

	select {
	case entry.held <- struct{}{}:
		return func() {
			<-entry.held
			l.leave(key, entry)
		}, nil
	case <-ctx.Done():
		l.leave(key, entry)
		return nil, context.Cause(ctx)
	}
}

func (l *keyedLock[K]) leave(key K, entry *keyedLockEntry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	entry.users--
	if entry.users == 0 {
		delete(l.locks, key)
	}
}
