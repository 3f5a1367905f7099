// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
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
