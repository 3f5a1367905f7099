// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build crashpoints

package kubeletplugin

import (
	"os"
	"strings"
	"syscall"
)

// crashFileEnv names a file that holds the crash point at which to die. A process that reaches the
// point removes the file and kills itself with SIGKILL, so that it dies once and the restarted one
// goes on: write the name of a step into the file to arm it.
const crashFileEnv = "SWITCHYARD_CRASH_FILE"

func crashAt(point crashPoint) {
	path := os.Getenv(crashFileEnv)
	if path == "" {
		return
	}
	armed, err := os.ReadFile(path)
	if err != nil || crashPoint(strings.TrimSpace(string(armed))) != point {
		return
	}
	if err := os.Remove(path); err != nil {
		return // another goroutine was first, or we would die again and again
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	// The first process of a PID namespace cannot kill itself. Leaving runs nothing that is deferred either.
	os.Exit(128 + int(syscall.SIGKILL))
}
