// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
)

// spot is a free device.
type spot struct {
	node   *node
	pool   *pool
	device *device
	// kept says that a gang waits for it, breaks that it is in a whole domain of several, free how many devices
	// of its domain on the node are. used is how many devices that share its counters are in use: where none is, it
	// would break a whole GPU.
	kept, breaks bool
	used, free   int
}

func (s *spot) domain() string {
	if s.device.domain == nil {
		return ""
	}
	return s.device.domain.name
}

func (s *spot) compare(o *spot) int {
	return cmp.Or(
		compareBool(s.kept, o.kept),
		compareBool(s.breaks, o.breaks),
		cmp.Compare(o.used, s.used),
		cmp.Compare(s.free, o.free),
		cmp.Compare(s.node.name, o.node.name),
		cmp.Compare(s.pool.key.name, o.pool.key.name),
		cmp.Compare(s.device.order, o.device.order),
	)
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	default:
		return 1
	}
}

// finder finds free devices for victims. Those of pods and claims that do not differ are the same.
type finder struct {
	*Room

	left  map[*pool]counters
	known map[string][]*spot
	needs []needs
}

func (r *Room) finder() *finder {
	return &finder{Room: r, left: map[*pool]counters{}, known: map[string][]*spot{}}
}

// counters are what is left in the pool of a device that consumes any; nil, of which all can be taken, else.
func (f *finder) counters(p *pool, d *device) counters {
	if len(d.api.ConsumesCounters) == 0 {
		return nil
	}
	if f.left[p] == nil {
		f.left[p] = p.countersLeft(func(u *use) bool { return u.planned || u.taken(f.request.uid) })
	}
	return f.left[p]
}

func (f *finder) spots(v Resident, needs needs) []*spot {
	key := f.needsKey(needs)
	for _, request := range requestsOf(v.Claim) {
		key += fmt.Sprintf(" %s %q %v", request.DeviceClassName, textOf(request.Selectors), request.Tolerations)
	}
	if known, ok := f.known[key]; ok {
		return known
	}
	alternatives := f.alternatives(v.Claim)
	var list []*spot
	for _, n := range f.planner.sortedNodes {
		if len(n.pools) > 0 && n.suits(needs) == "" && n.room(needs, f.planner.promised[n.name], false) > 0 {
			list = append(list, f.onNode(n, alternatives)...)
		}
	}
	slices.SortFunc(list, (*spot).compare)
	f.known[key] = list
	return list
}

// search is a victim, and what is free for it.
type search struct {
	victim Resident
	needs  needs
	spots  []*spot
}

// searches lists the victims, those with the fewest devices to choose from first.
func (f *finder) searches(victims []Resident) []search {
	var list []search
	for _, v := range victims {
		needs := f.planner.needsOfReplacement(v.Pod)
		list = append(list, search{v, needs, f.spots(v, needs)})
	}
	slices.SortStableFunc(list, func(a, b search) int { return cmp.Compare(len(a.spots), len(b.spots)) })
	return list
}

// needsOfReplacement is what a pod needs that is made in place of another. Volumes that end with the old one are made anew.
func (c *Cluster) needsOfReplacement(pod *corev1.Pod) needs {
	n := c.needsOf([]*corev1.Pod{pod})
	if len(pod.Spec.Volumes) > 0 {
		made := &corev1.Pod{ObjectMeta: pod.ObjectMeta}
		for i := range pod.Spec.Volumes {
			if pod.Spec.Volumes[i].Ephemeral == nil {
				made.Spec.Volumes = append(made.Spec.Volumes, pod.Spec.Volumes[i])
			}
		}
		// What is missing kept the old one off too.
		if ties, refusal := c.tiesOf([]*corev1.Pod{made}, nil); refusal == nil {
			c.tie(ties, &n)
		}
	}
	return n
}

// alternatives are the ways in which a claim can be given a device.
func (f *finder) alternatives(claim *resourceapi.ResourceClaim) []alternative {
	var list []alternative
	for _, request := range requestsOf(claim) {
		if class := f.planner.classes[request.DeviceClassName]; class != nil {
			list = append(list, alternative{f.planner.view(class, request.Selectors), request.Tolerations})
		}
	}
	return list
}

// needsKey numbers what pods need of nodes.
func (f *finder) needsKey(n needs) string {
	at := slices.IndexFunc(f.needs, n.same)
	if at < 0 {
		f.needs = append(f.needs, n)
		at = len(f.needs) - 1
	}
	return fmt.Sprint(at)
}

// onNode lists the free devices of a node that suit one of the alternatives.
func (f *finder) onNode(n *node, alternatives []alternative) []*spot {
	var list []*spot
	free, inUse := map[*domain]int{}, map[*domain]int{}
	for _, p := range n.pools {
		if !p.complete {
			continue
		}
		for _, s := range p.current {
			for i, d := range s.devices {
				if !f.isFree(p, d) {
					inUse[d.domain]++
					continue
				}
				free[d.domain]++
				if slices.ContainsFunc(alternatives, func(a alternative) bool { return a.suits(s, i, d) }) {
					list = append(list, f.spot(n, p, d))
				}
			}
		}
	}
	for _, s := range list {
		s.free = free[s.device.domain]
		s.breaks = s.device.domain != nil && inUse[s.device.domain] == 0 && s.free > 1
	}
	return list
}

// spot is a free device, as far as the device itself and those that share its counters tell.
func (f *finder) spot(n *node, p *pool, d *device) *spot {
	keeps := func(u *use) bool { return u.earmarked != nil && u.earmarked != f.request.claim }
	s := &spot{node: n, pool: p, device: d, kept: keeps(d.use)}
	for other := range f.planner.sharers(d) {
		s.kept = s.kept || keeps(other.use)
		if other.use.planned || other.use.taken(f.request.uid) {
			s.used++
		}
	}
	return s
}

func (a alternative) suits(s *slice, i int, d *device) bool {
	m := a.view.matches[s]
	if m == nil || !m.all[i] {
		return false
	}
	tainted, _ := d.tainted(a.tolerations)
	return !tainted
}

// isFree reports whether any pod could be given the device.
func (f *finder) isFree(p *pool, d *device) bool {
	if d.use.held() || d.use.planned || d.use.reservedByOthers(f.request.uid) || d.unplannable {
		return false
	}
	return f.counters(p, d).suffice(d)
}
