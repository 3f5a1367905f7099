// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/switchyard-dev/switchyard/internal/atomicfile"
)

// fileOps are the steps of a write that a full or broken disk can fail at; tests make them fail.
type fileOps interface {
	create(target string) (pendingFile, error)
	syncDir(dir string) error
	remove(path string) error
}

// pendingFile is *atomicfile.Pending.
type pendingFile interface {
	io.Writer
	Sync() error
	Replace() error
	Discard() error
}

type osFiles struct{}

func (osFiles) create(target string) (pendingFile, error) { return atomicfile.New(target, filePerm) }
func (osFiles) syncDir(dir string) error                  { return atomicfile.SyncDir(dir) }
func (osFiles) remove(path string) error                  { return os.Remove(path) }

// dirLock excludes other processes from changing the directory, and tells whether they have. It is
// not safe for concurrent use: Store.mu guards it.
type dirLock struct {
	file *os.File
	held bool
	// seen is the count of changes up to which the entries are known to be complete.
	seen uint64
	// count is what the file said when the lock was taken.
	count uint64
}

const lockName = ".lock"

func openDirLock(dir string) (*dirLock, error) {
	file, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, filePerm)
	if err != nil {
		return nil, err
	}
	return &dirLock{file: file}, nil
}

func (l *dirLock) close() error { return l.file.Close() }

// withLock calls do while no other process holds the lock. It may be nested. The kernel releases the
// lock of a process that dies.
func (l *dirLock) withLock(do func() error) error {
	if l.held {
		return do()
	}
	if err := flock(l.file, unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock checkpoint directory: %w", err)
	}
	l.held = true
	defer func() { l.held = false }()
	err := l.readCount()
	if err == nil {
		err = do()
	}
	return errors.Join(err, flock(l.file, unix.LOCK_UN))
}

func (l *dirLock) readCount() error {
	var count [8]byte
	// A new file is shorter; what is missing counts as zero.
	if _, err := l.file.ReadAt(count[:], 0); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read lock of checkpoint directory: %w", err)
	}
	l.count = binary.LittleEndian.Uint64(count[:])
	return nil
}

// othersChanged reports whether another process may have changed a file since lookedAt. The caller
// holds the lock.
func (l *dirLock) othersChanged() bool { return l.seen != l.count }

// lookedAt notes that the caller is about to read everything. Without the lock it promises nothing.
func (l *dirLock) lookedAt() {
	if l.held {
		l.seen = l.count
	}
}

// announceChange counts a change that is about to be made, so that a process that dies between the
// two costs the others one look in vain. The caller holds the lock.
func (l *dirLock) announceChange() error {
	var count [8]byte
	binary.LittleEndian.PutUint64(count[:], l.count+1)
	if _, err := l.file.WriteAt(count[:], 0); err != nil {
		return fmt.Errorf("write lock of checkpoint directory: %w", err)
	}
	if l.seen == l.count {
		l.seen++
	}
	l.count++
	return nil
}

func flock(file *os.File, how int) error {
	for {
		err := unix.Flock(int(file.Fd()), how)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
