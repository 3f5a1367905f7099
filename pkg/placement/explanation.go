// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// maxNames is how many names of one sort a message lists.
const maxNames = 5

// explanation is a refusal in words.
type explanation struct {
	*planner
	request *request
	attempt *attempt // the one that found best
	found   outcome  // the most that has a place now
	best    outcome  // the next best place
	why     cause
}

// text says what the gang needs, what is found, and what stands in the way:
//
//	needs 2 × 4 GPUs, each 4 in one NVSwitch domain; found 1 (node-a.0). Next best: node-b.1 has 3 free;
//	pod web/infer-7 (1 GPU, priority 0) stands in the way.
func (e explanation) text() string {
	text := needsText(e.request) + "; found " + e.foundText() + "."
	switch e.why.reason {
	case ReasonBehindOthers:
		text += " Enough is free, but kept for " + e.before() + "."
	case ReasonNodesFull:
		text += " Enough is free, but the pods do not fit: " + e.misfits() + "."
	}
	switch {
	case e.best.members < e.request.members && e.attempt.largest < e.request.perMember:
		largest := fmt.Sprintf("the largest %s has %d of them.", place(e.attempt.member), e.attempt.largest)
		if pools := e.updated(); len(pools) > 0 {
			text += fmt.Sprintf(" Now %s Not counted, since their slices are being updated: %s.", largest, list(pools))
		} else {
			text += " It will never fit here: " + largest
		}
	case e.best.members < e.request.members:
		text += fmt.Sprintf(" Even with all of them free there would be a place for %d only.", e.best.members)
	case e.why.reason == ReasonNoFeasibleDomain:
		text += " Next best: " + e.nextBest() + e.inTheWay() + "."
	}
	if class := e.request.view.ofClass(); len(class.repeated) > 0 {
		text += " Not counted: " + e.repeatedMessage(class) + "."
	}
	return text
}

// updated are the pools of which not all slices are there yet: their devices count again when they are.
func (e explanation) updated() []string {
	var names []string
	for key, p := range e.pools {
		if !p.complete && len(p.current) > 0 && key.driver == v1alpha1.DriverName {
			names = append(names, key.name)
		}
	}
	slices.Sort(names)
	return names
}

func needsText(r *request) string {
	what := count(r.perMember, noun(r))
	text := "needs " + what
	if r.members > 1 {
		text = fmt.Sprintf("needs %d × %s", r.members, what)
	}
	asked := r.scopes()[0]
	switch {
	case r.perMember == 1: // One device shares everything with itself.
	case r.members > 1:
		text += fmt.Sprintf(", each %d %s", r.perMember, together(asked.member))
	default:
		text += " " + together(asked.member)
	}
	switch {
	case r.members == 1 && r.perMember == 1:
	case asked.gang == v1alpha1.GangNVSwitchDomain:
		text += ", all in one NVSwitch domain"
	case asked.gang == v1alpha1.GangNode:
		text += ", all on one node"
	}
	return text
}

func together(scope v1alpha1.MemberScope) string {
	switch scope {
	case v1alpha1.MemberNUMANode:
		return "at one NUMA node"
	case v1alpha1.MemberPCIeRoot:
		return "below one PCIe root"
	case v1alpha1.MemberNode:
		return "on one node"
	default:
		return "in one NVSwitch domain"
	}
}

func place(scope v1alpha1.MemberScope) string {
	switch scope {
	case v1alpha1.MemberNUMANode:
		return "NUMA node"
	case v1alpha1.MemberPCIeRoot:
		return "PCIe root"
	case v1alpha1.MemberNode:
		return "node"
	default:
		return "NVSwitch domain on a node"
	}
}

// noun is what the devices are: GPUs if that is all there is in the class.
func noun(r *request) string {
	class := r.view
	if class.base != nil {
		class = class.base
	}
	if class.partitions > 0 {
		return "device"
	}
	return "GPU"
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

func (e explanation) foundText() string {
	if e.found.members == 0 {
		return "none"
	}
	return fmt.Sprintf("%d (%s)", e.found.members, list(names(e.found.picks())))
}

// names are the places of picks: domains, and nodes where devices have none.
func names(picks []picked) []string {
	var list []string
	for _, p := range picks {
		if name := p.name(); !slices.Contains(list, name) {
			list = append(list, name)
		}
	}
	slices.Sort(list)
	return list
}

func (p picked) name() string {
	if domain := commonDomain(p.devices); domain != "" {
		return domain
	}
	return p.node.name
}

// list joins names, and only counts those that are too many.
func list(names []string) string {
	if len(names) > maxNames {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNames], ", "), len(names)-maxNames)
	}
	return strings.Join(names, ", ")
}

