// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

func TestGangsOutput(t *testing.T) {
	c := journey(t)
	other := waitingGang("new", 1, 1, func(g *v1alpha1.GangClaim) { g.Namespace, g.Status = "other", v1alpha1.GangClaimStatus{} })[:1]
	c = c.with(other...)
	for file, args := range map[string][]string{
		"gangs.txt":      {"gangs"},
		"gangs-all.txt":  {"gangs", "-A"},
		"gangs-wide.txt": {"gangs", "-A", "-o", "wide", "--no-headers"},
		"gangs.json":     {"gangs", "-o", "json"},
	} {
		t.Run(file, func(t *testing.T) { c.golden(t, file, args...) })
	}
}

// The column of kubectl get names a few domains only.
func TestAllDomainsOfALargeGang(t *testing.T) {
	large := waitingGang("large", 7, 4, func(g *v1alpha1.GangClaim) {
		g.Status.Domains = "node-0.0,node-1.0,node-2.0,node-3.0,node-4.0 and 2 more"
		g.Status.Plan = &v1alpha1.GangPlan{Members: 7}
		for i := range 7 {
			g.Status.Plan.Placements = append(g.Status.Plan.Placements, v1alpha1.GangPlacement{Members: 1, Domain: fmt.Sprintf("node-%d.0", i)})
		}
	})
	out, _, err := large.run(t, "gangs", "-o", "json")
	var view gangsView
	if err := errors.Join(err, json.Unmarshal([]byte(out), &view)); err != nil {
		t.Fatal(err)
	}
	if domains := view.Gangs[0].Domains; len(domains) != 7 || domains[6] != "node-6.0" {
		t.Errorf("got %q", domains)
	}
	out, _, err = large.run(t, "gangs")
	if err != nil || !strings.Contains(out, "node-4.0 and 2 more   ") {
		t.Errorf("got %v and %q", err, out)
	}
}

func TestNoGangs(t *testing.T) {
	out, errs, err := gpuNode(t, "node", "").run(t, "gangs")
	if err != nil || out != "" || !strings.Contains(errs, "No GangClaims in namespace ml; -A looks in all.") {
		t.Errorf("got %q, %q, %v", out, errs, err)
	}
	out, _, err = gpuNode(t, "node", "").run(t, "gangs", "-o", "json")
	if err != nil || out != "{\n    \"gangs\": []\n}\n" {
		t.Errorf("got %q, %v", out, err)
	}
}
