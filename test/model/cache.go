// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package model

import (
	"time"
)

// cache follows the API server with a watch for each kind: what it shows was true once. Changes of one kind
// come in order, those of different kinds need not.
type cache struct {
	objects

	w       *world
	pending [kinds][]change
	due     [kinds]time.Time
	seen    func(change)
	dead    bool
	// frozen says that nothing is delivered but on demand.
	frozen bool
}

// newCache lists everything; seen is called with what was listed and with each change after it is in the
// cache.
func newCache(w *world, seen func(change)) *cache {
	c := &cache{objects: newObjects(), w: w, seen: seen}
	w.api.watchers = append(w.api.watchers, c.watch)
	return c
}

// start delivers what exists.
func (c *cache) start() {
	for k := range c.w.api.objects {
		for _, o := range sorted(c.w.api.objects[k]) {
			c.apply(change{kind: kind(k), key: keyOf(o), after: o})
		}
	}
}

func (c *cache) watch(ch change) {
	if c.dead {
		return
	}
	c.pending[ch.kind] = append(c.pending[ch.kind], ch)
	if c.frozen {
		return
	}
	due := c.w.now.Add(c.w.watchLag())
	if due.Before(c.due[ch.kind]) {
		due = c.due[ch.kind]
	}
	c.due[ch.kind] = due
	c.w.at(due, func() { c.reach(ch.kind, ch.version) })
}

// reach delivers the changes of a kind up to a version: a reader waits for its own writes.
func (c *cache) reach(k kind, version int64) {
	for !c.dead && len(c.pending[k]) > 0 && c.pending[k][0].version <= version {
		ch := c.pending[k][0]
		c.pending[k] = c.pending[k][1:]
		c.apply(ch)
	}
}

func (c *cache) apply(ch change) {
	if ch.after != nil {
		c.objects[ch.kind][ch.key] = ch.after
	} else {
		delete(c.objects[ch.kind], ch.key)
	}
	c.seen(ch)
}

// stop ends the watches.
func (c *cache) stop() { c.dead = true }
