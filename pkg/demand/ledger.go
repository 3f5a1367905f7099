// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// mostOfOne is how many requests of one owner and one size count, at most.
	mostOfOne = 32
	// countsInFull is how long an owner's requests must have been there to count in full once they are gone.
	countsInFull = time.Hour
	// maxGone is how many owners are remembered that have no request any more, to know them when they ask again; maxTotals how
	// many sums remain of those that are not.
	maxGone, maxTotals = 4096, 256
)

// key is an owner and a size that it asks for.
type key struct {
	owner types.UID
	size  int
}

// account is what an owner asks for of one size.
type account struct {
	// open is how many rooms its requests want now, waiting how many of them it has not got.
	open, waiting int
	// most is the most that was open at one time, newest when a request was last made: what most counts for decays from then.
	most   float64
	newest time.Time
	// first is when the first request was made, last when the last one went.
	first, last time.Time
	// pool is where it got devices; product is that of these, once it is known.
	pool, product string
}

// total is what is left of accounts that were closed long ago.
type total struct{ requests, owners float64 }

// totalKey is what is told apart then.
type totalKey struct {
	product string
	size    int
}

// ledger adds up what owners ask for.
type ledger struct {
	halfLife time.Duration
	accounts map[key]*account
	gone     int // of accounts
	totals   map[totalKey]total
	totalsAt time.Time
}

func newLedger(halfLife time.Duration, now time.Time) ledger {
	return ledger{halfLife: halfLife, accounts: map[key]*account{}, totals: map[totalKey]total{}, totalsAt: now}
}

// decay is what is left of one after so long; one for what is yet to come, as clocks differ.
func (l *ledger) decay(d time.Duration) float64 {
	return math.Exp2(-max(d, 0).Seconds() / l.halfLife.Seconds())
}

// ask notes that an owner asks for rooms.
func (l *ledger) ask(k key, rooms int, waiting bool, pool string, created time.Time) {
	a := l.accounts[k]
	if a == nil {
		a = &account{first: created, newest: created}
		l.accounts[k] = a
	} else if a.open == 0 {
		l.gone--
	}
	a.open += rooms
	if created.After(a.newest) {
		a.most *= l.decay(created.Sub(a.newest))
		a.newest = created
	}
	if created.Before(a.first) {
		a.first = created
	}
	a.most = max(a.most, float64(a.open))
	a.got(rooms, waiting, pool)
}

// got notes what of an owner's requests waits, or where it got its devices. Of several pools the first by name is
// kept, so that it does not matter which was heard of first.
func (a *account) got(rooms int, waiting bool, pool string) {
	if waiting {
		a.waiting += rooms
	}
	if pool != "" && (a.pool == "" || pool < a.pool) {
		a.pool = pool
	}
}

// withdraw takes a request back as if it had not been made.
func (l *ledger) withdraw(k key, rooms int, waiting bool, now time.Time) {
	a := l.accounts[k]
	if a.most -= float64(rooms); a.open == rooms && a.most <= 0 {
		delete(l.accounts, k)
		return
	}
	l.end(k, rooms, waiting, now)
	a.most = max(a.most, float64(a.open))
}

// end notes that a request is gone. It still counts.
func (l *ledger) end(k key, rooms int, waiting bool, now time.Time) {
	a := l.accounts[k]
	a.open -= rooms
	if waiting {
		a.waiting -= rooms
	}
	if a.open > 0 {
		return
	}
	a.last = now
	if l.gone++; l.gone > maxGone {
		l.close(now)
	}
}

// close forgets whose requests were the older half of those that are gone, and keeps their sums.
func (l *ledger) close(now time.Time) {
	var gone []key
	for k, a := range l.accounts {
		if a.open == 0 {
			gone = append(gone, k)
		}
	}
	slices.SortFunc(gone, func(a, b key) int {
		return cmp.Or(l.accounts[a].last.Compare(l.accounts[b].last), a.compare(b))
	})
	gone = gone[:len(gone)-maxGone/2]
	left := l.decay(now.Sub(l.totalsAt))
	for k, t := range l.totals {
		l.totals[k] = total{requests: t.requests * left, owners: t.owners * left}
	}
	l.totalsAt = now
	for _, k := range gone {
		a := l.accounts[k]
		requests, owner := l.value(a, now)
		of := totalKey{a.product, k.size}
		t := l.totals[of]
		l.totals[of] = total{requests: t.requests + requests, owners: t.owners + owner}
		delete(l.accounts, k)
	}
	l.gone = maxGone / 2
	l.trim()
}

// trim keeps the largest sums.
func (l *ledger) trim() {
	if len(l.totals) <= maxTotals {
		return
	}
	keys := slices.SortedFunc(maps.Keys(l.totals), func(a, b totalKey) int {
		return cmp.Or(cmp.Compare(l.totals[b].requests, l.totals[a].requests), a.compare(b))
	})
	for _, k := range keys[maxTotals:] {
		delete(l.totals, k)
	}
}

// value is how many requests an account counts for, and what part, 0 to 1, of an owner.
func (l *ledger) value(a *account, now time.Time) (requests, owner float64) {
	owner = l.decay(now.Sub(a.newest))
	if a.open == 0 {
		owner *= min(1, a.last.Sub(a.first).Seconds()/countsInFull.Seconds())
	}
	requests = min(a.most, mostOfOne) * owner
	if a.waiting > 0 {
		requests, owner = max(requests, min(float64(a.waiting), mostOfOne)), 1
	}
	return max(requests, 0), max(owner, 0)
}

// mix adds everything up, in whole millionths, so that the order does not matter. products has the products of pools.
func (l *ledger) mix(products map[string]string, now time.Time) Mix {
	const unit = 1_000_000
	whole := func(value float64) int64 { return int64(math.Round(value * unit)) }
	sums, owners := map[totalKey]int64{}, int64(0)
	left := l.decay(now.Sub(l.totalsAt))
	for k, t := range l.totals {
		sums[k] = whole(t.requests * left)
		if k.size > 1 {
			owners += whole(t.owners * left)
		}
	}
	ofOwner := make(map[types.UID]int64, len(l.accounts))
	for k, a := range l.accounts {
		if product := products[a.pool]; product != "" {
			a.product = product
		}
		requests, owner := l.value(a, now)
		sums[totalKey{a.product, k.size}] += whole(requests)
		if k.size > 1 {
			ofOwner[k.owner] = max(ofOwner[k.owner], whole(owner))
		}
	}
	for _, owner := range ofOwner {
		owners += owner
	}
	m := Mix{Owners: float64(owners) / unit}
	for _, k := range slices.SortedFunc(maps.Keys(sums), totalKey.compare) {
		if requests := float64(sums[k]) / unit; requests >= negligible {
			m.Requests = append(m.Requests, Request{Product: k.product, Size: k.size, Requests: requests})
		}
	}
	return m
}

func (k key) compare(o key) int {
	return cmp.Or(cmp.Compare(k.owner, o.owner), cmp.Compare(k.size, o.size))
}

func (k totalKey) compare(o totalKey) int {
	return cmp.Or(cmp.Compare(k.product, o.product), cmp.Compare(k.size, o.size))
}

// negligible is a number of requests that is none.
const negligible = 0.005
