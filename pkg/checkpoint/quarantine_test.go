// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	clocktesting "k8s.io/utils/clock/testing"
)

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// A corrupt checkpoint was a silent crash loop. It is moved aside and reported, never deleted, and the
// other claims do not notice.
func TestFieldCase05_DamageIsMovedAsideAndReported(t *testing.T) {
	good, err := encode(record("a", "gpu-0"))
	if err != nil {
		t.Fatal(err)
	}
	flipped := bytes.Replace(good, []byte("gpu-0"), []byte("gpu-1"), 1)
	withHeader := func(old, new string) []byte { return bytes.Replace(good, []byte(old), []byte(new), 1) }
	resealed := func(r Record) []byte { data, _ := encode(r); return data }
	invalid := record("a", "gpu-0")
	invalid.State = "Done"

	for name, test := range map[string]struct {
		put    func(t *testing.T, path string)
		reason Reason
		says   string
	}{
		"an empty file":               {content(nil), Truncated, "empty"},
		"a file cut in its header":    {content(good[:20]), Truncated, "header"},
		"a file cut in its record":    {content(good[:len(good)-20]), Truncated, "bytes"},
		"a header alone":              {content(good[:bytes.IndexByte(good, '\n')+1]), Truncated, "has 0 of"},
		"a changed byte":              {content(flipped), ChecksumMismatch, "sha256"},
		"zeroes after a power loss":   {content(make([]byte, len(good))), Malformed, "header"},
		"one long line":               {content(bytes.Repeat([]byte("x"), 4096)), Malformed, "header"},
		"text":                        {content([]byte("hello\nworld\n")), Malformed, "header"},
		"another format":              {content(withHeader(formatName, "kubelet/checkpoint")), Malformed, "format"},
		"something after the record":  {content(append(slices.Clip(good), "{}\n"...)), Malformed, "3 bytes follow"},
		"a newer version":             {content(withHeader(`"version":1`, `"version":2`)), UnknownVersion, "version 2"},
		"no version":                  {content(withHeader(`"version":1,`, ``)), UnknownVersion, "version 0"},
		"a record of another claim":   {content(resealed(record("b", "gpu-0"))), WrongName, "claim UID b"},
		"a state that does not exist": {content(resealed(invalid)), Invalid, `state "Done"`},
		"a huge file": {func(t *testing.T, path string) {
			write(t, path, nil)
			if err := os.Truncate(path, maxFile+1); err != nil {
				t.Fatal(err)
			}
		}, Malformed, "at most"},
		"a directory": {func(t *testing.T, path string) {
			if err := os.MkdirAll(filepath.Join(path, "sub"), 0o700); err != nil {
				t.Fatal(err)
			}
		}, NotRegular, "regular"},
		"a symbolic link to a good record": {func(t *testing.T, path string) {
			target := filepath.Join(t.TempDir(), "a.json")
			write(t, target, good)
			if err := os.Symlink(target, path); err != nil {
				t.Fatal(err)
			}
		}, NotRegular, "symbolic links"},
		"a dangling symbolic link": {func(t *testing.T, path string) {
			if err := os.Symlink("nowhere", path); err != nil {
				t.Fatal(err)
			}
		}, NotRegular, "symbolic links"},
		"a FIFO": {func(t *testing.T, path string) {
			if err := unix.Mkfifo(path, 0o600); err != nil {
				t.Fatal(err)
			}
		}, NotRegular, "regular"},
		"a socket": {func(t *testing.T, path string) {
			listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
			if err != nil {
				t.Fatal(err)
			}
			listener.SetUnlinkOnClose(false)
			_ = listener.Close()
		}, NotRegular, "no such device"},
	} {
		t.Run(name, func(t *testing.T) {
			dir, err := os.MkdirTemp("", "q") // its path has to be short, for the socket
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			healthy := record("healthy", "gpu-7")
			put(t, open(t, dir), healthy)
			path := filepath.Join(dir, "a.json")
			test.put(t, path)
			before, err := os.Lstat(path)
			if err != nil {
				t.Fatal(err)
			}

			now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
			var handled []Quarantine
			s := open(t, dir, WithClock(clocktesting.NewFakePassiveClock(now)), WithQuarantineHandler(func(q Quarantine) { handled = append(handled, q) }))

			found := s.Quarantined()
			if len(found) != 1 || len(handled) != 1 {
				t.Fatalf("quarantined %v, handled %v; want one", found, handled)
			}
			q := found[0]
			if q.ClaimUID != "a" || q.File != path || q.Reason != test.reason || !q.Time.Equal(now) || !strings.Contains(q.Err.Error(), test.says) {
				t.Errorf("quarantine is %+v; want %s with %q", q, test.reason, test.says)
			}
			after, err := os.Lstat(q.MovedTo)
			if err != nil || !os.SameFile(before, after) || filepath.Dir(q.MovedTo) != filepath.Join(dir, corruptDir) {
				t.Errorf("moved to %q (%v), not the same file in corrupt/", q.MovedTo, err)
			}
			wantNone(t, s, "a")
			wantRecord(t, s, healthy)

			// Rebuilt from the API server, it is a record like any other; and the next start is silent.
			rebuilt := record("a", "gpu-0")
			put(t, s, rebuilt)
			s = open(t, dir)
			wantRecord(t, s, rebuilt)
			if again := s.Quarantined(); len(again) != 0 {
				t.Errorf("the next start quarantined %v", again)
			}
		})
	}
}

