// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package model

import (
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/gang"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// Times within which what must not last is to end, while one controller runs undisturbed.
const (
	// sweptWithin is for templates and rules that no plan needs.
	sweptWithin = 12 * time.Second
	// takenBackWithin is added to the deadline of a release.
	takenBackWithin = 12 * time.Second
	// templateWithin is how long a template may be there when all members have their claims.
	templateWithin = 2 * time.Second
)

// device is a device of the driver.
type device struct{ pool, name string }

// history is what the checker knows of one plan.
type history struct {
	gang    types.UID
	members int
	devices map[device]bool
	// reserved are the devices, and those that nobody can have besides.
	reserved  map[device]bool
	committed time.Time
	// proven says that all members were allocated at one time.
	proven bool
	spec   resourceapi.ResourceClaimSpec
}

// checker checks what must always hold: the invariants of docs/design/gangs.md. It sees the API server's
// writes at once, and believes nothing that the controller says but the plans it commits.
type checker struct {
	w *world
	// plans are all that were ever committed, by hash.
	plans map[string]*history
	// since is from when on a state that must not last has lasted.
	since map[string]time.Time
	// disturbed is when something last happened that takes time to be put right.
	disturbed time.Time
	checked   int64
	// states are those that must not last, as of the last look.
	states map[string]time.Duration
	// started counts the starts of containers of gangs, by UID.
	starts map[types.UID]int
	// born is when a claim was made.
	born map[types.UID]time.Time
	// touchedRules are rules that a user changed.
	touchedRules map[types.UID]bool
	// neutral is since when a rule has no effect.
	neutral map[types.UID]time.Time
	// wiped gangs have lost their status.
	wiped map[types.UID]bool

	// victims are the pods that were evicted for a gang.
	victims map[types.UID]victim

	operations int
}

func newChecker(w *world) *checker {
	return &checker{
		w: w, plans: map[string]*history{}, since: map[string]time.Time{}, starts: map[types.UID]int{},
		born: map[types.UID]time.Time{}, touchedRules: map[types.UID]bool{}, neutral: map[types.UID]time.Time{}, wiped: map[types.UID]bool{}, victims: map[types.UID]victim{}, disturbed: w.now,
	}
}

// disturb gives the controller time to put things right.
func (c *checker) disturb() { c.disturbed = c.w.now }

// seen looks at each write.
func (c *checker) seen(ch change) {
	switch o := ch.after.(type) {
	case *v1alpha1.GangClaim:
		if p := o.Status.Plan; p != nil && c.plans[p.Hash] == nil {
			h := &history{gang: o.UID, committed: c.w.now, members: int(p.Members), devices: map[device]bool{}, reserved: map[device]bool{}, spec: placement.ClaimSpec(o, p)}
			for _, d := range placement.PlannedDevices(p) {
				h.devices[device{d.Pool, d.Device}] = true
			}
			for _, d := range placement.ReservedDevices(p) {
				h.reserved[device{d.Pool, d.Device}] = true
			}
			c.plans[p.Hash] = h
			c.planned(o, h)
		}
		if before, ok := ch.before.(*v1alpha1.GangClaim); ok && before.UID == o.UID && !c.w.now.Equal(c.disturbed) {
			c.transition(o.Name, before.Status.Plan, o.Status.Plan)
		}
	case *resourceapi.ResourceClaim:
		c.claim(ch.before, o)
	case *resourceapi.DeviceTaintRule:
		if o.Spec.Taint.Effect != resourceapi.DeviceTaintEffectNone {
			delete(c.neutral, o.UID)
		} else if _, was := c.neutral[o.UID]; !was {
			c.neutral[o.UID] = c.w.now
		}
	}
	if rule, ok := ch.before.(*resourceapi.DeviceTaintRule); ok && ch.after == nil {
		c.ruleGone(rule)
	}
	c.proofs()
}

// planned checks that a new plan has no device of a plan that is being carried out for another gang.
func (c *checker) planned(g *v1alpha1.GangClaim, h *history) {
	for _, other := range list[*v1alpha1.GangClaim](&c.w.api.objects) {
		if other.UID == g.UID || other.Status.Plan == nil || transitions[other.Status.Plan.Step] == nil {
			continue
		}
		for _, d := range placement.PlannedDevices(other.Status.Plan) {
			if h.devices[device{d.Pool, d.Device}] {
				c.w.fail("gang %s is planned on device %s of %s, which is in the plan of gang %s", g.Name, d.Device, d.Pool, other.Name)
			}
		}
	}
}

// transitions are the steps that may follow a step of the same plan, before it has come to rest.
var transitions = map[v1alpha1.GangStep][]v1alpha1.GangStep{
	v1alpha1.StepFencing:   {v1alpha1.StepQuiescing, v1alpha1.StepTakingBack},
	v1alpha1.StepQuiescing: {v1alpha1.StepFencing, v1alpha1.StepEvicting, v1alpha1.StepReleasing, v1alpha1.StepTakingBack},
	v1alpha1.StepEvicting:  {v1alpha1.StepReleasing, v1alpha1.StepTakingBack},
	v1alpha1.StepReleasing: {v1alpha1.StepStarting, v1alpha1.StepTakingBack},
}

// transition checks that a plan that is being carried out is not dropped or replaced: it is taken back first.
func (c *checker) transition(gang string, before, after *v1alpha1.GangPlan) {
	if before == nil || transitions[before.Step] == nil {
		return
	}
	switch {
	case after == nil || after.Hash != before.Hash:
		c.w.fail("plan %s of gang %s is replaced in step %s", before.Hash, gang, before.Step)
	case after.Step != before.Step && !slices.Contains(transitions[before.Step], after.Step):
		c.w.fail("plan %s of gang %s goes from step %s to step %s", before.Hash, gang, before.Step, after.Step)
	}
}

// claim checks that no device is in two claims, nor a GPU in one and a part of it in another.
func (c *checker) claim(before object, now *resourceapi.ResourceClaim) {
	if before == nil {
		c.born[now.UID] = c.w.now
	}
	if now.Status.Allocation == nil {
		return
	}
	if b, ok := before.(*resourceapi.ResourceClaim); ok && b.Status.Allocation != nil {
		if !equality.Semantic.DeepEqual(b.Status.Allocation, now.Status.Allocation) {
			c.w.fail("the allocation of claim %s has changed", now.Name)
		}
		return
	}
	for _, other := range list[*resourceapi.ResourceClaim](&c.w.api.objects) {
		for d := range devicesOf(other) {
			for e := range devicesOf(now) {
				if d.excludes(e) && other.UID != now.UID {
					c.w.fail("device %s of %s is allocated to claim %s and %s to %s", d.name, d.pool, other.Name, e.name, now.Name)
				}
			}
		}
	}
}

func devicesOf(c *resourceapi.ResourceClaim) map[device]bool {
	if c.Status.Allocation == nil {
		return nil
	}
	out := map[device]bool{}
	for _, r := range c.Status.Allocation.Devices.Results {
		out[device{r.Pool, r.Device}] = true
	}
	return out
}

// ruleGone checks that a rule of a gang had no effect for a second before it was deleted, by whomever.
func (c *checker) ruleGone(rule *resourceapi.DeviceTaintRule) {
	if !ofGang(rule) || c.w.now.Equal(c.disturbed) || c.touchedRules[rule.UID] {
		return // by a user
	}
	if since, ok := c.neutral[rule.UID]; !ok || c.w.now.Sub(since) < time.Second {
		c.w.fail("rule %s is deleted, and did not lose its effect a second before", rule.Name)
	}
}

// proofs notes for which plans all members have been allocated at one time: what the start gate waits for.
func (c *checker) proofs() {
	for _, g := range list[*v1alpha1.GangClaim](&c.w.api.objects) {
		placed := c.placed(g)
		runs := false
		ofPlan := map[string]int{}
		for _, claim := range placed {
			if claim != nil {
				runs = runs || isReady(claim.Labels, claim.Annotations)
				ofPlan[claim.Labels[v1alpha1.PlanLabel]]++
			}
		}
		for hash, n := range ofPlan {
			h := c.plans[hash]
			// Replacements for a gang that runs need not be the whole gang.
			if h != nil && h.gang == g.UID && (len(placed) >= int(g.Spec.Members) || runs && n >= h.members) {
				h.proven = true
			}
		}
	}
}

// placed are the claims of members that are allocated on their plan, and a nil for each that succeeded.
func (c *checker) placed(g *v1alpha1.GangClaim) []*resourceapi.ResourceClaim {
	var out []*resourceapi.ResourceClaim
	for _, pod := range list[*corev1.Pod](&c.w.api.objects) {
		if *pod.Spec.ResourceClaims[0].ResourceClaimTemplateName != g.Name {
			continue
		}
		if pod.Status.Phase == corev1.PodSucceeded {
			out = append(out, nil)
		}
		podClaims, ok := claimsOf(&c.w.api.objects, pod)
		if !ok || over(pod) || pod.DeletionTimestamp != nil || gangOf(podClaims[0]) != g.UID {
			continue
		}
		claim := podClaims[0]
		h := c.plans[claim.Labels[v1alpha1.PlanLabel]]
		// A claim that someone deletes stays, with its devices, as long as its pod: a member that runs, runs on.
		onPlan := h != nil && claim.Status.Allocation != nil && (claim.DeletionTimestamp == nil || isReady(claim.Labels, claim.Annotations))
		for d := range devicesOf(claim) {
			onPlan = onPlan && h.devices[d]
		}
		if onPlan {
			out = append(out, claim)
		}
	}
	return out
}

// started checks the start of the containers of a pod: those of a gang do not start before all members' claims
// were allocated on the plan.
func (c *checker) started(pod *corev1.Pod, claim *resourceapi.ResourceClaim) {
	uid := gangOf(claim)
	if uid == "" {
		return
	}
	h := c.plans[claim.Labels[v1alpha1.PlanLabel]]
	switch {
	case h == nil:
		c.w.fail("pod %s starts with a claim of a plan that was never committed", pod.Name)
	case !h.proven:
		c.w.fail("pod %s starts, and not all members of its gang had their devices", pod.Name)
	}
	for d := range devicesOf(claim) {
		if h != nil && !h.devices[d] {
			c.w.fail("pod %s starts on device %s of %s, which is not of its plan", pod.Name, d.name, d.pool)
		}
	}
	c.starts[uid]++
}

// attempted checks what the scheduler was handed: no claim of a gang without a plan.
func (c *checker) attempted(podClaims []*resourceapi.ResourceClaim) {
	for _, claim := range podClaims {
		if gangOf(claim) == "" {
			continue
		}
		h := c.plans[claim.Labels[v1alpha1.PlanLabel]]
		switch {
		case h == nil:
			c.w.fail("kube-scheduler is given claim %s of a plan that was never committed", claim.Name)
		case !equality.Semantic.DeepEqual(h.spec, claim.Spec):
			c.w.fail("kube-scheduler is given claim %s, which is not what was planned", claim.Name)
		}
	}
}

// aborted is called when the allocator fails on claims.
func (c *checker) aborted(unallocated []*resourceapi.ResourceClaim, err error) {
	for _, claim := range unallocated {
		if gangOf(claim) != "" && !strings.Contains(err.Error(), errNotFound.Error()) {
			c.w.fail("kube-scheduler's allocator fails on claim %s: %w", claim.Name, err)
		}
	}
}

// decided checks a decision of the scheduler whose tracker knows all rules: nobody gets what is fenced for
// someone else. And a gang's claim gets what was planned only.
func (c *checker) decided(s *scheduler, unallocated []*resourceapi.ResourceClaim, b *binding) {
	inSync := s.inSync()
	for i, claim := range unallocated {
		got := devicesOf(&resourceapi.ResourceClaim{Status: resourceapi.ResourceClaimStatus{Allocation: &b.results[i]}})
		for _, g := range list[*v1alpha1.GangClaim](&c.w.api.objects) {
			p := g.Status.Plan
			if p == nil || g.DeletionTimestamp != nil || gangOf(claim) == g.UID || !inSync || c.recently(time.Second) {
				continue
			}
			switch p.Step {
			case v1alpha1.StepQuiescing, v1alpha1.StepEvicting, v1alpha1.StepReleasing, v1alpha1.StepStarting:
				for d := range c.plans[p.Hash].reserved {
					if got[d] {
						c.w.fail("kube-scheduler gives claim %s device %s of %s, which is fenced for gang %s", claim.Name, d.name, d.pool, g.Name)
					}
				}
			}
		}
		if h := c.plans[claim.Labels[v1alpha1.PlanLabel]]; h != nil && gangOf(claim) != "" {
			for d := range got {
				// A device may have been given another domain.
				if !h.devices[d] && c.w.fault == "" && len(h.spec.Devices.Requests[0].Exactly.Selectors) == 0 {
					c.w.fail("kube-scheduler gives claim %s device %s of %s, which was not planned", claim.Name, d.name, d.pool)
				}
			}
		}
	}
}

// recently says whether something happened that takes time to be put right.
func (c *checker) recently(d time.Duration) bool { return c.w.now.Sub(c.disturbed) < d }

// acts checks each write of a controller that is the only one.
func (c *checker) acts(by *controller, g *v1alpha1.GangClaim, a gang.Action) {
	if by != c.w.leader || by.stale || c.recently(3*time.Second) {
		return
	}
	var live *v1alpha1.GangClaim
	if g != nil {
		live = get[*v1alpha1.GangClaim](&c.w.api.objects, keyOf(g))
	}
	switch a := a.(type) {
	case gang.CreateRules:
		c.committed(live, a.Rules[0].Labels[v1alpha1.PlanLabel], a.Verb())
	case gang.CreateTemplate:
		c.released(live, a.Template)
	case gang.NeutralizeRules:
		c.nothingWaits(a.Rules)
	case gang.EvictPods:
		c.evicts(a.Pods)
	case gang.EvictVictims:
		c.movesPlanned(live, a.Pods)
	case gang.DeleteClaims:
		c.deletes(a.Claims)
	}
}

// evicts checks that pods are evicted only that have a controller and do not run.
func (c *checker) evicts(of []gang.Ref) {
	for _, r := range of {
		p := get[*corev1.Pod](&c.w.api.objects, refKey(r))
		switch {
		case p == nil || p.UID != r.UID:
		case metav1.GetControllerOfNoCopy(p) == nil:
			c.w.fail("bare pod %s is evicted", p.Name)
		case p.Status.Phase == corev1.PodRunning:
			c.w.fail("pod %s is evicted while it runs", p.Name)
		}
	}
}

// deletes checks that claims are deleted only that were made for a gang and are not allocated.
func (c *checker) deletes(of []gang.Ref) {
	for _, r := range of {
		o := get[*resourceapi.ResourceClaim](&c.w.api.objects, refKey(r))
		switch {
		case o == nil || o.UID != r.UID:
		case !ofGang(o):
			c.w.fail("claim %s of someone else is deleted", o.Name)
		case o.Status.Allocation != nil && (o.ResourceVersion == r.ResourceVersion || c.w.fault == blindDelete):
			c.w.fail("claim %s is deleted while it is allocated", o.Name)
		}
	}
}

func (c *checker) committed(g *v1alpha1.GangClaim, hash, verb string) {
	if g == nil {
		return // deleted by force a moment ago
	}
	if p := g.Status.Plan; p == nil || p.Hash != hash || p.Step == v1alpha1.StepTakingBack {
		c.w.fail("%s for plan %s of gang %s, which is not committed", verb, hash, g.Name)
	}
}

// released checks the creation of a template.
func (c *checker) released(g *v1alpha1.GangClaim, t *resourceapi.ResourceClaimTemplate) {
	if g == nil {
		return
	}
	hash := t.Labels[v1alpha1.PlanLabel]
	c.committed(g, hash, "CreateTemplate")
	if c.w.err != nil {
		return
	}
	if g.Status.Plan.Step != v1alpha1.StepReleasing {
		c.w.fail("a template is made in step %s of gang %s", g.Status.Plan.Step, g.Name)
	}
	h := c.plans[hash]
	for _, d := range slices.SortedFunc(maps.Keys(h.reserved), func(a, b device) int { return strings.Compare(a.pool+a.name, b.pool+b.name) }) {
		if !c.fenced(d, g.UID) {
			c.w.fail("a template is made while device %s of %s is not fenced for gang %s", d.name, d.pool, g.Name)
		}
	}
	inStep := c.w.now.Sub(g.Status.Plan.StepSince.Time)
	if inStep > time.Second {
		return // made again
	}
	c.w.scheduler.holds(func(b *binding, d resourceapi.DeviceRequestAllocationResult) {
		pod := get[*corev1.Pod](&c.w.api.objects, b.pod)
		if pod != nil && *pod.Spec.ResourceClaims[0].ResourceClaimTemplateName == g.Name {
			return // a member
		}
		// One that was unschedulable may be decided on at any time: the fence is there, and Verify sees it. One
		// that is new may not have been seen yet.
		if h.reserved[device{d.Pool, d.Device}] && pod != nil && !podUnschedulable(pod) && c.w.now.Sub(b.decided) < gang.QuiesceFor &&
			pod.DeletionTimestamp == nil && c.older(b, h.committed.Add(-time.Second)) {
			c.w.fail("gang %s is released while kube-scheduler has decided to give device %s of %s to pod %s", g.Name, d.Device, d.Pool, b.pod.Name)
		}
	})
}

func (c *checker) fenced(d device, gang types.UID) bool {
	for _, r := range list[*resourceapi.DeviceTaintRule](&c.w.api.objects) {
		s := r.Spec.DeviceSelector
		if r.Spec.Taint.Value == string(gang) && r.Spec.Taint.Effect == resourceapi.DeviceTaintEffectNoSchedule &&
			*s.Pool == d.pool && ptr.Deref(s.Device, d.name) == d.name {
			return true
		}
	}
	return false
}

// nothingWaits checks that no claim of a gang that loses its fence is still to be allocated. The controller may
// not have seen yet one that is new; it takes it back later.
func (c *checker) nothingWaits(of []gang.Ref) {
	for _, r := range of {
		rule := get[*resourceapi.DeviceTaintRule](&c.w.api.objects, refKey(r))
		if rule == nil {
			continue
		}
		for _, o := range list[*resourceapi.ResourceClaim](&c.w.api.objects) {
			if gangOf(o) == gangOf(rule) && o.Status.Allocation == nil && o.DeletionTimestamp == nil && c.podOf(o) != nil &&
				c.w.now.Sub(c.born[o.UID]) > time.Second {
				c.w.fail("a fence is removed while claim %s is not allocated", o.Name)
			}
		}
		for _, o := range list[*resourceapi.ResourceClaimTemplate](&c.w.api.objects) {
			if gangOf(o) == gangOf(rule) {
				c.w.fail("a fence is removed while template %s exists", o.Name)
			}
		}
	}
}
