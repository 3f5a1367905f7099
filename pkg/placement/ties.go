// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	volumehelpers "k8s.io/component-helpers/storage/volume"
)

// tie is what pods that all say the same of nodes say: by their persistent volumes and, where a gang has several kinds of pods, by
// their node selectors, affinity and tolerations.
type tie struct {
	pods  int
	kinds []*podKind
	bound []boundVolume
	// chosen are claims for which a node was chosen before, where the volume is to be made.
	chosen []*corev1.PersistentVolumeClaim
	// later are the claims, smallest first, of each pod that has any, which get their volumes when the pod is scheduled.
	later [][]*corev1.PersistentVolumeClaim
}

// use adds a volume that the pod has.
func (t *tie) use(v boundVolume) {
	if v.says != "" && !slices.ContainsFunc(t.bound, func(b boundVolume) bool { return b.says == v.says }) {
		t.bound = append(t.bound, v)
	}
}

// await adds a claim that gets its volume when the pod is scheduled.
func (t *tie) await(claim *corev1.PersistentVolumeClaim) {
	if _, ok := claim.Annotations[volumehelpers.AnnSelectedNode]; ok {
		t.chosen = append(t.chosen, claim)
		return
	}
	if len(t.later) == 0 {
		t.later = make([][]*corev1.PersistentVolumeClaim, 1)
	}
	t.later[0] = append(t.later[0], claim)
	slices.SortStableFunc(t.later[0], bySize)
}

// with returns the tie of the pods of both. Volumes that say the same are there once.
func (t *tie) with(other *tie) *tie {
	both := &tie{
		pods:   t.pods + other.pods,
		bound:  slices.Clone(t.bound),
		chosen: slices.Concat(t.chosen, other.chosen),
		later:  slices.Concat(t.later, other.later),
	}
	for _, v := range other.bound {
		both.use(v)
	}
	for _, k := range slices.Concat(t.kinds, other.kinds) {
		if !slices.Contains(both.kinds, k) {
			both.kinds = append(both.kinds, k)
		}
	}
	return both
}

// obstacle is what keeps pods off a node; the zero value is nothing.
type obstacle struct {
	kind   string // why
	volume *boundVolume
	claim  *corev1.PersistentVolumeClaim // can get no volume there
}

func (o obstacle) String() string {
	switch {
	case o.volume != nil:
		return fmt.Sprintf("volume %s of PersistentVolumeClaim %s cannot be used there", o.volume.object.Name, nameOfClaim(o.volume.claim))
	case o.claim != nil:
		return fmt.Sprintf("PersistentVolumeClaim %s (StorageClass %s) can get no volume there", nameOfClaim(o.claim), volumehelpers.GetPersistentVolumeClaimClass(o.claim))
	default:
		return o.kind
	}
}

// bars returns what keeps the pods off a node, apart from claims for which no node was chosen.
func (t *tie) bars(n *corev1.Node, s *storage) obstacle {
	for _, k := range t.kinds {
		if why := suitsKind(n, k); why != "" {
			return obstacle{kind: why}
		}
	}
	for i := range t.bound {
		if b := &t.bound[i]; !b.reaches(n) || !b.ephemeral && !b.zoned(n) {
			return obstacle{volume: b}
		}
	}
	for _, claim := range t.chosen {
		if claim.Annotations[volumehelpers.AnnSelectedNode] != n.Name || !s.makes(volumehelpers.GetPersistentVolumeClaimClass(claim), n) {
			return obstacle{claim: claim}
		}
	}
	return obstacle{}
}

// join adds the tie of a pod to those of others: to that which says the same, if there is one.
func join(ties []*tie, t *tie) []*tie {
	same := func(o *tie) bool {
		return len(o.chosen)+len(t.chosen) == 0 && slices.Equal(o.kinds, t.kinds) && slices.EqualFunc(o.bound, t.bound, func(a, b boundVolume) bool { return a.says == b.says })
	}
	if at := slices.IndexFunc(ties, same); at >= 0 {
		ties[at].pods += t.pods
		ties[at].later = append(ties[at].later, t.later...)
		return ties
	}
	return append(ties, t)
}

// berths are the nodes that suit a tie, and for how many of the pods each has volumes.
type berths struct {
	*tie

	seats map[*node]int
	// reach is equal for ties that leave the same nodes.
	reach string
}

