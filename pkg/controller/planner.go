// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/fragmentation"
	"github.com/switchyard-dev/switchyard/pkg/gang"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

const (
	// settleTime is how long the planner waits after a change before it plans: pods of a gang, and
	// the claims that a finished job frees, come in bursts.
	settleTime = 20 * time.Millisecond
	// restFactor bounds the planner's share of a core: after planning it rests that many times as long
	// as planning took, and usageRestFactor times before it looks only because of what pods take and free. In a
	// busy cluster they do so all the time, and hardly ever is it what the gangs that wait are waiting for.
	restFactor, usageRestFactor = 4, 50
)

// cluster is what the planner needs of placement.Cluster.
type cluster interface {
	Plan(ctx context.Context, gangs []placement.Gang) []placement.Decision
	SetGang(gang *v1alpha1.GangClaim)
	DeleteGang(key types.NamespacedName)
	Domains() []fragmentation.Domain
}

// planner plans all gangs that wait, together: order and earmarks hold only when all are seen at once.
// Gangs are asked for one by one; what was asked for and what changed meanwhile is planned in one go.
//
// A plan that was taken is reserved before anyone has written it, so that the next run does not hand
// the same devices out again; Committed, GiveBack or Settle
// ends that.
type planner struct {
	cluster cluster
	clock   clock.WithDelayedExecution
	// answered is called, without locks, for each gang with a new answer.
	answered func(types.NamespacedName)
	observe  func(took time.Duration, gangs int)

	// wake is for changes that matter at once, wakeLater for those of the use of nodes and devices. Both have capacity 1.
	wake, wakeLater chan struct{}

	mu      sync.Mutex // never held while planning
	waiting map[types.UID]*question
	taken   map[types.UID]takenPlan
	// reserving are the gangs whose plan takes devices from others.
	reserving map[types.UID]bool
	// avoid are the nodes that gangs avoid, and until when.
	avoid map[types.UID]map[string]time.Time
	// takes counts the plans that were handed out.
	takes int
	// retelling says that a run is due for refusals that were not told.
	retelling bool
}

// takenPlan is a plan that was handed out, until the cache shows it.
type takenPlan struct {
	// written is the GangClaim with the plan; nil while it is being written.
	written *v1alpha1.GangClaim
}

func newPlanner(c cluster, clk clock.WithDelayedExecution, answered func(types.NamespacedName), observe func(time.Duration, int)) *planner {
	return &planner{
		cluster:   c,
		clock:     clk,
		answered:  answered,
		observe:   observe,
		wake:      make(chan struct{}, 1),
		wakeLater: make(chan struct{}, 1),
		waiting:   map[types.UID]*question{},
		taken:     map[types.UID]takenPlan{},

		reserving: map[types.UID]bool{},
		avoid:     map[types.UID]map[string]time.Time{},
	}
}

// Changed says that the cluster has changed in a way that may matter to gangs that wait.
func (p *planner) Changed() { signal(p.wake) }

// Freed says that pods have given back some of what they took.
func (p *planner) Freed() { signal(p.wakeLater) }

// Taken says that pods have taken more: no gang that waits gets a place by that, but what it is told is old.
func (p *planner) Taken() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.waiting) > 0 {
		p.retell()
	}
}

func signal(wake chan struct{}) {
	select {
	case wake <- struct{}{}:
	default: // the run that is due will see this change too
	}
}

// Ask returns the planner's answer for a gang, or false when it comes later: answered is called then,
// and whenever it changes. An answer with a plan is given once, and the plan's devices are taken with
// it: call Committed or GiveBack.
func (p *planner) Ask(g placement.Gang) (placement.Decision, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	uid := g.Claim.UID
	asked := fingerprint(g)
	q := p.waiting[uid]
	if q == nil {
		q = &question{key: keyOf(g.Claim)}
		p.waiting[uid] = q
	}
	g.Avoid = p.avoided(uid)
	q.gang = g
	if q.asked != asked {
		q.asked = asked
		p.Changed()
	}
	if q.told == nil || q.toldFor != asked {
		return placement.Decision{}, false
	}
	answer := *q.told
	if answer.Plan != nil {
		reserved := g.Claim.DeepCopy()
		reserved.Status.Plan = answer.Plan
		p.taken[uid] = takenPlan{}
		p.takes++
		p.cluster.SetGang(reserved)
		delete(p.waiting, uid)
	}
	return answer, true
}

