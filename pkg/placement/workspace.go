// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

// maxWorkspaces is how many workspaces are kept: a gang that is refused takes that many attempts.
const maxWorkspaces = 4

// workspace is the memory of an attempt, a quarter of a kilobyte for each node. It is used again: a plan that
// makes it anew has the garbage collector, which takes longer than a plan, run three times as often.
type workspace struct {
	scratch siteBuilder
	sites   []site
	// domainsOfSites holds the domains of all sites one behind the other.
	domainsOfSites []siteDomain
	backing        []unit
	unitsOfSites   []*unit
	items          []item
}

// borrow returns a workspace until the gang is decided: what an attempt found refers to it.
func (p *planner) borrow() *workspace {
	w := &workspace{}
	if last := len(p.workspaces) - 1; last >= 0 {
		w, p.workspaces = p.workspaces[last], p.workspaces[:last]
		w.sites, w.domainsOfSites = w.sites[:0], w.domainsOfSites[:0]
	}
	p.borrowed = append(p.borrowed, w)
	return w
}

// giveBack ends the use of all that was borrowed.
func (p *planner) giveBack() {
	free := min(len(p.borrowed), maxWorkspaces-len(p.workspaces))
	p.workspaces = append(p.workspaces, p.borrowed[:free]...)
	p.borrowed = nil
}

// resized returns n elements of any content, in the same memory where that is large enough.
func resized[T any](list []T, n int) []T {
	if cap(list) < n {
		return make([]T, n)
	}
	return list[:n]
}
