// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// libraryPath is a library of the simulated driver.
func (s *simulated) libraryPath(t *testing.T) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(s.DriverRoot(), "usr/lib/*/libcuda.so.*.*"))
	if err != nil || len(found) != 1 {
		t.Fatalf("libcuda is at %v, %v", found, err)
	}
	return found[0]
}

// mountsLibrary says whether containers of the claim get libcuda.
func (s *simulated) mountsLibrary(t *testing.T, claim, library string) bool {
	t.Helper()
	return slices.Contains(hostPaths(readSpec(t, s.specPath(claim))), library)
}

// settled waits until what happened to files is in the past, as their times see it: some milliseconds.
func settled(t testing.TB) {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_REALTIME, &now); err != nil {
		t.Fatal(err)
	}
	for fileTime() <= now.Nano() {
		runtime.Gosched()
	}
}

// An installer copies the driver's files one after the other, and NVML answers before it is through. What was not there when the
// plugin looked first was missing in all containers until the plugin was started anew.
func TestDriverFilesThatComeLater(t *testing.T) {
	s := newSimulated(t, "dgx-a100")
	library := s.libraryPath(t)
	away := filepath.Join(t.TempDir(), "libcuda")
	if err := os.Rename(library, away); err != nil {
		t.Fatal(err)
	}
	settled(t)
	gpus := s.refreshed(t)
	settled(t)
	if s.Moved() {
		t.Error("files have changed before anything happened")
	}
	write(t, s.Writer, "early", devicesOf(gpus[0])...)
	if s.mountsLibrary(t, "early", library) {
		t.Fatal("containers get a library that is not there")
	}

	if err := os.Rename(away, library); err != nil {
		t.Fatal(err)
	}
	if !s.Moved() {
		t.Error("a library has come, and nothing has changed")
	}
	write(t, s.Writer, "late", devicesOf(gpus[0])...)
	if !s.mountsLibrary(t, "late", library) {
		t.Error("containers do not get a library that was there when they were made")
	}
	settled(t)
	write(t, s.Writer, "later", devicesOf(gpus[1])...)
	if s.Moved() {
		t.Error("files have changed after they were looked at")
	}

	if err := os.Rename(library, away); err != nil {
		t.Fatal(err)
	}
	write(t, s.Writer, "without", devicesOf(gpus[0])...)
	if s.mountsLibrary(t, "without", library) {
		t.Error("containers get a library that has gone: they could not be made")
	}
}

// nvcdi also mounts the sockets of daemons. Where a daemon stopped after the plugin had looked, no container could be made any
// more: the runtime does not find what it shall mount.
func TestSocketsOfDaemonsThatComeAndGo(t *testing.T) {
	s := newSimulated(t, "dgx-a100")
	socket := filepath.Join(s.DriverRoot(), "run/nvidia-persistenced/socket")
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		t.Fatal(err)
	}
	gpus := s.refreshed(t)
	begin := func() {
		t.Helper()
		if err := unix.Mknod(socket, unix.S_IFSOCK|0o600, 0); err != nil {
			t.Fatal(err)
		}
	}
	for i, there := range []bool{false, true, true, false} {
		switch i {
		case 1:
			begin()
		case 2: // another daemon, the same path
			if err := os.Remove(socket); err != nil {
				t.Fatal(err)
			}
			begin()
		case 3:
			if err := os.Remove(socket); err != nil {
				t.Fatal(err)
			}
		}
		write(t, s.Writer, "a", devicesOf(gpus[0])...)
		if got := s.mountsLibrary(t, "a", socket); got != there {
			t.Errorf("step %d: containers get the socket: %t, want %t", i, got, there)
		}
		settled(t)
	}
}

// A clock that was set back, or a package that says so, leaves files of the future. They do not change for that.
func TestDriverFilesOfTheFuture(t *testing.T) {
	s := newSimulated(t, "dgx-a100")
	future := time.Now().Add(time.Hour)
	if err := os.Chtimes(filepath.Dir(s.libraryPath(t)), future, future); err != nil {
		t.Fatal(err)
	}
	s.refreshed(t)
	if s.Moved() {
		t.Error("files have changed before anything happened: every claim waits for nvcdi")
	}
}

// What changes while nvcdi looks may have been seen or not.
func TestDriverFilesThatComeMeanwhile(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"usr/bin", "usr/lib"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	settled(t)
	before := &kept{places: placesOf(root, fileTime())}
	began := fileTime()
	if before.moved() {
		t.Error("nothing has happened and files have changed")
	}
	if err := os.WriteFile(filepath.Join(root, "usr/bin/nvidia-smi"), nil, 0o755); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	meanwhile := &kept{places: placesOf(root, began)}
	settled(t)
	after := &kept{places: placesOf(root, fileTime())}
	if !before.moved() || !meanwhile.moved() || after.moved() {
		t.Errorf("changed since before: %t, since meanwhile: %t, since after: %t", before.moved(), meanwhile.moved(), after.moved())
	}
	if err := os.MkdirAll(filepath.Join(root, "lib/firmware/nvidia"), 0o755); err != nil {
		t.Fatal(err)
	}
	if !after.moved() {
		t.Error("a directory that was not there has come, and nothing has changed")
	}
	for _, p := range after.places {
		if !strings.HasPrefix(p.path, root) {
			t.Errorf("%s is looked at, outside the driver's root", p.path)
		}
	}
}