// Waits says that a gang waits for a plan, or has one that is not written yet.
func (p *planner) Waits() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.waiting) > 0 || len(p.taken) > 0
}

// AskAgain brings all gangs up that wait: what they ask may have changed without a change to them.
func (p *planner) AskAgain() {
	p.mu.Lock()
	var keys []types.NamespacedName
	for _, q := range p.waiting {
		keys = append(keys, q.key)
	}
	p.mu.Unlock()
	for _, key := range keys {
		p.answered(key)
	}
}

// Forget ends the questions of gangs of that name, those that are gone included: it does not wait any more.
func (p *planner) Forget(key types.NamespacedName) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for uid, q := range p.waiting {
		if q.key == key {
			delete(p.waiting, uid)
			p.Changed() // what was earmarked for it is free for others
		}
	}
}

// Committed ends the reservation of a plan that was taken: written is the GangClaim that says so now.
func (p *planner) Committed(written *v1alpha1.GangClaim) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.taken[written.UID]; ok {
		p.taken[written.UID] = takenPlan{written}
		p.cluster.SetGang(reservation(written))
	}
}

// GiveBack returns a plan that was taken and not written. before is the GangClaim as it is.
func (p *planner) GiveBack(before *v1alpha1.GangClaim) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.taken[before.UID]; ok {
		delete(p.taken, before.UID)
		p.cluster.SetGang(reservation(before))
		p.Changed()
	}
}

// Unsettled says that a plan was handed out of which it is not known whether it was written: neither
// Committed nor GiveBack was called since. Settle ends that.
func (p *planner) Unsettled(uid types.UID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	taken, ok := p.taken[uid]
	return ok && taken.written == nil
}

// Settle ends the reservation of a plan of which it was not known whether it was written: now is the
// GangClaim as the API server has it.
func (p *planner) Settle(now *v1alpha1.GangClaim) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.taken[now.UID]; !ok {
		return // gone since it was read
	}
	p.taken[now.UID] = takenPlan{now}
	p.cluster.SetGang(reservation(now))
	p.Changed()
}

// Observe follows a GangClaim as the cache shows it, which may be older than what was written last.
func (p *planner) Observe(claim *v1alpha1.GangClaim) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if taken, ok := p.taken[claim.UID]; ok && (taken.written == nil || olderThan(claim, taken.written)) {
		return
	}
	if plan := claim.Status.Plan; plan != nil && plan.Step == v1alpha1.StepHolding {
		delete(p.avoid, claim.UID) // it has its place
	}
	_, wasTaken := p.taken[claim.UID]
	delete(p.taken, claim.UID)
	open := reservation(claim)
	p.cluster.SetGang(open)
	// A gang that waits writes its reason now and then, which makes no difference to others.
	was, is := p.reserving[claim.UID] || wasTaken, open.Status.Plan != nil
	p.reserving[claim.UID] = is
	if was || is {
		p.Changed()
	}
}

// Gone follows the deletion of a GangClaim.
func (p *planner) Gone(claim *v1alpha1.GangClaim) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.taken, claim.UID)
	delete(p.waiting, claim.UID)
	delete(p.reserving, claim.UID)
	delete(p.avoid, claim.UID)
	p.cluster.DeleteGang(keyOf(claim))
	p.Changed()
}

