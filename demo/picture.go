// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"charm.land/lipgloss/v2"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

var (
	bold    = lipgloss.NewStyle().Bold(true)
	faint   = lipgloss.NewStyle().Faint(true)
	taken   = lipgloss.NewStyle().Foreground(lipgloss.Yellow)
	subject = lipgloss.NewStyle().Foreground(lipgloss.Cyan).Bold(true)
)

// gpu is one published device, and the claim that holds it.
type gpu struct {
	node, name, uuid, product, domain string
	// parent and profile are a partition's: the UUID of its GPU, and what it is.
	parent, profile string
	// sharing is how a shared GPU is shared.
	sharing string
	// taints are "<value>:<effect>".
	taints      []string
	index, numa int64
	claim       string
}

// picture is what the API server says about the cluster's GPUs: slices and allocations, nothing else.
type picture []gpu

// newPicture joins what is published with what is allocated.
func newPicture(published []resourceapi.ResourceSlice, claims []resourceapi.ResourceClaim) picture {
	holder := map[[2]string]string{}
	for _, claim := range claims {
		if claim.Status.Allocation == nil {
			continue
		}
		for _, r := range claim.Status.Allocation.Devices.Results {
			if r.Driver == v1alpha1.DriverName {
				holder[[2]string{r.Pool, r.Device}] = claim.Name
			}
		}
	}
	var p picture
	for _, slice := range published {
		if slice.Spec.Driver != v1alpha1.DriverName {
			continue
		}
		for _, dev := range slice.Spec.Devices {
			g := gpu{node: slice.Spec.Pool.Name, name: dev.Name, claim: holder[[2]string{slice.Spec.Pool.Name, dev.Name}]}
			g.uuid, g.product, g.domain = text(dev, "uuid"), text(dev, "productName"), text(dev, "nvswitchDomain")
			g.parent, g.profile, g.sharing = text(dev, "parentUUID"), text(dev, "profile"), text(dev, "sharing")
			for _, taint := range dev.Taints {
				g.taints = append(g.taints, taint.Value+":"+string(taint.Effect))
			}
			g.index, g.numa = number(dev, "index"), number(dev, "resource.kubernetes.io/numaNode")
			p = append(p, g)
		}
	}
	slices.SortFunc(p, func(a, b gpu) int {
		return cmp.Or(cmp.Compare(a.node, b.node), cmp.Compare(a.index, b.index))
	})
	return p
}

func text(d resourceapi.Device, name resourceapi.QualifiedName) string {
	if v := d.Attributes[name].StringValue; v != nil {
		return *v
	}
	return ""
}

func number(d resourceapi.Device, name resourceapi.QualifiedName) int64 {
	if v := d.Attributes[name].IntValue; v != nil {
		return *v
	}
	return -1
}

// domains returns the distinct domains in the order of their first GPU.
func (p picture) domains() []string {
	var names []string
	for _, g := range p {
		if g.domain != "" && !slices.Contains(names, g.domain) {
			names = append(names, g.domain)
		}
	}
	return names
}

// of returns the GPUs held by the claims whose name starts with the given prefix.
func (p picture) of(claimPrefix string) picture {
	return p.where(func(g gpu) bool { return strings.HasPrefix(g.claim, claimPrefix) })
}

// where returns the GPUs, partitions and shares that satisfy a condition.
func (p picture) where(ok func(gpu) bool) picture {
	return slices.DeleteFunc(slices.Clone(p), func(g gpu) bool { return !ok(g) })
}

// parents returns the distinct GPUs whose partitions they are.
func (p picture) parents() []string {
	var uuids []string
	for _, g := range p {
		if !slices.Contains(uuids, g.parent) {
			uuids = append(uuids, g.parent)
		}
	}
	return uuids
}

// onNode returns the GPUs of one node.
func (p picture) onNode(node string) picture {
	return p.where(func(g gpu) bool { return g.node == node })
}

func (p picture) indexes() string {
	words := make([]string, 0, len(p))
	for _, g := range p {
		words = append(words, fmt.Sprint(g.index))
	}
	return strings.Join(words, ",")
}

// draw gives one line a node: a square a GPU, filled where a claim holds it. Claims whose name starts
// with highlight are drawn apart.
func (p picture) draw(highlight string) []string {
	var lines []string
	for i := 0; i < len(p); {
		node := p.onNode(p[i].node)
		line := fmt.Sprintf("%s  %d × %-24s", bold.Render(node[0].node), len(node), strings.TrimPrefix(node[0].product, "NVIDIA "))
		for _, domain := range node.domains() {
			line += "  " + domain + " "
			for _, g := range node {
				if g.domain == domain {
					line += " " + square(g, highlight)
				}
			}
		}
		lines = append(lines, line)
		i += len(node)
	}
	return lines
}

func square(g gpu, highlight string) string {
	switch {
	case g.claim == "":
		return faint.Render("□")
	case highlight != "" && strings.HasPrefix(g.claim, highlight):
		return subject.Render("▣")
	default:
		return taken.Render("■")
	}
}