func content(data []byte) func(*testing.T, string) {
	return func(t *testing.T, path string) { write(t, path, data) }
}

func TestDamageOfARunningStoreIsFoundByGet(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	put(t, s, record("a", "gpu-0"))
	write(t, filepath.Join(dir, "a.json"), []byte("oops"))
	wantNone(t, s, "a")
	if got := s.Quarantined(); len(got) != 1 || got[0].ClaimUID != "a" {
		t.Errorf("quarantined %v", got)
	}
	put(t, s, record("b", "gpu-0")) // What has no record holds no device.
}

// In a rolling update a record that the other process moves aside is damaged, not deleted: the claim's pod may run.
func TestDamageThatAnotherProcessFindsIsTold(t *testing.T) {
	for name, look := range map[string]func(*Store){
		"by Get":  func(s *Store) { s.Get("a") },
		"by List": func(s *Store) { s.List() },
	} {
		for _, known := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, known before: %t", name, known), func(t *testing.T) {
				dir := t.TempDir()
				var told, toldOther []Quarantine
				s := open(t, dir, WithQuarantineHandler(func(q Quarantine) { told = append(told, q) }))
				other := open(t, dir, WithQuarantineHandler(func(q Quarantine) { toldOther = append(toldOther, q) }))
				put(t, other, record("a", "gpu-0"))
				if known {
					s.List()
				}
				write(t, filepath.Join(dir, "a.json"), []byte("oops"))
				wantNone(t, other, "a")
				for range 2 {
					look(s)
					other.List()
				}
				if len(told) != 1 || told[0].ClaimUID != "a" || told[0].Reason != MovedByOther {
					t.Errorf("told of %+v, want that another process moved it aside", told)
				}
				if len(toldOther) != 1 || toldOther[0].Reason != Malformed {
					t.Errorf("the other is told of %+v, want of what it moved aside", toldOther)
				}
				if again := s.Quarantined(); len(again) != 0 {
					t.Errorf("moved aside %+v", again)
				}
				open(t, dir, WithQuarantineHandler(func(q Quarantine) { t.Errorf("a process that starts later is told of %+v", q) })).List()
			})
		}
	}
}

func TestNothingInCorruptIsOverwritten(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, WithClock(clocktesting.NewFakePassiveClock(time.Unix(0, 0))))
	for i := range 3 {
		write(t, filepath.Join(dir, "a.json"), fmt.Appendf(nil, "damage %d", i))
		wantNone(t, s, "a")
	}
	if got := files(t, filepath.Join(dir, corruptDir)); len(got) != 3 {
		t.Errorf("corrupt/ holds %v, want three files", got)
	}
}

func TestDamageThatCannotBeMovedIsReportedOnceAndReplaced(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, corruptDir), nil) // A file where the directory should be.
	write(t, filepath.Join(dir, "a.json"), []byte("oops"))
	s := open(t, dir)
	wantNone(t, s, "a")
	_ = s.List()
	found := s.Quarantined()
	if len(found) != 1 || found[0].MovedTo != "" || !strings.Contains(found[0].Err.Error(), "move it aside") {
		t.Fatalf("quarantined %+v", found)
	}
	want := record("a", "gpu-0")
	put(t, s, want)
	wantRecord(t, open(t, dir), want)
}

func TestUnreadableFilesAreDamage(t *testing.T) {
	for _, err := range []error{unix.EIO, unix.EACCES, unix.EPERM, unix.EUCLEAN} {
		if got := unreadable(err); !strings.HasPrefix(got.Error(), string(Unreadable)) {
			t.Errorf("%v: %v", err, got)
		}
	}
}
