// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"debug/elf"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Binaries returns the entries for programs and all shared libraries that the
// dynamic loader would give them on this machine. Programs go to /usr/bin,
// libraries to the paths where the loader looks for them.
func Binaries(programs ...string) ([]Entry, error) {
	var entries []Entry
	for _, program := range programs {
		entries = append(entries, Entry{Source: program, Target: "/usr/bin/" + filepath.Base(program), Mode: 0o755})
		libraries, err := Libraries(program)
		if err != nil {
			return nil, err
		}
		for _, library := range libraries {
			entry := Entry{Source: library, Target: library}
			if !slices.Contains(entries, entry) {
				entries = append(entries, entry)
			}
		}
	}
	return entries, nil
}

// Libraries returns the shared libraries of a program, its loader included.
// A statically linked program has none.
func Libraries(program string) ([]string, error) {
	f, err := elf.Open(program)
	if err != nil {
		return nil, fmt.Errorf("program %s: %w: only ELF programs of this machine can be put into an image", program, err)
	}
	defer f.Close()
	if !slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		return nil, nil
	}
	output, err := exec.Command("ldd", program).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("list shared libraries of %s: %w: %s", program, err, strings.TrimSpace(string(output)))
	}
	libraries, err := parseLdd(string(output))
	if err != nil {
		return nil, fmt.Errorf("list shared libraries of %s: %w", program, err)
	}
	return libraries, nil
}

// lddLine matches "libc.so.6 => /lib/.../libc.so.6 (0x...)" and
// "/lib64/ld-linux-x86-64.so.2 (0x...)".
var lddLine = regexp.MustCompile(`^\s*(?:\S+ => )?(/\S+) \(0x[0-9a-f]+\)$`)

func parseLdd(output string) ([]string, error) {
	var libraries []string
	for line := range strings.Lines(output) {
		line = strings.TrimRight(line, "\n")
		if name, _, missing := strings.Cut(line, " => not found"); missing {
			return nil, fmt.Errorf("shared library %s is not installed", strings.TrimSpace(name))
		}
		if m := lddLine.FindStringSubmatch(line); m != nil {
			libraries = append(libraries, m[1])
		}
	}
	slices.Sort(libraries)
	return slices.Compact(libraries), nil
}
