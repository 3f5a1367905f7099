// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement_test

import (
	"testing"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

func TestPlanChoosesDevices(t *testing.T) {
	a, b := readyNode("node-a"), readyNode("node-b")
	tests := map[string]struct {
		cluster []any
		gang    placement.Gang
		want    string
	}{
		"the tightest domain that is broken already": {
			[]any{a, b, hgx("node-a"), hgx("node-b"), single("s1", "node-b", 0, 1)},
			gangOf("g", 1, 2),
			"node-b node-b.0 ×1: 2 3",
		},
		"whole domains rather than breaking any": {
			[]any{a, b, hgx("node-a"), hgx("node-b"), single("s1", "node-a", 0)},
			gangOf("g", 2, 4),
			"node-a node-a.1 ×1: 4 5 6 7; node-b node-b.0 ×1: 0 1 2 3",
		},
		"all members on one node, if the gang's scope says so": {
			[]any{a, b, hgx("node-a"), hgx("node-b"), single("s1", "node-a", 0)},
			gangOf("g", 2, 4, scopes(v1alpha1.MemberNVSwitchDomain, v1alpha1.GangNode)),
			"node-b node-b.0 ×1: 0 1 2 3; node-b node-b.1 ×1: 4 5 6 7",
		},
		"all members in one domain, if the gang's scope says so": {
			[]any{a, b, hgx("node-a"), hgx("node-b"), single("s1", "node-a", 0)},
			gangOf("g", 2, 2, scopes(v1alpha1.MemberNVSwitchDomain, v1alpha1.GangNVSwitchDomain)),
			"node-a node-a.1 ×2: 4 5 6 7",
		},
		"without devices of which others have the id, and domains by their devices then": {
			[]any{
				a, b, sliceOf("node-a", gpu{domain: "d", id: "copied"}, gpu{domain: "d"}, gpu{domain: "d"}),
				sliceOf("node-b", gpu{domain: "e", id: "copied"}),
			},
			gangOf("g", 2, 1),
			"node-a d ×2: 1 2",
		},
		"nothing, where no domain has enough": {
			[]any{a, hgx("node-a"), single("s1", "node-a", 0, 4)},
			gangOf("g", 1, 4),
			"NoFeasibleDomain",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := planOf(t, clusterOf(t, test.cluster...), test.gang); got != test.want {
				t.Errorf("plan %q, want %q", got, test.want)
			}
		})
	}
}
