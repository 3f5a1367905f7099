// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	volumehelpers "k8s.io/component-helpers/storage/volume"
)

// seating finds out how many pods a node can have whose claims get their volumes when the pods are scheduled
// (WaitForFirstConsumer): as many as it has volumes for, if none can be made there.
type seating struct {
	*storage

	pods [][]*corev1.PersistentVolumeClaim // smallest claim first
	// classes are those of the claims; chosen are the claims for which a node was chosen before, where the volume is to be made.
	classes []string
	chosen  []*corev1.PersistentVolumeClaim
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

// seat shuns the nodes that have no volumes for the pods and that cannot make any, and counts the seats of those that have some.
func (c *Cluster) seat(pods [][]*corev1.PersistentVolumeClaim, result *company) {
	s := seating{storage: &c.storage, pods: pods, local: map[string][]*corev1.PersistentVolume{}, known: map[string]seats{}}
	s.offer()
	for _, n := range c.sortedNodes {
		if n.object == nil {
			continue
		}
		at := s.at(n.object)
		switch {
		case at.next == nil:
		case at.pods == 0:
			result.shun(n, fmt.Sprintf("PersistentVolumeClaim %s (StorageClass %s) can get no volume there",
				nameOfClaim(at.next), volumehelpers.GetPersistentVolumeClaimClass(at.next)))
		default:
			if result.seats == nil {
				result.seats = map[*node]int{}
			}
			result.seats[n] = at.pods
		}
	}
}

// offer gathers what is there for the claims.
func (s *seating) offer() {
	for _, claims := range s.pods {
		for _, claim := range claims {
			if class := volumehelpers.GetPersistentVolumeClaimClass(claim); !slices.Contains(s.classes, class) {
				s.classes = append(s.classes, class)
			}
			if metav1.HasAnnotation(claim.ObjectMeta, volumehelpers.AnnSelectedNode) {
				s.chosen = append(s.chosen, claim)
			}
		}
	}
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

// at finds out about a node. Those do not differ of which the same volumes and classes can be used, and for which none or all
// of the claims were chosen.
func (s *seating) at(n *corev1.Node) seats {
	var key strings.Builder
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
		made[class] = differs(s.makes(class, n))
	}
	for _, claim := range s.chosen {
		differs(claim.Annotations[volumehelpers.AnnSelectedNode] == n.Name)
	}
	answer, ok := s.known[key.String()]
	if !ok {
		answer = s.count(n, volumes, made)
		s.known[key.String()] = answer
	}
	return answer
}

// count gives the pods volumes, one pod after the other. Claims that pods share get one.
func (s *seating) count(n *corev1.Node, volumes []*corev1.PersistentVolume, made map[string]bool) seats {
	taken := map[string]*corev1.PersistentVolume{}
	served := map[*corev1.PersistentVolumeClaim]bool{}
	for pods, claims := range s.pods {
		for _, claim := range claims {
			if served[claim] {
				continue
			}
			served[claim] = true
			makes := made[volumehelpers.GetPersistentVolumeClaimClass(claim)]
			if chosen, ok := claim.Annotations[volumehelpers.AnnSelectedNode]; ok {
				if chosen != n.Name || !makes {
					return seats{pods, claim}
				}
				continue
			}
			if makes {
				continue // Whether one that is there is taken first or not.
			}
			v, err := volumehelpers.FindMatchingVolume(claim, volumes, n, taken, true, true)
			if err != nil || v == nil {
				return seats{pods, claim}
			}
			taken[v.Name] = v
		}
	}
	return seats{pods: len(s.pods)}
}

// makes reports whether volumes of the class can be made for the node.
func (s *seating) makes(name string, n *corev1.Node) bool {
	class := s.storage.classes[name]
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
