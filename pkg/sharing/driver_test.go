// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"os"
	"path/filepath"
	"testing"
)

// On Debian the driver's programs and libraries are reached by absolute links, by way of /etc/alternatives.
func TestAbsoluteLinksAreReadInsideTheDriverRoot(t *testing.T) {
	root, dir := t.TempDir(), filepath.Join(t.TempDir(), "libraries")
	write := func(path string, perm os.FileMode) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, path), []byte(path), perm); err != nil {
			t.Fatal(err)
		}
	}
	symlink := func(target, path string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, filepath.Join(root, path)); err != nil {
			t.Fatal(err)
		}
	}
	write("usr/lib/nvidia/current/nvidia-smi", 0o755)
	symlink("/usr/lib/nvidia/current/nvidia-smi", "etc/alternatives/nvidia--nvidia-smi")
	symlink("/etc/alternatives/nvidia--nvidia-smi", "usr/bin/nvidia-smi")
	write("usr/lib/x86_64-linux-gnu/nvidia/current/libcuda.so.1", 0o644)
	symlink("/usr/lib/x86_64-linux-gnu/nvidia/current/libcuda.so.1", "etc/alternatives/glx--libcuda.so.1")
	symlink("/etc/alternatives/glx--libcuda.so.1", "usr/lib/x86_64-linux-gnu/libcuda.so.1")

	program, err := findProgram(root, "nvidia-smi")
	if want := filepath.Join(root, "usr/lib/nvidia/current/nvidia-smi"); err != nil || program != want {
		t.Errorf("found %s, %v; want %s", program, err, want)
	}
	if _, err := linkLibraries(root, dir); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(filepath.Join(dir, "libcuda.so.1"))
	if err != nil || string(content) != "usr/lib/x86_64-linux-gnu/nvidia/current/libcuda.so.1" {
		t.Errorf("the library that programs are given is %q, %v", content, err)
	}

	symlink("/usr/bin/endless", "usr/bin/endless")
	if program, err := findProgram(root, "endless"); err == nil {
		t.Errorf("found %s at the end of links without an end", program)
	}
}
