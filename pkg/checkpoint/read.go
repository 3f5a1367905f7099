// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
)

// fileID changes when a file is replaced or written to.
type fileID struct {
	inode        uint64
	size         int64
	mtime, ctime unix.Timespec
}

func statFile(path string) (fileID, error) {
	var stat unix.Stat_t
	if err := unix.Lstat(path, &stat); err != nil {
		return fileID{}, &fs.PathError{Op: "lstat", Path: path, Err: err}
	}
	return idOf(stat), nil
}

func idOf(stat unix.Stat_t) fileID {
	return fileID{inode: stat.Ino, size: stat.Size, mtime: stat.Mtim, ctime: stat.Ctim}
}

// syncAll brings the entries up to what is on disk. The caller holds mu.
func (s *Store) syncAll() error {
	s.dirLock.lookedAt()
	dir, err := os.Open(s.dir)
	if err != nil {
		return err
	}
	names, err := dir.Readdirnames(-1)
	if err := errors.Join(err, dir.Close()); err != nil {
		return err
	}
	found := make(map[types.UID]struct{}, len(names))
	var errs []error
	for _, name := range names {
		base, ok := strings.CutSuffix(name, fileSuffix)
		if !ok || !validUID(base) {
			continue // Not ours.
		}
		uid := types.UID(base)
		found[uid] = struct{}{}
		if err := s.load(uid); err != nil {
			errs = append(errs, err)
		}
	}
	for uid := range s.index.entries {
		if _, ok := found[uid]; !ok {
			s.index.drop(uid)
		}
	}
	s.noteAside(s.namesAside(), s.onQuarantine)
	return errors.Join(errs...)
}

// load brings one entry up to what is on disk; damage is moved aside. Its errors are those of a
// process or a node without resources, under which nothing can be said about the file. The caller
// holds mu.
func (s *Store) load(uid types.UID) error {
	path := s.path(uid)
	if now, err := statFile(path); err == nil && s.index.entries[uid].file == now {
		return nil
	}
	record, file, err := readRecord(path, uid)
	var damage *damageError
	switch {
	case err == nil:
		s.index.set(entry{record, file})
		return nil
	case errors.Is(err, fs.ErrNotExist):
		s.index.drop(uid)
		return nil
	case errors.As(err, &damage):
		s.index.drop(uid)
		return s.moveAside(uid)
	default:
		return err
	}
}

// readRecord reads one file. Errors other than *damageError and fs.ErrNotExist say nothing about it.
func readRecord(path string, uid types.UID) (Record, fileID, error) {
	// Nonblocking, so that a FIFO in the place of the file does not hold us up.
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return Record{}, fileID{}, unreadable(err)
	}
	defer file.Close()
	var stat unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &stat); err != nil {
		return Record{}, fileID{}, unreadable(err)
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFREG {
		return Record{}, fileID{}, damaged(NotRegular, "it is not a regular file")
	}
	if stat.Size > maxFile {
		return Record{}, fileID{}, damaged(Malformed, "it has %d bytes; a record has at most %d", stat.Size, maxFile)
	}
	data, err := io.ReadAll(io.LimitReader(file, maxFile))
	if err != nil {
		return Record{}, fileID{}, unreadable(err)
	}
	record, err := decode(data)
	if err != nil {
		return Record{}, fileID{}, err
	}
	if record.ClaimUID != uid {
		return Record{}, fileID{}, damaged(WrongName, "it is the record of claim UID %s", record.ClaimUID)
	}
	return record, idOf(stat), nil
}

// unreadable tells a file that is damaged from a process that may not open any file now.
func unreadable(err error) error {
	switch {
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENXIO):
		return damaged(NotRegular, "%w", err)
	case errors.Is(err, unix.EIO), errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM), errors.Is(err, unix.EUCLEAN):
		return damaged(Unreadable, "%w", err)
	default:
		return fmt.Errorf("read checkpoint record: %w", err)
	}
}
