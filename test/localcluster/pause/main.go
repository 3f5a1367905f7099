// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Command pause is the sandbox container of every pod: it keeps the pod's
// namespaces alive, reaps the zombies that a shared PID namespace leaves to
// PID 1, and ends at once on SIGTERM or SIGINT.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGCHLD)
	for sig := range signals {
		if sig != syscall.SIGCHLD {
			return
		}
		for {
			pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
			if pid <= 0 || err != nil {
				break
			}
		}
	}
}
