// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package frugal keeps programs small that allocate little and live long: memory is worth more in a cluster than
// the collector's time. It imports the standard library only.
package frugal

import (
	"os"
	"runtime/debug"
)

// gcPercent makes the collector start at one and a half times the live heap.
const gcPercent = 50

// Start sets the collector up; $GOGC takes precedence.
func Start() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
}

// GiveBack returns to the system what is not in use any more, after work that will not come again. It stops the
// program for as long as a collection takes.
func GiveBack() { debug.FreeOSMemory() }
