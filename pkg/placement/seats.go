// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	volumehelpers "k8s.io/component-helpers/storage/volume"
)

// seating finds out how many pods a node can have whose claims get their volumes when the pods are scheduled
// (WaitForFirstConsumer): as many as it has volumes for, if none can be made there.
type seating struct {
	*storage

	// classes are those of the claims.
	classes []string
	// local are the volumes that one host alone has, by its name; wide are the others, by what they say of nodes.
	local map[string][]*corev1.PersistentVolume
	wide  []wide
	// known are the answers for nodes that do not differ.
	known map[string]seats
}

// wide are volumes that say the same of nodes.
type wide struct {
	first   *volume
	volumes []*corev1.PersistentVolume
}

// seats are for how many pods a node has volumes, and what the next one lacks; nil for all.
type seats struct {
	pods int
	next *corev1.PersistentVolumeClaim
}

// seatingOf is for the claims of a tie, or of ties of which it is made.
func (c *Cluster) seatingOf(t *tie) *seating {
	s := &seating{storage: &c.storage, local: map[string][]*corev1.PersistentVolume{}, known: map[string]seats{}}
	for _, claims := range t.later {
		for _, claim := range claims {
			if class := volumehelpers.GetPersistentVolumeClaimClass(claim); !slices.Contains(s.classes, class) {
				s.classes = append(s.classes, class)
			}
		}
	}
	if len(s.classes) > 0 {
		s.offer()
	}
	return s
}

// offer gathers what is there for the claims.
func (s *seating) offer() {
	byText := map[string]int{}
	for _, name := range slices.Sorted(maps.Keys(s.volumes)) {
		v := s.volumes[name]
		phase := v.object.Status.Phase
		if phase == corev1.VolumeBound || phase == corev1.VolumeReleased || phase == corev1.VolumeFailed ||
			!slices.Contains(s.classes, volumehelpers.GetPersistentVolumeClass(v.object)) {
			continue
		}
		if v.host != "" {
			s.local[v.host] = append(s.local[v.host], v.object)
			continue
		}
		at, seen := byText[v.text]
		if !seen {
			at = len(s.wide)
			byText[v.text] = at
			s.wide = append(s.wide, wide{first: v})
		}
		s.wide[at].volumes = append(s.wide[at].volumes, v.object)
	}
}

// at finds out for how many of the pods of a tie a node has seats. Nodes do not differ of which the same volumes and classes can
// be used.
func (s *seating) at(n *corev1.Node, t *tie) seats {
	if len(t.later) == 0 {
		return seats{pods: t.pods}
	}
	var key strings.Builder
	fmt.Fprintf(&key, "%p ", t)
	differs := func(yes bool) bool {
		fmt.Fprintf(&key, "%t ", yes)
		return yes
	}
	volumes := slices.Clip(s.local[n.Labels[corev1.LabelHostname]])
	if len(volumes) > 0 {
		key.WriteString(n.Labels[corev1.LabelHostname] + " ")
	}
	for _, w := range s.wide {
		if differs(w.first.reaches(n)) {
			volumes = append(volumes, w.volumes...)
		}
	}
	made := map[string]bool{}
	for _, class := range s.classes {
		made[class] = differs(s.storage.makes(class, n))
	}
	answer, ok := s.known[key.String()]
	if !ok {
		answer = s.count(n, t, volumes, made)
		s.known[key.String()] = answer
	}
	return answer
}

// count gives the pods volumes, one pod after the other. Claims that pods share get one.
func (s *seating) count(n *corev1.Node, t *tie, volumes []*corev1.PersistentVolume, made map[string]bool) seats {
	taken := map[string]*corev1.PersistentVolume{}
	served := map[*corev1.PersistentVolumeClaim]bool{}
	for pods, claims := range t.later {
		for _, claim := range claims {
			if served[claim] || made[volumehelpers.GetPersistentVolumeClaimClass(claim)] {
				continue // Where volumes are made, it does not matter whether one that is there is taken first.
			}
			served[claim] = true
			v, err := volumehelpers.FindMatchingVolume(claim, volumes, n, taken, true, true)
			if err != nil || v == nil {
				return seats{pods, claim}
			}
			taken[v.Name] = v
		}
	}
	return seats{pods: t.pods}
}

// makes reports whether volumes of the class can be made for the node.
func (s *storage) makes(name string, n *corev1.Node) bool {
	class := s.classes[name]
	if class == nil || class.Provisioner == "" || class.Provisioner == volumehelpers.NotSupportedProvisioner {
		return false
	}
	return len(class.AllowedTopologies) == 0 || slices.ContainsFunc(class.AllowedTopologies, func(term corev1.TopologySelectorTerm) bool {
		return len(term.MatchLabelExpressions) > 0 && !slices.ContainsFunc(term.MatchLabelExpressions, func(e corev1.TopologySelectorLabelRequirement) bool {
			value, ok := n.Labels[e.Key]
			return !ok || !slices.Contains(e.Values, value)
		})
	})
}
