// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package atomicfile replaces files so that a reader sees the old content or the new, never a part,
// and so that what a killed writer leaves can be told from what a live one is writing.
//
// It may import the standard library and golang.org/x/sys only. It exists beside
// github.com/google/renameio for three needs which that library does not meet:
//
//   - the rename apart from the fsync, so that a lock is held over the rename alone;
//   - no fsync where nothing has to outlive a power loss (CDI specs);
//   - temporary files that carry an advisory lock (flock(2)) for as long as their writer lives, so
//     that RemoveStale can run while another process writes into the same directory.
package atomicfile

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// tempSuffix ends the name of every temporary file: "." + base + "." + random + tempSuffix.
const tempSuffix = ".tmp"

// Pending is a temporary file that is going to replace a file. It is not safe for concurrent use.
type Pending struct {
	file   *os.File
	target string
	done   bool
}

// New creates a temporary file beside target with the given permissions, whatever the umask.
// Callers defer Discard.
func New(target string, perm fs.FileMode) (*Pending, error) {
	for {
		pending, err := create(target, perm)
		if !errors.Is(err, errTaken) {
			return pending, err
		}
	}
}

// errTaken says that RemoveStale was faster than the lock on a new file.
var errTaken = errors.New("temporary file was removed before it was locked")

func create(target string, perm fs.FileMode) (*Pending, error) {
	file, err := os.CreateTemp(filepath.Dir(target), "."+filepath.Base(target)+".*"+tempSuffix)
	if err != nil {
		return nil, err
	}
	pending := &Pending{file: file, target: target}
	if err := pending.prepare(perm); err != nil {
		return nil, errors.Join(err, pending.Discard())
	}
	return pending, nil
}

func (p *Pending) prepare(perm fs.FileMode) error {
	switch err := unix.Flock(int(p.file.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		return errTaken
	case err != nil:
		return fmt.Errorf("lock %s: %w", p.file.Name(), err)
	}
	var stat unix.Stat_t
	if err := unix.Fstat(int(p.file.Fd()), &stat); err != nil {
		return fmt.Errorf("stat %s: %w", p.file.Name(), err)
	}
	if stat.Nlink == 0 {
		return errTaken
	}
	return p.file.Chmod(perm)
}

// Write writes to the temporary file.
func (p *Pending) Write(data []byte) (int, error) { return p.file.Write(data) }

// Sync makes what was written outlive a power loss, once the file is in its place and its directory
// synced (SyncDir).
func (p *Pending) Sync() error { return p.file.Sync() }

// Replace puts the temporary file in the place of the target.
func (p *Pending) Replace() error {
	if err := os.Rename(p.file.Name(), p.target); err != nil {
		return err
	}
	p.done = true
	// The content is where readers see it, whatever close(2) says; Sync is what tells about the disk.
	_ = p.file.Close()
	return nil
}

// Discard removes the temporary file; after Replace it does nothing.
func (p *Pending) Discard() error {
	if p.done {
		return nil
	}
	p.done = true
	err := os.Remove(p.file.Name())
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, p.file.Close())
}

// Write replaces target with data. What it wrote is visible at once and survives the death of the
// process, but not a power loss.
func Write(target string, data []byte, perm fs.FileMode) error {
	pending, err := New(target, perm)
	if err != nil {
		return err
	}
	if _, err := pending.Write(data); err != nil {
		return errors.Join(err, pending.Discard())
	}
	if err := pending.Replace(); err != nil {
		return errors.Join(err, pending.Discard())
	}
	return nil
}

// Ensure is Write unless target is a regular file with that content and those permissions already: to look costs far less
// than to create a file.
func Ensure(target string, data []byte, perm fs.FileMode) error {
	if info, err := os.Lstat(target); err == nil && info.Mode() == perm && info.Size() == int64(len(data)) {
		if now, err := os.ReadFile(target); err == nil && bytes.Equal(now, data) {
			return nil
		}
	}
	return Write(target, data, perm)
}

// WriteDurable is Write for what has to survive a power loss as well, once it has returned nil. With an error target may
// have the old content or the new.
func WriteDurable(target string, data []byte, perm fs.FileMode) error {
	pending, err := New(target, perm)
	if err != nil {
		return err
	}
	if _, err := pending.Write(data); err != nil {
		return errors.Join(err, pending.Discard())
	}
	if err := pending.Sync(); err != nil {
		return errors.Join(err, pending.Discard())
	}
	if err := pending.Replace(); err != nil {
		return errors.Join(err, pending.Discard())
	}
	return SyncDir(filepath.Dir(target))
}

// SyncDir makes the creations, renames and removals in a directory outlive a power loss.
func SyncDir(dir string) error {
	file, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(file.Sync(), file.Close())
}

// RemoveStale removes the temporary files in dir whose writer is gone and whose target's base name
// satisfies owned; it returns the names it removed. A directory that does not exist has none.
func RemoveStale(dir string, owned func(base string) bool) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var removed []string
	var errs []error
	for _, entry := range entries {
		base, ok := targetBase(entry.Name())
		if !ok || !entry.Type().IsRegular() || !owned(base) {
			continue
		}
		gone, err := removeUnlocked(filepath.Join(dir, entry.Name()))
		if err != nil {
			errs = append(errs, err)
		}
		if gone {
			removed = append(removed, entry.Name())
		}
	}
	return removed, errors.Join(errs...)
}

// targetBase is the base name of the file that a temporary file of this name was to replace.
func targetBase(name string) (string, bool) {
	rest, dotted := strings.CutPrefix(name, ".")
	rest, suffixed := strings.CutSuffix(rest, tempSuffix)
	end := strings.LastIndexByte(rest, '.')
	if !dotted || !suffixed || end <= 0 {
		return "", false
	}
	return rest[:end], true
}

func removeUnlocked(path string) (bool, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("open temporary file: %w", err)
	}
	defer file.Close()
	switch err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		return false, nil // Its writer lives.
	case err != nil:
		return false, fmt.Errorf("lock %s: %w", path, err)
	}
	switch err := os.Remove(path); {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil // Between the open and the lock its writer put it in place.
	case err != nil:
		return false, fmt.Errorf("remove temporary file: %w", err)
	}
	return true, nil
}
