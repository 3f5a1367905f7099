// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"cmp"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// DefaultHalfLife is after how long a request counts half, where nobody has set another time: what is asked for on one day
// of the week still matters on that day of the next.
const DefaultHalfLife = 7 * 24 * time.Hour

// Tracker learns what is asked for from the objects of a cluster: tell it of each that comes, changes or goes.
//
// A request is a ResourceClaim for whole GPUs, or each member of a gang. It counts for its owner, which is the controller of
// the claim's pod, the GangClaim or its controller, or the claim itself: with the most rooms of a size that the owner
// wanted at one time, at most 32, from when it last made a request. So a controller that makes the same pod a thousand times
// counts as one pod. What waits counts as made now. Requests that are gone count on until they decay; those of an owner
// that were there for less than an hour in all for as much less.
//
// It keeps some 600 bytes for each claim with its pod that there is, 4,096 owners that are gone, and sums. What
// is gone when it starts, it does not know.
type Tracker struct {
	clock clock.PassiveClock

	mu       sync.Mutex
	ledger   ledger
	requests map[types.UID]request
	// pods has the owners of pods with claims.
	pods map[types.UID]types.UID
	// unowned are claims whose pod is not known yet, by pod.
	unowned map[types.UID][]types.UID
	// pools has the pools of gangs that are known by their claims only, by GangClaim.
	pools map[types.UID]string
}

// request is a claim or a GangClaim that there is.
type request struct {
	key     key
	rooms   int
	waiting bool
	pool    string
	created time.Time
	pod     types.UID // whose owner is not known
}

// NewTracker returns a tracker that knows of nothing. A request counts half after halfLife; DefaultHalfLife where that is not
// positive.
func NewTracker(halfLife time.Duration, clk clock.PassiveClock) *Tracker {
	if halfLife <= 0 {
		halfLife = DefaultHalfLife
	}
	return &Tracker{
		clock:    clk,
		ledger:   newLedger(halfLife, clk.Now()),
		requests: map[types.UID]request{}, pods: map[types.UID]types.UID{}, unowned: map[types.UID][]types.UID{}, pools: map[types.UID]string{},
	}
}

// Mix is what is asked for of late. products has the product of each pool that requests may have been served from.
func (t *Tracker) Mix(products map[string]string) Mix {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ledger.mix(products, t.clock.Now())
}

// SetPod notes who made a pod that uses claims.
func (t *Tracker) SetPod(pod *corev1.Pod) {
	if len(pod.Spec.ResourceClaims) == 0 && pod.Status.ExtendedResourceClaimStatus == nil {
		return
	}
	owner := pod.UID
	if c := metav1.GetControllerOfNoCopy(pod); c != nil {
		owner = c.UID
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pods[pod.UID] = owner
	for _, uid := range t.unowned[pod.UID] {
		r := t.requests[uid]
		t.ledger.withdraw(r.key, r.rooms, r.waiting, t.clock.Now())
		r.key.owner, r.pod = owner, ""
		t.open(uid, r)
	}
	delete(t.unowned, pod.UID)
}

// DeletePod forgets a pod; its claims go by themselves.
func (t *Tracker) DeletePod(pod *corev1.Pod) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.pods, pod.UID)
}

// SetClaim notes what a claim asks for.
func (t *Tracker) SetClaim(claim *resourceapi.ResourceClaim) {
	gang, pool, pod := types.UID(claim.Labels[v1alpha1.GangLabel]), poolOf(claim), podOf(claim)
	t.mu.Lock()
	defer t.mu.Unlock()
	if gang != "" {
		t.gangGot(gang, pool)
		return
	}
	r, known := t.requests[claim.UID]
	if !known {
		r = request{key: key{claim.UID, sizeOf(claim)}, rooms: 1, created: claim.CreationTimestamp.Time}
		if r.key.size == 0 {
			return
		}
		if owner, there := t.pods[pod]; there {
			r.key.owner = owner
		} else if pod != "" {
			r.key.owner, r.pod = pod, pod
		}
	}
	// A claim that was not made for a pod may be meant for later.
	r.waiting = claim.Status.Allocation == nil && pod != ""
	if pool != "" {
		r.pool = pool
	}
	t.set(claim.UID, r)
}

// gangGot notes where a gang has devices, which its plan says only while there is one.
func (t *Tracker) gangGot(gang types.UID, pool string) {
	r, known := t.requests[gang]
	switch {
	case pool == "":
	case !known:
		t.pools[gang] = pool
	case r.pool == "":
		r.pool = pool
		t.set(gang, r)
	}
}

// DeleteClaim notes that a claim is gone.
func (t *Tracker) DeleteClaim(claim *resourceapi.ResourceClaim) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.pools, types.UID(claim.Labels[v1alpha1.GangLabel]))
	t.remove(claim.UID)
}

// SetGang notes what a gang asks for.
func (t *Tracker) SetGang(gang *v1alpha1.GangClaim) {
	rooms, size := roomsOf(gang)
	if rooms < 1 || size < 1 {
		return
	}
	status := &gang.Status
	r := request{
		key: key{gang.UID, size}, rooms: rooms, created: gang.CreationTimestamp.Time,
		waiting: status.WaitingSince != nil && status.Plan == nil && status.TimedOut == "",
	}
	if c := metav1.GetControllerOfNoCopy(gang); c != nil {
		r.key.owner = c.UID
	}
	if plan := status.Plan; plan != nil && len(plan.Placements) > 0 {
		r.pool = plan.Placements[0].Pool
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, known := t.requests[gang.UID]; !known && !wholeGPUs(gang.Spec.DeviceClassName) && !plansGPUs(gang) {
		return
	}
	if r.pool == "" {
		r.pool = cmp.Or(t.requests[gang.UID].pool, t.pools[gang.UID])
	}
	delete(t.pools, gang.UID)
	t.set(gang.UID, r)
}

// DeleteGang notes that a gang is gone.
func (t *Tracker) DeleteGang(gang *v1alpha1.GangClaim) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.pools, gang.UID)
	t.remove(gang.UID)
}

// set adds or replaces a request.
func (t *Tracker) set(uid types.UID, r request) {
	was, known := t.requests[uid]
	switch {
	case !known:
		t.open(uid, r)
	case was.key != r.key || was.rooms != r.rooms:
		t.ledger.withdraw(was.key, was.rooms, was.waiting, t.clock.Now())
		t.open(uid, r)
	case was.waiting != r.waiting || was.pool != r.pool:
		a := t.ledger.accounts[r.key]
		if was.waiting {
			a.waiting -= was.rooms
		}
		a.got(r.rooms, r.waiting, r.pool)
		t.requests[uid] = r
	}
}

func (t *Tracker) open(uid types.UID, r request) {
	t.requests[uid] = r
	if r.pod != "" {
		t.unowned[r.pod] = append(t.unowned[r.pod], uid)
	}
	t.ledger.ask(r.key, r.rooms, r.waiting, r.pool, r.created)
}

// remove notes that a claim or a GangClaim is gone.
func (t *Tracker) remove(uid types.UID) {
	r, known := t.requests[uid]
	if !known {
		return
	}
	delete(t.requests, uid)
	t.ledger.end(r.key, r.rooms, r.waiting, t.clock.Now())
	if r.pod == "" {
		return
	}
	if rest := slices.DeleteFunc(t.unowned[r.pod], func(other types.UID) bool { return other == uid }); len(rest) > 0 {
		t.unowned[r.pod] = rest
	} else {
		delete(t.unowned, r.pod)
	}
}
