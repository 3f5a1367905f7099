// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package gangtest

import (
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/gang"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// errConflict is a precondition that failed: observe anew.
var errConflict = errors.New("conflict")

// Observe gathers what there is to know about a gang. The planner is asked when it is to be.
func (w *World) Observe(name string) gang.Observation {
	g := w.Gangs[name]
	o := gang.Observation{
		Now: w.Now, Claim: g.DeepCopy(), Template: w.Templates[name].DeepCopy(),
		Holders: map[placement.DeviceID]gang.Holder{}, Devices: map[placement.DeviceID]gang.DeviceProblem{},
	}
	mine := map[types.UID]bool{}
	for _, p := range Sorted(w.Pods) {
		if slices.ContainsFunc(p.Spec.ResourceClaims, func(c corev1.PodResourceClaim) bool { return *c.ResourceClaimTemplateName == name }) {
			o.Pods = append(o.Pods, p.DeepCopy())
			mine[p.UID] = true
		}
	}
	for _, c := range Sorted(w.Claims) {
		if c.Labels[v1alpha1.GangLabel] == string(g.UID) || len(c.OwnerReferences) > 0 && mine[c.OwnerReferences[0].UID] {
			o.Claims = append(o.Claims, c.DeepCopy())
		}
	}
	for _, r := range Sorted(w.Rules) {
		if r.Labels[v1alpha1.GangLabel] == string(g.UID) {
			o.Rules = append(o.Rules, r.DeepCopy())
		}
	}
	w.observePlan(&o)
	w.observeMoves(&o)
	o.Rivals = w.rivals(mine)
	if g, ok := gang.Plannable(o); ok {
		d := w.Plan(w, g)
		o.Placement = &d
	}
	return o
}

func (w *World) observePlan(o *gang.Observation) {
	held := w.Allocated()
	problems := map[placement.DeviceID]gang.DeviceProblem{}
	for _, d := range w.Devices {
		problems[d.DeviceID()] = d.Problem
		if d.Problem == "" && len(w.Fences(d).Delete(o.Claim.UID)) > 0 {
			problems[d.DeviceID()] = gang.DeviceTainted
		}
	}
	for _, d := range gang.ReservedDevices(o.Claim.Status.Plan) {
		if c := held[d]; c != nil {
			o.Holders[d] = gang.Holder{Claim: types.NamespacedName{Namespace: c.Namespace, Name: c.Name}, UID: c.UID, Gang: types.UID(c.Labels[v1alpha1.GangLabel])}
		}
		if p := problems[d]; p != "" {
			o.Devices[d] = p
		}
	}
}

func (w *World) observeMoves(o *gang.Observation) {
	plan := o.Claim.Status.Plan
	if plan == nil || len(plan.Moves) == 0 {
		return
	}
	if plan.Step == v1alpha1.StepQuiescing || plan.Step == v1alpha1.StepEvicting {
		o.MovesBlocked = w.Blocked
	}
	if gang.ReadsMoves(plan) {
		o.Moves = map[types.UID]gang.MovedPod{}
		for _, m := range plan.Moves {
			var moved gang.MovedPod
			if p := w.Pods[m.Pod]; p != nil && p.UID == m.PodUID {
				moved.Pod = p.DeepCopy()
			}
			if old := w.StalePods[m.PodUID]; old != nil {
				moved.Pod = old.DeepCopy()
			}
			if c := w.Claims[m.Claim]; c != nil && c.UID == m.ClaimUID {
				moved.Claim = c.DeepCopy()
			}
			o.Moves[m.PodUID] = moved
		}
	}
}

// rivals are unbound pods of others whose claims are not allocated.
func (w *World) rivals(members map[types.UID]bool) []placement.PodWithDevices {
	var out []placement.PodWithDevices
	for _, p := range Sorted(w.Pods) {
		c := w.ClaimOf(p)
		if members[p.UID] || c == nil || c.Status.Allocation != nil || p.Spec.NodeName != "" {
			continue
		}
		r := placement.PodWithDevices{Pod: types.NamespacedName{Namespace: p.Namespace, Name: p.Name}, UID: p.UID, Created: p.CreationTimestamp.Time}
		if len(p.Status.Conditions) > 0 {
			r.Decided = p.Status.Conditions[0].LastTransitionTime.Time
		}
		out = append(out, r)
	}
	return out
}

// Reconcile is one turn of the controller: observe, decide, apply. ErrCrashed means that it died on the
// way; errors of a Check are returned; conflicts are not, as the next turn observes anew.
func (w *World) Reconcile(name string) (gang.Decision, error) {
	if w.Gangs[name] == nil {
		return gang.Decision{}, nil
	}
	o := w.Observe(name)
	d := gang.Decide(o)
	err := w.Apply(name, d)
	if replied, ok := errors.AsType[*reply](err); ok {
		// As the controller does: what the API server said is decided on at once, and done in the next turn.
		o.Claim, o.Evictions = w.Gangs[name].DeepCopy(), &replied.EvictionReply
		d = gang.Decide(o)
		d.Actions = nil
		err = w.Apply(name, d)
	}
	if errors.Is(err, errConflict) {
		err = nil
	}
	return d, err
}

// Apply writes a decision: the status first, then the actions, until one fails.
func (w *World) Apply(name string, d gang.Decision) error {
	g := w.Gangs[name]
	if err := validStatus(d.Status); err != nil {
		return fmt.Errorf("the status of %s is not valid: %w", name, err)
	}
	if !equality.Semantic.DeepEqual(g.Status, d.Status) {
		if err := w.write(g, nil, func() error {
			w.UpdateGang(name, func(g *v1alpha1.GangClaim) { g.Status = *d.Status.DeepCopy() })
			return nil
		}); err != nil {
			return fmt.Errorf("writing the status of %s: %w", name, err)
		}
	}
	w.Events = append(w.Events, d.Events...)
	for _, a := range d.Actions {
		if err := w.act(w.Gangs[name], a); err != nil {
			return fmt.Errorf("%s for %s: %w", a.Verb(), name, err)
		}
	}
	return nil
}

// write makes one write of the controller, and lets it crash after that.
func (w *World) write(g *v1alpha1.GangClaim, a gang.Action, do func() error) error {
	if w.Check != nil {
		if err := w.Check(w, g, a); err != nil {
			return err
		}
	}
	if err := do(); err != nil {
		return err
	}
	w.Writes++
	if w.CrashAfter > 0 {
		if w.CrashAfter--; w.CrashAfter == 0 {
			return ErrCrashed
		}
	}
	return nil
}

func (w *World) act(g *v1alpha1.GangClaim, a gang.Action) error {
	switch a := a.(type) {
	case gang.AddFinalizer:
		return w.write(g, a, func() error {
			w.UpdateGang(a.Claim.Name, func(g *v1alpha1.GangClaim) { g.Finalizers = append(g.Finalizers, gang.Finalizer) })
			return nil
		})
	case gang.RemoveFinalizer:
		return w.write(g, a, func() error {
			w.UpdateGang(a.Claim.Name, func(g *v1alpha1.GangClaim) { g.Finalizers = nil })
			if w.Gangs[a.Claim.Name].DeletionTimestamp != nil {
				delete(w.Gangs, a.Claim.Name)
			}
			return nil
		})
	case gang.CreateTemplate:
		return w.write(g, a, func() error {
			if w.Templates[a.Template.Name] == nil {
				t := a.Template.DeepCopy()
				w.Identify(t)
				w.Templates[t.Name] = t
			}
			return nil
		})
	case gang.DeleteTemplate:
		return w.write(g, a, func() error {
			if t := w.Templates[a.Template.Name]; t != nil && t.UID == a.Template.UID {
				delete(w.Templates, a.Template.Name)
			}
			return nil
		})
	case gang.DeleteClaims:
		return each(w, g, a, a.Claims, func(r gang.Ref) error {
			switch c := w.Claims[r.Name]; {
			case c == nil || c.UID != r.UID:
				return nil
			case c.ResourceVersion != r.ResourceVersion:
				return errConflict
			default:
				delete(w.Claims, r.Name)
				return nil
			}
		})
	case gang.MarkReady:
		return each(w, g, a, a.Claims, w.markReady)
	case gang.TouchPods:
		return each(w, g, a, a.Pods, func(r gang.Ref) error {
			if p := w.Pods[r.Name]; p != nil && p.UID == r.UID {
				w.UpdatePod(r.Name, func(p *corev1.Pod) {
					p.Annotations = with(p.Annotations, v1alpha1.TouchedAnnotation, gang.Stamp(gang.StampTouched, w.Now))
				})
				delete(w.remembered, r.UID)
			}
			return nil
		})
	case gang.EvictVictims:
		return w.evictVictims(g, a)
	case gang.EvictPods:
		return w.evictPods(g, a)
	default:
		return w.actOnRules(g, a)
	}
}

func (w *World) evictPods(g *v1alpha1.GangClaim, a gang.EvictPods) error {
	return each(w, g, a, a.Pods, func(r gang.Ref) error {
		if p := w.Pods[r.Name]; p != nil && p.UID == r.UID {
			w.DeletePod(r.Name)
		}
		return nil
	})
}

func (w *World) markReady(r gang.ReadyClaim) error {
	c := w.Claims[r.Name]
	if c == nil || c.UID != r.UID || c.ResourceVersion != r.ResourceVersion {
		return errConflict
	}
	c = c.DeepCopy()
	c.Annotations = with(c.Annotations, v1alpha1.ReadyAnnotation, r.Plan)
	w.Bump(c)
	w.Claims[r.Name] = c
	return nil
}

// reply ends a decision: what the API server said to evictions.
type reply struct{ gang.EvictionReply }

func (r *reply) Error() string { return r.Message }

func (w *World) evictVictims(g *v1alpha1.GangClaim, a gang.EvictVictims) error {
	said := gang.EvictionReply{}
	refused := func(r gang.Ref, dryRun bool) error {
		p := w.Pods[r.Name]
		if p == nil || p.UID != r.UID || w.Refuse == nil {
			return nil
		}
		if why := w.Refuse(p, dryRun); why != "" {
			said.Refused, said.Message = r.UID, why
			return &reply{said}
		}
		return nil
	}
	for _, r := range a.Pods {
		if err := refused(r, true); err != nil {
			return err
		}
	}
	err := each(w, g, a, a.Pods, func(r gang.Ref) error {
		if err := refused(r, false); err != nil {
			return err
		}
		if p := w.Pods[r.Name]; p != nil && p.UID == r.UID {
			w.DeletePod(r.Name)
			w.Evicted = append(w.Evicted, r.Name)
			said.Evicted = append(said.Evicted, r.UID)
		}
		return nil
	})
	if err == nil && len(said.Evicted) > 0 {
		return &reply{said}
	}
	return err
}

func (w *World) actOnRules(g *v1alpha1.GangClaim, a gang.Action) error {
	switch a := a.(type) {
	case gang.CreateRules:
		return each(w, g, a, a.Rules, func(r *resourceapi.DeviceTaintRule) error {
			if w.Rules[r.Name] == nil {
				r = r.DeepCopy()
				r.Annotations = with(r.Annotations, v1alpha1.TouchedAnnotation, gang.Stamp(gang.StampCreated, w.Now))
				w.Identify(r)
				w.Rules[r.Name] = r
			}
			return nil
		})
	case gang.RepairRules:
		return each(w, g, a, a.Rules, func(r *resourceapi.DeviceTaintRule) error {
			old := w.Rules[r.Name]
			if old == nil || old.ResourceVersion != r.ResourceVersion {
				return errConflict
			}
			w.updateRule(r.Name, gang.StampCreated, func(n *resourceapi.DeviceTaintRule) { n.Spec = r.Spec })
			return nil
		})
	case gang.TouchRules:
		return each(w, g, a, a.Rules, func(r gang.Ref) error {
			w.updateRule(r.Name, gang.StampTouched, func(*resourceapi.DeviceTaintRule) {})
			return nil
		})
	case gang.NeutralizeRules:
		return each(w, g, a, a.Rules, func(r gang.Ref) error {
			w.updateRule(r.Name, gang.StampNeutralized, func(n *resourceapi.DeviceTaintRule) {
				n.Spec.Taint.Effect = resourceapi.DeviceTaintEffectNone
			})
			return nil
		})
	case gang.DeleteRules:
		return each(w, g, a, a.Rules, func(r gang.Ref) error {
			delete(w.Rules, r.Name)
			return nil
		})
	default:
		return fmt.Errorf("unknown action %s", a.Verb())
	}
}

func (w *World) updateRule(name, stamp string, change func(*resourceapi.DeviceTaintRule)) {
	r := w.Rules[name].DeepCopy()
	change(r)
	r.Annotations = with(r.Annotations, v1alpha1.TouchedAnnotation, gang.Stamp(stamp, w.Now))
	w.Bump(r)
	w.Rules[name] = r
}

func each[T any](w *World, g *v1alpha1.GangClaim, a gang.Action, list []T, do func(T) error) error {
	for _, item := range list {
		if err := w.write(g, a, func() error { return do(item) }); err != nil {
			return err
		}
	}
	return nil
}

func with(m map[string]string, key, value string) map[string]string {
	out := map[string]string{key: value}
	for k, v := range m {
		if k != key {
			out[k] = v
		}
	}
	return out
}

// Sweep is one turn of the controller's sweep of objects whose GangClaim is gone.
func (w *World) Sweep() error {
	actions, _ := gang.Orphans(gang.Labelled{
		Now: w.Now, Templates: Sorted(w.Templates), Claims: Sorted(w.Claims), Rules: Sorted(w.Rules), Pods: Sorted(w.Pods),
	}, w.exists)
	for _, a := range actions {
		if err := w.act(nil, a); err != nil && !errors.Is(err, errConflict) {
			return fmt.Errorf("%s of the sweep: %w", a.Verb(), err)
		}
	}
	return nil
}

func (w *World) exists(uid types.UID) bool {
	for _, g := range w.Gangs {
		if g.UID == uid {
			return true
		}
	}
	return false
}

// Run lets controller and cluster take turns for a while, until done says so. It is called after each
// turn, and may change the world. Between turns a tenth of a second passes, or, when nothing happens, as long
// as the controller wants to wait. A crash only ends a turn. Run returns whether done came true.
func (w *World) Run(d time.Duration, done func() bool) (bool, error) {
	const tick, longest = 100 * time.Millisecond, 10 * time.Second
	for end := w.Now.Add(d); ; {
		before, pause := w.serial, longest
		for _, g := range Sorted(w.Gangs) {
			decision, err := w.Reconcile(g.Name)
			if err != nil && !errors.Is(err, ErrCrashed) {
				return false, err
			}
			if wait := decision.RequeueAfter; wait > 0 {
				pause = min(pause, wait)
			}
		}
		if err := w.Sweep(); err != nil && !errors.Is(err, ErrCrashed) {
			return false, err
		}
		w.RunCluster()
		if done() {
			return true, nil
		}
		if w.Now.After(end) {
			return false, nil
		}
		if w.serial != before {
			pause = tick
		}
		w.Now = w.Now.Add(max(pause, tick))
	}
}
