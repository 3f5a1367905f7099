// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build verify

package verify

import (
	"regexp"
	"strings"
	"testing"
)

// reason is a constant of pkg/kubeletplugin/events.go.
var reason = regexp.MustCompile(`(?m)^\treason\w+ += "(\w+)"$`)

// Who sees an Event at night looks its reason up.
func TestEveryEventIsInTheTroubleshootingGuide(t *testing.T) {
	reasons := reason.FindAllStringSubmatch(read(t, "pkg/kubeletplugin/events.go"), -1)
	if len(reasons) == 0 {
		t.Fatal("no reason found in pkg/kubeletplugin/events.go: the check would check nothing")
	}
	guide := read(t, "docs/guide/troubleshooting.md")
	for _, match := range reasons {
		if !strings.Contains(guide, "`"+match[1]+"`") {
			t.Errorf("docs/guide/troubleshooting.md does not explain the Event %s", match[1])
		}
	}
}