// berthsOf looks at all nodes.
func (s *seating) berthsOf(t *tie, nodes []*node) *berths {
	b := &berths{tie: t, seats: map[*node]int{}}
	var reach strings.Builder
	for i, n := range nodes {
		if n.object == nil {
			continue
		}
		if t.bars(n.object, s.storage) != (obstacle{}) {
			continue
		}
		fmt.Fprint(&reach, i, " ")
		if at := s.at(n.object, t); at.pods > 0 {
			b.seats[n] = at.pods
		}
	}
	b.reach = reach.String()
	return b
}

// why says why a node does not suit the tie.
func (s *seating) why(n *node, t *tie) string {
	o := t.bars(n.object, s.storage)
	if o == (obstacle{}) {
		o.claim = s.at(n.object, t).next
	}
	return o.String()
}

// tie leaves to the pods the nodes that suit all of them, as any may be scheduled to any node of a plan. Where there is none, as
// for pods with a local volume each, every pod has nodes of its own: a node is for those of the pods that it suits which have the
// fewest nodes, and gets no more pods than these are.
func (c *Cluster) tie(ties []*tie, n *needs) {
	volumes := slices.ContainsFunc(ties, func(t *tie) bool { return len(t.bound)+len(t.chosen)+len(t.later) > 0 })
	if len(ties) < 2 && !volumes {
		return
	}
	all := ties[0]
	for _, t := range ties[1:] {
		all = all.with(t)
	}
	s := c.seatingOf(all)
	common := s.berthsOf(all, c.sortedNodes)
	// Nodes without devices are of no use to them.
	suited := slices.ContainsFunc(c.sortedNodes, func(at *node) bool { return common.seats[at] > 0 && len(at.pools) > 0 })
	if len(ties) > 1 && !suited {
		s.part(ties, c.sortedNodes, &n.company)
		n.kinds, n.anywhere = nil, true // said of each node
		return
	}
	if !volumes {
		return
	}
	for _, at := range c.sortedNodes {
		switch seats := common.seats[at]; {
		case at.object == nil:
		case seats == 0:
			n.shun(at, s.why(at, all))
		case seats < all.pods:
			n.seat(at, seats)
		}
	}
}

// part gives each tie nodes of its own.
func (s *seating) part(ties []*tie, nodes []*node, result *company) {
	var parts []*berths
	of := map[string]int{}
	for _, t := range ties {
		b := s.berthsOf(t, nodes)
		if at, known := of[b.reach]; known {
			parts[at] = s.berthsOf(parts[at].with(t), nodes)
			continue
		}
		of[b.reach] = len(parts)
		parts = append(parts, b)
	}
	// Without a node for some there is no place for all.
	if at := slices.IndexFunc(parts, func(b *berths) bool { return len(b.seats) == 0 }); at >= 0 {
		for _, n := range nodes {
			if n.object != nil {
				result.shun(n, s.why(n, parts[at].tie))
			}
		}
		return
	}
	places := bound{by: map[string]int{}, places: map[*node]string{}}
	for _, n := range nodes {
		owner := -1
		for i, b := range parts {
			if b.seats[n] > 0 && (owner < 0 || len(b.seats) < len(parts[owner].seats)) {
				owner = i
			}
		}
		switch {
		case owner >= 0:
			name := strconv.Itoa(owner)
			places.places[n], places.by[name] = name, parts[owner].pods
			result.seat(n, parts[owner].seats[n])
		case n.object != nil:
			result.shun(n, s.why(n, parts[0].tie))
		}
	}
	for i, b := range parts {
		if places.by[strconv.Itoa(i)] == 0 {
			b.lodge(nodes, places, result)
		}
	}
	if len(places.places) > len(places.by) { // else the seats say the same
		result.bounds = append(result.bounds, places)
	}
}

// lodge adds pods all of whose nodes are other pods' to that place which has fewest.
func (b *berths) lodge(nodes []*node, places bound, result *company) {
	host := ""
	for _, n := range nodes {
		if name := places.places[n]; b.seats[n] > 0 && (host == "" || places.by[name] < places.by[host]) {
			host = name
		}
	}
	places.by[host] += b.pods
	for n, seats := range b.seats {
		if places.places[n] == host {
			result.seats[n] += seats
		}
	}
}

// seat notes how many pods a node has seats for.
func (c *company) seat(n *node, pods int) {
	if c.seats == nil {
		c.seats = map[*node]int{}
	}
	c.seats[n] = pods
}