// Run plans until ctx ends.
func (p *planner) Run(ctx context.Context) {
	var ended time.Time
	var took time.Duration
	for {
		var due time.Time
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
			due = ended.Add(restFactor * took)
		case <-p.wakeLater:
			due = ended.Add(usageRestFactor * took)
		}
		if !p.rest(ctx, due, ended.Add(restFactor*took)) {
			return
		}
		drain(p.wake) // this run sees it
		drain(p.wakeLater)
		took = p.plan(ctx)
		ended = p.clock.Now()
	}
}

// rest waits until due, or until urgent if what matters at once happens before, and in any case for the burst to
// settle. It returns false when ctx has ended.
func (p *planner) rest(ctx context.Context, due, urgent time.Time) bool {
	wake := p.wake
	for {
		now := p.clock.Now()
		timer := p.clock.NewTimer(max(settleTime, due.Sub(now)))
		select {
		case <-ctx.Done():
			timer.Stop()
			return false
		case <-timer.C():
			return true
		case <-wake:
			timer.Stop()
			due, wake = urgent, nil
		}
	}
}

func drain(wake chan struct{}) {
	select {
	case <-wake:
	default:
	}
}

// plan answers all questions, and returns how long that took.
func (p *planner) plan(ctx context.Context) time.Duration {
	gangs, asked, takes := p.questions()
	if len(gangs) == 0 {
		return 0
	}
	start := p.clock.Now()
	decisions := p.cluster.Plan(ctx, gangs)
	took := p.clock.Since(start)
	if ctx.Err() != nil {
		return took
	}
	p.observe(took, len(gangs))
	klog.FromContext(ctx).V(4).Info("Planned", "gangs", len(gangs), "took", took)
	for _, key := range p.conclude(decisions, asked, takes) {
		p.answered(key)
	}
	return took
}

// questions returns the gangs that wait, what each asks for, and how many plans were handed out so far.
func (p *planner) questions() (gangs []placement.Gang, asked map[types.UID]string, takes int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	asked = map[types.UID]string{}
	for uid, q := range p.waiting {
		gangs = append(gangs, q.gang)
		asked[uid] = q.asked
	}
	return gangs, asked, p.takes
}

// conclude makes answers of the decisions on what was asked, and returns which gangs have to hear of theirs.
func (p *planner) conclude(decisions []placement.Decision, asked map[types.UID]string, takes int) (changed []types.NamespacedName) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.takes != takes {
		p.Changed() // A plan of an earlier run was handed out meanwhile: these may have its devices.
		return nil
	}
	domains := sync.OnceValue(p.cluster.Domains)
	for _, decision := range decisions {
		q := p.waiting[decision.Gang]
		if q == nil {
			continue
		}
		if decision.Refusal != nil && decision.Refusal.Reason == placement.ReasonInterrupted {
			p.Changed() // it goes on where it stopped
		}
		isAwaited := q.told == nil || q.toldFor != asked[decision.Gang]
		isNews := isAwaited || q.untold || !sameAnswer(q.latest, decision)
		q.latest = &decision
		if q.untold = isNews && !isAwaited && q.heardAlready(p.clock.Now()); q.untold {
			p.retell()
		} else if isNews {
			if !isAwaited && q.repeats() {
				q.stands = min(2*q.stands, retellMax)
			} else {
				q.stands = retellAfter
			}
			q.told, q.toldFor, q.toldAt = explained(decision, q.gang.Claim, domains), asked[decision.Gang], p.clock.Now()
			changed = append(changed, q.key)
		}
	}
	return changed
}

// retell makes a run happen in which what was not told is told.
func (p *planner) retell() {
	if p.retelling {
		return
	}
	p.retelling = true
	p.clock.AfterFunc(retellAfter, func() {
		p.mu.Lock()
		p.retelling = false
		p.mu.Unlock()
		p.Changed()
	})
}

// reservation is the GangClaim with its plan as long as that keeps devices from others.
func reservation(claim *v1alpha1.GangClaim) *v1alpha1.GangClaim {
	if claim.Status.Plan == nil || gang.Reserves(claim) {
		return claim
	}
	open := *claim
	open.Status.Plan = nil
	return &open
}