// nextBest says how many devices are free in the places where some are not.
func (e explanation) nextBest() string {
	free, busy := map[string]int{}, map[string]bool{}
	for _, ch := range e.best.choices {
		for i, at := range ch.atoms {
			if ch.counts[i] == 0 {
				continue
			}
			name := picked{node: ch.site.node, devices: slices.Concat(at.free, at.busy)}.name()
			free[name] += len(at.free)
			busy[name] = busy[name] || ch.counts[i] > len(at.free)
		}
	}
	var places []string
	for name := range busy {
		if busy[name] {
			places = append(places, fmt.Sprintf("%s has %d free", name, free[name]))
		}
	}
	slices.Sort(places)
	return list(places)
}

// inTheWay names those who have the busy devices of the next best place.
func (e explanation) inTheWay() string {
	holders, reserved := e.holders(e.best)
	var pods, claims []string
	for _, h := range holders {
		if !h.pod {
			claims = append(claims, fmt.Sprintf("%s/%s (%s)", h.name.Namespace, h.name.Name, count(h.devices, noun(e.request))))
			continue
		}
		about := count(h.devices, noun(e.request))
		if p := e.pods[h.name]; p != nil {
			about += fmt.Sprintf(", priority %d", corev1helpers.PodPriority(p.object))
		}
		pods = append(pods, fmt.Sprintf("%s/%s (%s)", h.name.Namespace, h.name.Name, about))
	}
	var text string
	if len(pods) > 0 {
		text += "; " + standing("pod", pods)
	}
	if len(claims) > 0 {
		text += "; " + standing("claim", claims)
	}
	if reserved > 0 {
		text += fmt.Sprintf("; %s kept for other gangs", count(reserved, noun(e.request)))
	}
	return text
}

func standing(what string, names []string) string {
	if len(names) == 1 {
		return fmt.Sprintf("%s %s stands in the way", what, names[0])
	}
	return fmt.Sprintf("%ss %s stand in the way", what, list(names))
}

// before names the gangs for which the free devices are kept.
func (e explanation) before() string {
	var gangs []string
	for d := range e.why.would.devices {
		gang := d.use.earmarked
		if gang == nil {
			continue
		}
		if name := gang.Namespace + "/" + gang.Name; !slices.Contains(gangs, name) {
			gangs = append(gangs, name)
		}
	}
	slices.Sort(gangs)
	if len(gangs) == 1 {
		return "gang " + gangs[0] + ", which comes before"
	}
	return "gangs " + list(gangs) + ", which come before"
}

// misfits says for nodes with free devices why the pods cannot run there.
func (e explanation) misfits() string {
	var nodes []string
	seen := map[*node]bool{}
	members := map[*node]int{}
	for _, ch := range e.why.would.choices {
		members[ch.site.node] += ch.members
	}
	for _, ch := range e.why.would.choices {
		n := ch.site.node
		if seen[n] {
			continue
		}
		seen[n] = true
		why := n.suits(e.request.needs)
		if why == "" {
			why = n.shortage(e.request.needs, e.promised[n.name], members[n])
		}
		if why != "" {
			nodes = append(nodes, n.name+": "+why)
		}
	}
	if len(nodes) == 0 {
		return e.request.needs.why()
	}
	slices.Sort(nodes)
	if len(nodes) > maxNames {
		return fmt.Sprintf("%s; and on %d more nodes", strings.Join(nodes[:maxNames], "; "), len(nodes)-maxNames)
	}
	return strings.Join(nodes, "; ")
}

// blocking are the pods that have devices of the next best place.
func (e explanation) blocking() []types.NamespacedName {
	holders, _ := e.holders(e.best)
	var pods []types.NamespacedName
	for _, h := range holders {
		if h.pod {
			pods = append(pods, h.name)
		}
	}
	return pods
}
