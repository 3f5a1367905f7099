// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package build

import (
	"debug/elf"
	"path/filepath"
)

// Busybox returns the path of a statically linked busybox, or "".
func Busybox() string {
	for _, path := range []string{"/bin/busybox", "/usr/bin/busybox", "/bin/busybox.static", "/sbin/busybox"} {
		if static(path) {
			return path
		}
	}
	return ""
}

// static reports whether a file is a program without a dynamic loader.
func static(path string) bool {
	f, err := elf.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return false
		}
	}
	return true
}

func anyFile(patterns ...string) bool {
	for _, pattern := range patterns {
		if matches, err := filepath.Glob(pattern); err == nil && len(matches) > 0 {
			return true
		}
	}
	return false
}
