// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

var writers = map[string]func(string, []byte, fs.FileMode) error{"Write": Write, "Ensure": Ensure, "WriteDurable": WriteDurable}

func TestWriteReplacesWhole(t *testing.T) {
	for name, write := range writers {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			target := filepath.Join(dir, "a.json")
			for _, content := range []string{"a longer first content", "second", ""} {
				if err := write(target, []byte(content), 0o644); err != nil {
					t.Fatal(err)
				}
				got, err := os.ReadFile(target)
				if err != nil || string(got) != content {
					t.Errorf("read %q, %v; want %q", got, err, content)
				}
			}
			if got := names(t, dir); !slices.Equal(got, []string{"a.json"}) {
				t.Errorf("directory holds %v", got)
			}
		})
	}
}

func TestEnsureWritesOnlyWhatIsNotThere(t *testing.T) {
	for name, test := range map[string]struct {
		change func(target string) error
		writes bool
	}{
		"the same":          {change: func(string) error { return nil }},
		"gone":              {change: os.Remove, writes: true},
		"other content":     {change: func(target string) error { return os.WriteFile(target, []byte("damaged"), 0o644) }, writes: true},
		"shorter":           {change: func(target string) error { return os.Truncate(target, 3) }, writes: true},
		"other permissions": {change: func(target string) error { return os.Chmod(target, 0o600) }, writes: true},
		"a link to the same": {change: func(target string) error {
			return errors.Join(os.Rename(target, target+".moved"), os.Symlink(target+".moved", target))
		}, writes: true},
	} {
		t.Run(name, func(t *testing.T) {
			target := filepath.Join(t.TempDir(), "a.json")
			write := func() fs.FileInfo {
				t.Helper()
				if err := Ensure(target, []byte("content"), 0o644); err != nil {
					t.Fatal(err)
				}
				info, err := os.Lstat(target)
				if err != nil {
					t.Fatal(err)
				}
				return info
			}
			before := write()
			// Holds on to the inode, so that no other file can have its number.
			open, err := os.Open(target)
			if err != nil {
				t.Fatal(err)
			}
			defer open.Close()
			if err := test.change(target); err != nil {
				t.Fatal(err)
			}
			after := write()
			if os.SameFile(before, after) == test.writes {
				t.Errorf("written anew: %v, want %v", !test.writes, test.writes)
			}
			if content, err := os.ReadFile(target); err != nil || string(content) != "content" || after.Mode() != 0o644 {
				t.Errorf("the file is %q with %v, %v", content, after.Mode(), err)
			}
		})
	}
}

func TestPermissionsDoNotDependOnUmask(t *testing.T) {
	defer unix.Umask(unix.Umask(0o077))
	target := filepath.Join(t.TempDir(), "a.json")
	if err := Write(target, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(target)
	if err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("mode is %v, %v; want -rw-r--r--", info.Mode(), err)
	}
}

func TestWriteThatFailsLeavesNothing(t *testing.T) {
	for name, target := range map[string]string{
		"the directory is missing":    "missing/a.json",
		"a directory is in the place": "dir",
	} {
		for writer, write := range writers {
			t.Run(writer+": "+name, func(t *testing.T) {
				root := t.TempDir()
				if err := os.Mkdir(filepath.Join(root, "dir"), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := write(filepath.Join(root, target), []byte("x"), 0o600); err == nil {
					t.Error("no error")
				}
				if got := names(t, root); !slices.Equal(got, []string{"dir"}) {
					t.Errorf("directory holds %v", got)
				}
			})
		}
	}
}

func TestDiscardAfterReplaceKeepsTheFile(t *testing.T) {
	target := filepath.Join(t.TempDir(), "a.json")
	pending, err := New(target, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := pending.Replace(); err != nil {
		t.Fatal(err)
	}
	if err := pending.Discard(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(target); err != nil {
		t.Error(err)
	}
}

func TestRemoveStale(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{".mine.json.123.tmp", ".mine.json.tmp", ".other.json.123.tmp", "mine.json.123.tmp", ".mine.json.123", "mine.json"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, ".mine.json.9.tmp"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("mine.json", filepath.Join(dir, ".mine.json.8.tmp")); err != nil {
		t.Fatal(err)
	}
	live, err := New(filepath.Join(dir, "mine.json"), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	removed, err := RemoveStale(dir, func(base string) bool { return base == "mine.json" })
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{".mine.json.123.tmp"}; !slices.Equal(removed, want) {
		t.Errorf("removed %v, want %v", removed, want)
	}
	if _, err := live.Write([]byte("live")); err != nil {
		t.Error(err)
	}
	if err := live.Replace(); err != nil {
		t.Errorf("the live writer was disturbed: %v", err)
	}
	want := []string{".mine.json.123", ".mine.json.8.tmp", ".mine.json.9.tmp", ".mine.json.tmp", ".other.json.123.tmp", "mine.json", "mine.json.123.tmp"}
	if got := names(t, dir); !slices.Equal(got, want) {
		t.Errorf("directory holds %v, want %v", got, want)
	}
}

func TestRemoveStaleWithoutDirectory(t *testing.T) {
	removed, err := RemoveStale(filepath.Join(t.TempDir(), "missing"), func(string) bool { return true })
	if err != nil || len(removed) != 0 {
		t.Errorf("got %v, %v", removed, err)
	}
}

// A cleaner may run between the creation of a temporary file and its lock: the writer then takes
// another name and never loses what it writes.
func TestWritersSurviveACleanerInALoop(t *testing.T) {
	dir := t.TempDir()
	stop, stopped := make(chan struct{}), make(chan error)
	go func() {
		for {
			select {
			case <-stop:
				stopped <- nil
				return
			default:
			}
			if _, err := RemoveStale(dir, func(string) bool { return true }); err != nil {
				stopped <- err
				return
			}
		}
	}()
	for range 500 {
		if err := Write(filepath.Join(dir, "a.json"), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if got := names(t, dir); !slices.Equal(got, []string{"a.json"}) {
		t.Errorf("directory holds %v", got)
	}
}

func TestSyncDir(t *testing.T) {
	if err := SyncDir(t.TempDir()); err != nil {
		t.Error(err)
	}
	err := SyncDir("/does/not/exist")
	if err == nil || !strings.Contains(err.Error(), "/does/not/exist") {
		t.Errorf("error %v does not name the directory", err)
	}
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	got := make([]string, 0, len(entries))
	for _, entry := range entries {
		got = append(got, entry.Name())
	}
	slices.SortFunc(got, strings.Compare)
	return got
}
