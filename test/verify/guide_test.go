// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build verify

package verify

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
)

var (
	// guideCall is where an end-to-end test takes a manifest from a page: see test/e2e/guide_test.go.
	guideCall = regexp.MustCompile(`\.(guide|fromGuide|specFromGuide)\("([a-z-]+)", ("(?:[^"\\]|\\.)*")\)`)
	// untried are beginnings of examples that no cluster of ours can try.
	untried = []string{"groups:\n  - name: switchyard\n"} // for Prometheus
)

// TestManifestsOfTheGuideAreTried finds manifests of pages about claims, sharing and the configuration of nodes that no
// end-to-end test takes from its page.
func TestManifestsOfTheGuideAreTried(t *testing.T) {
	taken := map[string][]string{} // what a manifest has in it, by page
	for _, file := range files(t, []string{".go"}, "test/e2e") {
		for _, call := range guideCall.FindAllStringSubmatch(read(t, file), -1) {
			part, err := strconv.Unquote(call[3])
			if err != nil {
				t.Fatalf("%s: %s: %v", file, call[0], err)
			}
			if call[1] != "guide" {
				part = "\nmetadata:\n  name: " + part + "\n"
			}
			taken[call[2]] = append(taken[call[2]], part)
		}
	}
	for _, page := range []string{"claims", "health", "mig", "node-config", "shares", "sharing"} {
		examples := example.FindAllStringSubmatch(read(t, "docs/guide/"+page+".md"), -1)
		if len(examples) == 0 {
			t.Errorf("page %s has no manifest", page)
		}
		for _, match := range examples {
			if !holdsAny(match[1], taken[page]) && !holdsAny(match[1], untried) {
				t.Errorf("no end-to-end test takes this manifest from page %s:\n%s", page, match[1])
			}
		}
	}
}

func holdsAny(manifest string, parts []string) bool {
	for _, part := range parts {
		if strings.Contains(manifest, part) {
			return true
		}
	}
	return false
}
