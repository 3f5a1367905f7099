// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"fmt"
	"os/exec"
	"strings"
)

// WriteBusybox builds an image of a statically linked busybox with a link for
// each of its commands.
func WriteBusybox(file, tag, busybox string) error {
	output, err := exec.Command(busybox, "--list").Output()
	if err != nil {
		return fmt.Errorf("list the commands of %s: %w", busybox, err)
	}
	entries := []Entry{{Source: busybox, Target: "/bin/busybox", Mode: 0o755}}
	for command := range strings.FieldsSeq(string(output)) {
		if command != "busybox" {
			entries = append(entries, Entry{Target: "/bin/" + command, Link: "/bin/busybox"})
		}
	}
	return Write(file, Spec{Tag: tag, Cmd: []string{"/bin/sh"}, Entries: entries})
}

// WritePause builds the image of the pods' sandbox containers.
func WritePause(file, tag, program string) error {
	return Write(file, Spec{
		Tag:        tag,
		Entrypoint: []string{"/pause"},
		Entries:    []Entry{{Source: program, Target: "/pause", Mode: 0o755}},
	})
}
