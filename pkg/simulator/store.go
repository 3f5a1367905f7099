// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	stateFile = "state.json"
	lockFile  = "lock"
)

// fileStamp tells versions of the state file apart without reading it. Every write sets a new
// modification time, so two versions differ even when the file system gives the same inode again.
type fileStamp struct {
	inode uint64
	size  int64
	mtime int64
}

func stampOf(path string) (fileStamp, error) {
	info, err := os.Stat(path)
	if err != nil {
		return fileStamp{}, err
	}
	stamp := fileStamp{size: info.Size(), mtime: info.ModTime().UnixNano()}
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		stamp.inode = sys.Ino
	}
	return stamp, nil
}

// readState reads the state file and its stamp. The stamp is taken first: a file that is replaced in
// between is read again next time.
func readState(dir string) (State, fileStamp, error) {
	path := filepath.Join(dir, stateFile)
	stamp, err := stampOf(path)
	if errors.Is(err, fs.ErrNotExist) {
		return State{}, fileStamp{}, fmt.Errorf("%s holds no simulated node: %w", dir, err)
	}
	if err != nil {
		return State{}, fileStamp{}, err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return State{}, fileStamp{}, err
	}
	s, err := decodeState(data)
	if err != nil {
		return State{}, fileStamp{}, fmt.Errorf("state file %s: %w", path, err)
	}
	return s, stamp, nil
}

func writeState(dir string, s State) error {
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return replaceFile(filepath.Join(dir, stateFile), append(data, '\n'), 0o644)
}

// unfinished is what the names of files begin with that are being written.
const unfinished = ".unfinished-"

// removeUnfinished removes files below a directory that were never finished. The caller holds the lock,
// so nobody is writing one.
func removeUnfinished(dir string) error {
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasPrefix(entry.Name(), unfinished) {
			return err
		}
		return remove(path)
	})
}

// replaceFile puts a file in place as a whole. Unlike renameio it does not wait for the disk: a simulated
// node survives the death of every process, and need not survive a power failure.
//
// The modification time is set to the nanosecond, because fileStamp relies on it.
func replaceFile(path string, content []byte, mode os.FileMode) (err error) {
	file, err := os.CreateTemp(filepath.Dir(path), unfinished+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(file.Name()) // the first error is the one to tell
		}
	}()
	_, err = file.Write(content)
	if err := errors.Join(err, file.Chmod(mode), file.Close()); err != nil {
		return err
	}
	now := time.Now()
	if err := os.Chtimes(file.Name(), now, now); err != nil {
		return err
	}
	return os.Rename(file.Name(), path)
}

// withLock calls fn while no other process changes the node.
func withLock(dir string, fn func() error) (err error) {
	lock, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	// Closing gives the lock back.
	defer func() { err = errors.Join(err, lock.Close()) }()
	for {
		err := unix.Flock(int(lock.Fd()), unix.LOCK_EX)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("lock %s: %w", lock.Name(), err)
		}
	}
	return fn()
}
